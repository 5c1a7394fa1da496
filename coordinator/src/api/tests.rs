//! The router over the real state machine in memory: the contract's envelopes as clients see them.

mod command_line;
mod forwarding;
mod grpc;
mod maintenance;
mod operations;
mod operator;
mod planning;
mod postgres;
mod rest;

use std::{net::SocketAddr, sync::Arc};

use axum::body::Body;
use http::{Request, StatusCode};
use shardplane_model::state::Scope;
use tower::ServiceExt as _;

use shardplane_proto::v1;

use super::{fake::Fake, json::Node};
use crate::secrets;

const ALL: [Scope; 4] = [Scope::Read, Scope::Write, Scope::SecretsRead, Scope::Operator];

/// A router with a token to ask with.
struct Asking {
    fake: Arc<Fake>,
    router: axum::Router,
    token: String,
}

impl Asking {
    fn new() -> Self {
        let fake = Fake::new();
        let token = fake.token(&ALL);
        let bug = axum::Router::new()
            .route("/bug", axum::routing::get(|| async { panic!("a bug of the test") as String }));
        let router = fake.api().router(bug);
        Self { fake, router, token }
    }

    /// Asks and checks that the answer is JSON.
    async fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> (StatusCode, Node) {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let response =
            self.router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/json", "{method} {path}");
        assert_eq!(response.headers()["cache-control"], "no-store", "{method} {path}");
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    async fn as_admin(&self, method: &str, path: &str, body: &str) -> (StatusCode, Node) {
        self.ask(method, path, &self.token, body).await
    }

    /// Posts what our own `kc` posts.
    async fn post_as_ours(&self, body: &str) -> Node {
        let request = Request::post("/api/v1/cli")
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .header("user-agent", format!("{}1", super::OUR_CLIENT))
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Runs a command of `kc`; follows a file order with `file`.
    async fn kc(&self, words: &str, file: Option<&str>) -> Node {
        let args: Vec<&str> = words.split_whitespace().collect();
        let body =
            serde_json::json!({ "args": args, "retryParams": null, "editApply": null, "fileContent": file });
        let (status, answer) = self.as_admin("POST", "/api/v1/cli", &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{words}: {answer:?}");
        answer
    }
}

/// Serves a router on a port of its own.
async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn text<'a>(node: &'a Node, names: &[&str]) -> &'a str {
    node.at(names).and_then(Node::text).unwrap_or_default()
}

fn members(node: &Node) -> Vec<&str> {
    node.members().iter().map(|(name, _)| name.as_str()).collect()
}

/// A Valkey body over a subnet.
fn valkey(id: &str, subnet: &str, password: &str) -> String {
    serde_json::json!({
        "metadata": { "id": id, "name": "cache" },
        "spec": {
            "shards": [{ "id": "01k0000000000000000000000s", "vpcSubnetId": subnet }],
            "replicasPerShard": 1, "rootPassword": password, "valkeyVersion": "8.1.9",
            "vmOfferId": "g3-1c1-100", "volumeOfferId": "gp3-750", "volumeSizeGiB": 10
        }
    })
    .to_string()
}

//! Two members: one leads, the other passes on. Both protocols, streams, loops and a leader that is gone.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use shardplane_proto::v1::resources_client::ResourcesClient;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::*;
use crate::api::store::Standing;

/// A leader and a follower that share nothing but the leader's address.
async fn two() -> (Asking, Asking, SocketAddr) {
    let (leader, follower) = (Asking::new(), Asking::new());
    let at = serve(leader.router.clone()).await;
    follower.fake.standing.send_replace(Standing::Follows { leader: Some(at.to_string()) });
    let address = serve(follower.router.clone()).await;
    (leader, follower, address)
}

async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: &str,
    passed_on: bool,
) -> (u16, http::HeaderMap, Node) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"));
    if passed_on {
        request = request.header("x-shardplane-forwarded", "1");
    }
    let response =
        client.request(request.body(Full::new(bytes::Bytes::from(body.to_owned()))).unwrap()).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, headers, serde_json::from_slice(&body).unwrap())
}

const BODY: &str = r#"{"metadata":{"id":"01k0000000000000000000000f","name":"a"}}"#;
const PATH: &str = "/api/v1/folder/01k0000000000000000000000f";

#[tokio::test]
async fn a_follower_passes_rest_on_and_answers_for_itself_what_is_its_own() {
    let (leader, follower, address) = two().await;
    let (status, _, _) = ask(address, "PUT", "/api/v1/folder", &leader.token, BODY, false).await;
    assert_eq!(status, 200);
    let (status, headers, answer) = ask(address, "GET", PATH, &leader.token, "", false).await;
    assert_eq!((status, text(&answer, &["resource", "metadata", "name"])), (200, "a"));
    assert_eq!(headers["cache-control"], "no-store");
    assert!(super::super::store::Store::local(&*follower.fake).resources.is_empty());
    let (status, _, health) = ask(address, "GET", "/healthz", "", "", false).await;
    assert_eq!((status, text(&health, &["role"])), (200, "follower"));
}

#[tokio::test]
async fn without_a_leader_the_answer_is_retryable_and_in_the_envelope() {
    let (leader, follower, address) = two().await;
    let unavailable = async |passed_on: bool| {
        let (status, headers, answer) = ask(address, "GET", PATH, &leader.token, "", passed_on).await;
        assert_eq!((status, text(&answer, &["errorCode"])), (503, "Unknown"), "{answer:?}");
        assert_eq!(members(&answer), ["resource", "errorMessage", "errorCode"]);
        assert_eq!(headers["retry-after"], "1");
    };
    // Passed on once already: not again.
    unavailable(true).await;
    follower.fake.standing.send_replace(Standing::Follows { leader: None });
    unavailable(false).await;
    // Nobody listens where the leader should be.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = gone.local_addr().unwrap();
    drop(gone);
    follower.fake.standing.send_replace(Standing::Follows { leader: Some(nowhere.to_string()) });
    unavailable(false).await;
    let (status, _, health) = ask(address, "GET", "/healthz", "", "", false).await;
    assert_eq!((status, text(&health, &["leader"])), (200, nowhere.to_string().as_str()));
}

#[tokio::test]
async fn a_connection_that_breaks_is_retryable_only_where_twice_is_as_good_as_once() {
    let (leader, follower, address) = two().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    follower
        .fake
        .standing
        .send_replace(Standing::Follows { leader: Some(listener.local_addr().unwrap().to_string()) });
    // A leader that takes requests and dies.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut some = [0; 64];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut some).await;
        }
    });
    let (status, _, answer) = ask(address, "PUT", "/api/v1/folder", &leader.token, BODY, false).await;
    assert_eq!((status, text(&answer, &["errorCode"])), (503, "Unknown"));
    let token = r#"{"name":"x","scopes":["read"]}"#;
    let (status, _, answer) = ask(address, "POST", "/api/v1/tokens", &leader.token, token, false).await;
    assert_eq!(status, 422, "{answer:?}");
    assert!(text(&answer, &["errorMessage"]).contains("may have been carried out"));
    let (status, _, answer) =
        ask(address, "POST", "/api/v1/cli", &leader.token, r#"{"args":["get","vpc"]}"#, false).await;
    assert_eq!((status, answer.get("rc")), (200, Some(&Node::Integer(1))));
}

#[tokio::test]
async fn grpc_and_its_streams_pass_through() {
    let (leader, _follower, address) = two().await;
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut resources = ResourcesClient::new(channel);
    let signed = |list: v1::ListRequest| {
        let mut request = tonic::Request::new(list);
        request.metadata_mut().insert("authorization", format!("Bearer {}", leader.token).parse().unwrap());
        request
    };
    let list = || v1::ListRequest { r#type: "folder".to_owned(), ..Default::default() };
    assert!(resources.list(signed(list())).await.unwrap().into_inner().resources.is_empty());
    // A refusal arrives in trailers.
    let refused = resources.list(signed(v1::ListRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    let mut watch = resources.watch(signed(list())).await.unwrap().into_inner();
    ask(address, "PUT", "/api/v1/folder", &leader.token, BODY, false).await;
    let event = timeout(Duration::from_secs(10), watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(event.id, "01k0000000000000000000000f");
    leader.fake.standing.send_replace(Standing::Follows { leader: None });
    let ended = timeout(Duration::from_secs(10), watch.message()).await.unwrap().unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn an_election_is_waited_for() {
    let (leader, follower, address) = two().await;
    let at = follower.fake.standing.borrow().clone();
    follower.fake.standing.send_replace(Standing::Follows { leader: None });
    let asked = ask(address, "PUT", "/api/v1/folder", &leader.token, BODY, false);
    let elected = async {
        tokio::task::yield_now().await;
        follower.fake.standing.send_replace(at);
    };
    let ((status, _, answer), ()) = tokio::join!(asked, elected);
    assert_eq!((status, text(&answer, &["resourceId"])), (200, "01k0000000000000000000000f"));
}

#[tokio::test]
async fn a_large_body_of_a_caller_that_only_the_leader_knows_passes_through() {
    let (leader, _follower, address) = two().await;
    let name = "a".repeat(200_000);
    let body = format!(r#"{{"metadata":{{"id":"01k0000000000000000000000f","name":"{name}"}}}}"#);
    let (status, _, answer) = ask(address, "PUT", "/api/v1/folder", &leader.token, &body, false).await;
    assert_eq!((status, text(&answer, &["errorCode"])), (400, "BadData"));
    assert!(text(&answer, &["errorMessage"]).starts_with("metadata.name: "), "{answer:?}");
    let (status, _, answer) = ask(address, "PUT", "/api/v1/folder", "wrong", &body, false).await;
    assert_eq!((status, text(&answer, &["errorCode"])), (401, "Unauthorized"));
}

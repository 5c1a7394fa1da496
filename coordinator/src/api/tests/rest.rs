//! REST: envelopes, codes, no-ops, paging, secrets.

use super::*;

const VPC: &str = "01k0000000000000000000000v";
const SUBNET: &str = "01k0000000000000000000000n";
const CLUSTER: &str = "01k0000000000000000000000c";

async fn with_cluster() -> Asking {
    let asking = Asking::new();
    let vpc = format!(r#"{{"metadata":{{"id":"{VPC}","name":"net"}},"spec":{{}}}}"#);
    let subnet = format!(
        r#"{{"metadata":{{"id":"{SUBNET}","name":"sub"}},"spec":{{"vpcId":"{VPC}","ipv4Cidr":"10.0.0.0/24"}}}}"#
    );
    for (path, body) in
        [("vpc", vpc), ("vpc-subnet", subnet), ("valkey", valkey(CLUSTER, SUBNET, "p@ss word"))]
    {
        let (status, answer) = asking.as_admin("PUT", &format!("/api/v1/{path}"), &body).await;
        assert_eq!((status, text(&answer, &["errorMessage"])), (StatusCode::OK, ""));
    }
    asking
}

#[tokio::test]
async fn envelopes_have_exactly_their_members_in_good_and_bad() {
    let asking = with_cluster().await;
    let change = ["requestId", "resourceId", "errorMessage", "errorCode"];
    let read = ["resource", "errorMessage", "errorCode"];
    let list = ["pagination", "resources", "errorMessage", "errorCode"];
    let poll = ["succeeded", "scheduledResourceId", "errorMessage", "errorCode"];
    let body = r#"{"metadata":{"id":"01k0000000000000000000000z","name":"a"}}"#;
    for (method, path, body, status, expected, code) in [
        ("PUT", "/api/v1/folder", body, 200, &change[..], ""),
        ("PUT", "/api/v1/folder", "{}", 400, &change, "MissingIdField"),
        ("PUT", "/api/v1/folder", r#"{"id":"01k0000000000000000000000z"}"#, 400, &change, "MissingNameField"),
        ("PUT", "/api/v1/folder", "{", 400, &change, "BadData"),
        ("PUT", "/api/v1/nothing", "{}", 422, &change, "NotFound"),
        ("DELETE", "/api/v1/vpc/01k00000000000000000000000", "", 422, &change, "NotFound"),
        ("DELETE", "/api/v1/vpc", "", 400, &change, "BadData"),
        ("GET", "/api/v1/vpc/01k0000000000000000000000v", "", 200, &read, ""),
        ("GET", "/api/v1/vpc/01K0000000000000000000000V", "", 200, &read, ""),
        ("GET", "/api/v1/vpc/what", "", 422, &read, "NotFound"),
        ("GET", "/api/v1/vpc/%ff", "", 400, &read, "BadData"),
        ("GET", "/api/v1/nothing/01k0000000000000000000000v", "", 422, &read, "NotFound"),
        ("POST", "/api/v1/vpc/01k0000000000000000000000v", "", 400, &read, "BadData"),
        ("GET", "/api/v1/vpc/get-by-labels", "", 200, &list, ""),
        ("GET", "/api/v1/nothing/get-by-labels", "", 422, &list, "BadData"),
        ("GET", "/api/v1/vpc/get-by-labels?maxPageSize=101", "", 400, &list, "PageSizeTooBig"),
        ("GET", "/api/v1/vpc/get-by-labels?enumeratorId=x", "", 422, &list, "EnumeratorNotFound"),
        ("GET", "/api/v1/vpc/request/01k0000000000000000000000v", "", 422, &poll, "NotFound"),
        ("GET", "/", "", 422, &["errorMessage", "errorCode"], "NotFound"),
        ("GET", "/bug", "", 500, &["errorMessage", "errorCode"], "Unknown"),
        ("PUT", "/api/v1/hosts", "", 400, &["errorMessage", "errorCode"], "BadData"),
    ] {
        let (given, answer) = asking.as_admin(method, path, body).await;
        assert_eq!(given.as_u16(), status, "{method} {path} {answer:?}");
        assert_eq!(members(&answer), expected, "{method} {path}");
        assert_eq!(text(&answer, &["errorCode"]), code, "{method} {path}");
        assert_eq!(text(&answer, &["errorMessage"]).is_empty(), code.is_empty(), "{method} {path}");
    }
}

#[tokio::test]
async fn tokens_and_scopes_are_asked_for_on_every_route() {
    let asking = Asking::new();
    let reader = asking.fake.token(&[Scope::Read]);
    for (method, path) in [
        ("PUT", "/api/v1/vpc"),
        ("DELETE", "/api/v1/vpc/x"),
        ("GET", "/api/v1/vpc/x"),
        ("GET", "/api/v1/vpc/get-by-labels"),
        ("GET", "/api/v1/vpc/request/x"),
        ("GET", "/api/v1/hosts"),
        ("GET", "/api/v1/catalogue"),
        ("POST", "/api/v1/tokens"),
    ] {
        for token in ["", "wrong", "sp_01arz3ndektsv4rrffq69g5fav_AAAA"] {
            let (status, answer) = asking.ask(method, path, token, "").await;
            assert_eq!(
                (status.as_u16(), text(&answer, &["errorCode"])),
                (401, "Unauthorized"),
                "{method} {path}"
            );
        }
    }
    for (method, path) in [
        ("PUT", "/api/v1/vpc"),
        ("DELETE", "/api/v1/vpc/x"),
        ("GET", "/api/v1/hosts"),
        ("POST", "/api/v1/tokens"),
    ] {
        let (status, answer) = asking.ask(method, path, &reader, "").await;
        assert_eq!(
            (status.as_u16(), text(&answer, &["errorCode"])),
            (403, "Unauthorized"),
            "{method} {path}"
        );
        assert!(text(&answer, &["errorMessage"]).contains("needs the scope"));
    }
}

#[tokio::test]
async fn an_equal_put_is_answered_as_before_and_another_one_waits() {
    let asking = with_cluster().await;
    let put = async |body: String| asking.as_admin("PUT", "/api/v1/valkey", &body).await;
    let applied = *super::super::store::Store::applied(&*asking.fake).borrow();
    let (_, first) = put(valkey(CLUSTER, SUBNET, "p@ss word")).await;
    let (status, second) = put(valkey(&CLUSTER.to_uppercase(), SUBNET, "p@ss word")).await;
    assert_eq!((status, &second), (StatusCode::OK, &first));
    assert_eq!(text(&first, &["resourceId"]), CLUSTER);
    assert_eq!(
        *super::super::store::Store::applied(&*asking.fake).borrow(),
        applied,
        "nothing was written to the log"
    );
    let changed = valkey(CLUSTER, SUBNET, "p@ss word").replace("\"cache\"", "\"renamed\"");
    let (status, answer) = put(changed).await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (409, "ResourceIsScheduling"));
    let (_, poll) =
        asking.as_admin("GET", &format!("/api/v1/valkey/request/{}", text(&first, &["requestId"])), "").await;
    assert_eq!(poll.get("succeeded"), Some(&Node::Bool(false)));
    assert_eq!((text(&poll, &["scheduledResourceId"]), text(&poll, &["errorCode"])), (CLUSTER, ""));
}

#[tokio::test]
async fn the_password_is_for_tokens_with_its_scope_and_for_reads_alone() {
    let asking = with_cluster().await;
    let path = format!("/api/v1/valkey/{CLUSTER}");
    let (_, shown) = asking.as_admin("GET", &path, "").await;
    assert_eq!(text(&shown, &["resource", "spec", "rootPassword"]), "p@ss word");
    assert_eq!(text(&shown, &["resource", "status", "password"]), "p@ss word");
    let reader = asking.fake.token(&[Scope::Read]);
    let (_, hidden) = asking.ask("GET", &path, &reader, "").await;
    assert_eq!(hidden.at(&["resource", "spec", "rootPassword"]), Some(&Node::Null));
    assert_eq!(hidden.at(&["resource", "status", "password"]), Some(&Node::Null));
    let (_, listed) = asking.as_admin("GET", "/api/v1/valkey/get-by-labels", "").await;
    for words in [
        "get valkey -o json",
        "get valkey -o yaml",
        "get valkey -o wide",
        "describe valkey cache",
        "get event",
    ] {
        let answer = asking.kc(words, None).await;
        assert!(!format!("{answer:?}").contains("p@ss"), "{words}");
    }
    assert!(!format!("{listed:?}").contains("p@ss"));
    let (_, edit) = (0, asking.kc("edit valkey cache", None).await);
    assert!(!format!("{edit:?}").contains("p@ss"));
}

#[tokio::test]
async fn a_walk_of_pages_sees_each_resource_once() {
    let asking = Asking::new();
    for number in 0..23 {
        let env = if number % 2 == 0 { "dev" } else { "prod" };
        let body = format!(
            r#"{{"metadata":{{"id":"01k00000000000000000000{number:03}","name":"f{number}","labels":{{"env":"{env}"}}}}}}"#
        );
        asking.as_admin("PUT", "/api/v1/folder", &body).await;
    }
    let mut seen = Vec::new();
    let mut next = String::new();
    loop {
        let path =
            format!("/api/v1/folder/get-by-labels?labels%5Benv%5D=d*&maxPageSize=5&enumeratorId={next}");
        let (_, page) = asking.as_admin("GET", &path, "").await;
        seen.extend(
            page.get("resources").unwrap().items().iter().map(|r| text(r, &["metadata", "id"]).to_owned()),
        );
        next = text(&page, &["pagination", "enumeratorId"]).to_owned();
        if next.is_empty() {
            break;
        }
        // Another filter or type does not take it.
        for other in ["/api/v1/folder/get-by-labels", "/api/v1/vpc/get-by-labels"] {
            let (_, refused) = asking.as_admin("GET", &format!("{other}?enumeratorId={next}"), "").await;
            assert_eq!(text(&refused, &["errorCode"]), "EnumeratorNotFound", "{other}");
        }
    }
    assert_eq!(seen.len(), 12);
    assert!(seen.is_sorted());
    let (_, first) = asking.as_admin("GET", "/api/v1/folder/get-by-labels?label.env=prod", "").await;
    assert_eq!(first.get("resources").unwrap().items().len(), 10, "ten is the default");
}

#[tokio::test]
async fn a_made_token_works_with_its_scopes() {
    let asking = Asking::new();
    let (status, made) =
        asking.as_admin("POST", "/api/v1/tokens", r#"{"name":"ci","scopes":["read","read"]}"#).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = asking.ask("GET", "/api/v1/vpc/get-by-labels", text(&made, &["token"]), "").await;
    assert_eq!(status, StatusCode::OK);
    for body in [
        "{}",
        r#"{"name":"x","scopes":[]}"#,
        r#"{"name":"x","scopes":["root"]}"#,
        r#"{"name":" ","scopes":["read"]}"#,
        "[",
        r#"{"nam":1}"#,
    ] {
        let (status, answer) = asking.as_admin("POST", "/api/v1/tokens", body).await;
        assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (400, "BadData"), "{body}");
    }
}

#[tokio::test]
async fn members_tell_how_they_are_without_a_token() {
    let asking = Asking::new();
    let (status, answer) = asking.ask("GET", "/healthz", "", "").await;
    assert_eq!((status, text(&answer, &["role"])), (StatusCode::OK, "leader"));
    let (status, document) = asking.ask("GET", "/openapi.json", "", "").await;
    assert_eq!((status, text(&document, &["openapi"])), (StatusCode::OK, "3.1.0"));
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let response = asking.router.clone().oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let metrics = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(
        metrics.contains("shardplane_leader 1\n")
            && metrics.contains("shardplane_hosts{state=\"Ready\"} 0\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn large_bodies_of_strangers_are_not_read_and_slow_ones_not_for_ever() {
    let asking = Asking::new();
    let large = format!("{{\"x\":\"{}\"}}", "a".repeat(100_000));
    for token in ["", "wrong"] {
        for (method, path) in [("PUT", "/api/v1/folder"), ("POST", "/api/v1/tokens"), ("POST", "/api/v1/cli")]
        {
            let (status, _) = asking.ask(method, path, token, &large).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
        }
    }
    let (status, answer) = asking.as_admin("PUT", "/api/v1/folder", &large).await;
    assert!(text(&answer, &["errorMessage"]).contains("x: is not a member"), "{status} {answer:?}");
    let request = Request::put("/api/v1/folder")
        .header("authorization", format!("Bearer {}", asking.token))
        .body(Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>()))
        .unwrap();
    let response = asking.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_folder_cannot_hold_itself() {
    let asking = Asking::new();
    let put = async |id: &str, folder: &str| {
        let body = serde_json::json!({ "metadata": { "id": id, "name": id, "folderId": folder } });
        let (status, answer) = asking.as_admin("PUT", "/api/v1/folder", &body.to_string()).await;
        (status.as_u16(), text(&answer, &["errorMessage"]).to_owned())
    };
    let [a, b] = ["01k0000000000000000000000a", "01k0000000000000000000000b"];
    assert_eq!(put(a, "").await.0, 200);
    assert_eq!(put(b, a).await.0, 200);
    for folder in [a, b] {
        let (status, message) = put(a, folder).await;
        assert_eq!(status, 400);
        assert!(message.contains("metadata.folderId: is this folder or one inside it"), "{message}");
    }
}

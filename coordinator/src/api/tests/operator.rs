//! What operators do: forgetting hosts, tokens.

use std::net::Ipv4Addr;

use shardplane_model::{
    command::{Command, Decision, Notice},
    state::{Footprint, HostFacts},
};
use shardplane_proto::{ids::HostId, v1::operator_client::OperatorClient};

use super::{
    grpc::{connected, signed},
    *,
};

/// A host of this name; lost when it shall be.
pub fn host(asking: &Asking, number: u128, name: &str, lost: bool) -> String {
    let host = HostId::from_u128(number);
    let facts = HostFacts {
        name: name.to_owned(),
        rack: String::new(),
        zone: String::new(),
        underlay: Ipv4Addr::LOCALHOST,
        capacity: Footprint { vcpu_percent: 800, memory_mib: 8192, disk_gib: 100, iops: 9000 },
        images: Vec::new(),
        vmm: "namespace".to_owned(),
        agent_version: "1".to_owned(),
        boot_id: String::new(),
        conditions: Vec::new(),
    };
    let mut commands = vec![Command::Notice(Notice::Host { host, facts })];
    if lost {
        commands.push(Command::Decide(Decision::DeclareLost { host, message: "silent".to_owned() }));
    }
    for answer in asking.fake.apply(commands) {
        answer.unwrap();
    }
    host.to_string()
}

#[tokio::test]
async fn a_lost_host_is_forgotten_and_no_other() {
    let asking = Asking::new();
    let (lost, there) = (host(&asking, 1, "h1", true), host(&asking, 2, "h2", false));
    let writer = asking.fake.token(&[Scope::Read, Scope::Write]);
    let of = |id: &str| format!("/api/v1/hosts/{id}");
    let (status, answer) = asking.ask("DELETE", &of(&lost), &writer, "").await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (403, "Unauthorized"));
    let (status, answer) = asking.as_admin("DELETE", &of(&there), "").await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (400, "BadData"));
    assert!(text(&answer, &["errorMessage"]).contains("h2 is not lost"), "{answer:?}");
    let (status, answer) = asking.as_admin("DELETE", &of(&lost.to_uppercase()), "").await;
    assert_eq!((status, members(&answer)), (StatusCode::OK, vec!["id", "name"]));
    assert_eq!((text(&answer, &["id"]), text(&answer, &["name"])), (lost.as_str(), "h1"));
    for id in [lost.as_str(), "x", "01k0000000000000000000000z"] {
        let (status, answer) = asking.as_admin("DELETE", &of(id), "").await;
        assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (422, "NotFound"), "{id}");
    }
    let (_, events) = asking.as_admin("GET", "/api/v1/events?filter=host/", "").await;
    assert!(format!("{events:?}").contains("HostForgotten"), "{events:?}");
}

#[tokio::test]
async fn kc_forgets_hosts_by_name_and_by_id() {
    let asking = Asking::new();
    let (first, second) = (host(&asking, 1, "h1", true), host(&asking, 2, "h2", true));
    host(&asking, 3, "h3", false);
    host(&asking, 4, "twin", true);
    host(&asking, 5, "twin", true);
    for (words, part) in [
        ("delete host h1 nope", "there is no host \"nope\""),
        ("delete host h3", "h3 is not lost"),
        ("delete host twin", "multiple hosts named \"twin\""),
        ("delete instance x", "there is no instance"),
        ("delete catalogue g3-1c1-100", "not deleted"),
        ("delete host", "what?"),
    ] {
        let answer = asking.kc(words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(text(&answer, &["stderr"]).contains(part), "{words}: {answer:?}");
    }
    let answer = asking.kc(&format!("rm hosts h1 {second} h3"), None).await;
    assert_eq!(text(&answer, &["stdout"]), "host/h1 forgotten\nhost/h2 forgotten\n");
    assert_eq!(answer.get("rc"), Some(&Node::Integer(1)));
    assert!(text(&answer, &["stderr"]).contains("h3 is not lost"), "{answer:?}");
    let left = asking.kc("get host -q", None).await;
    assert!(!text(&left, &["stdout"]).contains(&first), "{left:?}");
}

#[tokio::test]
async fn tokens_are_listed_without_their_secrets_and_taken_back() {
    let asking = Asking::new();
    let body = r#"{"name":"ci","scopes":["read"]}"#;
    let (_, made) = asking.as_admin("POST", "/api/v1/tokens", body).await;
    let (id, token) = (text(&made, &["id"]), text(&made, &["token"]));
    let (_, list) = asking.as_admin("GET", "/api/v1/tokens", "").await;
    assert_eq!(list.get("items").unwrap().items().len(), 2);
    let hash = asking.fake.api().store.local().tokens[&id.parse::<shardplane_proto::ids::TokenId>().unwrap()]
        .hash
        .clone();
    let shown = asking.kc("get token -o json", None).await;
    for secret in [token, &hash, token.rsplit('_').next().unwrap()] {
        assert!(!format!("{list:?}{shown:?}").contains(secret));
    }
    let (_, one) = asking.as_admin("GET", "/api/v1/tokens?filter=ci", "").await;
    let one = one.get("items").unwrap().items()[0].clone();
    assert_eq!(members(&one), ["id", "name", "scopes", "createTime"]);
    assert_eq!(one.get("scopes").unwrap().items(), [Node::from("read")]);

    let list = "/api/v1/folder/get-by-labels";
    assert_eq!(asking.ask("GET", list, token, "").await.0, StatusCode::OK);
    let path = format!("/api/v1/tokens/{id}");
    assert_eq!(asking.ask("DELETE", &path, token, "").await.0, StatusCode::FORBIDDEN);
    assert_eq!(asking.ask("GET", "/api/v1/tokens", token, "").await.0, StatusCode::FORBIDDEN);
    let (status, answer) = asking.as_admin("DELETE", &path, "").await;
    assert_eq!((status, text(&answer, &["name"])), (StatusCode::OK, "ci"));
    assert_eq!(asking.ask("GET", list, token, "").await.0, StatusCode::UNAUTHORIZED);
    let (status, answer) = asking.as_admin("DELETE", &path, "").await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (422, "NotFound"));
    let (_, events) = asking.as_admin("GET", "/api/v1/events?filter=token/", "").await;
    assert!(format!("{events:?}").contains("TokenRevoked"), "{events:?}");
}

#[tokio::test]
async fn the_last_token_of_an_operator_stays() {
    let asking = Asking::new();
    let answer = asking.kc("delete token tester", None).await;
    assert!(text(&answer, &["stderr"]).contains("last one with the scope operator"), "{answer:?}");
    let second = asking.fake.token(&[Scope::Operator]);
    let mut operator = OperatorClient::new(connected(&asking).await);
    let first = secrets::token_id_of(&asking.token).unwrap().to_string();
    let revoke = v1::RevokeTokenRequest { id: first };
    operator.revoke_token(signed(&asking.token, revoke)).await.unwrap();
    let list = v1::OperatorListRequest::default();
    let refused = operator.list_tokens(signed(&asking.token, list.clone())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert_eq!(operator.list_tokens(signed(&second, list)).await.unwrap().into_inner().items.len(), 1);
    let id = host(&asking, 1, "h1", true);
    let forget = v1::ForgetHostRequest { id };
    assert_eq!(operator.forget_host(signed(&second, forget)).await.unwrap().into_inner().name, "h1");
}

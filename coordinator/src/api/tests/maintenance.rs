//! Closing, opening and emptying hosts, by REST, gRPC and the command line.

use shardplane_proto::v1::operator_client::OperatorClient;

use super::{
    grpc::{connected, signed},
    operator::host,
    *,
};

#[tokio::test]
async fn a_host_is_closed_opened_and_emptied_by_rest() {
    let asking = Asking::new();
    let id = host(&asking, 1, "h1", false);
    let at = |verb: &str| format!("/api/v1/hosts/{id}:{verb}");
    let writer = asking.fake.token(&[Scope::Read, Scope::Write]);
    for verb in ["cordon", "uncordon", "drain"] {
        let (status, _) = asking.ask("POST", &at(verb), &writer, "").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{verb}");
    }
    for (path, body, status, part) in [
        (at("cordon"), r#"{"forSeconds":99999999}"#, 400, "allowed is up to"),
        (at("cordon"), r#"{"until":"x"}"#, 400, "forSeconds"),
        (at("drain"), r#"{"reason":"a\nb"}"#, 400, "control characters"),
        (at("nothing"), "", 422, "cordon, uncordon and drain"),
        (format!("/api/v1/hosts/{id}"), "", 400, ":cordon"),
        ("/api/v1/hosts/x:cordon".to_owned(), "", 422, "there is no host"),
    ] {
        let (given, answer) = asking.as_admin("POST", &path, body).await;
        assert_eq!(given.as_u16(), status, "{path} {answer:?}");
        assert!(text(&answer, &["errorMessage"]).contains(part), "{path} {answer:?}");
    }
    let (status, answer) = asking.as_admin("GET", &format!("/api/v1/hosts/{id}/drain"), "").await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (422, "NotFound"));
    let body = r#"{"reason":"new disks","forSeconds":3600}"#;
    let (status, answer) = asking.as_admin("POST", &at("cordon"), body).await;
    assert_eq!((status, text(&answer, &["name"])), (StatusCode::OK, "h1"));
    assert_eq!(text(&answer, &["cordon", "reason"]), "new disks");
    assert!(!text(&answer, &["cordon", "untilTime"]).is_empty(), "{answer:?}");
    let (_, answer) = asking.as_admin("POST", &at("drain"), "").await;
    assert_eq!(
        (text(&answer, &["cordon", "reason"]), text(&answer, &["drain", "phase"])),
        ("new disks", "draining")
    );
    let (status, answer) = asking.as_admin("GET", &format!("/api/v1/hosts/{id}/drain"), "").await;
    assert_eq!((status, answer.get("left")), (StatusCode::OK, Some(&Node::Integer(0))), "{answer:?}");
    let of = async |path: String| asking.as_admin("GET", &path, "").await;
    let (status, plan) = of(format!("{}?what=loss", at("plan"))).await;
    assert_eq!((status, text(&plan, &["what"]), text(&plan, &["host"])), (StatusCode::OK, "loss", "h1"));
    let (status, answer) = of(at("plan")).await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (400, "BadData"));
    assert_eq!(text(&of(format!("/api/v1/hosts/{id}")).await.1, &["name"]), "h1");
    let (_, answer) = asking.as_admin("POST", &at("uncordon"), "").await;
    assert!(text(&answer, &["cordon", "by"]).is_empty() && text(&answer, &["drain", "phase"]).is_empty());
    let (_, events) = asking.as_admin("GET", "/api/v1/events?filter=host/", "").await;
    for reason in ["HostCordoned", "HostDraining", "HostUncordoned"] {
        assert!(format!("{events:?}").contains(reason), "{events:?}");
    }
}

#[tokio::test]
async fn kc_closes_empties_and_opens_hosts_by_name() {
    let asking = Asking::new();
    host(&asking, 1, "h1", false);
    for (words, part) in [
        ("cordon", "which host?"),
        ("cordon nope", "there is no host \"nope\""),
        ("cordon h1 --force", "--force is not a flag"),
        ("cordon h1 --for soon", "for example 2h"),
        ("drain h1 --for 2h", "--for is not a flag"),
        ("plan h1", "kc plan drain"),
        ("plan lunch h1", "allowed is drain or loss"),
    ] {
        let answer = asking.kc(words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(text(&answer, &["stderr"]).contains(part), "{words}: {answer:?}");
    }
    let said = async |words: &str| {
        let answer = asking.kc(words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(0)), "{words}: {answer:?}");
        text(&answer, &["stdout"]).to_owned()
    };
    assert!(said("cordon h1 --for 2h --reason disks").await.starts_with("host/h1 cordoned until 2"));
    let wide = said("get host -o wide").await;
    assert!(
        wide.contains("Silent,Cordoned,NoImage")
            && wide.contains("by tester since")
            && wide.contains(": disks")
    );
    assert_eq!(said("cordon h1").await, "host/h1 cordoned until kc uncordon h1\n");
    assert!(said("drain h1").await.contains("nothing is left there"));
    assert!(said("get host").await.contains("Silent,Draining"));
    assert!(said("plan drain h1").await.contains("ANTI-AFFINITY"));
    assert_eq!(said("uncordon h1").await, "host/h1 uncordoned\n");
    assert!(said("get host").await.contains("Silent,NoImage"));
}

#[tokio::test]
async fn the_same_by_grpc() {
    let asking = Asking::new();
    let id = host(&asking, 1, "h1", false);
    let mut operator = OperatorClient::new(connected(&asking).await);
    let cordon = v1::CordonHostRequest { id: id.clone(), reason: "disks".to_owned(), for_seconds: 60 };
    let host = operator.cordon_host(signed(&asking.token, cordon)).await.unwrap().into_inner();
    assert_eq!(host.cordon.unwrap().reason, "disks");
    let drain = v1::DrainHostRequest { id: id.clone(), force: true, ..Default::default() };
    let host = operator.drain_host(signed(&asking.token, drain)).await.unwrap().into_inner();
    assert!(host.drain.unwrap().force);
    let asks = v1::PlanHostRequest { id: id.clone(), what: "drain".to_owned(), ..Default::default() };
    let plan = operator.plan_host(signed(&asking.token, asks)).await.unwrap().into_inner();
    assert_eq!((plan.host.as_str(), plan.moves.len()), ("h1", 0));
    let open = v1::UncordonHostRequest { id: id.clone() };
    let host = operator.uncordon_host(signed(&asking.token, open)).await.unwrap().into_inner();
    assert!(host.cordon.is_none() && host.drain.is_none());
    let none = v1::UncordonHostRequest { id: "x".to_owned() };
    let refused = operator.uncordon_host(signed(&asking.token, none)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

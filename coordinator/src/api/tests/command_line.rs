//! The command line: what the client is told, command by command.

use super::*;

/// A folder, a network and a cluster of one shard without replicas.
pub const STACK: &str = "
kind: Folder
metadata: {name: app}
---
kind: Vpc
metadata: {name: net, folderId: app}
---
kind: subnet
metadata: {name: sub, folderId: app}
spec: {vpcId: net, ipv4Cidr: 10.0.0.0/24}
---
kind: Valkey
metadata: {name: cache, folderId: app}
spec:
  shards: [{id: 01k0000000000000000000000s, vpcSubnetId: sub}]
  replicasPerShard: 0
  rootPassword: hunter2
  valkeyVersion: 8.1.9
  vmOfferId: g3-1c1-100
  volumeOfferId: gp3-750
  volumeSizeGiB: 10
";

fn stdout(answer: &Node) -> &str {
    text(answer, &["stdout"])
}

#[tokio::test]
async fn a_manifest_is_asked_for_and_applied_in_order_with_names_for_ids() {
    let asking = Asking::new();
    let answer = asking.kc("apply -f ~/stack.yaml", None).await;
    assert_eq!(text(&answer, &["readFile", "path"]), "~/stack.yaml");
    let answer = asking.kc("apply -f x", Some(STACK)).await;
    assert_eq!(
        stdout(&answer),
        "Folder/app applied\nVpc/net applied\nVpcSubnet/sub applied\nValkey/cache applied\n"
    );
    assert_eq!((answer.get("rc"), text(&answer, &["stderr"])), (Some(&Node::Integer(0)), ""));
    let again = asking.kc("apply -f x", Some(STACK)).await;
    assert_eq!(stdout(&again).matches("(nothing changed)").count(), 4, "{again:?}");
    // What get shows has no password, and applying it changes nothing.
    let shown = asking.kc("get all -o yaml", None).await;
    let again = asking.kc("apply -f x", Some(stdout(&shown))).await;
    assert_eq!(stdout(&again).matches("(nothing changed)").count(), 4, "{again:?}");
    let json = asking.kc("get all -o json", None).await;
    let again = asking.kc("apply -f x -q", Some(stdout(&json))).await;
    assert_eq!(stdout(&again), stdout(&asking.kc("get all -q", None).await));
}

#[tokio::test]
async fn a_refused_document_stops_the_rest_and_says_every_violation() {
    let asking = Asking::new();
    let text_of = "kind: Folder\nmetadata: {name: a}\n---\nkind: Vpc\nmetadata: {name: b, x: 1}\nspec: {y: 2}\n---\nkind: Folder\nmetadata: {name: c}\n";
    let answer = asking.kc("apply -f x", Some(text_of)).await;
    assert_eq!((stdout(&answer), answer.get("rc")), ("Folder/a applied\n", Some(&Node::Integer(1))));
    let stderr = text(&answer, &["stderr"]);
    assert!(stderr.contains("Vpc/b was not applied: 2 things are not right:\n  metadata.x: "), "{stderr}");
    assert!(stderr.contains("\n  spec.y: "), "{stderr}");
    assert!(!stdout(&asking.kc("get folder", None).await).contains(" c "));
    let unnamed =
        asking.kc("apply -f x", Some("kind: VpcSubnet\nmetadata: {name: s}\nspec: {vpcId: gone}")).await;
    assert!(
        text(&unnamed, &["stderr"]).contains("spec.vpcId: there is no Vpc named \"gone\""),
        "{unnamed:?}"
    );
}

#[tokio::test]
async fn ambiguous_names_list_the_matches() {
    let asking = Asking::new();
    for id in ["01k0000000000000000000000a", "01k0000000000000000000000b"] {
        asking
            .as_admin("PUT", "/api/v1/vpc", &format!(r#"{{"metadata":{{"id":"{id}","name":"twin"}}}}"#))
            .await;
    }
    for (words, file) in [
        ("get vpc twin", None),
        ("delete vpc twin", None),
        ("apply -f x", Some("kind: Vpc\nmetadata: {name: twin}")),
        (
            "apply -f x",
            Some("kind: VpcSubnet\nmetadata: {name: s}\nspec: {vpcId: twin, ipv4Cidr: 10.0.0.0/24}"),
        ),
    ] {
        let answer = asking.kc(words, file).await;
        let stderr = text(&answer, &["stderr"]);
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(
            stderr.contains("01k0000000000000000000000a") && stderr.contains("01k0000000000000000000000b"),
            "{stderr}"
        );
    }
    let one = asking.kc("get vpc 01K0000000000000000000000B -o json", None).await;
    assert!(stdout(&one).contains("01k0000000000000000000000b") && !stdout(&one).contains("items"));
}

#[tokio::test]
async fn waiting_goes_on_until_the_change_is_done() {
    let asking = Asking::new();
    let answer = asking.kc("apply -f x -w", Some("kind: Vpc\nmetadata: {name: net}")).await;
    assert_eq!((stdout(&answer), answer.get("retryParams")), ("Vpc/net applied\n", Some(&Node::Null)));
    asking.kc("apply -f x", Some(STACK)).await;
    let answer = asking.kc("delete vk cache -w", None).await;
    let retry = answer.get("retryParams").unwrap();
    assert_eq!((stdout(&answer), text(retry, &["type"])), ("", "valkey"));
    assert!(text(&answer, &["stderr"]).starts_with("Valkey/cache: "), "{answer:?}");
    let body = |retry: &Node| {
        format!(
            r#"{{"args":["delete","vk","cache","-w"],"retryParams":{}}}"#,
            serde_json::to_string(retry).unwrap()
        )
    };
    let (_, answer) = asking.as_admin("POST", "/api/v1/cli", &body(retry)).await;
    assert_eq!(answer.get("retryParams"), Some(retry));
    let cluster = text(retry, &["resourceId"]).parse().unwrap();
    let gone = shardplane_model::command::Decision::Remove { cluster };
    asking.fake.apply(vec![shardplane_model::command::Command::Decide(gone)]);
    let (_, answer) = asking.as_admin("POST", "/api/v1/cli", &body(retry)).await;
    assert_eq!((stdout(&answer), answer.get("retryParams")), ("Valkey/cache deleted\n", Some(&Node::Null)));
}

#[tokio::test]
async fn an_edited_text_is_applied_or_comes_back_with_the_reason() {
    let asking = Asking::new();
    asking.kc("apply -f x", Some("kind: Vpc\nmetadata: {name: net}")).await;
    let edit = asking.kc("edit vpc net", None).await;
    let (content, id) = (text(&edit, &["edit", "content"]), text(&edit, &["edit", "resourceId"]));
    assert!(content.contains("name: net") && !content.contains("status"), "{content}");
    let send = async |content: String| {
        let body = serde_json::json!({"args": ["edit", "vpc", "net"], "editApply": {"type": "vpc", "resourceId": id, "content": content}});
        asking.as_admin("POST", "/api/v1/cli", &body.to_string()).await.1
    };
    let answer = send(content.replace("name: net", "name: other")).await;
    assert_eq!((stdout(&answer), answer.get("edit")), ("Vpc/other edited\n", Some(&Node::Null)));
    for (content, part) in [
        (content.replace("name: net", "nam: net"), "metadata.nam"),
        (content.replace(id, "01k0000000000000000000000a"), "cannot change"),
        (content.replace("kind: Vpc", "kind: Folder"), "cannot change"),
        ("a: [".to_owned(), "not valid YAML"),
    ] {
        let answer = send(content.clone()).await;
        assert!(text(&answer, &["edit", "error"]).contains(part), "{answer:?}");
        assert_eq!(text(&answer, &["edit", "content"]), content);
    }
}

#[tokio::test]
async fn a_manifest_is_deleted_from_its_end() {
    let asking = Asking::new();
    let stack: String = STACK.split("---\n").take(3).collect::<Vec<_>>().join("---\n");
    asking.kc("apply -f x", Some(&stack)).await;
    let answer = asking.kc("delete -f x", Some(&stack)).await;
    assert_eq!(stdout(&answer), "VpcSubnet/sub deleted\nVpc/net deleted\nFolder/app deleted\n", "{answer:?}");
    let answer = asking.kc("delete -f x", Some(&stack)).await;
    assert_eq!(answer.get("rc"), Some(&Node::Integer(0)), "{answer:?}");
}

#[tokio::test]
async fn what_needs_an_action_of_the_client_has_a_status_and_all_else_a_code() {
    let asking = Asking::new();
    let (status, answer) = asking.ask("POST", "/api/v1/cli", "wrong", r#"{"args":["get","vpc"]}"#).await;
    assert_eq!((status.as_u16(), answer.get("rc")), (401, Some(&Node::Integer(1))));
    let (status, _) = asking.ask("POST", "/api/v1/cli", "wrong", r#"{"args":["logout"]}"#).await;
    assert_eq!(status.as_u16(), 205);
    let reader = asking.fake.token(&[Scope::Read]);
    for words in [
        r#"["get","host"]"#,
        r#"["delete","vpc","x"]"#,
        r#"["get","nothing"]"#,
        r#"["get","vpc","x"]"#,
        r#"["frob"]"#,
    ] {
        let (status, answer) =
            asking.ask("POST", "/api/v1/cli", &reader, &format!("{{\"args\":{words}}}")).await;
        assert_eq!((status.as_u16(), answer.get("rc")), (200, Some(&Node::Integer(1))), "{words}");
        assert!(text(&answer, &["stderr"]).starts_with("error: "), "{words}");
    }
    asking.fake.standing.send_replace(super::super::store::Standing::Follows { leader: None });
    let (status, answer) = asking.as_admin("POST", "/api/v1/cli", r#"{"args":["get","vpc"]}"#).await;
    assert_eq!((status.as_u16(), answer.get("rc")), (503, Some(&Node::Integer(1))));
}

#[tokio::test]
async fn tables_show_what_there_is() {
    let asking = Asking::new();
    asking.kc("apply -f x", Some(STACK)).await;
    let table = asking.kc("get subnet -n app", None).await;
    let lines: Vec<&str> = stdout(&table).lines().collect();
    assert!(lines[0].starts_with("NAME   ID ") && lines[0].ends_with("AGE"), "{lines:?}");
    assert!(
        lines[1].starts_with("sub    01") && lines[1].contains("   stable   net   10.0.0.0/24   "),
        "{lines:?}"
    );
    let none = asking.kc("get paramset,provider", None).await;
    assert_eq!(none.get("rc"), Some(&Node::Integer(1)));
    let none = asking.kc("get vk-paramset", None).await;
    assert_eq!((stdout(&none), text(&none, &["stderr"])), ("", "No resources found.\n"));
    let offers = asking.kc("get offers", None).await;
    assert!(stdout(&offers).contains("g3-1c1-100   vm "), "{offers:?}");
    let describe = asking.kc("describe vk cache -n app", None).await;
    assert!(stdout(&describe).contains("Instances on 0 hosts:"), "{describe:?}");
    let explain = asking.kc("explain placement cache", None).await;
    assert_eq!(explain.get("rc"), Some(&Node::Integer(0)), "{explain:?}");
}

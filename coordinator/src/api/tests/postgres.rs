//! PostgreSQL clusters and roles as clients see them: names for ids, defaults shown, passwords for those who may.

use super::*;

const STACK: &str = "
kind: Vpc
metadata: {name: net}
---
kind: subnet
metadata: {name: sub}
spec: {vpcId: net, ipv4Cidr: 10.0.0.0/24}
---
kind: pg-paramset
metadata: {name: tuned}
spec: {parameters: {work_mem: 8MB}}
---
kind: pg
metadata: {name: db}
spec:
  shardGroups: [{name: Main, vpcSubnetId: sub}]
  replicasPerShardGroup: 1
  postgreSqlParametersSetId: tuned
  backupRetentionDays: 7
  vmOfferId: g3-1c1-100
  volumeOfferId: gp3-750
  volumeSizeGiB: 10
---
kind: pg-role
metadata: {name: app}
spec: {postgreSqlId: db, password: hunter2}
";

fn stdout(answer: &Node) -> &str {
    text(answer, &["stdout"])
}

#[tokio::test]
async fn a_manifest_with_names_makes_cluster_set_and_role_and_applied_again_changes_nothing() {
    let asking = Asking::new();
    let answer = asking.kc("apply -f x", Some(STACK)).await;
    assert_eq!(
        stdout(&answer),
        "Vpc/net applied\nVpcSubnet/sub applied\nPostgreSqlParametersSet/tuned applied\nPostgreSql/db applied\nPostgreSqlRole/app applied\n",
        "{answer:?}"
    );
    let again = asking.kc("apply -f x", Some(STACK)).await;
    assert_eq!(stdout(&again).matches("(nothing changed)").count(), 5, "{again:?}");
    // What get shows has no password, and applying it changes nothing.
    let shown = asking.kc("get all -o yaml", None).await;
    let again = asking.kc("apply -f x", Some(stdout(&shown))).await;
    assert_eq!(stdout(&again).matches("(nothing changed)").count(), 5, "{again:?}");
}

#[tokio::test]
async fn what_was_left_out_is_shown_with_its_default_and_the_quorum_is_not() {
    let asking = Asking::new();
    asking.kc("apply -f x", Some(STACK)).await;
    let shown = asking.kc("get pg db -o json", None).await;
    let shown: Node = serde_json::from_str(stdout(&shown)).unwrap();
    let spec = |name: &str| text(&shown, &["spec", name]);
    assert_eq!((spec("version"), spec("tlsMode")), ("17", "allow"));
    let groups = shown.at(&["spec", "shardGroups"]).map_or(&[][..], Node::items);
    assert_eq!(groups.iter().map(|group| text(group, &["name"])).collect::<Vec<_>>(), ["main"]);
    assert!(!format!("{:?}", shown.get("spec")).contains("quorum"), "{shown:?}");
    // The platform's own secret is nobody's to see.
    assert!(!members(shown.get("spec").unwrap()).iter().any(|member| member.contains("assword")));
}

#[tokio::test]
async fn a_roles_password_is_for_tokens_with_its_scope_and_for_reads_alone() {
    let asking = Asking::new();
    asking.kc("apply -f x", Some(STACK)).await;
    let id = stdout(&asking.kc("get pg-role -q", None).await).trim().rsplit('/').next().unwrap().to_owned();
    let path = format!("/api/v1/postgresql-role/{id}");
    let (status, shown) = asking.as_admin("GET", &path, "").await;
    assert_eq!(
        (status, text(&shown, &["resource", "spec", "password"])),
        (StatusCode::OK, "hunter2"),
        "{id}"
    );
    let reader = asking.fake.token(&[Scope::Read]);
    let (_, hidden) = asking.ask("GET", &path, &reader, "").await;
    assert_eq!(hidden.at(&["resource", "spec", "password"]), Some(&Node::Null));
    let (_, listed) = asking.as_admin("GET", "/api/v1/postgresql-role/get-by-labels", "").await;
    assert!(!format!("{listed:?}").contains("hunter2"));
    for words in [
        "get pg-role -o json",
        "get pg-role -o yaml",
        "describe pg-role app",
        "edit pg-role app",
        "get event",
    ] {
        let answer = asking.kc(words, None).await;
        assert!(!format!("{answer:?}").contains("hunter2"), "{words}");
    }
    let refused = asking
        .kc(
            "apply -f x",
            Some(
                "kind: pg-role\nmetadata: {name: other}\nspec: {postgreSqlId: db, password: \"hunter2\\n\"}",
            ),
        )
        .await;
    assert!(
        format!("{refused:?}").contains("spec.password") && !format!("{refused:?}").contains("hunter2"),
        "{refused:?}"
    );
}

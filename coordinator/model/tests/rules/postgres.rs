//! Rules of PostgreSQL clusters, parameter sets and roles: one test a sentence of what users were promised.

use shardplane_model::{
    command::{Applied, Command, Decision},
    refusal::{Refusal, RefusalCode},
    resource::{Kind, Outcome},
    view,
};
use shardplane_proto::{
    ids::{ClusterId, Generation},
    v1::{self, resource::Body},
};

use crate::api::{Api, id, metadata, subnet};

const CLUSTER: u128 = 40;

fn group(name: &str) -> v1::PostgreSqlShardGroupSpec {
    v1::PostgreSqlShardGroupSpec { name: name.to_owned(), vpc_subnet_id: id(2).to_string() }
}

fn spec() -> v1::PostgreSqlSpec {
    v1::PostgreSqlSpec {
        shard_groups: vec![group("main")],
        replicas_per_shard_group: Some(1),
        backup_retention_days: Some(7),
        vm_offer_id: Some("g3-1c1-100".to_owned()),
        volume_offer_id: Some("gp3-750".to_owned()),
        volume_size_gib: Some(10),
        ..v1::PostgreSqlSpec::default()
    }
}

fn cluster(spec: v1::PostgreSqlSpec) -> Body {
    let metadata = metadata(id(CLUSTER));
    Body::PostgreSql(v1::PostgreSql { metadata, spec: Some(spec), ..v1::PostgreSql::default() })
}

fn with(change: impl FnOnce(&mut v1::PostgreSqlSpec)) -> Body {
    let mut spec = spec();
    change(&mut spec);
    cluster(spec)
}

fn refused(answer: Result<Applied, Refusal>) -> String {
    let refusal = answer.expect_err("it is accepted");
    assert_eq!(refusal.code, RefusalCode::BadData, "{refusal}");
    refusal.to_string()
}

/// An accepted cluster whose create is carried out.
fn made() -> Api {
    let mut api = Api::new();
    api.put(cluster(spec())).unwrap();
    done(&mut api);
    api
}

fn done(api: &mut Api) {
    let request = api.state.resources[&id(CLUSTER)].change.request;
    let cluster = ClusterId::from(id(CLUSTER));
    api.apply(Command::Decide(Decision::Satisfied { cluster, request })).unwrap();
}

fn shown(api: &Api) -> v1::PostgreSqlSpec {
    let observed = shardplane_model::observed::Observed::default();
    let resource = &api.state.resources[&id(CLUSTER)];
    match view::resource(&api.state, &observed, resource, api.state.now, None).body {
        Some(Body::PostgreSql(cluster)) => cluster.spec.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn says(change: impl FnOnce(&mut v1::PostgreSqlSpec), words: &[&str]) {
    let text = refused(Api::new().put(with(change)));
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
}

fn change_says(change: impl FnOnce(&mut v1::PostgreSqlSpec), words: &[&str]) {
    let mut api = made();
    let before = api.state.resources.clone();
    let text = refused(api.put(with(change)));
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
    assert_eq!(api.state.resources, before, "a refusal changes nothing");
}

#[test]
fn every_member_that_has_no_default_is_required_and_all_are_named_at_once() {
    let text = refused(Api::new().put(cluster(v1::PostgreSqlSpec::default())));
    for path in [
        "spec.shardGroups",
        "spec.replicasPerShardGroup",
        "spec.backupRetentionDays",
        "spec.vmOfferId",
        "spec.volumeOfferId",
        "spec.volumeSizeGiB",
    ] {
        assert!(text.contains(path), "{path} is not in {text}");
    }
}

#[test]
fn a_version_that_is_not_named_is_the_platforms_and_is_shown() {
    let api = made();
    assert_eq!(shown(&api).version.as_deref(), Some("17"));
    assert_eq!(shown(&api).tls_mode.as_deref(), Some("allow"));
    for version in ["17.2", "seventeen", "017", "v17"] {
        says(|spec| spec.version = Some(version.to_owned()), &["spec.version", "major version alone"]);
    }
}

#[test]
fn names_of_groups_are_1_to_63_of_a_z_0_9_and_hyphen_whatever_their_case() {
    for name in ["", "a_b", "ä", "a b", &"x".repeat(64)] {
        says(|spec| spec.shard_groups[0].name = name.to_owned(), &["spec.shardGroups[0].name", "1 to 63"]);
    }
    let mut api = Api::new();
    api.put(with(|spec| spec.shard_groups[0].name = "Main".to_owned())).unwrap();
    assert_eq!(shown(&api).shard_groups[0].name, "main");
    says(
        |spec| spec.shard_groups = vec![group("a"), group("A")],
        &["spec.shardGroups[1].name", "given twice"],
    );
}

#[test]
fn public_access_takes_tls_mode_require() {
    says(|spec| spec.create_public_ipv4 = Some(true), &["spec.tlsMode", "has to be require"]);
    says(|spec| spec.tls_mode = Some("maybe".to_owned()), &["spec.tlsMode", "allow or require"]);
    let mut api = Api::new();
    api.put(with(|spec| spec.tls_mode = Some("require".to_owned()))).unwrap();
}

#[test]
fn backups_are_kept_1_to_365_days_and_that_changes_freely() {
    for days in [0, 366, -1] {
        says(|spec| spec.backup_retention_days = Some(days), &["spec.backupRetentionDays", "1 to 365"]);
    }
    let mut api = made();
    api.put(with(|spec| spec.backup_retention_days = Some(365))).unwrap();
}

/// PG-7.
#[test]
fn pg_7_a_time_to_restore_to_names_its_zone() {
    let restore = |time: &str| {
        let (postgre_sql_id, restore_time) = (id(41).to_string(), time.to_owned());
        Some(v1::PostgreSqlRestoreConfiguration { postgre_sql_id, restore_time })
    };
    let path = "spec.restoreConfiguration.restoreTime";
    says(|spec| spec.restore_configuration = restore("2026-01-31T12:00:00"), &[path, "names no time zone"]);
    says(|spec| spec.restore_configuration = restore("soon"), &[path, "RFC 3339"]);
    // An installation without backups has nothing to restore from.
    says(|spec| spec.restore_configuration = restore("2026-01-31T13:00:00+01:00"), &["keeps no backups"]);
}

#[test]
fn more_than_one_group_is_refused_with_the_reason() {
    says(|spec| spec.shard_groups.push(group("two")), &["spec.shardGroups", "one shard group"]);
}

#[test]
fn the_coordinator_is_never_removed_or_renamed() {
    change_says(
        |spec| spec.shard_groups[0].name = "other".to_owned(),
        &["coordinator", "never be removed or renamed"],
    );
}

#[test]
fn a_group_stays_in_its_subnet() {
    let mut api = made();
    api.put(subnet(5, 1, "10.21.0.0/24")).unwrap();
    let text = refused(api.put(with(|spec| spec.shard_groups[0].vpc_subnet_id = id(5).to_string())));
    assert!(
        text.contains("spec.shardGroups[0].vpcSubnetId") && text.contains("stays in the subnet"),
        "{text}"
    );
}

#[test]
fn replicas_change_by_one() {
    change_says(
        |spec| spec.replicas_per_shard_group = Some(3),
        &["spec.replicasPerShardGroup", "at most one"],
    );
    let mut api = made();
    api.put(with(|spec| spec.replicas_per_shard_group = Some(2))).unwrap();
    says(|spec| spec.replicas_per_shard_group = Some(6), &["0 to 5"]);
}

#[test]
fn the_major_version_never_changes() {
    change_says(|spec| spec.version = Some("18".to_owned()), &["spec.version", "never changes"]);
    let mut api = made();
    api.put(with(|spec| spec.version = Some("17".to_owned()))).unwrap();
}

#[test]
fn what_else_cannot_change_is_named_with_what_can() {
    for change in [(|spec| spec.volume_size_gib = Some(20)) as fn(&mut v1::PostgreSqlSpec), |spec| {
        spec.tls_mode = Some("require".to_owned())
    }] {
        change_says(change, &["cannot change after creation", "spec.backupRetentionDays"]);
    }
}

#[test]
fn the_same_again_is_nothing_new_and_keeps_the_groups_identity() {
    let mut api = made();
    let before = api.state.resources[&id(CLUSTER)].clone();
    api.put(cluster(spec())).unwrap();
    assert_eq!(api.state.resources[&id(CLUSTER)], before);
}

#[test]
fn a_parameter_set_is_swapped_freely_and_refuses_what_the_platform_sets() {
    let set = |number: u128, name: &str| {
        let parameters = [(name.to_owned(), "on".to_owned())].into();
        Body::PostgreSqlParametersSet(v1::PostgreSqlParametersSet {
            metadata: metadata(id(number)),
            spec: Some(v1::ParametersSpec { parameters }),
            ..v1::PostgreSqlParametersSet::default()
        })
    };
    let mut api = made();
    api.put(set(50, "jit")).unwrap();
    for set in [Some(id(50).to_string()), None] {
        api.put(with(|spec| spec.postgre_sql_parameters_set_id = set)).unwrap();
        done(&mut api);
    }
    let text = refused(api.put(set(51, "archive_command")));
    assert!(text.contains("spec.parameters.archive_command"), "{text}");
    // A set of the other engine is none of this one's.
    let text = refused(api.put(with(|spec| spec.postgre_sql_parameters_set_id = Some(id(3).to_string()))));
    assert!(text.contains("spec.postgreSqlParametersSetId"), "{text}");
}

fn role(number: u128, name: &str, change: impl FnOnce(&mut v1::PostgreSqlRoleSpec)) -> Body {
    let mut spec = v1::PostgreSqlRoleSpec {
        postgre_sql_id: id(CLUSTER).to_string(),
        name: Some(name.to_owned()),
        password: Some("secret".to_owned()),
        ..v1::PostgreSqlRoleSpec::default()
    };
    change(&mut spec);
    let metadata = metadata(id(number));
    Body::PostgreSqlRole(v1::PostgreSqlRole { metadata, spec: Some(spec), ..v1::PostgreSqlRole::default() })
}

const ROLE: Kind = Kind::Role(shardplane_model::engine::EngineKind::Postgres);

/// The leader of the coordinator's group says that it has brought everything into force, but for these.
fn in_force(api: &mut Api, refused: &[(&str, &str)]) {
    let cluster = ClusterId::from(id(CLUSTER));
    let revision = api.state.clusters[&cluster].roles.revision;
    let refused = refused.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect();
    api.apply(Command::Decide(Decision::RolesInForce { cluster, revision, refused })).unwrap();
}

fn outcome(api: &Api, number: u128) -> Outcome {
    api.state.resources[&id(number)].change.outcome.clone()
}

#[test]
fn a_role_has_a_name_of_its_own_that_is_not_reserved() {
    let mut api = made();
    for name in ["postgres", "pg_monitor", "citus_admin", "shardplane_rewind", "Upper", "a-b", "1a", ""] {
        let mut body = role(60, name, |_| {});
        if let Body::PostgreSqlRole(role) = &mut body
            && let Some(metadata) = &mut role.metadata
        {
            metadata.name = "Not a name".to_owned();
        }
        let text = refused(api.put(body));
        assert!(text.contains("spec.name"), "{name}: {text}");
    }
    api.put(role(60, "app", |_| {})).unwrap();
    let text = refused(api.put(role(61, "app", |_| {})));
    assert!(text.contains("another role of this cluster"), "{text}");
}

#[test]
fn a_role_belongs_to_a_cluster_that_is_there_and_neither_it_nor_its_name_changes() {
    let mut api = made();
    let text = refused(api.put(role(60, "app", |role| role.postgre_sql_id = id(99).to_string())));
    assert!(text.contains("spec.postgreSqlId"), "{text}");
    api.put(role(60, "app", |_| {})).unwrap();
    in_force(&mut api, &[]);
    let text = refused(api.put(role(60, "other", |_| {})));
    assert!(text.contains("cannot change"), "{text}");
}

#[test]
fn a_role_that_may_log_in_has_a_password_which_may_be_left_out_later() {
    let mut api = made();
    let text = refused(api.put(role(60, "app", |role| role.password = None)));
    assert!(text.contains("spec.password"), "{text}");
    api.put(role(61, "group", |role| (role.password, role.login) = (None, Some(false)))).unwrap();
    for password in ["", "a\nb", &"x".repeat(513)] {
        let text = refused(api.put(role(60, "app", |role| role.password = Some(password.to_owned()))));
        assert!(text.contains("spec.password") && !text.contains("a\nb"), "{text}");
    }
}

#[test]
fn limits_times_and_memberships_are_checked() {
    let mut api = made();
    let text = refused(api.put(role(60, "app", |role| {
        role.connection_limit = Some(-2);
        role.valid_until = Some("2030-01-01T00:00:00".to_owned());
        role.member_of = vec!["nobody".to_owned()];
        role.reassign_owned_to = Some("nobody".to_owned());
    })));
    for path in ["spec.connectionLimit", "spec.validUntil"] {
        assert!(text.contains(path), "{path} is not in {text}");
    }
    let text = refused(api.put(role(60, "app", |role| role.member_of = vec!["app".to_owned()])));
    assert!(text.contains("spec.memberOf"), "{text}");
    api.put(role(60, "a", |_| {})).unwrap();
    api.put(role(61, "b", |role| role.member_of = vec!["a".to_owned()])).unwrap();
    in_force(&mut api, &[]);
    let text = refused(api.put(role(60, "a", |role| role.member_of = vec!["b".to_owned()])));
    assert!(text.contains("ring"), "{text}");
    let text = refused(api.delete(ROLE, 60));
    assert!(text.contains("still used by"), "{text}");
}

/// PG-10: done when the leader has said so, and refusals are the engine's own words.
#[test]
fn pg_10_a_role_is_in_force_when_the_leader_says_so_of_this_very_change() {
    let mut api = made();
    api.put(role(60, "app", |_| {})).unwrap();
    assert_eq!(outcome(&api, 60), Outcome::InFlight);
    let cluster = ClusterId::from(id(CLUSTER));
    let old = Generation(api.state.clusters[&cluster].roles.revision.0 - 1);
    let stale = Decision::RolesInForce { cluster, revision: old, refused: Vec::new() };
    assert!(api.apply(Command::Decide(stale)).is_err());
    in_force(&mut api, &[]);
    assert_eq!(outcome(&api, 60), Outcome::Done);
    api.put(role(60, "app", |role| role.password = Some("another".to_owned()))).unwrap();
    in_force(&mut api, &[("app", "no such thing")]);
    assert_eq!(outcome(&api, 60), Outcome::Failed { message: "no such thing".to_owned() });
}

#[test]
fn a_role_that_owns_something_stays_with_the_reason_until_it_may_go() {
    let mut api = made();
    api.put(role(60, "app", |_| {})).unwrap();
    in_force(&mut api, &[]);
    api.delete(ROLE, 60).unwrap();
    in_force(&mut api, &[("app", "it owns 2 objects")]);
    assert_eq!(outcome(&api, 60), Outcome::Failed { message: "it owns 2 objects".to_owned() });
    let cluster = ClusterId::from(id(CLUSTER));
    let roles = api.state.clusters[&cluster].roles.clone();
    assert!(roles.members.contains(&id(60)) && roles.dropped.is_empty());
    api.delete(ROLE, 60).unwrap();
    in_force(&mut api, &[]);
    assert!(!api.state.resources.contains_key(&id(60)));
    assert!(api.state.clusters[&cluster].roles.members.is_empty());
}

#[test]
fn roles_do_not_keep_their_cluster_and_go_with_it() {
    let mut api = made();
    api.put(role(60, "app", |_| {})).unwrap();
    api.delete(Kind::Cluster(shardplane_model::engine::EngineKind::Postgres), CLUSTER).unwrap();
    let cluster = ClusterId::from(id(CLUSTER));
    api.apply(Command::Decide(Decision::Remove { cluster })).unwrap();
    assert!(!api.state.resources.contains_key(&id(60)));
}

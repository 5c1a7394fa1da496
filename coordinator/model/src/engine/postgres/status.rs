//! What users see of a PostgreSQL cluster. In: the observed members. Out: the status members of the API, stable in order: groups in the
//! spec's order, nodes by group and instance id; the quorum is not among them. Everything follows observation; what nobody has observed
//! is absent.

use shardplane_proto::{ids::InstanceId, v1};

use super::{
    PORT,
    facts::{self, PostgresFact, data_of, fact_of},
    quorum,
    spec::{PostgresSpec, ShardGroup},
};
use crate::{
    engine::{ClusterView, Member, Role, conditions},
    view::spread,
};

/// The database every cluster has.
const DATABASE: &str = "postgres";

fn endpoint(member: &Member<'_>) -> String {
    format!("{}:{PORT}", member.instance.ipv4)
}

fn with_role<'v>(
    view: &'v ClusterView<'_>,
    roles: &[(InstanceId, Role)],
    group: &ShardGroup,
    role: Role,
) -> Vec<&'v Member<'v>> {
    let has = |m: &&Member<'_>| m.instance.group == group.id && roles.contains(&(m.instance.id, role));
    view.wanted().filter(has).collect()
}

fn shard_group(
    view: &ClusterView<'_>,
    roles: &[(InstanceId, Role)],
    group: &ShardGroup,
) -> v1::PostgreSqlShardGroupStatus {
    let primary = with_role(view, roles, group, Role::Primary);
    v1::PostgreSqlShardGroupStatus {
        name: group.name.clone(),
        is_coordinator: group.number == 0,
        primary_endpoint: primary.first().map(|m| endpoint(m)),
        replica_endpoints: with_role(view, roles, group, Role::Replica).into_iter().map(endpoint).collect(),
    }
}

fn node(
    view: &ClusterView<'_>,
    spec: &PostgresSpec,
    roles: &[(InstanceId, Role)],
    member: &Member<'_>,
) -> v1::PostgreSqlNodeStatus {
    let patroni_state = match (data_of(member), fact_of(member)) {
        (Some(data), _) => Some(data.patroni_state.clone()),
        (None, Some(PostgresFact::Data { state, .. })) if view.gathering => Some(state),
        (None, Some(PostgresFact::Data { .. })) => Some("unknown".to_owned()),
        (None, Some(PostgresFact::Quorum { .. }) | None) => None,
    };
    v1::PostgreSqlNodeStatus {
        id: member.instance.id.to_string(),
        shard_group_name: spec
            .group(member.instance.group)
            .map(|group| group.name.clone())
            .unwrap_or_default(),
        port: i32::try_from(PORT).unwrap_or(i32::MAX),
        private_ip_v4: member.instance.ipv4.to_string(),
        public_ip_v4: None,
        is_primary: roles.contains(&(member.instance.id, Role::Primary)),
        patroni_state: patroni_state.filter(|state| !state.is_empty()),
    }
}

/// `ok` when every group has a leader and all its replicas follow, `degraded` when every group has a leader, else `down`; absent before
/// anybody said anything.
fn cluster_state(view: &ClusterView<'_>, spec: &PostgresSpec) -> Option<String> {
    let data = |m: &&Member<'_>| spec.group(m.instance.group).is_some();
    if view.wanted().filter(data).all(|m| fact_of(m).is_none()) {
        return None;
    }
    if view.wanted().filter(data).all(|m| data_of(m).is_none()) && !view.gathering {
        return Some("unknown".to_owned());
    }
    let led = spec.shard_groups.iter().all(|group| facts::leader(view, group.id).is_some());
    let follow = view
        .wanted()
        .filter(data)
        .all(|m| facts::leads(view, m.instance.id) || facts::in_sync(view, m.instance.id));
    let word = match (led, follow) {
        (true, true) => "ok",
        (true, false) => "degraded",
        (false, _) => "down",
    };
    Some(word.to_owned())
}

/// What of the DCS is not as it should be.
fn dcs(view: &ClusterView<'_>) -> v1::Condition {
    let needed = quorum::next(view);
    let without = view.wanted().filter_map(data_of).filter(|data| !data.dcs_answers).count();
    let mut said = needed.waiting;
    said.extend(needed.steps.into_iter().map(|step| step.name));
    if without > 0 {
        let failsafe = view.wanted().filter_map(data_of).any(|data| data.failsafe_active);
        let stays =
            if failsafe { "; the leader goes on because it reaches all members of its group" } else { "" };
        said.push(format!("{without} members do not reach it{stays}"));
    }
    conditions::condition("DcsHealthy", said.is_empty(), said.join("; "))
}

/// Whether a failover would lose nothing.
fn replicated(view: &ClusterView<'_>, spec: &PostgresSpec) -> v1::Condition {
    let behind: Vec<String> = view
        .wanted()
        .filter(|m| spec.group(m.instance.group).is_some() && !facts::leads(view, m.instance.id))
        .filter(|m| !facts::in_sync(view, m.instance.id))
        .map(|m| m.instance.id.to_string())
        .collect();
    let message = match (behind.is_empty(), spec.replicas) {
        (true, 0) => "there are no replicas: what a lost instance has is lost with it".to_owned(),
        (true, _) => "every commit waits for a replica".to_owned(),
        (false, _) => format!("not in sync: {}", behind.join(", ")),
    };
    conditions::condition("ReplicasInSync", behind.is_empty(), message)
}

/// The status without its common first members.
pub fn render(view: &ClusterView<'_>, spec: &PostgresSpec, waiting: &[String]) -> v1::PostgreSqlStatus {
    let roles = facts::roles(view);
    let groups: Vec<_> = spec.shard_groups.iter().map(|group| shard_group(view, &roles, group)).collect();
    let affinity = spread::anti_affinity(view);
    let coordinator = groups.first().and_then(|group| group.primary_endpoint.clone());
    v1::PostgreSqlStatus {
        port: i32::try_from(PORT).unwrap_or(i32::MAX),
        connection_uri: coordinator.as_ref().map(|endpoint| {
            let mode = if spec.tls == super::spec::TlsMode::Require { "?sslmode=require" } else { "" };
            format!("postgresql://{endpoint}/{DATABASE}{mode}")
        }),
        coordinator_endpoint: coordinator,
        primary_endpoints: groups.iter().filter_map(|group| group.primary_endpoint.clone()).collect(),
        cluster_state: cluster_state(view, spec),
        anti_affinity_ok: affinity.ok,
        anti_affinity_message: affinity.message,
        nodes: view
            .wanted()
            .filter(|m| spec.group(m.instance.group).is_some())
            .map(|member| node(view, spec, &roles, member))
            .collect(),
        shard_groups: groups,
        conditions: vec![
            conditions::members_answer(view),
            conditions::parameters_in_sync(view),
            conditions::nothing_waits(waiting),
            conditions::limits_enforced(view),
            dcs(view),
            replicated(view, spec),
        ],
        ..v1::PostgreSqlStatus::default()
    }
}

//! What a guest of a PostgreSQL cluster is configured with. In: the spec and the instance with its parameters. Out: the engine's config
//! message; the agent carries it without looking in.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_proto::v1;

use super::{
    facts::{PostgresFact, fact_of},
    quorum, role,
    spec::{PostgresSpec, TlsMode},
};
use crate::{
    engine::{ClusterView, Member, Secrets},
    state::{Instance, State},
};

/// Parameters that hold unless the set says otherwise. A quarter of the memory for the engine's own cache, the rest is the kernel's.
fn defaults(memory_mib: u64) -> BTreeMap<String, String> {
    let mib = |n: u64| format!("{}MB", n.max(16));
    [
        ("shared_buffers", mib(memory_mib / 4)),
        ("effective_cache_size", mib(memory_mib / 4 * 3)),
        ("maintenance_work_mem", mib((memory_mib / 16).min(1024))),
        ("max_connections", "100".to_owned()),
        ("max_wal_size", "1GB".to_owned()),
        ("min_wal_size", "80MB".to_owned()),
        ("wal_compression", "on".to_owned()),
        ("log_line_prefix", "%m [%p] %q%u@%d ".to_owned()),
        ("log_checkpoints", "on".to_owned()),
        ("log_lock_waits", "on".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn voter(member: &Member<'_>) -> v1::PostgresVoter {
    v1::PostgresVoter { instance_id: member.instance.id.to_string(), ip: member.instance.ipv4.to_string() }
}

/// With whom this voter, blank, forms the quorum: those that the cluster began with, while it never served; also who is let go by now, because
/// all have to begin with the same. One that came later joins what the others formed.
fn founders(view: &ClusterView<'_>, instance: &Instance) -> Vec<v1::PostgresVoter> {
    let first = quorum::voters(view).map(|voter| voter.instance.created).min();
    if view.cluster.formed || Some(instance.created) != first {
        return Vec::new();
    }
    let founded =
        |member: &&Member<'_>| quorum::is_of(view, member) && Some(member.instance.created) == first;
    view.members.iter().filter(founded).map(voter).collect()
}

/// Whether this member may make a new database: it begins its group, and no other has one.
fn initialises(view: &ClusterView<'_>, instance: &Instance) -> bool {
    let has_data = |member: &Member<'_>| matches!(fact_of(member), Some(PostgresFact::Data { system, .. }) if !system.is_empty());
    let own =
        |member: &&Member<'_>| member.instance.group == instance.group && member.instance.id != instance.id;
    !view.cluster.formed && instance.first_primary && !view.members.iter().filter(own).any(has_data)
}

/// The encoded config of this instance.
pub fn render(
    view: &ClusterView<'_>,
    state: &State,
    spec: &PostgresSpec,
    instance: &Instance,
    secrets: &Secrets,
) -> Vec<u8> {
    let member = if spec.quorum == instance.group {
        v1::postgres_config::Member::Quorum(v1::PostgresQuorum { founders: founders(view, instance) })
    } else {
        v1::postgres_config::Member::Data(data(view, state, spec, instance, secrets))
    };
    v1::PostgresConfig {
        cluster_id: view.resource.id.to_string(),
        secret: secrets.own.clone(),
        instance_id: instance.id.to_string(),
        ip: instance.ipv4.to_string(),
        voters: quorum::voters(view).map(voter).collect(),
        member: Some(member),
    }
    .encode_to_vec()
}

fn data(
    view: &ClusterView<'_>,
    state: &State,
    spec: &PostgresSpec,
    instance: &Instance,
    secrets: &Secrets,
) -> v1::PostgresData {
    let mut parameters = defaults(instance.footprint.memory_mib);
    parameters.extend(instance.parameters.values.clone());
    let others = view
        .wanted()
        .filter(|other| other.instance.group == instance.group && other.instance.id != instance.id)
        .map(voter);
    let known = &view.cluster.roles;
    let roles = role::of_cluster(state, view.resource.id)
        .filter(|(resource, _)| known.members.contains(&resource.id));
    let roles = roles
        .map(|(resource, role)| role.wanted(secrets.roles.get(&resource.id).cloned().unwrap_or_default()))
        .collect();
    let dropped = known.dropped.iter().map(|dropped| v1::PostgresRoleDropped {
        name: dropped.name.clone(),
        reassign_owned_to: dropped.reassign_owned_to.clone().unwrap_or_default(),
    });
    v1::PostgresData {
        group_id: instance.group.to_string(),
        group_number: spec.group(instance.group).map_or(0, |group| group.number),
        initialises: initialises(view, instance),
        others: others.collect(),
        parameters,
        parameters_revision: instance.parameters.revision.0,
        require_tls: spec.tls == TlsMode::Require,
        roles,
        dropped: dropped.collect(),
        roles_revision: known.revision.0,
    }
}

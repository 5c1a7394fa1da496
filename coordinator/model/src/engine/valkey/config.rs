//! What a Valkey guest is configured with. In: the spec and the instance with its parameters. Out: the engine's config message;
//! the agent carries it without looking in.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_proto::v1;

use super::{BUS_PORT, PORT, facts::fact_of, parameters, spec::ValkeySpec};
use crate::{
    engine::Member,
    state::{Instance, State},
    time::Millis,
};

/// Milliseconds after which members call one of theirs failed, unless the parameter set says otherwise.
const NODE_TIMEOUT_MS: u32 = 5_000;

/// Directives that hold unless the parameter set says otherwise. Everything is written to the append-only file, so that a member
/// that comes back has its data; a quarter of the memory is left to buffers, forks and the guest. Where no majority can vote a
/// replica in (one shard), the primary that comes back is the only way on, so it must have every write it acknowledged.
fn defaults(memory_mib: u64, can_vote: bool) -> BTreeMap<String, String> {
    [
        ("appendfsync", if can_vote { "everysec" } else { "always" }.to_owned()),
        ("appendonly", "yes".to_owned()),
        ("cluster-node-timeout", NODE_TIMEOUT_MS.to_string()),
        ("cluster-require-full-coverage", "yes".to_owned()),
        ("maxmemory", (memory_mib * 1024 * 1024 / 4 * 3).to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("repl-backlog-size", "16mb".to_owned()),
        ("save", String::new()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Every directive by name: what the parameters say, else the platform, else the engine itself. Nothing is left out, so that a directive
/// that the parameters no longer hold goes back to its default in an engine that runs.
fn directives(spec: &ValkeySpec, instance: &Instance) -> BTreeMap<String, String> {
    let mut directives: BTreeMap<String, String> = parameters::defaults(&spec.version).collect();
    directives.extend(defaults(instance.footprint.memory_mib, spec.shards.len() >= 3));
    directives.extend(instance.parameters.values.clone());
    directives
}

/// How the engine judges silence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// After that long without an answer members call one of theirs failed.
    pub timeout: Millis,
    /// A replica that has not heard its primary for longer stands in no election; none when it always does.
    pub valid: Option<Millis>,
    /// A replica that has heard nothing of its primary for that long, and was not told that the connection ended, gives its link up.
    pub link: Millis,
}

/// What an election takes once its time has come: a replica waits a moment, asks, and is told of its votes.
const ELECTION: Millis = Millis::seconds(2);

impl Timings {
    /// About how long a shard is without a primary when its primary is lost: until the others have elected another, or, where they
    /// cannot, until it counts as given up.
    pub fn without_primary(&self, votes: bool) -> Millis {
        if votes { Millis(self.timeout.0 + ELECTION.0) } else { Millis(self.timeout.0 * 2) }
    }
}

/// Silence of a replica's primary that is no fault: the period of its pings, and what reports take to tell.
const PING_PERIOD: Millis = Millis::seconds(15);
/// The engine's own.
const VALIDITY_FACTOR: u64 = 10;
/// The engine's own, in seconds.
const REPL_TIMEOUT_S: u64 = 60;

/// The timings this instance runs with.
pub fn timings(spec: &ValkeySpec, instance: &Instance) -> Timings {
    let directives = directives(spec, instance);
    let given = |name: &str| directives.get(name).and_then(|value| value.parse::<u64>().ok());
    let timeout = given("cluster-node-timeout").unwrap_or(NODE_TIMEOUT_MS.into());
    // The engine does not count the first timeout.
    let valid = match given("cluster-replica-validity-factor").unwrap_or(VALIDITY_FACTOR) {
        0 => None,
        factor => Some(Millis(timeout.saturating_mul(factor + 1).saturating_add(PING_PERIOD.0))),
    };
    let link = given("repl-timeout").unwrap_or(REPL_TIMEOUT_S);
    Timings { timeout: Millis(timeout), valid, link: Millis(link.saturating_mul(1_000)) }
}

/// The slowest timings of these.
pub fn slowest<'i>(spec: &ValkeySpec, instances: impl Iterator<Item = &'i Instance>) -> Timings {
    let all: Vec<Timings> = instances.map(|instance| timings(spec, instance)).collect();
    let link = all.iter().map(|t| t.link).max().unwrap_or_default();
    let judges = all.into_iter().max_by_key(|t| (t.timeout, t.valid.is_none(), t.valid));
    Timings { link, ..judges.unwrap_or_default() }
}

/// Whether this instance keeps its data over a restart of its engine.
pub fn persistent(spec: &ValkeySpec, instance: &Instance) -> bool {
    keeps_data(&directives(spec, instance))
}

fn keeps_data(directives: &BTreeMap<String, String>) -> bool {
    directives.get("appendonly").is_some_and(|value| value == "yes")
}

/// The encoded config of this instance. `secret` is the root password in clear; `primary_elsewhere` is the
/// member of its group, another one, that is the observed primary.
pub fn render(
    state: &State,
    spec: &ValkeySpec,
    instance: &Instance,
    secret: &str,
    primary_elsewhere: Option<&Member<'_>>,
) -> Vec<u8> {
    let directives = directives(spec, instance);
    let node_timeout_ms = directives
        .get("cluster-node-timeout")
        .and_then(|value| value.parse().ok())
        .unwrap_or(NODE_TIMEOUT_MS);
    // Whoever is still there may hold newer data, also when the spec wants no replicas any more.
    let own = |other: &&Instance| other.group == instance.group && other.id != instance.id;
    let others = state.instances_of(instance.cluster).filter(own).count();
    let persistent = keeps_data(&directives);
    v1::ValkeyConfig {
        password: secret.to_owned(),
        port: PORT,
        bus_port: BUS_PORT,
        announce_ip: instance.ipv4.to_string(),
        directives: directives.into_iter().map(|(name, value)| v1::ValkeyDirective { name, value }).collect(),
        has_replicas: spec.replicas_per_shard > 0 || others > 0,
        persistent,
        other_primary: primary_elsewhere.and_then(|member| {
            let fact = fact_of(member)?;
            let ip = member.instance.ipv4.to_string();
            Some(v1::valkey_config::OtherPrimary {
                node_id: fact.node_id,
                ip,
                config_epoch: fact.epoch,
                succeeded: instance.succeeded_by.map_or(0, |(_, generation)| generation.0),
            })
        }),
        node_timeout_ms,
    }
    .encode_to_vec()
}

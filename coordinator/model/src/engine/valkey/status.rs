//! What users see of a Valkey cluster. In: the observed members. Out: the status members of the API, stable in order: nodes by
//! shard and instance id, shards in the spec's order. Everything follows observation; what nobody has observed is absent.

use shardplane_proto::{ids::InstanceId, v1};

use super::{
    BUS_PORT, PORT,
    facts::{self, fact_of},
    progress,
};
use crate::{
    engine::{
        ClusterView, Member, Role,
        conditions::{self, condition},
    },
    view::spread,
};

fn endpoint(member: &Member<'_>) -> String {
    format!("{}:{PORT}", member.instance.ipv4)
}

fn connection_uri(view: &ClusterView<'_>, secret: Option<&str>) -> Option<String> {
    let first = view.wanted().next()?;
    let user = match secret {
        Some(secret) => format!(":{}@", percent_encoded(secret)),
        None => String::new(),
    };
    Some(format!("valkey://{user}{}", endpoint(first)))
}

/// RFC 3986: everything but unreserved characters is percent-encoded.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn shard(view: &ClusterView<'_>, roles: &[(InstanceId, Role)], index: usize) -> v1::ValkeyShardStatus {
    let group = &view.groups[index];
    let role = |id: InstanceId| {
        roles.iter().find(|(member, _)| *member == id).map_or(Role::Unknown, |(_, role)| *role)
    };
    let members: Vec<_> = view.wanted().filter(|m| m.instance.group == group.id).collect();
    let primary = members.iter().find(|m| role(m.instance.id) == Role::Primary);
    let replicas: Vec<_> = members.iter().filter(|m| role(m.instance.id) == Role::Replica).collect();
    let slots = primary.and_then(|m| fact_of(m)).map(|fact| fact.slots).unwrap_or_default();
    let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    v1::ValkeyShardStatus {
        index: i32::try_from(index).unwrap_or(i32::MAX),
        id: group.id.to_string(),
        primary_instance_id: primary.map(|m| m.instance.id.to_string()),
        replica_instance_ids: replicas.iter().map(|m| m.instance.id.to_string()).collect(),
        primary_endpoint: primary.map(|m| endpoint(m)),
        replica_endpoints: replicas.iter().map(|m| endpoint(m)).collect(),
        slot_start: slots.iter().map(|(start, _)| number(*start)).min(),
        slot_end: slots.iter().map(|(_, end)| number(*end)).max(),
        slot_ranges: slots
            .iter()
            .map(|(start, end)| v1::ValkeySlotRange { start: number(*start), end: number(*end) })
            .collect(),
        slot_count: slots
            .iter()
            .map(|(start, end)| number(end.saturating_sub(*start).saturating_add(1)))
            .sum(),
    }
}

fn node(view: &ClusterView<'_>, roles: &[(InstanceId, Role)], member: &Member<'_>) -> v1::ValkeyNodeStatus {
    let fact = fact_of(member);
    v1::ValkeyNodeStatus {
        id: member.instance.id.to_string(),
        node_id: fact.as_ref().map(|fact| fact.node_id.clone()),
        shard_index: member.group_index.and_then(|i| i32::try_from(i).ok()).unwrap_or(-1),
        port: i32::try_from(PORT).unwrap_or(i32::MAX),
        bus_port: i32::try_from(BUS_PORT).unwrap_or(i32::MAX),
        private_ip_v4: member.instance.ipv4.to_string(),
        public_ip_v4: None,
        announce_fqdn: None,
        is_primary: view.cluster.formed && roles.contains(&(member.instance.id, Role::Primary)),
        observed_role: fact.map(|fact| fact.role),
    }
}

/// Whether each shard has a primary or can elect one; else what a takeover waits for.
fn can_elect(view: &ClusterView<'_>, waiting: &[String]) -> (bool, String) {
    let headless = if view.cluster.formed { view.headless() } else { Vec::new() };
    let stuck: Vec<String> = headless
        .iter()
        .filter(|group| !group.votes)
        .map(|group| {
            let (works, all) = (group.working, group.primaries);
            format!("shard {} has no primary, and {works} of {all} primaries work", group.group)
        })
        .collect();
    let about = waiting.iter().filter(|line| line.contains("takeover") || line.contains("take over"));
    (
        stuck.is_empty(),
        if stuck.is_empty() { stuck } else { stuck.into_iter().chain(about.cloned()).collect() }.join("; "),
    )
}

fn conditions(view: &ClusterView<'_>, waiting: &[String]) -> Vec<v1::Condition> {
    let moving = progress::text(view);
    let (elects, why) = can_elect(view, waiting);
    vec![
        conditions::members_answer(view),
        conditions::parameters_in_sync(view),
        condition("SlotsSettled", moving.is_none(), moving.unwrap_or_default()),
        conditions::nothing_waits(waiting),
        conditions::limits_enforced(view),
        condition("CanElect", elects, why),
    ]
}

/// The status without its common first members. `secret` is the password when the reader may see it.
pub fn render(view: &ClusterView<'_>, waiting: &[String], secret: Option<&str>) -> v1::ValkeyStatus {
    let roles = facts::roles(view);
    let shards: Vec<_> = (0..view.groups.len()).map(|index| shard(view, &roles, index)).collect();
    let affinity = spread::anti_affinity(view);
    let majority = spread::primary_spread(view);
    v1::ValkeyStatus {
        password: secret.map(str::to_owned),
        port: i32::try_from(PORT).unwrap_or(i32::MAX),
        dns_seed_fqdn: None,
        cluster_endpoints: view.wanted().map(endpoint).collect(),
        primary_endpoints: shards.iter().filter_map(|s| s.primary_endpoint.clone()).collect(),
        connection_uri: connection_uri(view, secret),
        cluster_state: facts::cluster_state(view),
        anti_affinity_ok: affinity.ok,
        anti_affinity_message: affinity.message,
        primary_spread_ok: majority.ok,
        primary_spread_message: majority.message,
        nodes: view.wanted().map(|member| node(view, &roles, member)).collect(),
        shards,
        conditions: conditions(view, waiting),
        ..v1::ValkeyStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_uri_is_percent_encoded() {
        assert_eq!(percent_encoded("a b@:/?#%\u{e9}\"'"), "a%20b%40%3A%2F%3F%23%25%C3%A9%22%27");
    }
}

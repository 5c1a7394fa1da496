//! Whether a cluster bears the loss of a host. In: observed roles and the hosts that reported them. Out: a verdict with a message
//! that names groups, instances and hosts, and says how old the oldest report is. Worked out from reports, never from the plan.

use std::collections::BTreeMap;

use shardplane_proto::ids::HostId;

use crate::engine::{ClusterView, Member, Role};

/// A verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    /// Whether the rule holds.
    pub ok: bool,
    /// For people.
    pub message: String,
}

/// The host that runs a member: the one that reports it, else the one that did when the fact was logged.
fn host_of(member: &Member<'_>) -> HostId {
    member.report.map_or(member.instance.host, |report| report.host)
}

fn host_name(view: &ClusterView<'_>, host: HostId) -> String {
    let known = view.members.iter().filter_map(|m| m.host).find(|h| h.id == host);
    known.map_or_else(|| host.to_string(), |h| h.facts.name.clone())
}

/// "oldest report 2 s ago", with the names of those that are not recent.
fn age(view: &ClusterView<'_>) -> String {
    let oldest = view.wanted().filter_map(|m| m.fact()).map(|(at, _)| at).min();
    let silent: Vec<String> = view
        .wanted()
        .filter(|m| !m.fresh)
        .map(|m| format!("{} on {}", m.instance.id, host_name(view, m.instance.host)))
        .collect();
    let age = oldest.map_or_else(
        || "nothing reported yet".to_owned(),
        |at| format!("oldest report {} ago", view.now.since(at)),
    );
    if silent.is_empty() { age } else { format!("{age}; not confirmed now: {}", silent.join(", ")) }
}

fn with_roles<'v>(view: &'v ClusterView<'_>) -> Vec<(&'v Member<'v>, Role)> {
    let roles: BTreeMap<_, _> = view.roles().into_iter().collect();
    view.wanted().map(|m| (m, roles.get(&m.instance.id).copied().unwrap_or(Role::Unknown))).collect()
}

/// No primary shares a host with a replica of its own. Every instance has a machine of its own, so the host is what they could
/// share.
pub fn anti_affinity(view: &ClusterView<'_>) -> Spread {
    let members = with_roles(view);
    let mut broken = Vec::new();
    let mut unknown = Vec::new();
    for (index, group) in view.data_groups().enumerate() {
        let own: Vec<_> = members.iter().filter(|(m, _)| m.instance.group == group.id).collect();
        let heard = |member: &Member<'_>| member.fresh || view.gathering;
        let Some((primary, _)) = own.iter().find(|(m, role)| *role == Role::Primary && heard(m)) else {
            unknown.push(format!("shard {index} ({}) has no primary that can be heard", group.id));
            continue;
        };
        let unseen = own.iter().filter(|(m, _)| m.fact().is_none()).map(|(m, _)| m.instance.id.to_string());
        unknown
            .extend(unseen.map(|id| format!("shard {index} ({}): instance {id} was never heard", group.id)));
        for (other, _) in own.iter().filter(|(m, _)| m.instance.id != primary.instance.id) {
            if host_of(other) == host_of(primary) {
                broken.push(format!(
                    "shard {index} ({}): primary {} and replica {} share host {}",
                    group.id,
                    primary.instance.id,
                    other.instance.id,
                    host_name(view, host_of(primary))
                ));
            }
        }
    }
    let age = age(view);
    if broken.is_empty() && unknown.is_empty() {
        return Spread {
            ok: true,
            message: format!("every primary is on another host than its replicas; {age}"),
        };
    }
    broken.extend(unknown);
    Spread { ok: false, message: format!("{}; {age}", broken.join("; ")) }
}

/// How many primaries one host may hold so that the rest are still a majority of `groups`.
pub fn most_primaries_on_a_host(groups: usize) -> usize {
    groups.saturating_sub(groups / 2 + 1)
}

/// No host holds so many primaries that its loss takes away the majority that votes for a failover.
pub fn primary_spread(view: &ClusterView<'_>) -> Spread {
    let groups = view.data_groups().count();
    if groups < 3 {
        let message =
            "one shard has no other primaries to vote: a lost primary needs the coordinator or an operator";
        return Spread { ok: true, message: message.to_owned() };
    }
    let mut on: BTreeMap<HostId, Vec<String>> = BTreeMap::new();
    let mut seen = 0;
    for (member, role) in with_roles(view) {
        if role == Role::Primary && (member.fresh || view.gathering) {
            seen += 1;
            on.entry(host_of(member)).or_default().push(member.instance.id.to_string());
        }
    }
    let age = age(view);
    let broken: Vec<String> = on
        .iter()
        .filter(|(_, primaries)| primaries.len() > most_primaries_on_a_host(groups))
        .map(|(host, primaries)| {
            let names = primaries.join(", ");
            format!(
                "host {} holds {} of {groups} primaries ({names}): its loss takes the majority",
                host_name(view, *host),
                primaries.len()
            )
        })
        .collect();
    if seen < groups {
        let text = format!("{seen} of {groups} primaries can be heard; {age}");
        let message = if broken.is_empty() { text } else { format!("{}; {text}", broken.join("; ")) };
        return Spread { ok: false, message };
    }
    if broken.is_empty() {
        return Spread { ok: true, message: format!("no host holds a majority of the primaries; {age}") };
    }
    Spread { ok: false, message: format!("{}; {age}", broken.join("; ")) }
}

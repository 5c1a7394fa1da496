//! The next engine steps of a Valkey cluster. In: what its members report. Out: the steps that may start now, or what is waited
//! for. Level-triggered: whatever happened before, the same picture gives the same steps, so a lost process loses nothing.
//!
//! The order: slots on the first primaries, everybody meets, replicas follow, strangers are forgotten, slots move.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1::{self, valkey_task::Step as Body},
};

use super::{
    BUS_PORT, PORT,
    facts::{own_node_ids, primaries, report_of, settled},
    moves, slots_of,
    spec::ValkeySpec,
};
use crate::{
    engine::{ClusterView, Member, Next, Step, silence},
    state::Presence,
};

pub(super) fn step(instance: InstanceId, name: String, body: Body) -> Step {
    Step { instance, name, payload: v1::ValkeyTask { step: Some(body) }.encode_to_vec() }
}

/// The step that makes this replica the primary of its group; the engine lets it catch up first.
pub fn switchover(to: InstanceId) -> Step {
    step(to, format!("switch over to {to}"), Body::Failover(v1::valkey_task::Failover {}))
}

/// The step that takes this replica out of elections, or lets it stand again.
pub fn stand_down(instance: InstanceId, on: bool) -> Step {
    let name = if on { "stand in no election" } else { "stand in elections again" };
    step(instance, name.to_owned(), Body::StandDown(v1::valkey_task::StandDown { on }))
}

/// Whether a node that performs this may win an election afterwards, or lead at once.
pub fn raises(payload: &[u8]) -> bool {
    let Ok(v1::ValkeyTask { step: Some(body) }) = v1::ValkeyTask::decode(payload) else { return false };
    match body {
        Body::Replicate(_) | Body::Failover(_) | Body::Takeover(_) | Body::AssignSlots(_) => true,
        Body::StandDown(v1::valkey_task::StandDown { on }) => !on,
        Body::Meet(_) | Body::Forget(_) | Body::MoveSlots(_) | Body::CloseSlots(_) => false,
    }
}

/// A member whose engine answers.
struct Up<'a> {
    member: &'a Member<'a>,
    report: &'a v1::ValkeyReport,
}

impl Up<'_> {
    fn id(&self) -> InstanceId {
        self.member.instance.id
    }

    fn knows(&self, node_id: &str) -> bool {
        self.report.node_id == node_id || self.report.peers.iter().any(|p| p.node_id == node_id && settled(p))
    }
}

/// The next steps, or what is waited for.
pub fn next(view: &ClusterView<'_>, spec: &ValkeySpec) -> Next {
    let mut next = Next::default();
    let mut up = Vec::new();
    for member in view.wanted() {
        match report_of(member) {
            Some(report) => up.push(Up { member, report }),
            None => next.waiting.push(silence(view, member)),
        }
    }
    let all_up = next.waiting.is_empty();
    if !view.cluster.formed && !all_up {
        return next;
    }
    if !view.cluster.formed {
        next.steps = assign_slots(spec, &up);
        if !next.steps.is_empty() {
            return next;
        }
    }
    let primaries = primaries(view);
    next.steps.extend(meet(&up, &primaries, &mut next.waiting));
    next.steps.extend(replicate(&up, &primaries, &mut next.waiting));
    next.steps.extend(forget(view, &up, &mut next.waiting));
    unsettled(view, &up, &mut next.waiting);
    if view.cluster.formed {
        next.settled = all_up && next.steps.is_empty() && next.waiting.is_empty();
        let settled = next.settled;
        moves::next(view, &primaries, settled, &mut next);
    }
    next.whole = all_up && next.steps.is_empty() && next.waiting.is_empty();
    next
}

fn assign_slots(spec: &ValkeySpec, up: &[Up<'_>]) -> Vec<Step> {
    let shards = u32::try_from(spec.shards.len()).unwrap_or(u32::MAX);
    // A replica may have taken over while the cluster was still being made: then its shard has its slots.
    let taken = |group: GroupId| {
        up.iter().any(|up| {
            up.member.instance.group == group && up.report.role == "master" && !up.report.slots.is_empty()
        })
    };
    let first = up.iter().filter(|up| up.member.instance.first_primary);
    first
        .filter(|up| !taken(up.member.instance.group))
        .filter_map(|up| {
            let index = u32::try_from(up.member.group_index?).ok()?;
            let (start, end) = slots_of(index, shards);
            let has = up.report.slots.iter().any(|range| range.start == start && range.end == end);
            let body = v1::valkey_task::AssignSlots { start, end, config_epoch: u64::from(index) + 1 };
            (!has).then(|| step(up.id(), format!("assign slots {start}-{end}"), Body::AssignSlots(body)))
        })
        .collect()
}

/// One member that is well connected introduces those that it does not know; gossip does the rest.
fn meet(up: &[Up<'_>], primaries: &BTreeMap<GroupId, InstanceId>, waiting: &mut Vec<String>) -> Option<Step> {
    let is_primary = |up: &Up<'_>| primaries.get(&up.member.instance.group) == Some(&up.id());
    let seed = up.iter().filter(|up| is_primary(up)).max_by_key(|candidate| {
        let known = up.iter().filter(|other| candidate.knows(&other.report.node_id)).count();
        (known, std::cmp::Reverse(candidate.id()))
    })?;
    // One that knows nobody may be known nevertheless: gossip finds whoever answers at an address, and a meeting asked for
    // while that went on was dropped by the engine. It hears nobody it does not know, so it is met again.
    let alone = |one: &Up<'_>| {
        up.len() > 1 && !up.iter().any(|other| other.id() != one.id() && one.knows(&other.report.node_id))
    };
    let strange =
        |other: &&Up<'_>| !seed.knows(&other.report.node_id) || (other.id() != seed.id() && alone(other));
    let strangers: Vec<_> = up.iter().filter(strange).collect();
    if strangers.is_empty() {
        for member in up {
            let missing = up.iter().filter(|other| !member.knows(&other.report.node_id)).count();
            if missing > 0 {
                waiting
                    .push(format!("instance {} has not heard of {missing} other members yet", member.id()));
            }
        }
        return None;
    }
    let peers = strangers.iter().map(|other| v1::ValkeyAddress {
        ip: other.member.instance.ipv4.to_string(),
        port: PORT,
        bus_port: BUS_PORT,
    });
    let body = v1::valkey_task::Meet { peers: peers.collect() };
    Some(step(seed.id(), format!("meet {} new members", strangers.len()), Body::Meet(body)))
}

/// Members without slots follow the primary of their group.
fn replicate(
    up: &[Up<'_>],
    primaries: &BTreeMap<GroupId, InstanceId>,
    waiting: &mut Vec<String>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for member in up {
        let group = member.member.instance.group;
        let primary = primaries.get(&group).and_then(|id| up.iter().find(|other| other.id() == *id));
        let Some(primary) = primary else {
            waiting.push(format!("shard {group} has no primary that answers"));
            continue;
        };
        let follows =
            member.report.role == "slave" && member.report.primary_node_id == primary.report.node_id;
        if member.id() == primary.id() || (follows && member.report.link_up) {
            continue;
        }
        if follows {
            waiting.push(format!("instance {} copies the data of its primary", member.id()));
        } else if !member.report.slots.is_empty() {
            waiting.push(format!("instance {} still believes to own slots of its successor", member.id()));
        } else if !member.knows(&primary.report.node_id) {
            waiting.push(format!("instance {} has not heard of its primary yet", member.id()));
        } else {
            let body = v1::valkey_task::Replicate { primary_node_id: primary.report.node_id.clone() };
            steps.push(step(member.id(), format!("replicate {}", primary.id()), Body::Replicate(body)));
        }
    }
    steps
}

/// Nodes that are none of ours leave every member's table, on all members at once: inside the engine's 60 s ban.
fn forget(view: &ClusterView<'_>, up: &[Up<'_>], waiting: &mut Vec<String>) -> Vec<Step> {
    let own = own_node_ids(view);
    // Whoever's node id is not logged yet, or who may have changed while nobody listened, must not be taken for a stranger.
    let unsure = |member: &Member<'_>| {
        let lost = member.host.is_none_or(|host| host.presence != Presence::Present);
        member.instance.fact.is_none() || (member.report.is_none() && !lost)
    };
    if view.wanted().any(unsure) {
        return Vec::new();
    }
    // Whom a member follows is remembered by all until that one is its own successor or follows another: nobody votes for the
    // successor of a node that it does not know.
    let followed: BTreeSet<&str> = up.iter().map(|up| up.report.primary_node_id.as_str()).collect();
    let mut steps = Vec::new();
    for member in up {
        if !member.report.primary_node_id.is_empty() && !own.contains(&member.report.primary_node_id) {
            let primary = &member.report.primary_node_id;
            waiting.push(format!("instance {} still follows {primary}, which is gone", member.id()));
        }
        let strange = |peer: &&v1::ValkeyPeer| {
            settled(peer) && !own.contains(&peer.node_id) && !followed.contains(peer.node_id.as_str())
        };
        let strangers: BTreeSet<&str> =
            member.report.peers.iter().filter(strange).map(|peer| peer.node_id.as_str()).collect();
        for node_id in strangers {
            let body = v1::valkey_task::Forget { node_id: node_id.to_owned() };
            let short = node_id.get(..8).unwrap_or(node_id);
            steps.push(step(member.id(), format!("forget node {short}"), Body::Forget(body)));
        }
    }
    steps
}

/// What the engine itself still has to agree on.
fn unsettled(view: &ClusterView<'_>, up: &[Up<'_>], waiting: &mut Vec<String>) {
    for member in up {
        if member.report.cluster_state != "ok" {
            waiting.push(format!(
                "instance {} says cluster_state:{}",
                member.id(),
                member.report.cluster_state
            ));
        }
    }
    let masters: Vec<_> = up.iter().filter(|m| !m.report.slots.is_empty()).collect();
    let epochs: BTreeSet<u64> = masters.iter().map(|m| m.report.config_epoch).collect();
    if epochs.len() < masters.len() {
        waiting
            .push("two primaries have the same config epoch; the engine settles that by itself".to_owned());
    }
    for group in view.groups.iter().filter(|group| !view.goes_at_once(group.id)) {
        let placed = view.wanted().filter(|m| m.instance.group == group.id).count();
        if placed < usize::try_from(group.members).unwrap_or(usize::MAX) {
            waiting.push(format!("shard {} has {placed} of {} members placed", group.id, group.members));
        }
    }
}

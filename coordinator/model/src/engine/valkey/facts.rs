//! Reading what Valkey nodes report. In: reports of the members. Out: facts for the log, who is primary, what the members say
//! about each other. Roles follow the engine's own epochs, never our plan.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1,
};

use super::ownership;
use crate::engine::{ClusterView, Member, PeerVerdict, Report, Role, UnderWay};

/// The part of a node's report that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValkeyFact {
    /// The engine's own id of the node.
    pub node_id: String,
    /// Raw: `master` or `slave`.
    pub role: String,
    /// Whom a replica follows.
    pub primary_node_id: String,
    /// First and last slot of each range it owns.
    pub slots: Vec<(u32, u32)>,
    /// Its config epoch: of two that claim the same slots the higher one is right.
    pub epoch: u64,
    /// Raw `cluster_state`.
    pub cluster_state: String,
    /// Whether it stands in no election.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands_down: bool,
    /// Whether it has no key and has copied nothing since it started: it may lack everything that its primary has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

/// A replica that never copied anything since it started says 0 or 1.
pub const NOTHING_COPIED: u64 = 1;

impl ValkeyFact {
    /// Whether the node calls itself a primary; an empty master is one that has not joined a shard yet.
    pub fn claims_primary(&self) -> bool {
        self.role == "master" && !self.slots.is_empty()
    }

    /// Whether the node follows another and may win an election.
    pub fn stands(&self) -> bool {
        self.role == "slave" && !self.stands_down
    }
}

/// Reads a report; none when it is not one or its node has no id yet.
pub fn read(bytes: &[u8]) -> Option<v1::ValkeyReport> {
    v1::ValkeyReport::decode(bytes).ok().filter(|report| !report.node_id.is_empty())
}

/// What the log keeps of it.
pub fn fact(report: &v1::ValkeyReport) -> ValkeyFact {
    ValkeyFact {
        node_id: report.node_id.clone(),
        role: report.role.clone(),
        primary_node_id: report.primary_node_id.clone(),
        slots: report.slots.iter().map(|range| (range.start, range.end)).collect(),
        epoch: report.config_epoch,
        cluster_state: report.cluster_state.clone(),
        stands_down: report.stands_down,
        blank: report.keys == 0 && report.offset <= NOTHING_COPIED,
    }
}

/// How far the move of slots is that this node performs.
pub fn under_way(report: &v1::ValkeyReport) -> Option<UnderWay> {
    let at = report.slot_move.as_ref()?;
    let counts = [("slots".to_owned(), at.slots_done.into()), ("keys".to_owned(), at.keys_done)];
    Some(UnderWay { task: at.task_id.parse().ok()?, counts: counts.into() })
}

/// The newest fact of a member.
pub fn fact_of(member: &Member<'_>) -> Option<ValkeyFact> {
    member.fact().and_then(|(_, fact)| fact.valkey().cloned())
}

/// The recent report of a member.
pub fn report_of<'a>(member: &'a Member<'_>) -> Option<&'a v1::ValkeyReport> {
    match member.engine() {
        Some(Report::Valkey(report)) => Some(report),
        Some(Report::Postgres(_)) | None => None,
    }
}

/// The primary of each group: of the members that own slots as master, the one with the highest epoch; one that is fenced and
/// succeeded comes last, as it may have raised its epoch where nobody saw it. A claim that others outrank slot
/// by slot makes no primary. In a cluster that has served, a group that owns no slot has one, too: see [`without_slots`].
pub fn primaries(view: &ClusterView<'_>) -> BTreeMap<GroupId, InstanceId> {
    let owners: BTreeSet<InstanceId> = ownership::known(view).into_iter().map(|run| run.instance).collect();
    let mut best: BTreeMap<GroupId, (bool, u64, bool, InstanceId)> = BTreeMap::new();
    for member in view.members.iter().filter(|member| owners.contains(&member.instance.id)) {
        let Some(fact) = fact_of(member) else { continue };
        let may_serve = !ownership::succeeded(view, member.instance.id);
        let claim = (may_serve, fact.epoch, member.fresh, member.instance.id);
        let held = best.entry(member.instance.group).or_insert(claim);
        if (claim.0, claim.1, claim.2) > (held.0, held.1, held.2) {
            *held = claim;
        }
    }
    let mut primaries: BTreeMap<GroupId, InstanceId> =
        best.into_iter().map(|(group, (_, _, _, instance))| (group, instance)).collect();
    for group in view.groups.iter().filter(|_| view.cluster.formed) {
        // A primary that lost its data owns nothing either, by its own word: its shard is not empty, and nobody follows it.
        if !primaries.contains_key(&group.id)
            && ownership::owns_no_slot(view, group.id)
            && let Some(primary) = without_slots(view, group.id)
        {
            primaries.insert(group.id, primary);
        }
    }
    primaries
}

/// Who leads a shard that owns no slots yet, or none any more: of its members that call themselves master one that is not fenced, then the
/// one that most of the others follow, else the one that was placed to begin. The first slot may be half way to it.
fn without_slots(view: &ClusterView<'_>, group: GroupId) -> Option<InstanceId> {
    let own = || {
        let wanted = view.wanted().filter(|member| member.instance.group == group);
        wanted.filter_map(|member| Some((member, fact_of(member)?)))
    };
    let masters = own().filter(|(_, fact)| fact.role == "master");
    let rank = |(member, fact): &(&Member<'_>, ValkeyFact)| {
        let followers = own().filter(|(_, other)| other.primary_node_id == fact.node_id).count();
        let may_serve = member.instance.fence.is_none();
        (
            may_serve,
            followers,
            member.instance.first_primary,
            fact.epoch,
            std::cmp::Reverse(member.instance.id),
        )
    };
    masters.max_by_key(rank).map(|(member, _)| member.instance.id)
}

/// Which role each member has.
pub fn roles(view: &ClusterView<'_>) -> Vec<(InstanceId, Role)> {
    let primaries = primaries(view);
    let role = |member: &Member<'_>| {
        if primaries.get(&member.instance.group) == Some(&member.instance.id) {
            return Role::Primary;
        }
        match fact_of(member) {
            Some(fact) if fact.role == "slave" => Role::Replica,
            Some(_) | None => Role::Unknown,
        }
    };
    view.members.iter().map(|member| (member.instance.id, role(member))).collect()
}

/// Whether a peer entry is a real member: a handshake has a made-up id and goes away by itself.
pub fn settled(peer: &v1::ValkeyPeer) -> bool {
    !peer.flags.iter().any(|flag| flag == "handshake")
}

/// Whether the node that knows this peer sees it working.
pub fn works(peer: &v1::ValkeyPeer) -> bool {
    peer.connected && !peer.flags.iter().any(|flag| flag == "fail" || flag == "fail?" || flag == "noaddr")
}

/// What the other members say about `instance`.
pub fn peers_about(view: &ClusterView<'_>, instance: InstanceId) -> PeerVerdict {
    let Some(about) = view.members.iter().find(|m| m.instance.id == instance) else {
        return PeerVerdict::Unknown;
    };
    let witnesses: Vec<_> = view
        .members
        .iter()
        .filter(|m| m.instance.id != instance)
        .filter_map(|m| Some((m, report_of(m)?)))
        .collect();
    if view.is_empty(about.instance.group) {
        return PeerVerdict::Failed;
    }
    if let Some(fact) = fact_of(about) {
        let seen = witnesses
            .iter()
            .flat_map(|(_, report)| &report.peers)
            .filter(|peer| peer.node_id == fact.node_id);
        if seen.into_iter().any(works) {
            return PeerVerdict::Alive;
        }
    } else if !view.cluster.formed {
        // It never took part: nobody can miss it.
        return PeerVerdict::Failed;
    }
    // Its group goes on without it only when another member has taken the slots and the rest follows that one. One that is let go
    // itself carries nothing on: what it holds goes with it.
    let primary = primaries(view).get(&about.instance.group).copied();
    let carries_on = |(m, report): &(&Member<'_>, &v1::ValkeyReport)| {
        Some(m.instance.id) == primary && m.instance.wanted() && report.cluster_state == "ok"
    };
    let carried_on = witnesses.iter().any(carries_on);
    if carried_on { PeerVerdict::Failed } else { PeerVerdict::Unknown }
}

/// How many bytes of the replication stream a replica may be behind and still count as in sync; reports of primary and replica
/// are taken at different moments.
const LAG: u64 = 16 << 20;

/// Whether this replica follows its group's primary with nothing left to copy.
pub fn in_sync(view: &ClusterView<'_>, instance: InstanceId) -> bool {
    let find = |id: InstanceId| view.members.iter().find(|m| m.instance.id == id);
    let Some(member) = find(instance) else { return false };
    let Some(primary) = primaries(view).get(&member.instance.group).copied().and_then(find) else {
        return false;
    };
    let (Some(mine), Some(theirs)) = (report_of(member), report_of(primary)) else { return false };
    mine.link_up && mine.primary_node_id == theirs.node_id && theirs.offset.saturating_sub(mine.offset) <= LAG
}

/// Whether the node says that it stands in no election.
pub fn stands_down(view: &ClusterView<'_>, instance: InstanceId) -> bool {
    let member = view.members.iter().find(|m| m.instance.id == instance);
    member.and_then(report_of).is_some_and(|report| report.stands_down)
}

/// Whether every group that owns slots has a primary that answers and says that all slots are served.
pub fn serves(view: &ClusterView<'_>) -> bool {
    let primaries = primaries(view);
    let fine = |id: &InstanceId| {
        let member = view.members.iter().find(|member| member.instance.id == *id);
        member.and_then(report_of).is_some_and(|report| report.cluster_state == "ok")
    };
    view.groups.iter().all(|group| primaries.get(&group.id).is_some_and(fine) || view.is_empty(group.id))
}

/// Whether the replica `heir` has read as much of its primary's stream as the replica `old`; one that does not answer has
/// nothing that could be lost.
pub fn holds_all_of(view: &ClusterView<'_>, heir: InstanceId, old: InstanceId) -> bool {
    let report = |id: InstanceId| view.members.iter().find(|m| m.instance.id == id).and_then(report_of);
    match (report(heir), report(old)) {
        (Some(heir_has), Some(old_has)) => in_sync(view, heir) && heir_has.offset >= old_has.offset,
        (Some(_), None) => in_sync(view, heir),
        (None, _) => false,
    }
}

/// What is said when nobody who knows can be heard.
const UNHEARD: &str = "unknown";

/// The raw cluster state most members agree on, by recent reports; by logged facts while reports had no time to come; none
/// before anybody said.
pub fn cluster_state(view: &ClusterView<'_>) -> Option<String> {
    let count = |states: Vec<String>| {
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        states.into_iter().for_each(|state| *votes.entry(state).or_default() += 1);
        // On a tie the worse word wins: "fail" sorts before "ok".
        votes.into_iter().rev().max_by_key(|(_, n)| *n).map(|(state, _)| state)
    };
    let fresh: Vec<String> = view.wanted().filter_map(report_of).map(|r| r.cluster_state.clone()).collect();
    if fresh.is_empty() {
        let logged = count(view.wanted().filter_map(fact_of).map(|f| f.cluster_state).collect());
        return if view.gathering { logged } else { logged.map(|_| UNHEARD.to_owned()) };
    }
    count(fresh)
}

/// Ids of all nodes that belong to the cluster: a member's, unless it retires on a lost host.
pub fn own_node_ids(view: &ClusterView<'_>) -> BTreeSet<String> {
    let lost =
        |member: &Member<'_>| member.host.is_none_or(|host| host.presence != crate::state::Presence::Present);
    let counts = |member: &&Member<'_>| member.instance.wanted() || !lost(member);
    view.members.iter().filter(counts).filter_map(fact_of).map(|fact| fact.node_id).collect()
}

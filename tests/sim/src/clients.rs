//! Clients that write all the time, and what they were promised. In: engines that answer. Out: for each key the newest acknowledged
//! value, and how much of it the engine's own contract let go: a vote for a replica that had not read everything, a machine that died
//! before its disk was synced, a write to a primary that was cut off. Nothing else may be lost.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::{ClusterId, GroupId, InstanceId};

use super::{
    keys::{KEYS, slot_of},
    mesh::{Cause, Mesh, Promotion},
    node::{Answer, Node, NodeId},
    rng::Rng,
    slot_table::SlotTable,
    truth,
    world::STEP,
};

/// Redirections that a client follows.
const HOPS: usize = 4;
/// A node that is cut off from the others may learn that long after them who follows a target of its slots, in milliseconds.
const MARKS_FOLLOW: u64 = 60_000;
/// A crash may lose what was written that long before it.
const UNSYNCED: u64 = 2_000;

/// What clients of one cluster were promised.
#[derive(Debug, Clone)]
struct Promised {
    /// The newest acknowledged value of each key, and when.
    acked: [(u64, u64); KEYS],
    /// The newest value of each key that a replica had when it was looked at.
    copied: [u64; KEYS],
    /// Where the slot of each key was last on its way to, and when.
    target: [(NodeId, u64); KEYS],
    next: u64,
}

impl Default for Promised {
    fn default() -> Self {
        Self { acked: [(0, 0); KEYS], copied: [0; KEYS], target: [(0, 0); KEYS], next: 0 }
    }
}

/// Counts for the closing line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub acknowledged: u64,
    /// To a primary that somebody else had already taken over from.
    pub stray: u64,
    /// Let go by the engine's own contract.
    pub excused: u64,
}

#[derive(Debug, Default)]
pub struct Clients {
    promised: BTreeMap<ClusterId, Promised>,
    /// How often each node's machine died, and when it last did.
    crashes: BTreeMap<NodeId, (u64, u64)>,
    /// Promotions of late: a mark on a slot follows them a moment after.
    recent: Vec<(u64, Promotion)>,
    /// Nodes in whose place another was put without a vote.
    superseded: BTreeSet<NodeId>,
    pub counts: Counts,
}

/// A cluster's nodes with their groups.
pub type Members<'m> = Vec<(GroupId, &'m Node)>;

/// What a client reads now, wherever it begins: at the owner, else where the owner sends it.
fn read(mesh: &Mesh, table: &SlotTable, key: usize) -> Option<u64> {
    let owner = mesh.nodes.get(&table.owner(slot_of(key))?)?;
    let own = owner.keys.values[key];
    if own > 0 {
        return Some(own);
    }
    let target = owner.migrating.get(&slot_of(key)).and_then(|to| mesh.nodes.get(to));
    let asked = target.filter(|node| node.importing.contains_key(&slot_of(key)) && node.primary.is_none());
    Some(asked.map_or(0, |node| node.keys.values[key]))
}

impl Clients {
    /// The newest acknowledged value of each key.
    pub fn acked(&self, cluster: ClusterId) -> Vec<u64> {
        self.promised
            .get(&cluster)
            .map(|p| p.acked.iter().map(|(value, _)| *value).collect())
            .unwrap_or_default()
    }

    pub fn forget(&mut self, exists: impl Fn(ClusterId) -> bool) {
        self.promised.retain(|cluster, _| exists(*cluster));
    }

    /// A few writes to one cluster.
    pub fn write(
        &mut self,
        cluster: ClusterId,
        members: &[NodeId],
        mesh: &mut Mesh,
        now: u64,
        rng: &mut Rng,
    ) {
        if members.is_empty() {
            return;
        }
        let promised = self.promised.entry(cluster).or_default();
        let key = usize::try_from(rng.below(KEYS as u64)).unwrap();
        let mut at = members[usize::try_from(rng.below(members.len() as u64)).unwrap()];
        promised.next += 1;
        let value = promised.next;
        let mut asking = false;
        for _ in 0..HOPS {
            let Some(node) = mesh.nodes.get_mut(&at) else { return };
            match node.write(key, value, asking, now) {
                Answer::Acknowledged => {
                    self.acknowledged((cluster, members), (key, value), at, mesh, now);
                    return;
                }
                Answer::Moved(to) => (at, asking) = (to, false),
                Answer::Ask(to) => (at, asking) = (to, true),
                Answer::Refused | Answer::Silent => return,
            }
        }
    }

    fn acknowledged(
        &mut self,
        (cluster, members): (ClusterId, &[NodeId]),
        (key, value): (usize, u64),
        by: NodeId,
        mesh: &Mesh,
        now: u64,
    ) {
        assert!(
            !self.superseded.contains(&by),
            "node {by:x} acknowledges a write although another was put in its place without a vote (fenced never serves)"
        );
        self.counts.acknowledged += 1;
        let table = truth::table(members.iter().filter_map(|id| mesh.nodes.get(id)));
        if read(mesh, &table, key) == Some(value) {
            self.promised.entry(cluster).or_default().acked[key] = (value, now);
        } else {
            self.counts.stray += 1;
        }
    }

    /// Lets go what the engine's contract lets go, then says what is lost. `heard` are nodes that the leader hears.
    pub fn check(
        &mut self,
        clusters: &BTreeMap<ClusterId, Members<'_>>,
        mesh: &Mesh,
        promotions: &[Promotion],
        wanted: &dyn Fn(InstanceId) -> bool,
        heard: &dyn Fn(InstanceId) -> bool,
        now: u64,
    ) {
        for promotion in promotions {
            match promotion.cause {
                Cause::Takeover => {
                    self.superseded.insert(promotion.from);
                    self.superseded.remove(&promotion.node);
                }
                Cause::Vote | Cause::Order | Cause::Test => {
                    self.superseded.remove(&promotion.node);
                }
            }
        }
        self.note_crashes(mesh, now);
        self.recent.retain(|(at, _)| now - at <= MARKS_FOLLOW);
        self.recent.extend(promotions.iter().map(|promotion| (now, *promotion)));
        for (cluster, members) in clusters {
            let Some(promised) = self.promised.get_mut(cluster) else { continue };
            let table = truth::table(members.iter().map(|(_, node)| *node));
            for key in 0..KEYS {
                let (acked, at) = promised.acked[key];
                // What an engine that is down has lost is seen when it is back, or when another is in its place.
                let owner = table.owner(slot_of(key)).and_then(|owner| mesh.nodes.get(&owner));
                let Some(owner) = owner.filter(|owner| owner.up) else { continue };
                if owner.frozen {
                    // Its disk gets nothing meanwhile.
                    promised.acked[key].1 += STEP;
                    continue;
                }
                let there = read(mesh, &table, key).unwrap_or(0);
                if there >= acked {
                    if let Some(to) = owner.migrating.get(&slot_of(key)) {
                        promised.target[key] = (*to, now);
                    }
                    continue;
                }
                let (to, marked) = promised.target[key];
                let half_moved =
                    |p: &&Promotion| now - marked <= MARKS_FOLLOW && (to == p.from || to == p.node);
                let voted = promotions.iter().find(|p| concerns(p, mesh, &table, key));
                let voted = voted.or_else(|| self.recent.iter().map(|(_, p)| p).find(half_moved));
                let why = match voted {
                    Some(p) if p.cause == Cause::Vote || p.cause == Cause::Test => {
                        better(p, members, wanted, promised.copied[key].min(acked), key)
                    }
                    Some(p) if p.cause == Cause::Takeover => behind(p, members, heard),
                    Some(_) => Some("a switchover loses nothing".to_owned()),
                    // A key that is moved is written anew where it arrives.
                    None => unsynced(&self.crashes, owner, members, key, at.max(marked)),
                };
                if let Some(why) = why {
                    let owner = owner.id;
                    panic!(
                        "cluster {cluster}: key {key} in slot {} has value {there}, and {acked} was acknowledged {} ms ago (owner {owner:x}): {why}",
                        slot_of(key),
                        now - at
                    );
                }
                self.counts.excused += 1;
                promised.acked[key] = (there, now);
                promised.copied[key] = promised.copied[key].min(there);
            }
            for (_, node) in members.iter().filter(|(_, node)| node.link_up && node.up) {
                for (copied, value) in promised.copied.iter_mut().zip(node.keys.values.iter()) {
                    *copied = (*copied).max(*value);
                }
            }
        }
    }

    /// Machines that died since the last step.
    fn note_crashes(&mut self, mesh: &Mesh, now: u64) {
        self.crashes.retain(|id, _| mesh.nodes.contains_key(id));
        for node in mesh.nodes.values() {
            let seen = self.crashes.entry(node.id).or_insert((node.crashes, 0));
            if seen.0 < node.crashes {
                *seen = (node.crashes, now);
            }
        }
    }

    /// How many of a cluster's keys a client does not read as promised.
    pub fn missing(&self, cluster: ClusterId, members: &Members<'_>, mesh: &Mesh) -> Vec<usize> {
        let Some(promised) = self.promised.get(&cluster) else { return Vec::new() };
        let table = truth::table(members.iter().map(|(_, node)| *node));
        (0..KEYS).filter(|key| read(mesh, &table, *key) != Some(promised.acked[*key].0)).collect()
    }
}

/// Whether this promotion can have touched the key: its slot is the new primary's, or half moved from or to it.
fn concerns(promotion: &Promotion, mesh: &Mesh, table: &SlotTable, key: usize) -> bool {
    let slot = slot_of(key);
    let owner = table.owner(slot);
    let marked = |node: &Node| node.importing.contains_key(&slot) || node.migrating.contains_key(&slot);
    owner == Some(promotion.node)
        || mesh.nodes.get(&promotion.node).is_some_and(marked)
        || owner.and_then(|owner| mesh.nodes.get(&owner)).is_some_and(|owner| {
            owner.migrating.get(&slot).is_some_and(|to| *to == promotion.from || *to == promotion.node)
        })
}

/// A replica that stays and was kept from the vote by order had what the elected one lacks.
fn better(
    promotion: &Promotion,
    members: &Members<'_>,
    wanted: &dyn Fn(InstanceId) -> bool,
    copied: u64,
    key: usize,
) -> Option<String> {
    let group = members.iter().find(|(_, node)| node.id == promotion.node).map(|(group, _)| *group)?;
    let able = |node: &Node| {
        let there = node.up && !node.frozen && !node.cut && wanted(node.instance);
        there && node.stands_down && node.primary.is_some()
    };
    let held = members
        .iter()
        .find(|(of, node)| *of == group && able(node) && copied > 0 && node.keys.values[key] >= copied)?;
    Some(format!("node {:x} has it and was told to stand down", held.1.id))
}

/// A takeover has to take the replica that has read most, of those that the leader hears.
fn behind(
    promotion: &Promotion,
    members: &Members<'_>,
    heard: &dyn Fn(InstanceId) -> bool,
) -> Option<String> {
    let (group, node) = members.iter().find(|(_, node)| node.id == promotion.node)?;
    let ahead = |(of, other): &&(GroupId, &Node)| {
        let there = other.up && !other.frozen && !other.cut && heard(other.instance);
        of == group && there && other.primary.is_some() && other.offset > node.offset
    };
    let other = members.iter().find(ahead)?;
    Some(format!("node {:x} was ahead of the one that took over", other.1.id))
}

/// A machine that held the key died before its disk was synced.
fn unsynced(
    crashes: &BTreeMap<NodeId, (u64, u64)>,
    owner: &Node,
    members: &Members<'_>,
    key: usize,
    written: u64,
) -> Option<String> {
    let slot = slot_of(key);
    let held = |node: &&Node| {
        node.id == owner.id
            || node.importing.contains_key(&slot)
            || owner.migrating.get(&slot) == Some(&node.id)
    };
    let died = |node: &&Node| {
        crashes.get(&node.id).is_some_and(|(_, at)| *at > 0 && written <= *at && *at - written <= UNSYNCED)
    };
    match members.iter().map(|(_, node)| *node).filter(held).find(died) {
        Some(node) if node.directives.synced_always() => {
            Some("its disk was synced at every write".to_owned())
        }
        Some(_) => None,
        None => Some("no machine died just after it was written".to_owned()),
    }
}

//! What `WAIT 1` promises: a write that a replica has beside its primary survives the loss of either. In: members that hold a key's value,
//! and which of them had trouble since. Out: what is wrong when the value is gone although one of them had none. Used by the clients.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::{ClusterId, InstanceId};

use super::{
    clients::Members,
    keys::{KEYS, Key},
    mesh::Mesh,
    node::{Node, NodeId},
};

/// An election that trouble has begun may end that long after it: two node timeouts and the vote, in milliseconds.
const AFTER: u64 = 15_000;

/// A value that a primary and at least one replica had.
#[derive(Debug, Clone, Default)]
struct Held {
    value: u64,
    by: Vec<NodeId>,
    /// When they were last seen to have it, all of them working.
    at: u64,
}

#[derive(Debug, Default)]
pub struct Confirmed {
    held: BTreeMap<ClusterId, Vec<Held>>,
    /// When a node last had trouble, and how often its machine had died by then.
    trouble: BTreeMap<NodeId, (u64, u64)>,
    /// Values that clients were told of, at any time.
    pub count: u64,
}

impl Confirmed {
    /// Notes who is down, stands still, cut off, let go, or out of elections by order: a write that only those have is not promised. While
    /// nodes are `parted` nothing is: the promise is about losses, and a primary with its replica may be on the side without a majority.
    pub fn note(&mut self, mesh: &Mesh, parted: bool, wanted: &dyn Fn(InstanceId) -> bool, now: u64) {
        self.trouble.retain(|id, _| mesh.nodes.contains_key(id));
        for node in mesh.nodes.values() {
            let works = node.up && !node.frozen && !node.cut && !node.stands_down;
            let (last, crashes) = self.trouble.entry(node.id).or_insert((0, node.crashes));
            if !works || parted || !wanted(node.instance) || *crashes != node.crashes {
                (*last, *crashes) = (now, node.crashes);
            }
        }
    }

    /// Who has this value of a key, when clients that wait for a replica are told that one has it.
    pub fn seen(
        &mut self,
        (cluster, key): (ClusterId, Key),
        value: u64,
        owner: &Node,
        members: &Members<'_>,
        now: u64,
    ) {
        let works = |node: &Node| self.trouble.get(&node.id).is_some_and(|(last, _)| last + AFTER < now);
        let has = |node: &Node| node.keys.values[key] == value && works(node);
        let follows = |node: &Node| node.primary == Some(owner.id) && node.link_up && has(node);
        let mut replicas = members.iter().map(|(_, node)| *node).filter(|node| follows(node)).peekable();
        if !has(owner) || replicas.peek().is_none() {
            return;
        }
        let held = &mut self.held.entry(cluster).or_insert_with(|| vec![Held::default(); KEYS])[key];
        self.count += u64::from(held.value != value);
        (held.value, held.at) = (value, now);
        held.by.clear();
        held.by.push(owner.id);
        held.by.extend(replicas.map(|node| node.id));
    }

    /// Why a key may not be back at `there`; none when it may, and nothing is promised of it any more. Where most owners of slots had
    /// trouble nobody can vote for the replica, and a primary that is back first leads with what its disk has.
    pub fn lost(
        &mut self,
        (cluster, key): (ClusterId, Key),
        there: u64,
        owners: &BTreeSet<NodeId>,
    ) -> Option<String> {
        let held = &mut self.held.get_mut(&cluster)?[key];
        if held.value <= there {
            return None;
        }
        let well = |id: &&NodeId| self.trouble.get(id).is_some_and(|(last, _)| *last <= held.at);
        let votes = owners.iter().filter(well).count() * 2 > owners.len();
        let why = held.by.iter().find(well).filter(|_| votes).map(|id| {
            let (value, at) = (held.value, held.at);
            format!("{value} was confirmed by a replica (WAIT 1) until {at} ms, and node {id:x}, which had it, had no trouble since")
        });
        *held = Held::default();
        why
    }

    pub fn forget(&mut self, exists: impl Fn(ClusterId) -> bool) {
        self.held.retain(|cluster, _| exists(*cluster));
    }
}

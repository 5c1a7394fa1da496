//! What is really so, whoever knows it. In: all nodes, those of hosts that are down included. Out: who owns each slot by the highest
//! config epoch, which groups own slots.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{engine::valkey::SLOTS, state::State};
use shardplane_proto::ids::{ClusterId, GroupId, InstanceId};

use super::{mesh::Mesh, node::Node, slot_table::SlotTable};

/// Each node's cluster and group, for instances that the log knows.
pub fn members<'m>(state: &State, mesh: &'m Mesh) -> BTreeMap<ClusterId, Vec<(GroupId, &'m Node)>> {
    let mut members: BTreeMap<ClusterId, Vec<(GroupId, &Node)>> = BTreeMap::new();
    for node in mesh.nodes.values() {
        if let Some(instance) = state.instances.get(&node.instance) {
            members.entry(instance.cluster).or_default().push((instance.group, node));
        }
    }
    members
}

/// Who owns each slot: of the masters that claim it the one with the highest epoch.
pub fn table<'m>(nodes: impl Iterator<Item = &'m Node>) -> SlotTable {
    let mut claims: Vec<&Node> = nodes.filter(|node| node.is_slot_master()).collect();
    claims.sort_by_key(|node| (node.epoch, node.id));
    let mut table = SlotTable::default();
    for node in claims {
        node.owns(node.id).into_iter().for_each(|(start, end)| table.set(start, end, node.id));
    }
    table
}

/// Keeps the set of groups that own slots. One whose members have all been destroyed owns them still, until others have all slots.
pub fn owners(state: &State, mesh: &Mesh, known: &mut BTreeSet<GroupId>) {
    for (cluster, members) in members(state, mesh) {
        let table = table(members.iter().map(|(_, node)| *node));
        let owner = |node: &Node| table.has(node.id);
        let own: BTreeSet<GroupId> =
            members.iter().filter(|(_, node)| owner(node)).map(|(group, _)| *group).collect();
        if table.covered() == SLOTS {
            let of_it: BTreeSet<GroupId> = state.instances_of(cluster).map(|i| i.group).collect();
            known.retain(|group| !of_it.contains(group));
        }
        known.extend(own);
    }
}

/// The node of an instance, when it has one.
pub fn node_of(mesh: &Mesh, instance: InstanceId) -> Option<&Node> {
    mesh.nodes.values().find(|node| node.instance == instance)
}

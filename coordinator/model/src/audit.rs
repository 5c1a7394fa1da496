//! What must hold in every state. In: a state. Out: every broken invariant, for people. Used by the property tests and the simulator
//! after every step.

use std::collections::BTreeMap;

use shardplane_proto::ids::ResourceId;

use crate::state::{State, TaskState};

/// Every broken invariant; empty when the state is sound.
pub fn audit(state: &State) -> Vec<String> {
    let mut broken = Vec::new();
    for host in state.hosts.values() {
        let short = state.promised(host.id).exceeds(host.facts.capacity);
        if !short.is_empty() {
            broken.push(format!("host {} is promised more {} than it has", host.id, short.join(", ")));
        }
    }
    let mut addresses = BTreeMap::new();
    for instance in state.instances.values() {
        if let Some(other) = addresses.insert((instance.subnet, instance.ipv4), instance.id) {
            broken.push(format!(
                "instances {other} and {} have the same address {}",
                instance.id, instance.ipv4
            ));
        }
        if state.resting.get(&instance.subnet).is_some_and(|rest| rest.contains_key(&instance.ipv4)) {
            broken.push(format!("instance {} has an address that rests", instance.id));
        }
    }
    for (id, cluster) in &state.clusters {
        let mut groups: BTreeMap<_, u32> = BTreeMap::new();
        for instance in state.instances_of(*id).filter(|i| i.wanted()) {
            let replaced = state.instances_of(*id).any(|other| other.replaces == Some(instance.id));
            *groups.entry(instance.group).or_default() += u32::from(!replaced);
        }
        let spec = state.resources.get(&ResourceId::from(*id)).and_then(|resource| resource.cluster_spec());
        for group in spec.map(|spec| spec.groups()).unwrap_or_default() {
            let has = groups.get(&group.id).copied().unwrap_or(0);
            if has > group.members {
                broken.push(format!("shard {} has {has} of {} members", group.id, group.members));
            }
        }
        let twice = cluster.instances.len()
            != cluster.instances.iter().collect::<std::collections::BTreeSet<_>>().len();
        if twice {
            broken.push(format!("cluster {id} lists an instance twice"));
        }
    }
    for task in state.tasks.values().filter(|task| task.state == TaskState::Running) {
        if !state.instances.get(&task.instance).is_some_and(|instance| instance.wanted()) {
            broken.push(format!("task {} is asked of {}, which is not wanted", task.id, task.instance));
        }
    }
    broken
}

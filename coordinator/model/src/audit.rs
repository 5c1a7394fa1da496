//! What must hold in every state. In: a state. Out: every broken invariant, for people. Used by the property tests and the simulator
//! after every step.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::ResourceId;

use crate::{
    resource::Outcome,
    state::{OperationKind, OperationState, State, TaskState},
};

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
        let resource = state.resources.get(&ResourceId::from(*id));
        let spec = resource.and_then(|resource| resource.cluster_spec());
        // While a change that takes a replica away is carried out, or one that adds some was cancelled, those that go are still there.
        let spare = u32::from(resource.is_some_and(|resource| resource.change.outcome != Outcome::Done));
        for group in spec.map(|spec| spec.groups()).unwrap_or_default() {
            let has = groups.get(&group.id).copied().unwrap_or(0);
            if has > group.members + spare {
                broken.push(format!("shard {} has {has} of {} members", group.id, group.members));
            }
        }
        let moving = state.operations.values().filter(|o| {
            o.cluster == *id && o.kind == OperationKind::Reshard && o.state == OperationState::Running
        });
        if moving.count() != usize::from(cluster.layout.is_some()) {
            broken.push(format!(
                "cluster {id} has a layout without a reshard that runs, or the other way round"
            ));
        }
        for leaving in &cluster.leaving {
            if spec.is_some_and(|spec| spec.groups().iter().any(|group| group.id == leaving.id)) {
                broken.push(format!("shard {} of cluster {id} is wanted and leaves", leaving.id));
            }
        }
        let twice = cluster.instances.len() != cluster.instances.iter().collect::<BTreeSet<_>>().len();
        if twice {
            broken.push(format!("cluster {id} lists an instance twice"));
        }
    }
    tasks(state, &mut broken);
    for task in state.tasks.values().filter(|task| task.state == TaskState::Running) {
        if !state.instances.get(&task.instance).is_some_and(|instance| instance.wanted()) {
            broken.push(format!("task {} is asked of {}, which is not wanted", task.id, task.instance));
        }
    }
    broken
}

/// Tasks and what lists them agree.
fn tasks(state: &State, broken: &mut Vec<String>) {
    let mut listed = BTreeSet::new();
    for (id, cluster) in &state.clusters {
        for task in &cluster.tasks {
            if !listed.insert(*task) {
                broken.push(format!("task {task} is listed twice by clusters"));
            }
            if state.tasks.get(task).is_none_or(|task| task.cluster != *id) {
                broken.push(format!("cluster {id} lists task {task}, which is not its own"));
            }
        }
    }
    for operation in state.operations.values() {
        for task in &operation.tasks {
            if state.tasks.get(task).is_none_or(|task| task.operation != operation.id) {
                broken.push(format!("operation {} lists task {task}, which is not its own", operation.id));
            }
        }
    }
    for task in state.tasks.values() {
        if state.clusters.contains_key(&task.cluster) && !listed.contains(&task.id) {
            broken.push(format!("task {} is not listed by its cluster {}", task.id, task.cluster));
        }
        if !state.operations.get(&task.operation).is_some_and(|o| o.tasks.contains(&task.id)) {
            broken.push(format!("task {} is not listed by its operation {}", task.id, task.operation));
        }
    }
}

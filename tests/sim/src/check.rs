//! What must hold beyond the audit. In: state, plan, truth. Panics with what is broken.

use std::collections::BTreeMap;

use shardplane_model::{
    command::{Decision, ReplaceCause},
    observed::Observed,
    plan::Plan,
    resource::Spec,
    state::{Footprint, Presence, State},
    time::Timestamp,
};
use shardplane_proto::{
    ids::{GroupId, HostId, ResourceId},
    v1,
};

use super::{mesh::Mesh, world::World};

/// No reservation sits beside its own group while an open host with room and image has fewer of it.
pub fn placed_well(state: &State, observed: &Observed, plan: &Plan, now: Timestamp) {
    let mut taken: BTreeMap<HostId, Footprint> = BTreeMap::new();
    for decision in &plan.propose {
        let Decision::Place { cluster, reservations, retire, .. } = decision else { continue };
        let version = match &state.resources[&ResourceId::from(*cluster)].spec {
            Spec::Cluster(spec) => spec.version(),
            other @ (Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Role { .. }
            | Spec::ParametersSet { .. }) => panic!("{other:?} is placed"),
        };
        let mut members: Vec<(GroupId, HostId)> = state
            .instances_of(*cluster)
            .filter(|i| i.wanted() && !retire.iter().any(|replaced| replaced.instance == i.id))
            .map(|i| (i.group, i.host))
            .collect();
        // Where one of the shard cannot run, nothing of it is put at once.
        let cannot_run = |group: GroupId| {
            let refused = retire.iter().filter(|replaced| replaced.cause == ReplaceCause::CannotRun);
            let members = refused.filter_map(|replaced| state.instances.get(&replaced.instance));
            members.filter(move |member| member.group == group).map(|member| member.host)
        };
        for reservation in reservations {
            let new = &reservation.instance;
            let leaves = new.replaces.and_then(|id| state.instances.get(&id)).map(|i| i.host);
            let beside = |host: HostId| {
                let all = members.iter().filter(|(g, h)| *g == new.group && *h == host).count();
                all - usize::from(leaves == Some(host) && all > 0)
            };
            let open = state.hosts.values().filter(|host| {
                let used = state.promised(host.id).plus(taken.get(&host.id).copied().unwrap_or_default());
                host.schedulable()
                    && !cannot_run(new.group).any(|at| at == host.id)
                    && observed.hears(host.id, now)
                    && host.facts.images.iter().any(|image| image.version == version)
                    && used.plus(new.footprint).exceeds(host.facts.capacity).is_empty()
            });
            let cluster = &state.clusters[cluster];
            let best = open.map(|host| (cluster.passes_over(host.id, now), beside(host.id))).min();
            let best = best.map(|(_, beside)| beside);
            assert!(
                best.is_some_and(|best| beside(new.host) <= best),
                "instance {} of shard {} is put beside {} of its own; {best:?} was possible",
                new.id,
                new.group,
                beside(new.host)
            );
            members.push((new.group, new.host));
            let sum = taken.entry(new.host).or_default();
            *sum = sum.plus(new.footprint);
        }
    }
}

/// Whoever is let go of a shard that goes on is no primary and becomes none on its way out, whatever dies meanwhile.
pub fn leavers_win_nothing(state: &State, mesh: &Mesh, plan: &Plan) {
    for decision in &plan.propose {
        let (Decision::Retire { cluster, instances, .. } | Decision::Shrink { cluster, instances, .. }) =
            decision
        else {
            continue;
        };
        for id in instances.iter().filter(|_| state.clusters[cluster].formed) {
            let instance = &state.instances[id];
            let goes_on = state
                .instances_of(*cluster)
                .any(|i| i.group == instance.group && i.wanted() && !instances.contains(&i.id));
            let up = mesh.nodes.values().filter(|node| node.instance == *id && node.up);
            let present = state.hosts[&instance.host].presence == Presence::Present;
            for node in up.filter(|_| goes_on && present) {
                let wins = node.is_slot_master() || (node.primary.is_some() && !node.stands_down);
                assert!(
                    !wins,
                    "{id} is let go and may be a primary by the time it stops: {decision:?}; the log knows {:?}; it follows {:x?}",
                    instance.fact, node.primary
                );
            }
        }
    }
}

/// No group that owns slots loses its last copy by a decision of ours: among its wanted members one holds its data, be it on a host
/// that is down.
pub fn copies_are_kept(world: &World) {
    let state = &world.leader.state;
    for (id, cluster) in state.clusters.iter().filter(|(_, cluster)| cluster.formed) {
        let resource = &state.resources[&ResourceId::from(*id)];
        if resource.deleting() {
            continue;
        }
        for group in cluster.groups(resource.cluster_spec().unwrap()) {
            if !world.owners.contains(&group.id) {
                continue;
            }
            let holds = |instance: &shardplane_model::state::Instance| {
                world.mesh.nodes.values().any(|node| node.instance == instance.id && node.has_data)
            };
            let any = state.instances_of(*id).filter(|i| i.group == group.id && i.wanted()).any(holds);
            assert!(any, "shard {} of {id} (formed {}) has lost its last copy", group.id, cluster.formed);
        }
    }
}

pub fn valkey(world: &World, id: ResourceId) -> v1::Valkey {
    let state = &world.leader.state;
    let now = world.leader.stamp(world.now);
    let seen =
        shardplane_model::view::resource(state, &world.leader.observed, &state.resources[&id], now, None);
    match seen.body {
        Some(v1::resource::Body::Valkey(valkey)) => valkey,
        other => panic!("{other:?} is no cluster"),
    }
}

/// The view tells nothing that nobody reported, and in the promised order.
pub fn views(world: &World) {
    let state = &world.leader.state;
    for id in state.clusters.keys() {
        let seen = valkey(world, (*id).into());
        let status = seen.status.unwrap();
        let nodes: Vec<_> = status.nodes.iter().map(|n| (n.shard_index, n.id.clone())).collect();
        assert!(nodes.is_sorted(), "nodes out of order: {nodes:?}");
        let spec: Vec<_> = seen.spec.unwrap().shards.iter().map(|s| s.id.clone()).collect();
        // Shards that leave are shown behind those of the spec.
        let shown: Vec<_> = status.shards.iter().map(|s| s.id.clone()).collect();
        assert!(shown.starts_with(&spec), "{shown:?}");
        let leaving = &state.clusters[id].leaving;
        assert_eq!(shown.len(), spec.len() + leaving.len(), "{shown:?}");
        for shard in &status.shards {
            let primaries =
                status.nodes.iter().filter(|n| n.shard_index == shard.index && n.is_primary).count();
            assert!(primaries <= 1, "shard {} shows {primaries} primaries", shard.index);
            let Some(primary) = &shard.primary_instance_id else {
                assert_eq!(
                    (shard.slot_count, &shard.primary_endpoint, primaries),
                    (0, &None, 0),
                    "a shard without a primary"
                );
                continue;
            };
            let instance = state.instances_of(*id).find(|i| i.id.to_string() == *primary).unwrap();
            assert!(
                // A shard without slots has a primary that nobody knows by its slots.
                world.was_primary.contains(&instance.id)
                    || (shard.slot_count == 0 && state.clusters[id].formed),
                "{primary} is shown as a primary and never was one"
            );
            assert!(!shard.replica_instance_ids.contains(primary), "{primary} is primary and replica");
        }
    }
}

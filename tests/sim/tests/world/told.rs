//! What users and guests are told when little can be heard, when primaries change and when hosts change.

use prost::Message as _;
use shardplane_model::hostspec::host_spec;
use shardplane_proto::{
    ids::{ClusterId, Generation, InstanceId, ResourceId},
    v1,
};

use shardplane_sim::world::{World, cluster, metadata};

use super::scenarios::ready;

#[test]
fn when_nobody_can_be_heard_status_says_so_by_name() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    (0..3).for_each(|host| world.power_off(host));
    world.run(120);
    let status = world.status(id);
    assert_eq!(status.cluster_state.as_deref(), Some("unknown"));
    assert!(!status.anti_affinity_ok && !status.primary_spread_ok, "{status:#?}");
    for shard in &status.shards {
        let text = format!("shard {} ({}) has no primary that can be heard", shard.index, shard.id);
        assert!(status.anti_affinity_message.contains(&text), "{}", status.anti_affinity_message);
    }
    let text = &status.primary_spread_message;
    assert!(text.contains("0 of 3 primaries can be heard"), "{text}");
    for node in &status.nodes {
        let host = world.host_of(node.id.parse().unwrap()) + 1;
        let name = format!("{} on h{host}", node.id);
        assert!(text.contains(&name) && status.anti_affinity_message.contains(&name), "{text}");
    }
}

#[test]
fn one_silent_primary_is_named() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[1][0];
    world.hosts[victim].control_cut = true;
    world.run(10);
    let status = world.status(id);
    assert_eq!(status.cluster_state.as_deref(), Some("ok"), "the others say so");
    assert!(!status.anti_affinity_ok && status.anti_affinity_message.contains("shard 1 ("), "{status:#?}");
    assert!(
        !status.primary_spread_ok && status.primary_spread_message.contains("2 of 3 primaries"),
        "{status:#?}"
    );
}

#[test]
fn right_after_a_change_of_leader_logged_facts_still_stand_but_not_for_long() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let fine = |world: &World| {
        let status = world.status(id);
        status.cluster_state.as_deref() == Some("ok") && status.anti_affinity_ok && status.primary_spread_ok
    };
    world.change_leader(1_000);
    for _ in 0..40 {
        world.step();
        assert!(fine(&world), "{:#?}", world.status(id));
    }
    world.hosts.iter_mut().for_each(|host| host.control_cut = true);
    world.change_leader(0);
    world.run(6);
    assert!(fine(&world), "{:#?}", world.status(id));
    world.run(1);
    assert!(!fine(&world));
    assert_eq!(world.status(id).cluster_state.as_deref(), Some("unknown"));
}

#[test]
fn an_image_built_anew_under_its_version_is_taken_over() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    world.hosts[1].facts.images[0].digest = "e".repeat(64);
    world.power_off(1);
    world.run(3);
    world.power_on(1);
    world.settles(60);
    world.assert_whole(id);
    for instance in world.leader.state.instances_of(id.into()) {
        let letter = if world.host_of(instance.id) == 1 { "e" } else { "d" };
        assert_eq!(instance.image_digest, letter.repeat(64));
    }
    let told = &world.hosts[1].spec.as_ref().unwrap().instances;
    assert!(!told.is_empty() && told.iter().all(|i| i.image_digest == "e".repeat(64)), "its agent is told");
}

/// What every guest of a cluster is configured with.
fn configs(world: &World, id: ResourceId) -> Vec<(InstanceId, v1::ValkeyConfig)> {
    let state = &world.leader.state;
    let own: Vec<_> = state.instances_of(id.into()).map(|i| i.id).collect();
    let mut all = Vec::new();
    for host in state.hosts.keys() {
        let unseal = |_: ResourceId, _: &_| Ok::<_, String>("secret".to_owned());
        for instance in host_spec(state, *host, 1, &unseal).unwrap().unwrap().instances {
            let config = v1::ValkeyConfig::decode(instance.engine_config.as_slice()).unwrap();
            all.push((instance.instance_id.parse().unwrap(), config));
        }
    }
    all.retain(|(instance, _)| own.contains(instance));
    all
}

/// Every member but the primaries yields to another.
fn yields(world: &World, id: ResourceId) {
    let primaries: Vec<_> =
        world.status(id).shards.into_iter().map(|s| s.primary_instance_id.unwrap()).collect();
    for (instance, config) in configs(world, id) {
        assert_eq!(config.other_primary.is_some(), !primaries.contains(&instance.to_string()), "{instance}");
    }
}

fn generation(world: &World, id: ResourceId) -> Generation {
    world.leader.state.clusters[&ClusterId::from(id)].config_generation
}

#[test]
fn guests_are_told_anew_who_yields_when_the_primary_changes() {
    let mut world = ready(3, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    yields(&world, id);
    let before = generation(&world, id);
    world.run(10);
    assert_eq!(generation(&world, id), before, "nothing changed");
    let shard = world.status(id).shards.remove(0);
    let taker: InstanceId = shard.replica_instance_ids[0].parse().unwrap();
    world.take_over(taker);
    world.run(3);
    assert!(generation(&world, id) > before, "guests would keep the old config");
    assert_eq!(world.status(id).shards[0].primary_instance_id, Some(taker.to_string()));
    yields(&world, id);
    let spec = |host: &shardplane_sim::host::SimHost| host.spec.as_ref().unwrap().generation;
    assert!(
        world.hosts.iter().all(|h| spec(h) == world.leader.state.hosts[&h.id].generation.0),
        "all are told"
    );
}

#[test]
fn nobody_yields_to_a_primary_that_is_lost() {
    let mut world = ready(3, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let shard = world.status(id).shards.remove(0);
    let primary: InstanceId = shard.primary_instance_id.unwrap().parse().unwrap();
    world.power_off(world.host_of(primary));
    // It is lost, and its lease is not over yet.
    world.run(34);
    assert!(configs(&world, id).iter().all(|(_, config)| config.other_primary.is_none()));
}

#[test]
fn guests_know_whether_what_they_hold_outlives_a_restart() {
    let mut world = ready(3, 8);
    let set = ResourceId::from_u128(3 << 100);
    let parameters = [("appendonly".to_owned(), "no".to_owned())].into();
    let body = v1::resource::Body::ValkeyParametersSet(v1::ValkeyParametersSet {
        metadata: metadata(set, "cache only"),
        spec: Some(v1::ParametersSpec { parameters }),
        ..v1::ValkeyParametersSet::default()
    });
    world.put(&v1::Resource { body: Some(body) }).unwrap();
    let durable = world.create(0, 1, 1);
    let volatile = ResourceId::from_u128(40 << 100);
    let mut spec = cluster(volatile, World::SUBNET, 1, 1);
    spec.spec.as_mut().unwrap().parameters_set_id = Some(set.to_string());
    world.put_cluster(spec).unwrap();
    world.settles(60);
    assert!(configs(&world, durable).iter().all(|(_, config)| config.persistent));
    assert!(configs(&world, volatile).iter().all(|(_, config)| !config.persistent));
}

//! Slots move while machines, hosts and leaders fail: afterwards each slot has one owner, and every key is in exactly one place.

use shardplane_model::{
    engine::Layout,
    state::{OperationKind, OperationState},
};
use shardplane_proto::{ids::ClusterId, v1};
use shardplane_sim::keys;

use super::scene::{Scene, shard};

#[test]
fn four_to_five_and_back_with_leaders_that_change() {
    let mut scene = Scene::new(9, 5, 4, 1);
    scene.put(5);
    for _ in 0..4 {
        scene.run(12);
        scene.world.change_leader(2_000);
    }
    scene.settles(900);
    scene.assert_even(5);
    scene.put(4);
    for _ in 0..4 {
        scene.run(12);
        scene.world.change_leader(1_000);
    }
    scene.settles(900);
    scene.assert_even(4);
    assert!(scene.reshards().iter().all(|o| o.state == OperationState::Succeeded));
}

/// Which of the two machines that a move is between dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Source,
    Target,
}

fn host(scene: &Scene, victim: Victim) -> usize {
    let (from, to) = scene.moving().unwrap();
    scene.host_of_primary(if victim == Victim::Source { from } else { to })
}

#[test]
fn val_7_a_host_that_dies_and_returns_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(20, 1), (21, 700), (22, 3000)] {
            for (from, to) in [(3, 4), (4, 3)] {
                let mut scene = Scene::new(seed, 5, from, 1);
                scene.put(to);
                scene.until_moved(moved);
                let host = host(&scene, victim);
                scene.world.power_off(host);
                scene.run(20);
                scene.world.power_on(host);
                scene.settles(900);
                scene.assert_even(to);
            }
        }
    }
}

#[test]
fn val_7_a_host_that_is_lost_for_good_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(30, 600), (31, 2000)] {
            for (from, to) in [(3, 4), (4, 3)] {
                let mut scene = Scene::new(seed, 6, from, 1);
                scene.put(to);
                scene.until_moved(moved);
                let host = host(&scene, victim);
                scene.wipe(host);
                scene.settles(1200);
                scene.assert_even(to);
                let repairs = scene.world.leader.state.operations.values();
                let repairs: Vec<_> = repairs.filter(|o| o.kind == OperationKind::Repair).collect();
                assert!(repairs.iter().all(|o| o.state == OperationState::Succeeded), "{repairs:#?}");
            }
        }
    }
}

#[test]
fn val_7_a_machine_that_dies_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(40, 1), (41, 1500)] {
            let mut scene = Scene::new(seed, 5, 3, 1);
            scene.put(4);
            scene.until_moved(moved);
            let (from, to) = scene.moving().unwrap();
            let node = scene.nodes_of(if victim == Victim::Source { from } else { to })[0];
            let instance = scene.world.mesh.nodes[&node].instance;
            scene.world.fail(instance);
            scene.run(15);
            let host = scene.world.mesh.nodes[&node].host;
            scene.world.hosts[host].failed.clear();
            scene.settles(900);
            scene.assert_even(4);
        }
    }
}

#[test]
fn a_new_shard_without_slots_is_expendable_but_not_one_that_has_some() {
    // Without replicas: the only instance of the new shard is lost before it gets anything.
    let mut scene = Scene::new(90, 5, 3, 0);
    scene.put(4);
    let new = shard(scene.id, 3);
    scene.until(60, "the new shard is placed", |scene| !scene.nodes_of(new).is_empty());
    let host = scene.host_of_primary(new);
    assert!(scene.running().is_none());
    let owned = scene.owning();
    assert!(!owned[&new]);
    let others = owned.keys().any(|group| *group != new && scene.host_of_primary(*group) == host);
    assert!(!others, "this seed loses the new shard alone");
    scene.wipe(host);
    scene.until(120, "another takes its place", |scene| {
        scene.nodes_of(new).iter().any(|node| scene.world.mesh.nodes[node].host != host)
    });
    scene.settles(900);
    scene.assert_even(4);
    // The same when it owns a few: it waits for the host, and goes on when that returns.
    let mut scene = Scene::new(91, 5, 3, 0);
    scene.put(4);
    scene.until_moved(700);
    let host = scene.host_of_primary(new);
    let instance = scene.world.mesh.nodes[&scene.nodes_of(new)[0]].instance;
    scene.world.power_off(host);
    scene.run(90);
    assert!(scene.world.leader.state.instances[&instance].wanted(), "it holds the only copy");
    scene.world.power_on(host);
    scene.settles(900);
    scene.assert_even(4);
}

#[test]
fn slots_that_a_successor_never_heard_of_stay_in_its_shard() {
    let mut scene = Scene::new(98, 4, 3, 1);
    let nodes = scene.nodes_of(shard(scene.id, 0));
    let (primary, replica, other) = (nodes[0], nodes[1], scene.nodes_of(shard(scene.id, 1))[0]);
    let first = scene.world.mesh.nodes[&primary].owns(primary)[0].0;
    // Its primary got them a moment before, from another shard.
    scene.world.mesh.nodes.get_mut(&primary).unwrap().bump();
    let heir = scene.world.mesh.nodes.get_mut(&replica).unwrap();
    heir.slots.set(first, first + 600, other);
    let instance = heir.instance;
    scene.world.take_over(instance);
    scene.settles(200);
    scene.assert_even(3);
    assert!([primary, replica].contains(&scene.owner(first)));
}

#[test]
fn decisions_that_come_late_do_no_harm() {
    let mut scene = Scene::new(97, 5, 3, 1);
    scene.world.late = true;
    scene.put(4);
    scene.until_moved(1000);
    scene.cancel();
    scene.run(5);
    scene.put(3);
    scene.settles(900);
    scene.world.late = false;
    scene.assert_even(3);
    let _: &v1::ValkeyStatus = &scene.world.status(scene.id);
}

/// The first slot of the fourth shard, half moved: marked on both sides, one of its two keys is over there.
fn first_slot_half_way(scene: &mut Scene) -> u32 {
    scene.until(120, "slots shall move", |scene| scene.running().is_some());
    let new = shard(scene.id, 3);
    let Some(Layout::Valkey(layout)) = &scene.world.leader.state.clusters[&ClusterId::from(scene.id)].layout
    else {
        panic!("no layout")
    };
    let key = (0..keys::KEYS).find(|key| layout.of(keys::slot_of(*key)) == Some(new)).unwrap();
    let slot = keys::slot_of(key);
    let (source, target) = (scene.owner(slot), scene.nodes_of(new)[0]);
    for node in scene.nodes_of(new) {
        scene.world.mesh.nodes.get_mut(&node).unwrap().importing.insert(slot, source);
    }
    let source = scene.world.mesh.nodes.get_mut(&source).unwrap();
    source.migrating.insert(slot, target);
    let value = source.keys.values[key];
    source.offset += 1;
    source.keys.set(key, 0, source.offset);
    // Its replicas have the key, and nobody else.
    for node in scene.nodes_of(new) {
        let node = scene.world.mesh.nodes.get_mut(&node).unwrap();
        // As much as one key and the pings of a primary that has nothing to say.
        node.offset += 100;
        node.keys.set(key, value, node.offset);
        node.has_data = true;
    }
    slot
}

#[test]
fn a_first_slot_that_is_half_way_goes_on() {
    let mut scene = Scene::new(110, 5, 3, 1);
    scene.put(4);
    first_slot_half_way(&mut scene);
    scene.settles(600);
    scene.assert_even(4);
}

#[test]
fn a_first_slot_that_is_half_way_when_the_new_primary_is_lost_goes_on_to_its_replica() {
    for (seed, replicas, returns) in [(111, 1, false), (112, 2, false), (113, 1, true), (114, 2, true)] {
        let mut scene = Scene::new(seed, 6, 3, replicas);
        scene.put(4);
        first_slot_half_way(&mut scene);
        let new = shard(scene.id, 3);
        let (primary, host) = (scene.nodes_of(new)[0], scene.host_of_primary(new));
        if returns {
            scene.world.power_off(host)
        } else {
            scene.wipe(host)
        }
        let heir = |scene: &Scene| {
            let mut own = scene.nodes_of(new).into_iter().filter(|node| *node != primary);
            own.any(|node| scene.world.mesh.nodes[&node].primary.is_none())
        };
        scene.until(120, "a replica takes over", heir);
        if returns {
            scene.run(20);
            scene.world.power_on(host);
        }
        scene.settles(900);
        scene.assert_even(4);
        let operations = scene.world.leader.state.operations.values();
        let taken: Vec<_> = operations.filter(|o| o.kind == OperationKind::Takeover).collect();
        assert!(taken.len() == 1 && taken[0].state == OperationState::Succeeded, "{taken:?}");
        assert!(taken[0].cause.contains("owns no slot yet"), "{taken:?}");
    }
}

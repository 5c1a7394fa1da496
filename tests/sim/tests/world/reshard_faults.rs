//! Slots move while machines, hosts and leaders fail: afterwards each slot has one owner, and every key is in exactly one place.

use shardplane_model::state::{OperationKind, OperationState};
use shardplane_proto::v1;

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

//! Spread is kept alive: what a loss, a failover or work on a host made worse is mended without anybody's action, by the cheapest steps,
//! within a budget, and only once.

use std::collections::BTreeSet;

use shardplane_model::{
    command::{Decision, DrainMode},
    resource::Outcome,
    state::{OperationKind, OperationState},
};
use shardplane_proto::ids::{InstanceId, ResourceId};
use shardplane_sim::world::{World, cluster};

use crate::scenarios::{distinct, most_primaries, ready};

fn verdicts(world: &World, id: ResourceId) -> (bool, bool) {
    let status = world.status(id);
    (status.anti_affinity_ok, status.primary_spread_ok)
}

fn operations(world: &World, kind: OperationKind) -> usize {
    world.leader.state.operations.values().filter(|o| o.kind == kind).count()
}

/// In how many racks each shard has members.
fn racks(world: &World, id: ResourceId) -> Vec<usize> {
    let rack = |host: &usize| world.hosts[*host].facts.rack.clone();
    world.seats(id).iter().map(|shard| shard.iter().map(rack).collect::<BTreeSet<_>>().len()).collect()
}

fn moving(world: &World) -> usize {
    world.leader.state.instances.values().filter(|i| i.wanted() && i.replaces.is_some()).count()
}

/// Members that a move made since the `from`th decision; panics when one of them was moved again, or was made primary twice.
pub fn moved_once(world: &World, from: usize) -> usize {
    let (mut made, mut led) = (BTreeSet::new(), BTreeSet::new());
    for (_, decision) in &world.leader.decided[from..] {
        if let Decision::Place { reservations, operation, .. } = decision
            && operation.kind == OperationKind::Move
        {
            for new in reservations {
                let old = new.instance.replaces.unwrap();
                assert!(!made.contains(&old), "{old} is moved again: {operation:?}");
                made.insert(new.instance.id);
            }
        }
        if let Decision::StartTasks { new_operation: Some(operation), tasks, .. } = decision
            && operation.kind == OperationKind::Switchover
        {
            for task in tasks {
                assert!(led.insert(task.instance), "{} leads twice: {operation:?}", task.instance);
            }
        }
    }
    made.len()
}

#[test]
fn omi_10_a_rack_returns_and_replicas_that_piled_up_spread_again() {
    let mut world = World::new(3);
    let hosts: Vec<usize> = ["r1", "r2", "r3"].iter().map(|rack| world.add_host(rack, 24)).collect();
    world.run(2);
    let ids: Vec<_> = (0..2).map(|n| world.create(n * 1000, 3, 2)).collect();
    world.settles(120);
    world.power_off(hosts[2]);
    world.run(150);
    for id in &ids {
        let status = world.status(*id);
        assert!(!status.anti_affinity_ok || !status.primary_spread_ok, "{status:?}");
        let message = status.anti_affinity_message + &status.primary_spread_message;
        assert!(message.contains("host h1") || message.contains("host h2"), "{message}");
        for shard in &status.shards {
            assert_eq!(shard.replica_instance_ids.len(), 2, "all copies are there, on two hosts");
        }
    }
    let from = world.leader.decided.len();
    world.power_on(hosts[2]);
    world.settles(600);
    for id in &ids {
        world.assert_whole(*id);
        assert_eq!((verdicts(&world, *id), racks(&world, *id)), ((true, true), vec![3, 3, 3]));
        assert!(distinct(&world.seats(*id)));
    }
    assert_eq!(moved_once(&world, from), 6, "one replica a shard goes back");
}

#[test]
fn omi_10_shards_leave_the_rack_they_share_when_another_returns_a_few_at_once() {
    let mut world = World::new(4);
    for host in 0..6 {
        world.add_host(["r1", "r2"][host % 2], 24);
    }
    world.run(2);
    let ids: Vec<_> = (0..6).map(|n| world.create(n * 1000, 3, 1)).collect();
    world.settles(120);
    let apart = |w: &World| ids.iter().all(|id| racks(w, *id) == [2, 2, 2]);
    assert!(apart(&world));
    [1, 3, 5].into_iter().for_each(|host| world.power_off(host));
    world.run(200);
    assert!(
        ids.iter().all(|id| racks(&world, *id) == [1, 1, 1] && verdicts(&world, *id).0),
        "rack r1 has it all"
    );
    let from = world.leader.decided.len();
    [1, 3, 5].into_iter().for_each(|host| world.power_on(host));
    let (mut most, mut waited) = (0, false);
    for _ in 0..(4 * 1800) {
        world.step();
        most = most.max(moving(&world));
        waited |=
            world.leader.last.waiting.values().flatten().any(|w| w.contains("fewer others are on the move"));
        for id in &ids {
            let own = world.leader.state.instances_of((*id).into()).filter(|i| i.replaces.is_some()).count();
            assert!(own <= 1, "one move at a time in a cluster");
        }
        if apart(&world) && moving(&world) == 0 {
            break;
        }
    }
    world.settles(120);
    assert!(apart(&world), "{:?}", ids.iter().map(|id| world.seats(*id)).collect::<Vec<_>>());
    assert_eq!((most, waited), (4, true), "as many at once as the budget has, and it is told");
    assert_eq!(moved_once(&world, from), 18, "one replica a shard");
    ids.iter().for_each(|id| world.assert_whole(*id));
}

/// Two primaries on one host after a failover; the host that was down is back. Answers the host that holds two.
fn two_on_one(world: &mut World, id: ResourceId) -> (usize, usize) {
    let down = world.seats(id)[0][0];
    world.power_off(down);
    world.until(30, "a failover", |w| most_primaries(&w.seats(id)) == 2);
    let seats = world.seats(id);
    let heavy = (0..world.hosts.len()).find(|h| seats.iter().filter(|s| s[0] == *h).count() == 2).unwrap();
    (down, heavy)
}

#[test]
fn val_2_one_of_two_primaries_on_a_host_is_moved_back_before_the_host_dies() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let (down, heavy) = two_on_one(&mut world, id);
    world.power_on(down);
    let said = world.status(id).primary_spread_message;
    let name = format!("host {} holds 2 of 3 primaries", world.hosts[heavy].facts.name);
    assert!(!verdicts(&world, id).1 && said.contains(&name), "{said}");
    let took = world.until(90, "one is moved back", |w| verdicts(w, id) == (true, true));
    assert!(took < 60_000, "{took} ms");
    world.settles(60);
    assert_eq!(operations(&world, OperationKind::Move), 0, "no data was copied for it");
    assert_eq!(operations(&world, OperationKind::Switchover), 1);
    // Then the host dies, and the others vote.
    world.power_off(heavy);
    world.until(30, "the rest goes on", |w| w.status(id).cluster_state.as_deref() == Some("ok"));
}

#[test]
fn val_2_no_primary_goes_to_a_closed_host() {
    for drained in [false, true] {
        let mut world = ready(3, 8);
        let id = world.create(0, 3, 1);
        world.settles(60);
        let (down, heavy) = two_on_one(&mut world, id);
        world.cordon(down, None);
        if drained {
            world.drain(down, DrainMode::KeepSpread);
        }
        world.power_on(down);
        world.run(120);
        let seats = world.seats(id);
        assert!(seats.iter().all(|shard| shard[0] != down), "{seats:?}");
        assert_eq!(seats.iter().filter(|shard| shard[0] == heavy).count(), 2);
        world.uncordon(down);
        world.until(60, "one is moved back", |w| verdicts(w, id) == (true, true));
        world.settles(60);
        world.assert_whole(id);
    }
}

#[test]
fn a_primary_beside_its_replica_yields_to_another_replica_when_no_host_is_free() {
    let mut world = ready(2, 12);
    let id = world.create(0, 3, 2);
    world.settles(120);
    // Two hosts for three members: a primary alone on its host is the best there is.
    assert!(verdicts(&world, id).0, "{:?}", world.status(id).anti_affinity_message);
    assert_eq!(operations(&world, OperationKind::Move), 0);
    moved_once(&world, 0);
}

#[test]
fn primaries_even_out_by_switch_overs_alone() {
    let mut world = ready(6, 8);
    let id = world.create(0, 6, 1);
    world.settles(60);
    let even = |w: &World| most_primaries(&w.seats(id)) == 1;
    assert!(even(&world));
    let down = world.seats(id)[0][0];
    world.power_off(down);
    world.until(30, "a failover", |w| !even(w));
    assert!(verdicts(&world, id).1, "the control: two of six on a host are no majority");
    let from = world.leader.decided.len();
    world.power_on(down);
    world.until(90, "even again", even);
    world.settles(60);
    assert_eq!(moved_once(&world, from), 0);
    world.assert_whole(id);
}

#[test]
fn a_switch_over_that_engines_refuse_is_tried_ever_more_rarely() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let (down, _) = two_on_one(&mut world, id);
    world.power_on(down);
    world.mesh.refuses = true;
    world.run(3600);
    let tries = operations(&world, OperationKind::Switchover);
    assert!((3..=10).contains(&tries), "{tries} tries in an hour");
    world.mesh.refuses = false;
    world.until(2000, "one is moved back", |w| verdicts(w, id) == (true, true));
    world.settles(60);
}

#[test]
fn omi_9_the_rule_holds_after_every_verb() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let mut replicas = 1;
    let whole = |world: &mut World, what: &str, replicas: usize| {
        world.settles(400);
        world.assert_whole(id);
        let seats = world.seats(id);
        let good = distinct(&seats) && verdicts(world, id) == (true, true);
        assert!(good && seats.iter().all(|s| s.len() == replicas + 1), "after {what}: {seats:?}");
    };
    for round in 0..3 {
        let host = world.seats(id)[round][0];
        world.cordon(host, None);
        world.run(30);
        world.uncordon(host);
        whole(&mut world, "cordon and uncordon", replicas);
        world.power_off(host);
        world.run(5);
        world.power_on(host);
        whole(&mut world, "a reboot", replicas);
        world.drain(host, DrainMode::KeepSpread);
        world.until(300, "drained", |w| w.drained(host));
        world.uncordon(host);
        whole(&mut world, "a drain", replicas);
        let grows = replicas == 1;
        replicas = if grows { 2 } else { 1 };
        world.put_cluster(cluster(id, World::SUBNET, 3, if grows { 2 } else { 1 })).unwrap();
        whole(&mut world, "another number of replicas", replicas);
        let lost = world.seats(id)[round][0];
        world.wipe(lost);
        world.run(60);
        whole(&mut world, "a repair", replicas);
        world.power_on(lost);
        whole(&mut world, "a lost host's return", replicas);
    }
}

#[test]
fn omi_12_a_slow_network_that_looks_like_a_loss_of_everything_heals_nothing() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let members = |w: &World| w.leader.state.instances.keys().copied().collect::<Vec<InstanceId>>();
    let networks = |w: &World| {
        let specs = w.hosts.iter().map(|h| h.spec.as_ref().map(|s| s.vpcs.clone()));
        specs.collect::<Vec<_>>()
    };
    let (before, wired) = (members(&world), networks(&world));
    for cut in [vec![0], vec![0, 1], vec![0, 1, 2, 3]] {
        cut.iter().for_each(|host| world.hosts[*host].control_cut = true);
        world.run(120);
        assert_eq!(members(&world), before, "{cut:?}: the others see all of them working");
        for node in world.nodes_of(id) {
            assert!(node.up && node.state_ok(world.now), "{node:?}");
        }
        for host in cut {
            (world.hosts[host].control_cut, world.hosts[host].connect_at) = (false, world.now);
        }
        world.settles(120);
        assert_eq!(members(&world), before);
        assert_eq!(networks(&world), wired, "no network was taken away for it");
        world.assert_whole(id);
    }
}

#[test]
fn omi_12_a_side_without_a_majority_is_neither_healed_nor_a_reason_to_let_anybody_go() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let before: Vec<_> = world.leader.state.instances.keys().copied().collect();
    // Every host alone: nobody can vote, and the coordinator hears them all.
    world.hosts.iter_mut().for_each(|host| host.peers_cut = true);
    world.run(120);
    let now: Vec<_> = world.leader.state.instances.keys().copied().collect();
    assert_eq!(now, before);
    assert_eq!(world.mesh.promotions.len(), 0, "nobody was made primary");
    // Two of three are silent for everybody: the one that is left cannot say that they are gone.
    world.hosts.iter_mut().for_each(|host| host.peers_cut = false);
    world.settles(120);
    [0, 1].into_iter().for_each(|host| world.power_off(host));
    world.run(300);
    let wanted = |w: &World| {
        w.leader.state.instances.values().filter(|i| i.wanted()).map(|i| i.id).collect::<Vec<_>>()
    };
    assert_eq!(wanted(&world), before, "no copy is given up");
    [0, 1].into_iter().for_each(|host| world.power_on(host));
    world.settles(200);
    world.assert_whole(id);
}

#[test]
fn aws_1_replicas_one_to_two_in_place_and_only_in_sync_they_count() {
    let mut world = ready(4, 12);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let before: BTreeSet<InstanceId> = world.leader.state.instances.keys().copied().collect();
    let roles = world.seats(id);
    world.put_cluster(cluster(id, World::SUBNET, 3, 2)).unwrap();
    loop {
        world.step();
        if world.leader.state.resources[&id].change.outcome == Outcome::Done {
            break;
        }
        assert_ne!(world.status(id).state, "stable");
    }
    let nodes = world.nodes_of(id);
    assert_eq!(nodes.len(), 9);
    assert!(nodes.iter().all(|n| n.primary.is_none() || n.link_up), "done only when all have the data");
    world.settles(60);
    world.assert_whole(id);
    let after = world.seats(id);
    assert!(before.iter().all(|id| world.leader.state.instances[id].wanted()), "nothing was replaced");
    assert!(roles.iter().zip(&after).all(|(old, new)| old[0] == new[0]), "no primary changed");
    assert!(distinct(&after));
    let grown = world.leader.state.operations.values().find(|o| o.kind == OperationKind::Grow).unwrap();
    assert_eq!(grown.state, OperationState::Succeeded);
    assert_eq!(operations(&world, OperationKind::Move), 0);
}

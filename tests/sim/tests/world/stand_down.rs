//! Members that are let go while primaries die: whoever leaves wins no election on its way out, and nobody else is kept from winning one.
//! That a leaver stands down, by the truth, is checked at every decision of every world (`leavers_win_nothing`).

use std::collections::BTreeSet;

use shardplane_model::{
    command::DrainMode,
    engine::PeerVerdict,
    plan::cluster_view,
    resource::Outcome,
    state::{Intent, OperationKind},
    time::Timestamp,
};
use shardplane_proto::ids::{InstanceId, ResourceId};
use shardplane_sim::{
    node::Node,
    world::{World, cluster},
};

use crate::scenarios::ready;

fn node(world: &World, instance: InstanceId) -> &Node {
    world.mesh.nodes.values().find(|node| node.instance == instance).unwrap()
}

fn standing_down(world: &World) -> Vec<InstanceId> {
    world.mesh.nodes.values().filter(|node| node.stands_down).map(|node| node.instance).collect()
}

fn primary_of(world: &World, id: ResourceId, shard: usize) -> InstanceId {
    world.status(id).shards[shard].primary_instance_id.as_ref().unwrap().parse().unwrap()
}

fn shard_of(world: &World, id: ResourceId, instance: InstanceId) -> usize {
    let group = world.leader.state.instances[&instance].group.to_string();
    world.status(id).shards.iter().position(|shard| shard.id == group).unwrap()
}

#[test]
fn a_replica_that_is_let_go_does_not_win_when_its_primary_dies_at_that_moment() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    let leavers = |w: &World| -> Vec<InstanceId> {
        w.leader.state.instances.values().filter(|i| !i.wanted()).map(|i| i.id).collect()
    };
    world.until(30, "some are let go", |w| !leavers(w).is_empty());
    let leaver = leavers(&world)[0];
    let shard = shard_of(&world, id, leaver);
    // Its host is slow to obey: its engine goes on for minutes.
    let host = world.host_of(leaver);
    let victim = primary_of(&world, id, shard);
    world.hosts[host].machines.get_mut(&leaver).unwrap().gone_at = Some(u64::MAX);
    let dead = world.host_of(victim);
    world.power_off(dead);
    world.until(60, "another leads", |w| {
        let leads = w.status(id).shards[shard].primary_instance_id.clone();
        leads.is_some_and(|leads| leads != victim.to_string())
    });
    world.run(60);
    assert!(node(&world, leaver).up && !world.was_primary.contains(&leaver));
    world.hosts[host].machines.get_mut(&leaver).unwrap().gone_at = Some(world.now);
    world.power_on(dead);
    world.settles(200);
    world.assert_whole(id);
}

#[test]
fn one_that_became_a_primary_before_it_was_told_stays_and_another_goes() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    let told = |w: &World| {
        let tasks: Vec<_> =
            w.leader.state.tasks.values().filter(|t| t.name.contains("no election")).collect();
        tasks.first().map(|task| task.instance)
    };
    world.until(10, "one is told", |w| told(w).is_some());
    let chosen = told(&world).unwrap();
    assert!(!node(&world, chosen).stands_down, "the engine has not heard it yet");
    world.take_over(chosen);
    world.settles(90);
    world.assert_whole(id);
    let stays = &world.leader.state.instances[&chosen];
    assert!(stays.wanted() && node(&world, chosen).is_slot_master());
    assert_eq!(standing_down(&world), Vec::new());
    let shrinks = world.leader.state.operations.values().filter(|o| o.kind == OperationKind::Shrink).count();
    assert_eq!(shrinks, 1, "one operation carries it all");
}

#[test]
fn the_last_replica_stands_again_when_its_primary_dies_before_it_went() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    world.put_cluster(cluster(id, World::SUBNET, 3, 0)).unwrap();
    let told = |w: &World| {
        let mut tasks = w.leader.state.tasks.values().filter(|t| t.name.contains("no election"));
        tasks.next().map(|task| task.instance)
    };
    world.until(10, "one is told", |w| told(w).is_some());
    let replica = told(&world).unwrap();
    let (shard, host) = (shard_of(&world, id, replica), world.host_of(replica));
    // It obeys, and nobody hears of it.
    world.hosts[host].control_cut = true;
    world.until(10, "it stands down", |w| node(w, replica).stands_down);
    let dead = world.host_of(primary_of(&world, id, shard));
    world.power_off(dead);
    world.run(20);
    assert!(!node(&world, replica).is_slot_master(), "the control: it stands in no election");
    (world.hosts[host].control_cut, world.hosts[host].connect_at) = (false, world.now);
    world.until(60, "the replica leads", |w| node(w, replica).is_slot_master());
    world.settles(200);
    assert!(world.leader.state.instances[&replica].wanted());
    world.power_on(dead);
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn whoever_stands_down_for_a_plan_that_is_over_stands_again() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    for node in world.mesh.nodes.values_mut() {
        node.stands_down = true;
    }
    world.change_leader(1_000);
    world.settles(60);
    assert_eq!(standing_down(&world), Vec::new(), "primaries and replicas alike");
    world.assert_whole(id);
}

#[test]
fn a_drain_leaves_no_shard_without_a_member_that_may_succeed() {
    let mut world = ready(5, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.drain(victim, DrainMode::KeepSpread);
    let mut told = BTreeSet::new();
    for step in 0..2400 {
        if step == 40 {
            world.change_leader(1_000);
        }
        world.step();
        for leaver in standing_down(&world) {
            told.insert(leaver);
            let group = world.leader.state.instances[&leaver].group;
            let state = &world.leader.state;
            let members = state.instances_of(id.into()).filter(|i| i.group == group && i.wanted());
            let others: Vec<&Node> = members.map(|i| node(&world, i.id)).collect();
            let leads = others.iter().any(|node| node.is_slot_master());
            let heir = others.iter().any(|n| !n.stands_down && n.primary.is_some() && n.link_up);
            assert!(leads && heir, "nobody could succeed while {leaver} stands down");
        }
        if world.drained(victim) {
            break;
        }
    }
    assert!(world.drained(victim) && !told.is_empty());
    world.settles(60);
    world.assert_whole(id);
    assert_eq!(world.leader.state.resources[&id].change.outcome, Outcome::Done);
}

#[test]
fn a_replica_that_lags_keeps_a_member_that_is_to_go_in_elections() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 2);
    world.settles(60);
    let replicas: Vec<InstanceId> =
        world.status(id).shards[0].replica_instance_ids.iter().map(|id| id.parse().unwrap()).collect();
    // One is out of sync for good, the other is hundreds of megabytes behind.
    let lagging = world.mesh.nodes.values_mut().filter(|node| replicas.contains(&node.instance));
    lagging.for_each(|node| node.lag = 1 << 40);
    for node in world.mesh.nodes.values_mut().filter(|node| node.is_slot_master()) {
        node.offset += 1 << 41;
    }
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    world.run(60);
    assert!(
        replicas.iter().all(|id| world.leader.state.instances[id].wanted() && !node(&world, *id).stands_down)
    );
    let waits = world.leader.last.waiting.values().flatten().any(|w| w.contains("another one is in sync"));
    assert!(waits, "{:?}", world.leader.last.waiting);
    world.mesh.nodes.values_mut().for_each(|node| node.lag = 0);
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn a_primary_that_is_let_go_carries_nothing_on() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let primary = primary_of(&world, id, 0);
    let replica: InstanceId = world.status(id).shards[0].replica_instance_ids[0].parse().unwrap();
    let host = world.host_of(replica);
    world.power_off(host);
    world.run(20);
    let verdict = |w: &World| {
        let leader = &w.leader;
        let view = cluster_view(&leader.state, &leader.observed, id.into(), Timestamp(w.now)).unwrap();
        view.peers_about(replica)
    };
    assert_eq!(verdict(&world), PeerVerdict::Failed, "the control: its primary carries on");
    let mut leaving = world.leader.state.instances[&primary].clone();
    leaving.intent = Intent::Retiring { cause: "test".to_owned() };
    world.leader.state.instances.insert(primary, leaving);
    assert_eq!(verdict(&world), PeerVerdict::Unknown, "the replica may hold the only copy that stays");
}

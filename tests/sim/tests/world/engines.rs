//! The simulated engines themselves: slots on the move, takeovers, restarts. What the planner is tested against has to keep the
//! contract of `valkey.proto`.

use prost::Message as _;
use shardplane_proto::{
    ids::TaskId,
    v1::{
        self, ValkeyTask,
        valkey_task::{CloseSlot, CloseSlots, MoveSlots, StandDown, Step, Takeover},
    },
};
use shardplane_sim::{
    keys,
    mesh::Mesh,
    node::{Answer, NodeId, text},
    perform::Job,
    world::{STEP, World},
};

fn ready() -> (World, Vec<NodeId>) {
    let mut world = World::new(5);
    world.add_hosts(4, 8);
    world.run(2);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let mut masters: Vec<_> =
        world.nodes_of(id).into_iter().filter(|n| n.is_slot_master()).map(|n| (n.owns(n.id), n.id)).collect();
    masters.sort();
    for key in 0..keys::KEYS {
        let slot = keys::slot_of(key);
        let owner = masters.iter().find(|(owns, _)| owns.iter().any(|(a, b)| (*a..=*b).contains(&slot)));
        let node = world.mesh.nodes.get_mut(&owner.unwrap().1).unwrap();
        assert_eq!(node.write(key, 100 + key as u64, false, world.now), Answer::Acknowledged);
    }
    (world, masters.into_iter().map(|(_, id)| id).collect())
}

fn perform(mesh: &mut Mesh, node: NodeId, job: &mut Job, step: Step, now: u64) -> Option<Result<(), String>> {
    let payload = ValkeyTask { step: Some(step) }.encode_to_vec();
    mesh.perform(node, job, &payload, &|_, _| true, now)
}

fn moves(from: u32, to: u32, target: NodeId) -> Step {
    let (target_node_id, target) = (text(target), None);
    Step::MoveSlots(MoveSlots { start: from, end: to, target_node_id, target, keys_per_second: 0 })
}

/// The step again and again, with the world going on in between.
fn whole(world: &mut World, node: NodeId, step: &Step, most: usize) -> (Job, Result<(), String>) {
    let mut job = Job::new(TaskId::from_u128(1), world.now);
    for _ in 0..most {
        if let Some(result) = perform(&mut world.mesh, node, &mut job, step.clone(), world.now) {
            return (job, result);
        }
        let now = world.now + STEP;
        world.now = now;
        world.mesh.step(&|_, _| true, now, &mut world.rng);
    }
    panic!("it does not end");
}

fn values(world: &World, nodes: &[NodeId]) -> Vec<u64> {
    (0..keys::KEYS).map(|key| nodes.iter().map(|id| world.mesh.nodes[id].keys.values[key]).sum()).collect()
}

#[test]
fn slots_move_with_their_keys_and_all_agree() {
    let (mut world, masters) = ready();
    let before = values(&world, &masters);
    let (job, result) = whole(&mut world, masters[0], &moves(0, 767, masters[1]), 200);
    result.unwrap();
    assert_eq!((job.counts["slots"], job.counts["keys"]), (768, 4));
    (0..4).for_each(|_| world.step());
    for node in world.mesh.nodes.values() {
        assert_eq!(node.slots.owner(767), Some(masters[1]));
        assert_eq!(node.slots.owner(768), Some(masters[0]));
        assert!(node.migrating.is_empty() && node.importing.is_empty());
    }
    assert_eq!(values(&world, &masters), before);
    assert_eq!(world.mesh.nodes[&masters[0]].keys.count(0, 767), 0);
    let (job, result) = whole(&mut world, masters[0], &moves(0, 767, masters[1]), 200);
    assert!(result.is_ok() && job.counts.is_empty(), "again is success");
    let (_, result) = whole(&mut world, masters[0], &moves(16_000, 16_001, masters[1]), 200);
    assert!(result.unwrap_err().contains("owned by neither"));
}

#[test]
fn a_half_moved_slot_keeps_its_keys_through_a_new_primary_and_comes_back() {
    let (mut world, masters) = ready();
    let before = values(&world, &masters);
    let slot = keys::slot_of(4);
    let mut job = Job::new(TaskId::from_u128(1), world.now);
    let now = world.now;
    assert_eq!(perform(&mut world.mesh, masters[0], &mut job, moves(slot, slot, masters[1]), now), None);
    let first = &world.mesh.nodes[&masters[0]];
    assert_eq!((first.keys.values[4], first.keys.values[5]), (0, 105));
    let source = world.mesh.nodes.get_mut(&masters[0]).unwrap();
    assert_eq!(source.write(4, 200, false, now), Answer::Ask(masters[1]));
    let target = world.mesh.nodes.get_mut(&masters[1]).unwrap();
    assert_eq!(target.write(4, 200, false, now), Answer::Moved(masters[0]));
    assert_eq!(target.write(4, 204, true, now), Answer::Acknowledged);
    // The source's replica takes over: the marks follow it, on both sides.
    (0..2).for_each(|_| world.step());
    let heir = world.mesh.nodes.values().find(|n| n.primary == Some(masters[0])).unwrap();
    let (heir, instance) = (heir.id, heir.instance);
    world.take_over(instance);
    (0..4).for_each(|_| world.step());
    assert_eq!(world.mesh.nodes[&masters[0]].primary, Some(heir));
    assert_eq!(world.mesh.nodes[&heir].migrating.get(&slot), Some(&masters[1]));
    assert_eq!(world.mesh.nodes[&masters[1]].importing.get(&slot), Some(&heir));
    let close = |peer| CloseSlot { slot, peer_node_id: text(peer), peer: None };
    let closes = |peer| Step::CloseSlots(CloseSlots { slots: vec![close(peer)] });
    let (_, refused) = whole(&mut world, masters[1], &closes(heir), 10);
    assert!(refused.unwrap_err().contains("its owner closes it"));
    let (job, result) = whole(&mut world, heir, &closes(masters[1]), 10);
    result.unwrap();
    assert_eq!(job.counts["keys"], 1);
    (0..4).for_each(|_| world.step());
    let now_there = values(&world, &[heir, masters[1], masters[2]]);
    assert!(now_there[4] == 204 && now_there.iter().zip(&before).skip(5).all(|(a, b)| a == b));
    assert!(world.mesh.nodes.values().all(|n| n.migrating.is_empty() && n.importing.is_empty()));
}

#[test]
fn a_primary_that_gives_its_last_slot_follows_unless_told_otherwise() {
    for stays in [false, true] {
        let (mut world, masters) = ready();
        for node in world.mesh.nodes.values_mut() {
            let name = "cluster-allow-replica-migration".to_owned();
            node.directives.in_force.insert(name, if stays { "no" } else { "yes" }.to_owned());
        }
        for _ in 0..10 {
            let (_, result) = whole(&mut world, masters[0], &moves(0, 5_461, masters[1]), 200);
            if world.mesh.nodes[&masters[1]].slots.owner(5_461) == Some(masters[1]) {
                break;
            }
            result.unwrap();
        }
        let now = world.now + STEP;
        world.mesh.step(&|_, _| true, now, &mut world.rng);
        let follows = world.mesh.nodes[&masters[0]].primary;
        assert_eq!(follows, (!stays).then_some(masters[1]));
    }
}

#[test]
fn takeover_asks_nobody_and_a_node_that_stands_down_is_not_elected() {
    let (mut world, masters) = ready();
    let replica = world.mesh.nodes.values().find(|n| n.primary == Some(masters[0])).unwrap().id;
    let now = world.now;
    let mut job = Job::new(TaskId::from_u128(1), now);
    let mut one = |world: &mut World, step| perform(&mut world.mesh, replica, &mut job, step, now).unwrap();
    one(&mut world, Step::StandDown(StandDown { on: true })).unwrap();
    // A leader would let it stand again: nobody leaves.
    world.change_leader(3_600_000);
    let home = world.mesh.nodes[&masters[0]].host;
    world.power_off(home);
    world.run(25);
    assert!(world.mesh.nodes[&replica].primary.is_some() && world.mesh.nodes[&replica].stands_down);
    one(&mut world, Step::Takeover(Takeover {})).unwrap();
    one(&mut world, Step::Takeover(Takeover {})).unwrap();
    let node = &world.mesh.nodes[&replica];
    assert!(node.is_slot_master() && node.epoch == node.current_epoch && node.epoch > 3);
    assert!(one(&mut world, Step::StandDown(StandDown { on: true })).is_err(), "a primary does not");
}

#[test]
fn a_directive_for_the_start_waits_for_one_and_a_refused_one_is_told() {
    let (mut world, masters) = ready();
    let wanted = |name: &str, value: &str| v1::ValkeyDirective { name: name.into(), value: value.into() };
    let refuses = [(("hz".to_owned(), "7".to_owned()), "ERR no".to_owned())].into();
    let node = world.mesh.nodes.get_mut(&masters[0]).unwrap();
    let all = [wanted("hz", "7"), wanted("io-threads", "2"), wanted("maxclients", "100")];
    node.directives.set(&all, &refuses);
    let report = node.report(world.now);
    assert_eq!(report.unapplied_directives, ["hz", "io-threads"]);
    assert_eq!(report.refused_directives.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["hz"]);
    node.directives.start(&all, &Default::default());
    assert!(node.report(world.now).unapplied_directives.is_empty());
}

/// Nobody can be elected in its place, so its disk is all there is: it is synced at every write.
#[test]
fn what_one_shard_acknowledged_survives_the_death_of_its_machine() {
    let mut world = World::new(5);
    world.add_hosts(2, 8);
    world.run(2);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let primary = world.nodes_of(id).into_iter().find(|n| n.is_slot_master()).map(|n| (n.id, n.instance));
    let (primary, instance) = primary.unwrap();
    for value in 1..=20 {
        world.step();
        let node = world.mesh.nodes.get_mut(&primary).unwrap();
        assert_eq!(node.write(3, value, false, world.now), Answer::Acknowledged);
    }
    world.kill(instance);
    world.until(60, "it is back", |w| w.mesh.nodes[&primary].up);
    assert_eq!(world.mesh.nodes[&primary].keys.values[3], 20);
}

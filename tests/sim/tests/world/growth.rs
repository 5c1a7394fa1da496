//! A shard or a replica more for which there is no place: it waits under an operation that somebody can cancel, and then nothing of it is
//! left; with room it goes on.

use shardplane_model::{
    command::{Command, Decision},
    refusal::Refusal,
    resource::Outcome,
    state::{Operation, OperationKind, OperationState},
};
use shardplane_proto::ids::{ClusterId, ResourceId};
use shardplane_sim::world::{World, cluster, user};

/// A whole cluster on as many hosts, each with `room`.
fn ready(seed: u64, hosts: usize, room: u64, replicas: i32) -> (World, ResourceId) {
    let mut world = World::new(seed);
    world.add_hosts(hosts, room);
    world.run(2);
    let id = world.create(0, 3, replicas);
    world.settles(60);
    (world, id)
}

fn growing(world: &World) -> Option<Operation> {
    let state = &world.leader.state;
    let cluster = *state.clusters.keys().next().unwrap();
    state.growing(cluster).cloned()
}

fn cancel(world: &mut World, operation: &Operation) -> Result<(), Refusal> {
    let command = Command::CancelOperation { operation: operation.id, by: user() };
    world.leader.apply(world.now, vec![command]).remove(0).map(|_| ())
}

fn asked(world: &World, id: ResourceId) -> (usize, u32) {
    let groups = world.leader.state.resources[&id].cluster_spec().unwrap().groups();
    (groups.len(), groups[0].members)
}

fn wanted(world: &World, id: ResourceId) -> usize {
    world.leader.state.instances_of(ClusterId::from(id)).filter(|i| i.wanted()).count()
}

fn waits(world: &World, part: &str) -> bool {
    world.leader.last.waiting.values().flatten().any(|why| why.contains(part))
}

/// The operation that waits, seen as a user sees it.
fn seen(world: &World, operation: &Operation) -> shardplane_proto::v1::OperationView {
    let leader = &world.leader;
    let now = leader.stamp(world.now);
    shardplane_model::view::operation(&leader.state, &leader.observed, now, operation.id).unwrap()
}

#[test]
fn a_shard_that_finds_no_place_is_taken_back_and_asked_for_again_when_there_is_room() {
    let (mut world, id) = ready(1, 3, 2, 1);
    world.late = true;
    let more = || cluster(id, World::SUBNET, 4, 1);
    world.put_cluster(more()).unwrap();
    world.until(10, "it waits under an operation", |world| growing(world).is_some());
    let operation = growing(&world).unwrap();
    let view = seen(&world, &operation);
    assert!(view.cancellable && view.phase == "running" && view.cause == "a shard is added", "{view:?}");
    assert!(view.notes[0].contains("no place: ") && view.notes[0].contains("is short of"), "{view:?}");
    world.change_leader(1_000);
    world.run(60);
    let way_out = format!("operation {} can be cancelled", operation.id);
    assert!(waits(&world, "no place: ") && waits(&world, &way_out), "{:?}", world.leader.last.waiting);
    assert_eq!(growing(&world).unwrap().id, operation.id, "it is one operation all the time");

    cancel(&mut world, &operation).unwrap();
    cancel(&mut world, &operation).unwrap();
    assert_eq!(asked(&world, id), (3, 2));
    let Outcome::Failed { message } = &world.leader.state.resources[&id].change.outcome else { panic!() };
    assert!(message.contains("cancelled by tester") && message.contains("put the change again"), "{message}");
    assert_eq!(seen(&world, &operation).phase, "cancelled");
    assert!(!seen(&world, &operation).cancellable);
    world.run(60);
    assert_eq!(growing(&world), None, "nothing is tried any more");
    assert!(world.leader.state.clusters[&ClusterId::from(id)].leaving.is_empty());
    // The small spec again, as whoever keeps it in a file applies it; then the change, with room for it.
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    world.settles(60);
    world.assert_whole(id);
    world.add_hosts(1, 2);
    world.put_cluster(more()).unwrap();
    world.late = false;
    world.settles(900);
    world.assert_whole(id);
    assert_eq!(asked(&world, id), (4, 2));
}

#[test]
fn with_room_that_comes_it_goes_on_under_the_same_operation() {
    let (mut world, id) = ready(2, 3, 2, 1);
    world.put_cluster(cluster(id, World::SUBNET, 4, 1)).unwrap();
    world.until(10, "it waits under an operation", |world| growing(world).is_some());
    let operation = growing(&world).unwrap();
    world.add_host("", 1);
    world.until(30, "one of two is placed", |world| wanted(world, id) == 7);
    world.run(30);
    world.add_host("", 1);
    world.settles(900);
    world.assert_whole(id);
    let operations = world.leader.state.operations.values();
    let grown: Vec<_> = operations.filter(|o| o.kind == OperationKind::Grow).collect();
    assert!(grown.len() == 1 && grown[0].id == operation.id, "{grown:?}");
    assert_eq!(grown[0].state, OperationState::Succeeded);
}

#[test]
fn what_was_placed_of_a_shard_goes_when_it_is_taken_back() {
    // Room for one of its two members: at the moment it is placed, and when it has long run.
    for runs in [0, 60] {
        let (mut world, id) = ready(3, 3, 2, 1);
        world.add_host("", 1);
        world.run(3);
        world.late = true;
        world.put_cluster(cluster(id, World::SUBNET, 4, 1)).unwrap();
        world.until(30, "one of two is placed", |world| wanted(world, id) == 7);
        world.run(runs);
        let operation = growing(&world).unwrap();
        cancel(&mut world, &operation).unwrap();
        world.until(60, "its instance is gone", |world| {
            world.leader.state.instances_of(ClusterId::from(id)).count() == 6
        });
        world.late = false;
        world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
        world.settles(60);
        world.assert_whole(id);
        assert!(world.hosts[3].machines.is_empty(), "nothing of it runs");
    }
}

#[test]
fn replicas_that_find_no_place_are_taken_back() {
    for room in [0, 1] {
        let (mut world, id) = ready(4, 3, 2, 1);
        (0..room).for_each(|_| {
            world.add_host("", 1);
        });
        world.run(3);
        world.put_cluster(cluster(id, World::SUBNET, 3, 2)).unwrap();
        world.until(30, "those are placed that fit", |world| {
            growing(world).is_some() && wanted(world, id) == 6 + room && waits(world, "no place")
        });
        let operation = growing(&world).unwrap();
        assert_eq!(operation.cause, "replicas are added");
        cancel(&mut world, &operation).unwrap();
        assert_eq!(asked(&world, id), (3, 2));
        world.settles(120);
        assert_eq!(wanted(&world, id), 6);
        world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
        world.settles(60);
        world.assert_whole(id);
        assert_eq!(wanted(&world, id), 6);
    }
}

#[test]
fn a_shard_that_owns_slots_is_not_taken_back_but_moved_away() {
    let (mut world, id) = ready(5, 4, 8, 1);
    world.put_cluster(cluster(id, World::SUBNET, 4, 1)).unwrap();
    world.until(60, "it is placed", |world| growing(world).is_some());
    let grow = growing(&world).unwrap();
    world.until(120, "slots move", |world| {
        let mut begun = world.leader.decided.iter().map(|(_, decision)| decision);
        begun.any(|decision| matches!(decision, Decision::Reshard { .. })) && growing(world).is_none()
    });
    let refused = cancel(&mut world, &grow).unwrap_err();
    assert!(refused.message.contains("has ended; there is nothing to cancel"), "{refused:?}");
    // What moves the slots can be cancelled; then the same spec goes on.
    world.run(20);
    let reshard = world.leader.state.operations.values().find(|o| o.kind == OperationKind::Reshard).unwrap();
    let reshard = reshard.clone();
    cancel(&mut world, &reshard).unwrap();
    world.put_cluster(cluster(id, World::SUBNET, 4, 1)).unwrap();
    world.settles(600);
    world.assert_whole(id);
    assert_eq!(asked(&world, id), (4, 2));
}

//! Groups: a lost leader, a drain, replicas added and taken away.

use shardplane_model::{
    engine::Class,
    plan::{Question, foresee},
    time::Timestamp,
};
use shardplane_proto::{ids::InstanceId, v1::resource::Body};

use crate::world::{World, cluster};

#[test]
fn a_lost_leader_is_followed_by_its_replica_and_both_copies_and_votes_are_made_anew() {
    let mut world = World::new(5);
    world.create(1);
    world.settle(60);
    let old = world.leader().unwrap();
    world.lose(old.host);
    world.run(30);
    let heir = world.leader().unwrap();
    assert_ne!(heir.id, old.id);
    world.run(30);
    world.settle(120);
    assert_eq!((world.of(Class::Data).len(), world.of(Class::Quorum).len()), (2, 3));
    assert_eq!(world.guests.inits, 1);
    assert_eq!(world.condition("ReplicasInSync").status, "True");
}

/// The only copy of a group is not made anew from nothing.
#[test]
fn without_a_replica_a_lost_leader_is_waited_for_and_no_database_is_made() {
    let mut world = World::new(5);
    world.create(0);
    world.settle(60);
    let old = world.leader().unwrap();
    world.lose(old.host);
    world.run(120);
    assert_eq!(world.guests.inits, 1);
    let said = world.condition("NothingWaits").message;
    assert!(said.contains("only copy"), "{said}");
    assert!(world.of(Class::Data).iter().any(|i| i.id == old.id));
}

/// PG-5.
#[test]
fn pg_5_a_drained_host_hands_over_its_leader_first_and_ends_empty() {
    let mut world = World::new(5);
    world.create(1);
    world.settle(60);
    let old = world.leader().unwrap();
    world.drain(old.host);
    world.run(240);
    assert!(world.state.instances.values().all(|i| i.host != old.host), "{:?}", world.observed.waiting);
    let names: Vec<&str> = world.state.tasks.values().map(|task| task.name.as_str()).collect();
    assert!(names.iter().any(|name| name.starts_with("switch over to")), "{names:?}");
    assert_eq!((world.of(Class::Data).len(), world.of(Class::Quorum).len()), (2, 3));
    assert_eq!((world.guests.inits, world.guests.quorums), (1, 1));
    assert_eq!(world.guests.quorum.members.len(), 3);
}

/// PG-5: a drain that would leave one copy is refused unless forced.
#[test]
fn pg_5_the_only_copy_does_not_move_by_itself() {
    let mut world = World::new(5);
    world.create(0);
    world.settle(60);
    let old = world.leader().unwrap();
    world.drain(old.host);
    world.run(120);
    assert_eq!(world.leader().unwrap().id, old.id);
}

#[test]
fn replicas_come_and_go_one_at_a_time() {
    let mut world = World::new(5);
    world.create(0);
    world.settle(60);
    world.put(Body::PostgreSql(cluster(1))).unwrap();
    world.settle(60);
    assert_eq!(world.of(Class::Data).len(), 2);
    let leader = world.leader().unwrap();
    world.put(Body::PostgreSql(cluster(0))).unwrap();
    world.settle(60);
    assert_eq!(world.of(Class::Data).iter().map(|i| i.id).collect::<Vec<_>>(), [leader.id]);
    assert_eq!(world.guests.inits, 1);
}

/// What `kc plan loss` says before it happens.
#[test]
fn the_loss_of_a_leaders_host_is_foreseen_with_its_pause_and_without_a_verdict_on_voters() {
    let mut world = World::new(5);
    world.create(1);
    world.settle(60);
    let leader = world.leader().unwrap();
    let now = Timestamp(world.now);
    let (moves, clusters) = foresee(&world.state, &world.observed, now, leader.host, Question::Loss);
    assert!(moves.iter().all(|moved| moved.to.is_ok()), "{moves:?}");
    assert!(clusters[0].outlook.anti_affinity_ok, "{:?}", clusters[0].outlook);
    assert_eq!(clusters[0].pauses.len(), 1);
    assert_eq!(clusters[0].pauses[0].milliseconds, 25_000, "{:?}", clusters[0].pauses);
}

/// Who restarted, in order, when both members wait for a restart.
fn restarts(lowers: bool) -> (World, Vec<InstanceId>) {
    let mut world = World::new(5);
    world.create(1);
    world.settle(60);
    let data: Vec<InstanceId> = world.of(Class::Data).into_iter().map(|i| i.id).collect();
    for id in &data {
        let guest = world.guests.guests.get_mut(id).unwrap();
        (guest.restart_pending, guest.lowers) = (true, lowers);
    }
    world.settle(60);
    let mut done: Vec<_> =
        world.state.tasks.values().filter(|task| task.name.starts_with("restart")).collect();
    done.sort_by_key(|task| task.created);
    let order = done.into_iter().map(|task| task.instance).collect();
    (world, order)
}

/// A standby does not start with less than its leader has: what is raised is raised there first, what is lowered last.
#[test]
fn restarts_for_parameters_go_replica_first_and_for_lowered_ones_leader_first() {
    for (lowers, leader_at) in [(false, 1), (true, 0)] {
        let (world, order) = restarts(lowers);
        assert_eq!(order.len(), 2, "{order:?}");
        assert_eq!(order[leader_at], world.leader().unwrap().id, "lowers: {lowers}");
    }
}

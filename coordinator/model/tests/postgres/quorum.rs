//! The quorum: placed apart, hidden from users, repaired by removing first and adding as a learner.

use shardplane_model::{engine::Class, resource::Outcome};

use crate::world::World;

#[test]
fn a_cluster_gets_three_voters_on_three_hosts_which_its_user_does_not_see() {
    let mut world = World::new(3);
    world.create(1);
    world.settle(60);
    assert_eq!((world.of(Class::Data).len(), world.of(Class::Quorum).len()), (2, 3));
    let status = world.status();
    assert_eq!((status.nodes.len(), status.shard_groups.len()), (2, 1));
    assert_eq!(status.cluster_state.as_deref(), Some("ok"));
    assert!(status.shard_groups[0].is_coordinator && status.anti_affinity_ok, "{status:?}");
    assert_eq!(status.coordinator_endpoint, Some(status.primary_endpoints[0].clone()));
    assert_eq!(world.condition("DcsHealthy").status, "True");
    assert_eq!((world.guests.inits, world.guests.quorums), (1, 1));
}

/// PG-9: voters are placed by a rule of their own, which is hard; the rule of data is not.
#[test]
fn pg_9_two_hosts_are_too_few_for_a_quorum_and_the_create_says_so_and_waits() {
    let mut world = World::new(2);
    world.create(1);
    world.run(30);
    assert_eq!(world.outcome(), Some(Outcome::InFlight));
    let waits = world.observed.waiting.values().flatten().cloned().collect::<Vec<_>>().join("; ");
    assert!(waits.contains("has another voter of its quorum"), "{waits}");
    assert!(world.of(Class::Quorum).is_empty());
    world.add_host();
    world.settle(60);
}

#[test]
fn one_host_that_runs_everything_of_a_cluster_but_voters_is_degraded_from_the_first_minute() {
    let mut world = World::new(3);
    world.create(3);
    world.settle(60);
    let data = world.of(Class::Data);
    assert_eq!(data.len(), 4);
    assert!(data.iter().any(|i| i.host == data[0].host && i.id != data[0].id) || data.len() == 4);
}

/// CIT-6: never just restarted.
#[test]
fn cit_6_a_voter_whose_host_is_lost_is_removed_and_another_added_as_a_learner() {
    let mut world = World::new(5);
    world.create(1);
    world.settle(60);
    let leader = world.leader().unwrap();
    let voter = world.of(Class::Quorum).into_iter().find(|voter| voter.host != leader.host).unwrap();
    world.lose(voter.host);
    world.run(35);
    world.settle(120);
    let names: Vec<String> = world.state.tasks.values().map(|task| task.name.clone()).collect();
    let at = |what: &str| names.iter().position(|name| name.starts_with(what));
    assert!(at("remove voter").unwrap() < at("add voter").unwrap(), "{names:?}");
    assert!(at("add voter").unwrap() < at("join the quorum").unwrap(), "{names:?}");
    assert!(at("join the quorum").unwrap() < at("let voter").unwrap(), "{names:?}");
    assert_eq!(world.guests.quorum.members.len(), 3);
    assert!(world.guests.quorum.members.iter().all(|member| !member.learner));
    assert_eq!(world.guests.quorums, 1);
    assert!(!world.of(Class::Quorum).iter().any(|i| i.id == voter.id));
}

#[test]
fn two_voters_lost_at_once_are_said_and_nothing_new_is_formed() {
    let mut world = World::new(6);
    world.create(1);
    world.settle(60);
    let voters = world.of(Class::Quorum);
    voters.iter().take(2).for_each(|voter| world.lose(voter.host));
    world.run(90);
    assert_eq!(world.condition("DcsHealthy").status, "False");
    let said = world.condition("NothingWaits").message;
    assert!(said.contains("no majority of the quorum serves"), "{said}");
    assert_eq!((world.guests.quorums, world.guests.inits), (1, 1));
}

/// CIT-6: its machine comes back on the same host with an empty disk. It would vote as one that has never promised anything.
#[test]
fn cit_6_a_voter_that_comes_back_without_its_disk_joins_as_somebody_else() {
    let mut world = World::new(4);
    world.create(1);
    world.settle(60);
    let voter = world.of(Class::Quorum)[0].clone();
    let was = world.guests.guests[&voter.id].member.clone().unwrap();
    world.wipe(voter.id);
    world.run(1);
    assert_eq!(world.condition("DcsHealthy").status, "False");
    world.settle(60);
    let is = world.guests.guests[&voter.id].member.clone().unwrap();
    assert_ne!(is, was);
    assert!(world.guests.quorum.members.iter().all(|member| member.id != was && !member.learner));
    assert_eq!((world.guests.quorum.members.len(), world.guests.quorums), (3, 1));
}

/// A host is lost before its voter ever started, and another voter takes its place while a third one is slow to start: all that begin a quorum
/// begin it with the same members.
#[test]
fn a_voter_that_was_replaced_before_the_cluster_served_joins_what_the_others_formed() {
    let mut world = World::new(5);
    world.create(1);
    world.run(1);
    let voters = world.of(Class::Quorum);
    let leader = world.of(Class::Data)[0].host;
    let lost = voters.iter().find(|voter| voter.host != leader).unwrap();
    let slow = voters.iter().find(|voter| voter.id != lost.id).unwrap();
    world.guests.slow.insert(slow.id);
    world.lose(lost.host);
    world.run(40);
    assert!(!world.of(Class::Quorum).iter().any(|voter| voter.id == lost.id), "its place is taken");
    world.guests.slow.clear();
    world.settle(120);
    assert_eq!((world.guests.quorum.members.len(), world.guests.quorums), (3, 1));
}

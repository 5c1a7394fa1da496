//! Rollouts of parameters: one member at a time, replicas first, halted by the first failure, whatever else goes on.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::{Command, Decision, Delete},
    engine::EngineKind,
    resource::{Kind, Outcome},
    state::{OperationKind, OperationState},
};
use shardplane_proto::{
    ids::{ClusterId, InstanceId, RequestId, ResourceId},
    v1::{self, resource::Body},
};
use shardplane_sim::world::{World, cluster, metadata, user};

const SET: ResourceId = ResourceId::from_u128(3 << 100);
const OTHER: ResourceId = ResourceId::from_u128(4 << 100);
const ID: ResourceId = ResourceId::from_u128(40 << 100);

fn put_set(world: &mut World, id: ResourceId, values: &[(&str, &str)]) {
    let parameters = values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let body = Body::ValkeyParametersSet(v1::ValkeyParametersSet {
        metadata: metadata(id, "tuning"),
        spec: Some(v1::ParametersSpec { parameters }),
        ..v1::ValkeyParametersSet::default()
    });
    world.put(&v1::Resource { body: Some(body) }).unwrap();
    // The plan of the step before knew nothing of it.
    world.step();
}

fn with_set(shards: usize, replicas: i32, set: Option<ResourceId>) -> v1::Valkey {
    let mut spec = cluster(ID, World::SUBNET, shards, replicas);
    spec.spec.as_mut().unwrap().parameters_set_id = set.map(|set| set.to_string());
    spec
}

/// A cluster with a set of its own, whole.
fn ready(hosts: usize, shards: usize, replicas: i32) -> World {
    let mut world = World::new(21);
    world.add_hosts(hosts, 8);
    world.run(2);
    put_set(&mut world, SET, &[("hz", "10")]);
    world.put_cluster(with_set(shards, replicas, Some(SET))).unwrap();
    world.settles(60);
    world
}

/// Members with this value in force.
fn having(world: &World, name: &str, value: &str) -> BTreeSet<InstanceId> {
    let has = |node: &&&shardplane_sim::node::Node| {
        node.directives.in_force.get(name).is_some_and(|set| set == value)
    };
    world.nodes_of(ID).iter().filter(has).map(|node| node.instance).collect()
}

fn primaries(world: &World) -> BTreeSet<InstanceId> {
    world.nodes_of(ID).iter().filter(|n| n.is_slot_master()).map(|n| n.instance).collect()
}

fn condition(world: &World) -> v1::Condition {
    world.status(ID).conditions.into_iter().find(|c| c.r#type == "ParametersInSync").unwrap()
}

fn halted(world: &World) -> Option<String> {
    world.leader.state.clusters[&ClusterId::from(ID)].rollout.halted().map(|halted| halted.why.clone())
}

/// Members in the order in which they were told.
fn told(world: &World) -> Vec<InstanceId> {
    let told = |(_, decision): &(u64, Decision)| {
        if let Decision::Roll { instance, .. } = decision { Some(*instance) } else { None }
    };
    world.leader.decided.iter().filter_map(told).collect()
}

fn outcome(world: &World) -> Outcome {
    world.leader.state.resources[&ID].change.outcome.clone()
}

fn last_rollout(world: &World) -> shardplane_model::state::Operation {
    let is = |o: &&shardplane_model::state::Operation| o.kind == OperationKind::Rollout;
    world.leader.state.operations.values().rev().find(is).unwrap().clone()
}

/// Runs until the rollout has ended; at every moment at most one member is away or behind what it was told.
fn rolls(world: &mut World, seconds: u64, name: &str, value: &str) {
    let all = world.nodes_of(ID).len();
    let begin = world.now;
    while having(world, name, value).len() < all || !world.leader.last.is_empty() {
        assert!(world.now - begin < seconds * 1000, "{:#?}", world.leader.last.waiting);
        world.step();
        let away = world.nodes_of(ID).iter().filter(|node| !node.up).count();
        assert!(away <= 1, "{away} members restart at once");
    }
}

#[test]
fn a_live_change_reaches_replicas_first_and_primaries_in_place() {
    let mut world = ready(4, 3, 1);
    assert_eq!(condition(&world).status, "True");
    let (before, starts) = (primaries(&world), told(&world).len());
    put_set(&mut world, SET, &[("hz", "20"), ("maxmemory-policy", "allkeys-lru")]);
    world.run(1);
    let (state, condition_then) = (world.status(ID).state, condition(&world));
    assert_eq!((state.as_str(), condition_then.status.as_str()), ("stable", "False"));
    assert!(condition_then.message.contains("of 6 members have the newest"), "{}", condition_then.message);
    rolls(&mut world, 60, "hz", "20");
    let order = told(&world).split_off(starts);
    assert_eq!(order.len(), 6);
    let led: Vec<bool> = order.iter().map(|member| before.contains(member)).collect();
    assert_eq!(led, [false, false, false, true, true, true], "replicas before primaries");
    assert_eq!(primaries(&world), before, "nothing had to be switched over");
    world.settles(60);
    let rollout = last_rollout(&world);
    assert_eq!((rollout.state, rollout.counts["members"]), (OperationState::Succeeded, 6));
    assert_eq!(condition(&world).status, "True");
}

#[test]
fn val_11_a_primary_restarts_only_after_a_replica_in_sync_that_has_the_parameters_took_over() {
    let mut world = ready(4, 3, 1);
    let before = primaries(&world);
    put_set(&mut world, SET, &[("io-threads", "2")]);
    let all = world.nodes_of(ID).len();
    let begin = world.now;
    while having(&world, "io-threads", "2").len() < all {
        assert!(world.now - begin < 200_000, "{:#?}", world.leader.last.waiting);
        let (leads, has) = (primaries(&world), having(&world, "io-threads", "2"));
        let up = |world: &World| -> BTreeMap<InstanceId, bool> {
            world.nodes_of(ID).iter().map(|n| (n.instance, n.up)).collect()
        };
        let was_up = up(&world);
        world.step();
        for (member, is_up) in up(&world) {
            if was_up[&member] && !is_up {
                assert!(!leads.contains(&member), "{member} was stopped as a primary");
            }
        }
        for taker in primaries(&world).difference(&leads) {
            assert!(has.contains(taker) || before.contains(taker), "{taker} took over without them");
        }
    }
    world.settles(120);
    world.assert_whole(ID);
    assert_eq!(condition(&world).status, "True");
}

#[test]
fn without_a_replica_a_primary_restarts_in_place() {
    let mut world = ready(3, 3, 0);
    put_set(&mut world, SET, &[("tcp-backlog", "128")]);
    rolls(&mut world, 120, "tcp-backlog", "128");
    world.settles(60);
    world.assert_whole(ID);
}

#[test]
fn a_refused_directive_halts_at_the_first_member_with_the_engines_text() {
    let mut world = ready(4, 3, 1);
    let text = "Active defragmentation cannot be enabled";
    world.mesh.refuses_directives.insert(("activedefrag".to_owned(), "yes".to_owned()), text.to_owned());
    let before = told(&world).len();
    put_set(&mut world, SET, &[("activedefrag", "yes"), ("hz", "20")]);
    world.settles(60);
    let victims = told(&world).split_off(before);
    assert_eq!(victims.len(), 1, "no further member is touched");
    let now = condition(&world);
    assert_eq!(now.status, "False");
    let who = format!("instance {} refused activedefrag: {text}", victims[0]);
    assert!(now.message.contains(&who) && now.message.contains("stay on instance"), "{}", now.message);
    assert!(matches!(last_rollout(&world).state, OperationState::Failed { error } if error.contains(text)));
    let events = world.leader.state.events.values().filter(|e| e.reason == "RolloutHalted").count();
    assert_eq!((events, world.status(ID).state.as_str()), (1, "stable"));
    // New members start with what the others run, not with what was refused.
    let replica = *primaries(&world).iter().next().unwrap();
    world.power_off(world.host_of(replica));
    world.run(60);
    world.settles(120);
    assert_eq!(having(&world, "hz", "20").difference(&victims.iter().copied().collect()).count(), 0);
    // Put right, it starts anew.
    put_set(&mut world, SET, &[("hz", "30")]);
    world.settles(120);
    assert_eq!((condition(&world).status.as_str(), halted(&world)), ("True", None));
}

#[test]
fn a_swap_is_a_change_in_flight_and_null_takes_the_values_back() {
    let mut world = ready(4, 3, 1);
    put_set(&mut world, OTHER, &[("hz", "50")]);
    world.put_cluster(with_set(3, 1, Some(OTHER))).unwrap();
    assert_eq!(outcome(&world), Outcome::InFlight);
    world.run(1);
    assert_eq!(outcome(&world), Outcome::InFlight, "not before every member has them");
    rolls(&mut world, 60, "hz", "50");
    world.settles(60);
    assert_eq!(outcome(&world), Outcome::Done);
    world.put_cluster(with_set(3, 1, None)).unwrap();
    world.settles(60);
    assert_eq!(having(&world, "hz", "10").len(), 6, "the engine's own value");
    // With a replica more at once.
    world.put_cluster(with_set(3, 2, Some(OTHER))).unwrap();
    world.settles(200);
    assert_eq!((having(&world, "hz", "50").len(), outcome(&world)), (9, Outcome::Done));
    world.assert_whole(ID);
}

#[test]
fn a_swap_that_is_refused_fails_with_the_engines_text() {
    let mut world = ready(4, 3, 1);
    world.mesh.refuses_directives.insert(("hz".to_owned(), "500".to_owned()), "not here".to_owned());
    put_set(&mut world, OTHER, &[("hz", "500")]);
    world.put_cluster(with_set(3, 1, Some(OTHER))).unwrap();
    world.settles(60);
    let Outcome::Failed { message } = outcome(&world) else { panic!("{:?}", outcome(&world)) };
    assert!(message.contains("refused hz: not here"), "{message}");
    world.put_cluster(with_set(3, 1, Some(SET))).unwrap();
    world.settles(60);
    assert_eq!((having(&world, "hz", "10").len(), outcome(&world)), (6, Outcome::Done));
}

#[test]
fn a_lagging_replica_is_waited_for() {
    let mut world = ready(4, 3, 1);
    let replica = world.nodes_of(ID).iter().find(|n| !n.is_slot_master()).unwrap().id;
    world.mesh.nodes.get_mut(&replica).unwrap().lag = 64 << 20;
    let behind = world.nodes_of(ID).iter().find(|n| n.id == replica).unwrap().primary.unwrap();
    world.mesh.nodes.get_mut(&behind).unwrap().offset += 128 << 20;
    world.run(2);
    let before = told(&world).len();
    put_set(&mut world, SET, &[("io-threads", "2")]);
    world.run(60);
    assert_eq!(told(&world).len(), before, "nobody is touched");
    assert!(format!("{:?}", world.leader.last.waiting).contains("is in sync"));
    world.mesh.nodes.get_mut(&replica).unwrap().lag = 0;
    rolls(&mut world, 200, "io-threads", "2");
}

#[test]
fn leaders_hosts_edits_and_operators_come_in_between() {
    // Another leader in the middle goes on where the first one stood.
    let mut world = ready(5, 3, 1);
    let before = told(&world).len();
    put_set(&mut world, SET, &[("tcp-backlog", "100")]);
    world.until(60, "two are told", |world| told(world).len() == before + 2);
    world.change_leader(3_000);
    world.settles(300);
    assert_eq!(having(&world, "tcp-backlog", "100").len(), 6);
    assert_eq!(told(&world).len(), before + 6, "nobody was told twice");

    // The host of the one that restarts is lost: another takes its place, with the newest.
    put_set(&mut world, SET, &[("tcp-backlog", "101")]);
    world.until(60, "one is told", |world| told(world).len() == before + 7);
    let victim = *told(&world).last().unwrap();
    world.power_off(world.host_of(victim));
    world.settles(600);
    assert_eq!(having(&world, "tcp-backlog", "101").difference(&[victim].into()).count(), 6);

    // An edit while the one before is under way: all end with the last one.
    put_set(&mut world, SET, &[("tcp-backlog", "102")]);
    world.until(60, "one is told", |world| having(world, "tcp-backlog", "102").len() == 2);
    put_set(&mut world, SET, &[("tcp-backlog", "103")]);
    world.settles(600);
    assert_eq!(having(&world, "tcp-backlog", "103").difference(&[victim].into()).count(), 6);

    // Cancelled: who has them keeps them, nobody else gets them.
    put_set(&mut world, SET, &[("hz", "77"), ("tcp-backlog", "103")]);
    world.until(60, "one has them", |world| having(world, "hz", "77").len() == 1);
    let cancel = Command::CancelOperation { operation: last_rollout(&world).id, by: user() };
    world.leader.apply(world.now, vec![cancel]).remove(0).unwrap();
    world.settles(60);
    assert!(having(&world, "hz", "77").len() <= 2, "no further one is told");
    assert!(halted(&world).is_some_and(|why| why.contains("cancelled by tester")));
    // The same once more goes on.
    put_set(&mut world, SET, &[("hz", "77"), ("tcp-backlog", "103")]);
    world.settles(120);
    assert_eq!(having(&world, "hz", "77").difference(&[victim].into()).count(), 6);
    assert_eq!(condition(&world).status, "True");
}

#[test]
fn one_that_does_not_come_back_halts_and_is_cured_by_putting_the_set_back() {
    let mut world = ready(4, 3, 1);
    put_set(&mut world, SET, &[("io-threads", "2")]);
    let count = told(&world).len();
    world.until(60, "one is told", |world| told(world).len() > count);
    let victim = *told(&world).last().unwrap();
    world.fail(victim);
    world.until(60, "the halt", |world| halted(world).is_some());
    assert!(halted(&world).unwrap().contains("does not come back"), "{:?}", halted(&world));
    let host = world.host_of(victim);
    world.hosts[host].failed.remove(&victim);
    put_set(&mut world, SET, &[("io-threads", "3")]);
    world.settles(600);
    assert!(having(&world, "io-threads", "3").len() >= 6);
    assert_eq!(condition(&world).status, "True");
}

#[test]
fn a_set_that_was_swapped_with_a_shard_is_taken_back_with_it_while_it_is_there() {
    for deleted in [false, true] {
        let mut world = ready(3, 3, 1);
        put_set(&mut world, OTHER, &[("hz", "50")]);
        (0..3).for_each(|host| world.cordon(host, None));
        world.put_cluster(with_set(4, 1, Some(OTHER))).unwrap();
        world.run(30);
        if deleted {
            let kind = Kind::ParametersSet(EngineKind::Valkey);
            let delete = Delete {
                id: SET,
                kind,
                request: RequestId::from_u128(world.leader.id(world.now)),
                by: user(),
            };
            world.leader.apply(world.now, vec![Command::Delete(delete)]).remove(0).unwrap();
        }
        let operation = world.leader.state.growing(ID.into()).unwrap().id;
        let cancel = Command::CancelOperation { operation, by: user() };
        world.leader.apply(world.now, vec![cancel]).remove(0).unwrap();
        let spec = world.leader.state.resources[&ID].cluster_spec().unwrap();
        let (set, hz) = if deleted { (OTHER, "50") } else { (SET, "10") };
        assert_eq!((spec.groups().len(), spec.parameters_set()), (3, Some(set)));
        world.settles(120);
        assert_eq!(having(&world, "hz", hz).len(), 6);
    }
}

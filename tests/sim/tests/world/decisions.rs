//! Decisions and commands that no longer fit, facts that come late, and what the log keeps of all that.

use shardplane_model::{
    command::{
        Applied, Command, Decision, Ended, NewOperation, NewTask, Notice, ReplaceCause, Replaced, Reservation,
    },
    engine::{Fact, valkey},
    observed::Observed,
    plan,
    refusal::{Refusal, RefusalCode},
    state::{OperationKind, Presence, State, TaskState},
    time::Timestamp,
};
use shardplane_proto::{
    ids::{ClusterId, GroupId, InstanceId, OperationId, ResourceId, TaskId},
    v1,
};

use shardplane_sim::world::World;

use super::scenarios::ready;

fn decide(world: &mut World, decision: Decision) -> Result<Applied, Refusal> {
    let now = world.now;
    world.leader.apply(now, vec![Command::Decide(decision)]).remove(0)
}

/// It is refused as outdated, and what it speaks of stays as it is.
fn outdated(world: &mut World, decision: Decision) {
    let (instances, clusters) = (world.leader.state.instances.clone(), world.leader.state.clusters.clone());
    let answer = decide(world, decision);
    assert!(matches!(&answer, Err(refusal) if refusal.code == RefusalCode::Outdated), "{answer:?}");
    assert!(world.leader.state.instances == instances && world.leader.state.clusters == clusters);
}

fn operation(number: u128) -> NewOperation {
    NewOperation {
        id: OperationId::from_u128(number),
        kind: OperationKind::Repair,
        cause: "test".to_owned(),
        goal: None,
    }
}

fn members(world: &World, id: ResourceId, shard: usize) -> Vec<InstanceId> {
    let group = world.leader.state.resources[&id].cluster_spec().unwrap().groups()[shard].id;
    world.leader.state.instances_of(id.into()).filter(|i| i.group == group).map(|i| i.id).collect()
}

#[test]
fn a_place_of_a_lost_member_is_refused_when_its_host_is_back() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let retire = vec![Replaced { instance: members(&world, id, 0)[1], cause: ReplaceCause::HostLost }];
    let cluster = id.into();
    outdated(
        &mut world,
        Decision::Place { cluster, reservations: Vec::new(), retire, operation: operation(1) },
    );
}

#[test]
fn the_last_wanted_member_of_a_shard_is_never_let_go() {
    let mut world = ready(3, 8);
    let (one, two) = (world.create(0, 1, 0), world.create(1000, 3, 1));
    world.settles(60);
    for (id, count) in [(one, 1), (two, 2)] {
        let instances = members(&world, id, 0)[..count].to_vec();
        outdated(&mut world, Decision::Retire { cluster: id.into(), instances, cause: "test".to_owned() });
    }
}

#[test]
fn the_primary_of_a_shard_is_not_let_go_by_a_late_decision() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let primary: InstanceId =
        world.status(id).shards[0].primary_instance_id.clone().unwrap().parse().unwrap();
    let cluster = id.into();
    let retire = |one| Decision::Retire { cluster, instances: vec![one], cause: "test".to_owned() };
    outdated(&mut world, retire(primary));
    let gone = Replaced { instance: primary, cause: ReplaceCause::CannotRun };
    let (reservations, operation) = (Vec::new(), operation(1));
    outdated(&mut world, Decision::Place { cluster, reservations, retire: vec![gone], operation });
    let replica = members(&world, id, 0).into_iter().find(|member| *member != primary).unwrap();
    outdated(&mut world, retire(replica));
    // The control: its replica may go when it wins no election any more.
    let node = world.mesh.nodes.values_mut().find(|node| node.instance == replica).unwrap();
    node.stands_down = true;
    let fact = node.report(world.now);
    let fact = Fact::Valkey(valkey::facts::fact(&fact));
    let now = world.now;
    world.leader.apply(now, vec![Command::Notice(Notice::Engine { instance: replica, fact })]);
    decide(&mut world, retire(replica)).unwrap();
}

#[test]
fn a_member_is_not_let_go_when_only_those_stay_that_are_lost_or_never_spoke() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let pair = members(&world, id, 0);
    let retire =
        |one| Decision::Retire { cluster: id.into(), instances: vec![one], cause: "test".to_owned() };
    let host = world.leader.state.instances[&pair[1]].host;
    let (now, message) = (world.now, "test".to_owned());
    world.leader.apply(now, vec![Command::Decide(Decision::DeclareLost { host, message })]);
    outdated(&mut world, retire(pair[0]));
    decide(&mut world, Decision::HostFound { host }).unwrap();
    let mut state = world.leader.state.clone();
    let mut silent = state.instances[&pair[1]].clone();
    silent.fact = None;
    state.instances.insert(silent.id, silent);
    world.leader.state = state;
    outdated(&mut world, retire(pair[0]));
}

/// Neither the rule about primaries nor the one about elections keeps it.
#[test]
fn a_replica_that_stands_in_no_election_is_not_let_go_when_its_primary_is_lost() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let (primary, replica) = {
        let own = members(&world, id, 0);
        let leads =
            |id: &&InstanceId| world.mesh.nodes.values().any(|n| n.instance == **id && n.is_slot_master());
        let primary = own.iter().find(leads).copied().unwrap();
        (primary, own.into_iter().find(|id| *id != primary).unwrap())
    };
    let node = world.mesh.nodes.values_mut().find(|node| node.instance == replica).unwrap();
    node.stands_down = true;
    let fact = Fact::Valkey(valkey::facts::fact(&node.report(world.now)));
    let host = world.leader.state.instances[&primary].host;
    let (now, message) = (world.now, "test".to_owned());
    world.leader.apply(
        now,
        vec![
            Command::Notice(Notice::Engine { instance: replica, fact }),
            Command::Decide(Decision::DeclareLost { host, message }),
        ],
    );
    let cause = "test".to_owned();
    outdated(&mut world, Decision::Retire { cluster: id.into(), instances: vec![replica], cause });
}

#[test]
fn a_host_is_forgotten_only_when_it_is_lost_and_nothing_needs_it() {
    let mut world = ready(4, 8);
    let (id, single) = (world.create(0, 3, 1), world.create(1000, 1, 0));
    world.settles(60);
    let forget = |world: &mut World, at: usize| {
        let (now, host) = (world.now, world.hosts[at].id);
        let before = world.leader.state.hosts.clone();
        let answer = world.leader.apply(now, vec![Command::ForgetHost(host)]).remove(0);
        assert!(answer.is_ok() || before == world.leader.state.hosts);
        answer
    };
    let only = world.seats(single)[0][0];
    let other = world.seats(id)[0].iter().copied().find(|host| *host != only).unwrap();
    let refused = forget(&mut world, other).unwrap_err();
    assert!(refused.code == RefusalCode::BadData && refused.message.contains("is not lost"), "{refused:?}");
    world.power_off(only);
    world.run(60);
    let refused = forget(&mut world, only).unwrap_err();
    let why = format!("host h{} may hold the only copy of a shard", only + 1);
    assert!(refused.code == RefusalCode::BadData && refused.message.contains(&why), "{refused:?}");
    world.power_on(only);
    world.settles(120);

    world.power_off(other);
    world.run(90);
    let host = world.hosts[other].id;
    let left: Vec<_> = world.leader.state.instances.values().filter(|i| i.host == host).cloned().collect();
    assert!(!left.is_empty() && left.iter().all(|i| !i.wanted()), "{left:?}");
    forget(&mut world, other).unwrap();
    let state = &world.leader.state;
    assert!(!state.hosts.contains_key(&host) && left.iter().all(|i| !state.instances.contains_key(&i.id)));
    assert!(left.iter().all(|i| state.resting[&i.subnet].contains_key(&i.ipv4)), "its addresses rest");
    let refused = forget(&mut world, other).unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotFound);

    world.power_on(other);
    world.settles(120);
    world.run(3);
    assert_eq!(world.leader.state.hosts[&host].presence, Presence::Present, "it joins again");
    assert!(world.hosts[other].machines.keys().all(|i| world.leader.state.instances.contains_key(i)));
    world.assert_whole(id);
    world.assert_whole(single);
}

#[test]
fn a_host_that_is_heard_is_found_again_however_late_it_was_declared_lost() {
    for steps in [2, 6, 10, 20, 200] {
        let mut world = ready(3, 8);
        let id = world.create(0, 3, 1);
        (0..steps).for_each(|_| world.step());
        let before: Vec<_> = world.leader.state.instances.keys().copied().collect();
        let host = world.hosts[0].id;
        decide(&mut world, Decision::DeclareLost { host, message: "late".to_owned() }).unwrap();
        world.step();
        assert_eq!(world.leader.state.hosts[&host].presence, Presence::Present);
        world.settles(60);
        let after: Vec<_> = world.leader.state.instances.keys().copied().collect();
        assert_eq!(before, after, "nothing was replaced");
        world.assert_whole(id);
    }
}

/// Names of the steps that a plan would start.
fn steps(state: &State, observed: &Observed, now: u64) -> Vec<String> {
    let mut ids = u128::from(now) << 81;
    let mut id = || {
        ids += 1;
        ids
    };
    let mut names = Vec::new();
    for decision in plan::plan(state, observed, Timestamp(now), &mut id).propose {
        let Decision::StartTasks { tasks, .. } = decision else { continue };
        names.extend(tasks.into_iter().map(|task| task.name));
    }
    names
}

#[test]
fn nobody_is_forgotten_while_somebody_s_id_is_unsure() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.wipe(victim);
    let forgets = |all: &[String]| all.iter().any(|name| name.starts_with("forget node"));
    world.until(60, "a stranger is forgotten", |w| {
        w.leader.state.running_tasks(id.into()).any(|task| task.name.starts_with("forget node"))
    });
    // The same moment, before the steps were asked for.
    let mut state = world.leader.state.clone();
    state.tasks.clear();
    state.clusters.get_mut(&ClusterId::from(id)).unwrap().tasks.clear();
    let (observed, now) = (world.leader.observed.clone(), world.now);
    assert!(forgets(&steps(&state, &observed, now)));

    let one = state.instances_of(id.into()).find(|i| i.wanted() && i.fact.is_some()).cloned().unwrap();
    let mut unlogged = state.clone();
    unlogged.instances.get_mut(&one.id).unwrap().fact = None;
    assert!(!forgets(&steps(&unlogged, &observed, now)), "a member's id is not logged yet");
    let mut new_leader = observed.clone();
    new_leader.since = Timestamp(now - 1000);
    new_leader.hosts.remove(&one.host);
    new_leader.members.retain(|_, member| member.host != one.host);
    assert!(!forgets(&steps(&state, &new_leader, now)), "a host has not reported to this leader yet");
}

#[test]
fn a_step_that_fails_for_days_keeps_its_last_tries_only() {
    let mut world = ready(2, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let (cluster, instance) = (ClusterId::from(id), members(&world, id, 0)[0]);
    let kept = world.leader.state.tasks_of(cluster).count();
    let operation = operation(1 << 120);
    for try_number in 0..1000 {
        let task = NewTask {
            id: TaskId::from_u128((1 << 120) + try_number),
            instance,
            name: "never".to_owned(),
            payload: vec![7],
        };
        let (id, new_operation, tasks) = (operation.id, Some(operation.clone()), vec![task.clone()]);
        decide(&mut world, Decision::StartTasks { cluster, operation: id, new_operation, tasks }).unwrap();
        let (now, error) = (world.now, Some(format!("ERR {try_number}")));
        world.leader.apply(
            now,
            vec![Command::Notice(Notice::TaskEnded { task: task.id, ended: Ended::with(error) })],
        );
    }
    let state = &world.leader.state;
    let tries: Vec<_> = state.tasks_of(cluster).filter(|task| task.payload == [7]).collect();
    assert_eq!(tries.len(), State::TRIES_KEPT);
    assert_eq!(tries.last().unwrap().state, TaskState::Failed { error: "ERR 999".to_owned() });
    assert_eq!(state.tasks_of(cluster).count(), kept + State::TRIES_KEPT);
    assert_eq!(state.operations[&operation.id].tasks.len(), State::TRIES_KEPT);
}

#[test]
fn engines_that_refuse_a_step_for_an_hour_fill_nothing() {
    let mut world = ready(2, 8);
    let id = world.create(0, 1, 1);
    world.mesh.refuses = true;
    world.run(3600);
    let state = &world.leader.state;
    let (tasks, operations) = (state.tasks.len(), state.operations.len());
    assert!(tasks <= 2 * State::TRIES_KEPT && operations <= 2, "{tasks} tasks, {operations} operations");
    assert!(world.leader.index < 1_000, "{} entries: the pause between tries grows", world.leader.index);
    let why = &world.leader.last.waiting[&ClusterId::from(id)];
    assert!(
        why.iter().any(|w| w.contains("failed before: ERR refused") || w.contains("assign slots")),
        "{why:?}"
    );
    world.mesh.refuses = false;
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn the_state_of_a_failed_engine_is_told_in_the_wait() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let one = members(&world, id, 0)[1];
    world.fail(one);
    world.run(2);
    let waiting = &world.leader.last.waiting[&ClusterId::from(id)];
    let word = shardplane_model::view::machine_word(v1::MachineState::Failed);
    assert!(
        waiting.iter().any(|w| w.contains(&format!("instance {one} on host")) && w.contains(word)),
        "{waiting:?}"
    );
}

#[test]
fn an_operation_that_has_ended_does_not_begin_again() {
    let mut world = ready(2, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let (cluster, instance) = (ClusterId::from(id), members(&world, id, 0)[0]);
    let new = operation(1 << 120);
    let task =
        NewTask { id: TaskId::from_u128(1 << 120), instance, name: "once".to_owned(), payload: vec![7] };
    let (operation, new_operation) = (new.id, Some(new.clone()));
    let start = Decision::StartTasks { cluster, operation, new_operation, tasks: vec![task] };
    decide(&mut world, start.clone()).unwrap();
    decide(&mut world, Decision::EndOperation { operation, error: None }).unwrap();
    outdated(&mut world, start);
    let place = Decision::Place { cluster, reservations: Vec::new(), retire: Vec::new(), operation: new };
    outdated(&mut world, place);
}

#[test]
fn a_task_that_runs_is_not_begun_again() {
    let mut world = ready(2, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let (cluster, instance) = (ClusterId::from(id), members(&world, id, 0)[0]);
    let mut start = |number: u128| {
        let new = operation(number);
        let (id, name) = (TaskId::from_u128(number), "once".to_owned());
        let tasks = vec![NewTask { id, instance, name, payload: vec![7] }];
        let (operation, new_operation) = (new.id, Some(new));
        decide(&mut world, Decision::StartTasks { cluster, operation, new_operation, tasks }).unwrap()
    };
    assert_eq!([start(1 << 120), start(2 << 120)], [Applied::Changed, Applied::Unchanged]);
    let running: Vec<_> = world.leader.state.running_tasks(cluster).map(|task| task.id).collect();
    assert_eq!(running, [TaskId::from_u128(1 << 120)], "what another leader began runs once");
}

#[test]
fn a_place_that_is_not_free_any_more_is_refused() {
    let mut world = ready(1, 1);
    let first = world.create(0, 1, 0);
    world.settles(60);
    let before = world.leader.state.instances.values().next().cloned().unwrap();
    let place = |id: ResourceId, room: u64, own: u8| {
        let mut instance = before.clone();
        instance.id = InstanceId::from_u128(u128::from(own));
        (instance.cluster, instance.group) = (id.into(), GroupId::from_u128(id.as_u128() + 1));
        instance.ipv4 = std::net::Ipv4Addr::from_bits(before.ipv4.to_bits() + u32::from(own));
        instance.fact = None;
        instance.footprint.memory_mib *= room;
        let (cluster, retire, operation) = (id.into(), Vec::new(), operation(1 << 120));
        let reservations = vec![Reservation { instance, own_group_on_host: 0 }];
        Decision::Place { cluster, reservations, retire, operation }
    };
    world.delete(first).unwrap();
    world.until(5, "it leaves", |w| !w.leader.state.instances[&before.id].wanted());
    let second = world.create(1000, 1, 0);
    // What leaves takes its room until its host says that it is gone.
    outdated(&mut world, place(second, 1, 1));
    world.hosts[0].facts.capacity = before.footprint.plus(before.footprint);
    let (host, facts) = (world.hosts[0].id, world.hosts[0].facts.clone());
    let now = world.now;
    world.leader.apply(now, vec![Command::Notice(Notice::Host { host, facts })]);
    outdated(&mut world, place(second, 2, 1));
    outdated(&mut world, place(second, 1, 0));
    decide(&mut world, place(second, 1, 1)).unwrap();
}

//! SCH-6, SCH-7, SCH-8: members that cannot be reached or never catch up, that leave and crash, that are even in number.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use serde_json::Value;
use shardplane_coordinator::raft::{self, MemberError, MemberStatus, RemoteError};

use crate::{
    net, replayed_as,
    user::{self, Rest},
    world::World,
};

const SHORT: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(60);
/// An election without anybody's help, with the lease that comes before it.
const ELECTION: Duration = Duration::from_secs(10);

type Asked = Arc<Mutex<Option<Result<Vec<MemberStatus>, RemoteError>>>>;

enum Wish {
    Join(Duration),
    Leave { allow_even: bool },
}

/// Asks a member for a change, as `join` and `leave` do it, on a machine of its own.
fn ask(world: &mut World, at: usize, about: usize, wish: Wish) -> Asked {
    let answer = Asked::default();
    let told = answer.clone();
    let key = world.shared.key.clone();
    let (any, id, address) = (world.seats[at].address(), world.seats[about].id, world.seats[about].address());
    let operator = world.next_name("operator");
    world.sim.client(operator, async move {
        let said = match wish {
            Wish::Join(deadline) => raft::join(net::dialer(), &key, &any, id, &address, deadline).await,
            Wish::Leave { allow_even } => raft::leave(net::dialer(), &key, &any, id, allow_even, LONG).await,
        };
        *told.lock().unwrap() = Some(said);
        Ok(())
    });
    answer
}

fn answered(world: &mut World, asked: &Asked, bound: Duration) -> Result<Vec<MemberStatus>, RemoteError> {
    world.until("the operator has an answer", bound, |_| asked.lock().unwrap().is_some());
    asked.lock().unwrap().take().unwrap()
}

fn writes(world: &World) -> u64 {
    user::open(&world.ledger).writes
}

/// Writes go on through `time`: never a pause of more than two seconds.
fn writes_go_on(world: &mut World, time: Duration) {
    let until = world.now() + time;
    while world.now() < until {
        let before = writes(world);
        world.until("there is another write", Duration::from_secs(2), |world| writes(world) > before);
    }
}

fn ids(world: &World) -> Vec<u64> {
    let leader = world.leader().map(|index| world.seats[index].raft().unwrap());
    leader.map(|raft| raft.members().into_iter().map(|member| member.id).collect()).unwrap_or_default()
}

pub fn unreachable() -> World {
    let mut world = World::new(6, 3);
    world.add_user(1);
    let lost = world.add_lonely_seat();
    let leader = world.leader().unwrap();
    for index in 0..3 {
        world.sim.partition(world.seats[lost].name.as_str(), world.seats[index].name.as_str());
    }
    let asked = ask(&mut world, leader, lost, Wish::Join(SHORT));
    writes_go_on(&mut world, Duration::from_secs(12));
    let refused = answered(&mut world, &asked, SHORT).unwrap_err();
    assert!(matches!(refused, RemoteError::Refused(MemberError::Unreachable { id: 4, .. })), "{refused}");
    assert_eq!(ids(&world), [1, 2, 3]);
    world
}

/// It answers, and takes no data: its disk hangs.
fn hanging(seed: u64) -> (World, usize) {
    let mut world = World::new(seed, 3);
    world.add_user(1);
    // Enough for a snapshot: what is older is in no log any more.
    world.until("there are snapshots", LONG, |world| writes(world) > 100);
    let hung = world.add_lonely_seat();
    world.until("it runs", SHORT, |world| world.seats[hung].raft().is_some());
    world.seats[hung].platter.state().latency = Duration::from_secs(100_000);
    (world, hung)
}

pub fn snapshot_never_completes() -> World {
    let (mut world, hung) = hanging(61);
    let leader = world.leader().unwrap();
    let asked = ask(&mut world, leader, hung, Wish::Join(SHORT));
    world.until("it is a learner", SHORT, |world| ids(world) == [1, 2, 3, 4]);
    writes_go_on(&mut world, Duration::from_secs(9));
    assert_eq!(world.voters(), [1, 2, 3]);
    let refused = answered(&mut world, &asked, SHORT).unwrap_err();
    assert!(matches!(refused, RemoteError::Refused(MemberError::NotCaughtUp { id: 4, .. })), "{refused}");
    assert_eq!(ids(&world), [1, 2, 3]);
    writes_go_on(&mut world, Duration::from_secs(5));
    world
}

pub fn a_join_is_cancelled() -> World {
    let (mut world, hung) = hanging(62);
    let leader = world.leader().unwrap();
    let joining = ask(&mut world, leader, hung, Wish::Join(Duration::from_secs(3000)));
    world.until("it is a learner", SHORT, |world| ids(world) == [1, 2, 3, 4]);
    let leaving = ask(&mut world, leader, hung, Wish::Leave { allow_even: false });
    assert!(answered(&mut world, &leaving, SHORT).is_ok());
    let refused = answered(&mut world, &joining, SHORT).unwrap_err();
    assert!(matches!(refused, RemoteError::Refused(MemberError::Unknown { id: 4 })), "{refused}");
    assert_eq!(ids(&world), [1, 2, 3]);
    writes_go_on(&mut world, Duration::from_secs(5));
    world
}

/// The leader leaves, then its power fails; then everybody else's fails, too, and comes back.
pub fn the_leader_leaves_and_crashes() -> World {
    let mut world = World::new(7, 5);
    world.add_user(1);
    world.add_agent(1);
    let old = world.leader().unwrap();
    let asked = ask(&mut world, (old + 1) % 5, old, Wish::Leave { allow_even: true });
    let left = answered(&mut world, &asked, LONG).unwrap();
    world.retire(old);
    let id = world.seats[old].id;
    assert!(left.iter().all(|member| member.id != id) && left.iter().any(|member| member.leader), "{left:?}");
    let term = world.watch.leaders.keys().max().copied().unwrap();
    assert!(world.watch.leaders[&term].0 != id, "leadership was handed over before it left");
    for index in (0..5).filter(|index| *index != old) {
        world.crash(index, Duration::from_secs(2));
    }
    world.until("the others have a leader when all are back", Duration::from_secs(2) + ELECTION, |world| {
        world.off.is_empty() && world.leader().is_some()
    });
    let before = writes(&world);
    world.until("writes go on", ELECTION * 3, |world| writes(world) > before + 5);
    assert_eq!(world.voters().len(), 4);
    world
}

/// A crash in the middle of leaving: of the leader that leaves.
pub fn a_leaving_leader_crashes_at_once(seed: u64) -> World {
    let mut world = World::new(seed, 3);
    world.add_user(1);
    let old = world.leader().unwrap();
    let _asked = ask(&mut world, old, old, Wish::Leave { allow_even: true });
    world.run_for(Duration::from_millis(seed % 10 * 400));
    world.crash(old, Duration::from_secs(5));
    world.until("everybody is back", LONG, |world| world.off.is_empty());
    // Whoever was taken out is told, and stays out; the others have a leader in every case.
    world.until("there is a leader", ELECTION * 2, |world| world.leader().is_some());
    let before = writes(&world);
    world.until("writes go on", ELECTION * 3, |world| writes(world) > before + 5);
    world
}

pub fn two_voters_one_down() -> World {
    let mut world = World::new(8, 3);
    let third = (0..3).find(|index| Some(*index) != world.leader()).unwrap();
    let leader = world.leader().unwrap();
    let even = ask(&mut world, leader, third, Wish::Leave { allow_even: false });
    let refused = answered(&mut world, &even, SHORT).unwrap_err();
    assert!(refused.to_string().contains("an even number tolerates no more losses"), "{refused}");
    let insisted = ask(&mut world, leader, third, Wish::Leave { allow_even: true });
    assert!(answered(&mut world, &insisted, SHORT).is_ok());
    world.retire(third);
    let other = (0..3).find(|index| ![leader, third].contains(index)).unwrap();
    assert_eq!(world.voters().len(), 2);

    world.crash(leader, LONG * 2);
    let work = |world: &World| world.seats[other].platter.state().work;
    let before = work(&world);
    world.run_for(LONG);
    let done = work(&world) - before;
    assert!(done < 120, "a member without a quorum did {done} pieces of work in a minute");
    let raft = world.seats[other].raft().unwrap();
    let asked = Arc::new(Mutex::new(None));
    let (told, at) = (asked.clone(), world.seats[other].address());
    let token = world.shared.admin.secret.clone();
    world.sim.client("reader", async move {
        let rest = Rest::new(&token);
        let health = rest.ask("GET", &at, "/healthz", Value::Null).await;
        let read = rest.ask("GET", &at, "/api/v1/folder/01k0000000000000000000000v", Value::Null).await;
        *told.lock().unwrap() = Some((health, read, raft.read().await));
        Ok(())
    });
    world.until("the reader has its answers", LONG, |_| asked.lock().unwrap().is_some());
    let (health, read, state) = asked.lock().unwrap().take().unwrap();
    assert!(state.is_err());
    assert_eq!(health.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    let (status, answer) = read.unwrap();
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let why = answer["errorMessage"].as_str().unwrap();
    assert!(why.contains("more than half of the coordinator's members must run"), "{why}");
    world.until("both lead again", LONG * 2, |world| world.leader().is_some());
    world
}

#[test]
fn sch_6_who_cannot_be_reached_is_not_added_and_writes_go_on() {
    replayed_as("unreachable", 6, 3);
}

#[test]
fn sch_6_a_snapshot_that_never_completes_is_given_up() {
    replayed_as("snapshot_never_completes", 61, 3);
}

#[test]
fn sch_6_a_join_can_be_cancelled() {
    replayed_as("a_join_is_cancelled", 62, 3);
}

#[test]
fn sch_7_a_leader_leaves_and_crashes_and_the_others_are_never_without_one() {
    replayed_as("the_leader_leaves_and_crashes", 7, 5);
    for seed in 71..75 {
        replayed_as("a_leaving_leader_crashes_at_once", seed, 3);
    }
}

#[test]
fn sch_8_two_voters_with_one_down_say_so_and_do_not_spin() {
    replayed_as("two_voters_one_down", 8, 3);
}

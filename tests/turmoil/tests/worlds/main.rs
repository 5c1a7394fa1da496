//! The real coordinator in simulated worlds: consensus, store, leader, sessions and API are those of the product; network, disks and
//! time are turmoil's and ours. One seed makes one world, in a process of its own. `SEED=7 MEMBERS=5 cargo turmoil` shows one.

#![allow(clippy::unwrap_used)]

mod agent;
mod chaos;
mod disk;
mod entropy;
mod files;
mod hosts;
mod member;
mod members;
mod net;
mod user;
mod watch;
mod world;

use std::{process::Command, time::Duration};

use world::World;

/// Simulated time with faults of one world.
const TROUBLE: Duration = Duration::from_secs(40);

/// Runs a world on a thread of its own, whose randomness is the seed's.
fn with_seed<T: Send + 'static>(seed: u64, world: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().spawn(move || {
        entropy::seed_this_thread(seed);
        world()
    });
    match thread.unwrap().join() {
        Ok(made) => made,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs a world in a process of its own: the runtime counts its instances in a process, and the count is part of its order.
fn replayed(seed: u64, members: usize) -> String {
    replayed_as("trouble", seed, members)
}

fn replayed_as(story: &str, seed: u64, members: usize) -> String {
    let mut replay = Command::new(std::env::current_exe().unwrap());
    replay.args(["--ignored", "--exact", "--nocapture", "replay"]);
    replay.env("STORY", story).env("SEED", seed.to_string()).env("MEMBERS", members.to_string());
    let ended = replay.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let why = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "a world failed; see it with STORY={story} SEED={seed} MEMBERS={members} cargo turmoil\n{why}\n{said}"
    );
    said.lines().rfind(|line| line.starts_with("fingerprint")).unwrap().to_owned()
}

#[test]
fn three_members_keep_every_promise() {
    for seed in 1..=6 {
        replayed(seed, 3);
    }
}

#[test]
fn five_members_keep_every_promise() {
    for seed in 101..=104 {
        replayed(seed, 5);
    }
}

#[test]
fn one_seed_is_one_world() {
    assert_eq!(replayed(7, 3), replayed(7, 3));
}

#[test]
fn all_randomness_comes_from_the_seed() {
    let draw = || {
        use std::hash::BuildHasher as _;
        (std::hash::RandomState::new().hash_one(1), rand::random::<u64>())
    };
    assert_eq!(with_seed(1, draw), with_seed(1, draw));
    assert_ne!(with_seed(1, draw), with_seed(2, draw));
}

/// A world with users and hosts that goes through trouble and is whole again.
fn live(seed: u64, members: usize) -> World {
    let mut world = World::new(seed, members);
    world.add_user(1);
    world.add_user(2);
    world.add_agent(1);
    world.add_agent(2);
    chaos::trouble(&mut world, TROUBLE);
    chaos::heal(&mut world);
    world
}

#[test]
#[ignore = "shows the world of the seed in SEED, with MEMBERS members; or the one of a STORY"]
fn replay() {
    let given = |name: &str, otherwise: u64| std::env::var(name).map_or(otherwise, |n| n.parse().unwrap());
    let (seed, members) = (given("SEED", 1), usize::try_from(given("MEMBERS", 3)).unwrap());
    let story = std::env::var("STORY").unwrap_or_default();
    let shown = with_seed(seed, move || {
        let world = match story.as_str() {
            "unreachable" => members::unreachable(),
            "snapshot_never_completes" => members::snapshot_never_completes(),
            "a_join_is_cancelled" => members::a_join_is_cancelled(),
            "the_leader_leaves_and_crashes" => members::the_leader_leaves_and_crashes(),
            "a_leaving_leader_crashes_at_once" => members::a_leaving_leader_crashes_at_once(seed),
            "two_voters_one_down" => members::two_voters_one_down(),
            "a_leader_is_cut_off" => hosts::a_leader_is_cut_off(seed),
            _ => live(seed, members),
        };
        world.shown()
    });
    println!("{shown}");
}

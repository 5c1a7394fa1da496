//! Faults, and what must hold when they are over. In: a world and how long. Out: crashes with lost writes, power cuts in the middle of
//! writes, failed syncs, slow disks, partitions in one and both directions, held and slow messages, wrong clocks, restarted agents,
//! all as the world's dice say; then a healed world that has kept every promise.

use std::time::Duration;

use rand::RngExt as _;
use shardplane_coordinator::raft::Raft;
use shardplane_proto::ids::{HostId, RequestId, ResourceId};

use crate::{
    agent::{self, Agent},
    user::{self, number},
    world::World,
};

/// Within this time after the last fault everything is as it should be: an election, and connections that were cut are noticed after ten.
const HEALED: Duration = Duration::from_secs(30);
const FAST: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(4);

/// What is wrong with the network, until when.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Cut(usize, usize),
    OneWay(usize, usize),
    Held(usize, usize),
    SlowLink(usize, usize),
    SlowDisk(usize),
}

/// Makes trouble for so long.
pub fn trouble(world: &mut World, time: Duration) {
    let until = world.now() + time;
    let mut troubles: Vec<(Trouble, Duration)> = Vec::new();
    // Some worlds have one fault after the other, some have all at once.
    let pause = [1_500, 4_000, 8_000][world.dice.random_range(0..3)];
    while world.now() < until {
        let wait = world.dice.random_range(50..pause);
        world.run_for(Duration::from_millis(wait));
        let now = world.now();
        for (trouble, _) in troubles.extract_if(.., |(_, end)| *end <= now) {
            end(world, trouble);
        }
        if let Some(trouble) = begin(world) {
            let lasts = Duration::from_millis(world.dice.random_range(100..8000));
            // Held messages of a long time ago would be delivered as if they were new: no network does that.
            let most = if matches!(trouble, Trouble::Held(..)) { Duration::from_millis(1500) } else { lasts };
            if !troubles.iter().any(|(other, _)| *other == trouble) {
                troubles.push((trouble, now + lasts.min(most)));
            }
        }
    }
    for (trouble, _) in troubles {
        end(world, trouble);
    }
}

fn pair(world: &mut World) -> (usize, usize) {
    let members = world.seats.len();
    let one = world.dice.random_range(0..members);
    let other = (one + world.dice.random_range(1..members)) % members;
    (one, other)
}

fn name(world: &World, index: usize) -> String {
    world.seats[index].name.clone()
}

fn begin(world: &mut World) -> Option<Trouble> {
    let (one, other) = pair(world);
    // Faults of leaders are the ones that matter most.
    let victim = if world.dice.random_bool(0.4) { world.leader().unwrap_or(one) } else { one };
    let other = if other == victim { one } else { other };
    let (a, b) = (name(world, victim), name(world, other));
    let running = world.seats[victim].raft().is_some();
    match world.dice.random_range(0..12) {
        0 | 1 if running => {
            let off = world.dice.random_range(50..5000);
            world.crash(victim, Duration::from_millis(off));
            None
        }
        2 | 3 if running => {
            let operations = world.dice.random_range(1..60);
            world.note(format!("the power of {a} fails after {operations} operations"));
            world.seats[victim].platter.cut_after(operations);
            None
        }
        4 if running => {
            world.note(format!("the next sync of {a} fails"));
            world.seats[victim].platter.fail_next_sync();
            None
        }
        5 => {
            let most = Duration::from_millis(world.dice.random_range(20..400));
            world.note(format!("the disk of {a} is slow, {most:?}"));
            world.seats[victim].platter.state().latency = most;
            Some(Trouble::SlowDisk(victim))
        }
        6 => {
            world.note(format!("{a} and {b} are cut from each other"));
            world.sim.partition(a.as_str(), b.as_str());
            Some(Trouble::Cut(victim, other))
        }
        7 => {
            world.note(format!("{a} does not reach {b}"));
            world.sim.partition_oneway(a.as_str(), b.as_str());
            Some(Trouble::OneWay(victim, other))
        }
        8 => {
            world.note(format!("messages between {a} and {b} are held"));
            world.sim.hold(a.as_str(), b.as_str());
            Some(Trouble::Held(victim, other))
        }
        9 => {
            let most = Duration::from_millis(world.dice.random_range(20..300));
            world.note(format!("messages between {a} and {b} take up to {most:?}"));
            world.sim.set_link_max_message_latency(a.as_str(), b.as_str(), most);
            Some(Trouble::SlowLink(victim, other))
        }
        10 => {
            world.note(format!("{a} is cut from all others"));
            for index in (0..world.seats.len()).filter(|index| *index != victim) {
                world.sim.partition(a.as_str(), name(world, index));
            }
            // As one trouble a pair: each ends by itself.
            Some(Trouble::Cut(victim, victim))
        }
        _ => None,
    }
}

fn end(world: &mut World, trouble: Trouble) {
    let repair = |world: &World, one: usize, other: usize| {
        world.sim.repair(name(world, one), name(world, other));
        world.sim.release(name(world, one), name(world, other));
    };
    match trouble {
        Trouble::Cut(one, same) if one == same => {
            world.note(format!("{} is back", name(world, one)));
            for index in (0..world.seats.len()).filter(|index| *index != one) {
                repair(world, one, index);
            }
        }
        Trouble::Cut(one, other) | Trouble::OneWay(one, other) | Trouble::Held(one, other) => {
            repair(world, one, other);
        }
        Trouble::SlowLink(one, other) => {
            world.sim.set_link_max_message_latency(name(world, one), name(world, other), SOON);
        }
        Trouble::SlowDisk(one) => world.seats[one].platter.state().latency = FAST,
    }
}

/// Waits until a world without faults is whole again, then looks whether all that was promised is there.
pub fn heal(world: &mut World) {
    world.note("no more faults");
    let writes = user::open(&world.ledger).writes;
    let now = world.now();
    for (_, until) in &mut world.off {
        *until = (*until).min(now);
    }
    world.until("there is one leader", HEALED, |world| {
        world.off.is_empty() && world.seats.iter().filter(|seat| seat.leads().is_some()).count() == 1
    });
    world.until("writes go on", HEALED, |world| user::open(&world.ledger).writes > writes + 5);
    world.until("every host has a session with the leader and what it should have", HEALED, |world| {
        let Some((term, raft)) = leading(world) else { return false };
        let state = raft.local();
        (1..).zip(&world.diaries).all(|(number, diary)| {
            let diary = agent::open(diary);
            let host = state.hosts.get(&host_id(number));
            diary.session == Some(term)
                && host.is_some_and(|host| (term, host.generation.0) == diary.accepted)
        })
    });
    world.until("all members have the same", HEALED, |world| {
        let applied = world.seats.iter().map(|seat| seat.raft().map(|raft| raft.applied().borrow().0));
        let applied: Vec<_> = applied.collect();
        applied.windows(2).all(|pair| pair[0] == pair[1]) && applied[0].is_some()
    });
    keeps_promises(world);
}

fn leading(world: &World) -> Option<(u64, Raft)> {
    let seat = &world.seats[world.leader()?];
    Some((seat.leads()?, seat.raft()?))
}

fn host_id(number: u8) -> HostId {
    Agent::host_id(number).parse().unwrap()
}

/// Every acknowledged change is in every member's state.
fn keeps_promises(world: &World) {
    for seat in &world.seats {
        let state = seat.raft().unwrap().local();
        let book = user::open(&world.ledger);
        for (folder, numbers) in &book.folders {
            let id: ResourceId = folder.to_string().to_lowercase().parse().unwrap();
            let found =
                state.resources.get(&id).and_then(|resource| number(&resource.metadata.name)).unwrap_or(0);
            assert!(
                (numbers.acknowledged..=numbers.asked).contains(&found),
                "folder {folder} is {found} on {}, {numbers:?}\n{}",
                seat.name,
                world.trace
            );
        }
        for (request, _) in &book.requests {
            let id: RequestId = request.parse().unwrap();
            assert!(
                state.requests.contains_key(&id),
                "request {request} is lost on {}\n{}",
                seat.name,
                world.trace
            );
        }
        drop(book);
        for (number, diary) in (1..).zip(&world.diaries) {
            let host = &state.hosts[&host_id(number)];
            let session: u64 = host.facts.agent_version.parse().unwrap();
            assert!(
                session >= agent::open(diary).welcomed,
                "host {number} was welcomed, and the log does not know it"
            );
        }
    }
}

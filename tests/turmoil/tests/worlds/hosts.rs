//! What hosts hear of a leader that is cut off from the other members, and of the next one.

use std::time::Duration;

use crate::{agent, replayed_as, world::World};

/// A heartbeat that was confirmed before the cut is under way for less than that.
const UNDER_WAY: Duration = Duration::from_millis(300);
const CHANGE: Duration = Duration::from_secs(15);

/// The host still reaches the old leader, which takes itself for one for two leases more.
pub fn a_leader_is_cut_off(seed: u64) -> World {
    let mut world = World::new(seed, 3);
    world.add_agent(1);
    let diary = world.diaries[0].clone();
    world.until("the host hears its leader", CHANGE, |_| agent::open(&diary).all_heartbeats > 2);
    world.run_for(Duration::from_millis(seed % 10 * 100));
    let old = world.leader().unwrap();
    let (term, generation) = agent::open(&diary).accepted;
    for index in (0..3).filter(|index| *index != old) {
        world.sim.partition(world.seats[old].name.as_str(), world.seats[index].name.as_str());
    }
    world.run_for(UNDER_WAY);
    let heard = agent::open(&diary).all_heartbeats;
    let cut = world.now();
    while world.now() < cut + CHANGE && agent::open(&diary).session == Some(term) {
        world.step();
    }
    assert_eq!(agent::open(&diary).all_heartbeats, heard, "a heartbeat that no quorum confirmed");
    world.until("the next leader sends the host what it should have", CHANGE, |_| {
        let accepted = agent::open(&diary).accepted;
        accepted.0 > term && accepted.1 >= generation
    });
    let heard = agent::open(&diary).all_heartbeats;
    world.until("and heartbeats", CHANGE, |_| agent::open(&diary).all_heartbeats > heard + 2);
    world
}

#[test]
fn a_leader_that_is_cut_off_sends_no_heartbeat_and_the_next_one_sends_the_spec_again() {
    for seed in [20, 24, 28] {
        replayed_as("a_leader_is_cut_off", seed, 3);
    }
}

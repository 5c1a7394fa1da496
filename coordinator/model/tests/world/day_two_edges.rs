//! Days on which work on hosts and something else come together: a loss during a shrink, a host that runs nothing during a drain, words
//! of operators that cross each other.

use shardplane_model::{
    command::{Command, CordonHost, DrainMode},
    plan::{LeftPhase, Question, foresee},
    refusal::Refusal,
    resource::Outcome,
    time::Timestamp,
};
use shardplane_proto::ids::InstanceId;

use super::world::{World, cluster, user};

fn ready(hosts: usize, room: u64) -> World {
    let mut world = World::new(11);
    world.add_hosts(hosts, room);
    world.run(2);
    world
}

#[test]
fn a_surplus_replica_on_a_lost_host_is_let_go_while_another_is_silent() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 2);
    world.settles(60);
    let seats = world.seats(id);
    let (cut, lost) = (seats[0][1], seats[0][2]);
    world.hosts[cut].control_cut = true;
    world.wipe(lost);
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    // A Place that is refused would panic here.
    world.run(120);
    world.hosts[cut].control_cut = false;
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn a_drain_does_not_choose_the_host_that_cannot_run_its_heir_again() {
    let mut world = ready(6, 12);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.drain(victim, DrainMode::KeepSpread);
    let (mut bad, mut failed) = (None, std::collections::BTreeSet::new());
    for _ in 0..(4 * 900) {
        world.step();
        let state = &world.leader.state;
        let heirs = state.instances.values().filter(|i| i.wanted() && i.replaces.is_some());
        let heirs: Vec<_> = heirs.map(|i| i.id).collect();
        for heir in heirs {
            let at = world.host_of(heir);
            if at == *bad.get_or_insert(at) {
                world.fail(heir);
                failed.insert(heir);
            }
        }
        if world.drained(victim) {
            break;
        }
    }
    assert!(world.drained(victim), "{:#?}", world.left(victim));
    assert_eq!(failed.len(), 1, "the bad host was tried once");
    world.settles(60);
    world.assert_whole(id);
}

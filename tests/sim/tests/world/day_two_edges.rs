//! Days on which work on hosts and something else come together: a loss during a shrink, a host that runs nothing during a drain, words
//! of operators that cross each other.

use shardplane_model::{
    command::{Command, CordonHost, DrainMode},
    plan::{LeftPhase, Question, foresee},
    refusal::Refusal,
    resource::Outcome,
    time::Timestamp,
};
use shardplane_sim::world::{World, cluster, user};

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

#[test]
fn a_replaced_member_that_does_not_go_holds_up_no_change() {
    let mut world = ready(5, 12);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let replica = world.nodes_of(id).iter().find(|n| !n.is_slot_master()).unwrap().instance;
    let host = world.host_of(replica);
    world.fail(replica);
    let stuck = |world: &mut World, seconds: u64| {
        for _ in 0..(4 * seconds) {
            world.step();
            if let Some(machine) = world.hosts[host].machines.get_mut(&replica)
                && machine.gone_at.is_some()
            {
                machine.gone_at = Some(u64::MAX);
            }
        }
    };
    stuck(&mut world, 100);
    assert!(!world.leader.state.instances[&replica].wanted());
    for replicas in [2, 1] {
        world.put_cluster(cluster(id, World::SUBNET, 3, replicas)).unwrap();
        stuck(&mut world, 60);
        assert_eq!(world.leader.state.resources[&id].change.outcome, Outcome::Done, "{replicas}");
    }
    assert!(!world.leader.state.instances[&replica].wanted(), "it is still there");
}

fn asked(world: &World, host: usize, until: Option<u64>, drain: Option<DrainMode>) -> CordonHost {
    let until = until.map(|seconds| Timestamp(world.now + seconds * 1000));
    CordonHost { host: world.hosts[host].id, by: user(), reason: String::new(), until, drain }
}

fn cordon(world: &mut World, asked: CordonHost) -> Result<(), Refusal> {
    let now = world.now;
    world.leader.apply(now, vec![Command::Cordon(asked)]).remove(0).map(|_| ())
}

#[test]
fn asking_how_far_a_drain_is_takes_nothing_back() {
    let mut world = ready(3, 8);
    world.create(0, 3, 2);
    world.settles(60);
    world.cordon(0, Some(3600));
    world.drain(0, DrainMode::Force);
    world.run(2);
    let before = world.leader.state.hosts[&world.hosts[0].id].cordon.clone().unwrap();
    assert!(before.until.is_some() && before.reason == "new disks", "a timed cordon stays timed");
    let again = asked(&world, 0, None, Some(DrainMode::KeepSpread));
    cordon(&mut world, again).unwrap();
    assert_eq!(world.leader.state.hosts[&world.hosts[0].id].cordon, Some(before));
    world.until(300, "drained", |w| w.drained(0));
}

#[test]
fn a_drained_host_is_not_opened_by_time() {
    let mut world = ready(4, 8);
    world.create(0, 3, 1);
    world.settles(60);
    world.cordon(0, Some(20));
    world.drain(0, DrainMode::KeepSpread);
    let timed = asked(&world, 0, Some(10), None);
    let refused = cordon(&mut world, timed).unwrap_err();
    assert!(format!("{refused:?}").contains("uncordon first"), "{refused:?}");
    world.run(30);
    let cordon = world.leader.state.hosts[&world.hosts[0].id].cordon.clone().unwrap();
    assert!(cordon.drain.is_some() && cordon.until.is_none(), "{cordon:?}");
    world.until(300, "drained", |w| w.drained(0));
}

#[test]
fn force_moves_a_shard_without_replicas_and_a_copy_is_made_first() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 0);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.drain(victim, DrainMode::KeepSpread);
    world.run(30);
    let left = world.left(victim);
    assert!(left.iter().all(|l| l.phase == LeftPhase::Blocked && l.why.contains("--force")), "{left:?}");
    world.drain(victim, DrainMode::Force);
    // That no copy is lost is checked at every step.
    world.until(300, "drained", |w| w.drained(victim));
    world.uncordon(victim);
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn a_loss_of_many_names_eight() {
    let mut world = ready(3, 60);
    let id = world.create(0, 12, 2);
    world.settles(120);
    world.wipe(2);
    world.run(60);
    world.settles(200);
    world.assert_whole(id);
    let state = &world.leader.state;
    let long = state.operations.values().find(|o| o.cause.contains(" more")).unwrap();
    assert!(
        long.cause.ends_with("and 4 more") && long.cause.matches("instance").count() == 8,
        "{}",
        long.cause
    );
}

#[test]
fn what_a_drain_waits_for_is_what_was_foreseen() {
    let mut world = ready(4, 16);
    let ids: Vec<_> = (0..2).map(|n| world.create(n * 1000, 6, 1)).collect();
    world.settles(60);
    let victim = world.seats(ids[0])[0][0];
    let other = world.seats(ids[0])[1][0];
    world.drain(victim, DrainMode::KeepSpread);
    let mut reasons = std::collections::BTreeSet::new();
    for second in 0..120 {
        world.run(1);
        match second {
            5 => world.put_cluster(cluster(ids[1], World::SUBNET, 6, 2)).map(|_| ()).unwrap(),
            40 if other != victim => world.power_off(other),
            50 => world.power_on(other),
            _ => {}
        }
        let leader = &world.leader;
        let (host, now) = (world.hosts[victim].id, Timestamp(world.now));
        let (moves, _) =
            foresee(&leader.state, &leader.observed, now, host, Question::Drain { force: false });
        let mut seen = std::collections::BTreeSet::new();
        // The second of a cluster is foreseen after the first has moved.
        for left in world.left(victim).into_iter().filter(|l| l.phase != LeftPhase::Leaving) {
            if !seen.insert(left.cluster) && left.phase == LeftPhase::Blocked {
                continue;
            }
            let to = &moves.iter().find(|m| m.instance == left.instance).unwrap().to;
            match left.phase {
                LeftPhase::Moving => assert!(to.is_ok(), "{left:?} {to:?}"),
                LeftPhase::Waiting if left.why.starts_with("its turn") => {}
                LeftPhase::Waiting | LeftPhase::Blocked | LeftPhase::Leaving => {
                    assert_eq!(to.as_ref().unwrap_err(), &left.why);
                    reasons.insert(left.why.split(' ').take(4).collect::<Vec<_>>().join(" "));
                }
            }
        }
    }
    assert!(reasons.len() >= 2, "{reasons:?}");
    world.until(300, "drained", |w| w.drained(victim));
}

//! Cordons, drains and fewer replicas. Each test name begins with the scenario it covers, where there is one.

use shardplane_model::{
    command::DrainMode,
    plan::{LeftPhase, Pause, Question, foresee, foresee_all},
    refusal::RefusalCode,
    resource::Outcome,
    state::{OperationKind, OperationState},
};
use shardplane_proto::ids::ResourceId;

use shardplane_sim::world::{World, cluster};

fn ready(hosts: usize, room: u64) -> World {
    let mut world = World::new(11);
    world.add_hosts(hosts, room);
    world.run(2);
    world
}

fn on(world: &World, host: usize) -> usize {
    world.leader.state.instances.values().filter(|i| i.host == world.hosts[host].id).count()
}

fn events(world: &World, reason: &str) -> usize {
    world.leader.state.events.values().filter(|event| event.reason == reason).count()
}

fn spread(world: &World, id: ResourceId) -> bool {
    let status = world.status(id);
    status.anti_affinity_ok && status.primary_spread_ok
}

#[test]
fn a_cordoned_host_gets_nothing_new_and_keeps_what_it_has() {
    let mut world = ready(4, 8);
    let first = world.create(0, 3, 1);
    world.settles(60);
    let before = on(&world, 0);
    world.cordon(0, None);
    let second = world.create(1000, 3, 1);
    world.settles(60);
    world.assert_whole(first);
    world.assert_whole(second);
    assert_eq!(on(&world, 0), before);
    let explained = shardplane_model::plan::explain(&world.leader.state, second.into());
    let about = |i: &shardplane_proto::v1::InstanceExplanation| {
        i.others.iter().find(|other| other.host == "h1").map(|other| other.why_not.clone()).unwrap()
    };
    let why: Vec<_> = explained.instances.iter().map(about).collect();
    assert!(why.iter().all(|why| why.contains("cordoned by tester") && why.contains("new disks")), "{why:?}");
    world.uncordon(0);
    world.create(2000, 1, 1);
    world.settles(60);
    assert!(on(&world, 0) > before, "it is the emptiest one");
}

#[test]
fn a_create_that_only_a_cordoned_host_could_take_waits_and_says_so() {
    let mut world = ready(1, 8);
    world.cordon(0, None);
    let id = world.create(0, 1, 0);
    world.run(10);
    assert_eq!(world.status(id).state, "scheduling");
    let waiting: Vec<_> = world.leader.last.waiting.values().flatten().cloned().collect();
    assert!(waiting.iter().any(|w| w.contains("host h1 is cordoned by tester")), "{waiting:?}");
    world.uncordon(0);
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn sch_1_a_cordon_for_a_restart_ends_by_itself_and_one_without_an_end_is_brought_to_mind() {
    let mut world = ready(2, 8);
    world.cordon(0, Some(30));
    world.cordon(1, None);
    world.run(29);
    let cordoned = |w: &World, host: usize| w.leader.state.hosts[&w.hosts[host].id].cordon.is_some();
    assert!(cordoned(&world, 0) && cordoned(&world, 1));
    world.change_leader(2_000);
    world.run(8);
    assert!(!cordoned(&world, 0) && cordoned(&world, 1));
    assert_eq!((events(&world, "HostUncordoned"), events(&world, "CordonStands")), (1, 0));
    for days in 1..=2 {
        world.now += 24 * 3_600_000;
        world.run(10);
        assert_eq!(events(&world, "CordonStands"), days);
    }
    assert!(cordoned(&world, 1), "only an operator ends it");
}

#[test]
fn omi_7_a_drain_moves_everything_by_the_rules_of_create_and_the_host_stays_closed() {
    let mut world = ready(4, 8);
    let ids: Vec<_> = (0..2).map(|n| world.create(n * 1000, 3, 1)).collect();
    world.settles(60);
    let victim = world.seats(ids[0])[0][0];
    let primaries = |w: &World| ids.iter().flat_map(|id| w.seats(*id)).filter(|s| s[0] == victim).count();
    assert!(primaries(&world) > 0 && on(&world, victim) > 1);
    world.drain(victim, DrainMode::KeepSpread);
    let mut most_at_once = 0;
    for _ in 0..1200 {
        world.step();
        for id in &ids {
            let state = &world.leader.state;
            let moving = state.instances_of((*id).into()).filter(|i| i.replaces.is_some()).count();
            most_at_once = most_at_once.max(moving);
            let status = world.status(*id);
            let together = status.anti_affinity_message.contains("share host");
            assert!(!together, "{}", status.anti_affinity_message);
        }
        if world.drained(victim) {
            break;
        }
    }
    assert!(world.drained(victim), "{:#?}", world.left(victim));
    assert_eq!((on(&world, victim), most_at_once), (0, 1));
    assert!(world.hosts[victim].machines.is_empty(), "nothing really runs there");
    world.settles(60);
    for id in ids {
        world.assert_whole(id);
        assert!(spread(&world, id), "{:?}", world.seats(id));
    }
    assert_eq!(events(&world, "HostDrained"), 1);
    let state = &world.leader.state;
    assert!(state.hosts[&world.hosts[victim].id].cordon.is_some());
    let kinds = [OperationKind::Move, OperationKind::Switchover];
    let mut moves = state.operations.values().filter(|o| kinds.contains(&o.kind));
    assert!(moves.all(|o| o.state == OperationState::Succeeded && o.cause.contains("drained")));
}

#[test]
fn sch_3_blockers_are_named_and_the_rest_moves() {
    let mut world = ready(3, 8);
    let pinned = world.create(0, 1, 0);
    world.settles(60);
    let victim = world.seats(pinned)[0][0];
    let other = world.create(1000, 1, 1);
    world.settles(60);
    world.drain(victim, DrainMode::KeepSpread);
    world.run(90);
    let left = world.left(victim);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!((left[0].cluster, left[0].phase), (pinned.into(), LeftPhase::Blocked));
    assert!(left[0].why.contains("replicasPerShard"), "{left:?}");
    assert!(!world.drained(victim));
    world.assert_whole(other);
    // The way that the blocker names.
    world.put_cluster(cluster(pinned, World::SUBNET, 1, 1)).unwrap();
    world.until(180, "drained", |w| w.drained(victim));
    world.settles(60);
    world.assert_whole(pinned);
}

#[test]
fn omi_7_a_drain_waits_rather_than_break_the_spread_unless_forced() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.drain(0, DrainMode::KeepSpread);
    world.run(60);
    let left = world.left(0);
    assert_eq!(left.len(), 3, "every shard has a member on every host");
    for instance in &left {
        assert_eq!(instance.phase, LeftPhase::Blocked);
        assert!(instance.why.contains("own shard") && instance.why.contains("--force"), "{left:?}");
    }
    assert!(spread(&world, id));
    world.drain(0, DrainMode::Force);
    world.until(300, "drained", |w| w.drained(0));
    world.settles(120);
    world.assert_whole(id);
    world.uncordon(0);
    world.until(300, "spread again", |w| spread(w, id));
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn a_drain_without_room_elsewhere_says_what_is_short_and_goes_on_when_there_is() {
    let mut world = ready(3, 2);
    let id = world.create(0, 3, 1);
    world.settles(60);
    world.drain(0, DrainMode::KeepSpread);
    world.run(30);
    let left = world.left(0);
    assert!(left.len() == 2 && left.iter().all(|l| l.phase == LeftPhase::Blocked), "{left:?}");
    assert!(left.iter().all(|l| l.why.contains("short of vCPU")), "{left:?}");
    world.add_hosts(1, 4);
    world.until(240, "drained", |w| w.drained(0));
    world.settles(60);
    world.assert_whole(id);
    assert!(spread(&world, id));
}

#[test]
fn a_drain_is_cancelled_by_uncordon_and_what_has_begun_is_finished() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    let before = on(&world, victim);
    world.drain(victim, DrainMode::KeepSpread);
    world.until(30, "a move begins", |w| w.leader.state.instances.values().any(|i| i.replaces.is_some()));
    world.uncordon(victim);
    world.settles(120);
    world.assert_whole(id);
    assert!(spread(&world, id));
    assert_eq!(on(&world, victim), before - 1);
}

#[test]
fn a_drain_goes_on_through_a_new_leader_and_the_loss_of_a_target() {
    let mut world = ready(5, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.drain(victim, DrainMode::KeepSpread);
    let target = |w: &World| w.leader.state.instances.values().find(|i| i.replaces.is_some()).map(|i| i.host);
    world.until(30, "a move begins", |w| target(w).is_some());
    let host = target(&world).and_then(|at| world.hosts.iter().position(|h| h.id == at)).unwrap();
    world.change_leader(1_000);
    world.run(1);
    world.power_off(host);
    world.run(90);
    world.power_on(host);
    world.until(400, "drained", |w| w.drained(victim));
    world.settles(200);
    world.assert_whole(id);
    assert!(spread(&world, id));
}

#[test]
fn a_drained_host_that_is_lost_is_repaired_and_can_be_forgotten() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.drain(victim, DrainMode::KeepSpread);
    world.run(4);
    world.wipe(victim);
    world.until(240, "repaired", |w| {
        w.leader.state.instances.values().all(|i| !i.wanted() || i.host != w.hosts[victim].id)
    });
    world.settles(120);
    world.assert_whole(id);
    let host = world.hosts[victim].id;
    let forget = vec![shardplane_model::command::Command::ForgetHost(host)];
    let mut state = world.leader.state.clone();
    let entry = shardplane_model::command::Entry { at: state.now, commands: forget };
    assert!(state.apply(world.leader.index + 1, &entry)[0].is_ok());
    assert!(!state.hosts.contains_key(&host) && state.instances.values().all(|i| i.host != host));
}

#[test]
fn replicas_two_to_one_to_zero_takes_the_worst_placed_and_never_a_primary() {
    let mut world = ready(2, 12);
    let id = world.create(0, 3, 2);
    world.settles(60);
    let primaries: Vec<_> = world.nodes_of(id).iter().filter(|n| n.is_slot_master()).map(|n| n.id).collect();
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    let refused = world.put_cluster(cluster(id, World::SUBNET, 3, 0)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceIsScheduling);
    let gone =
        world.until(60, "satisfied", |w| w.leader.state.resources[&id].change.outcome == Outcome::Done);
    assert_eq!(world.leader.state.instances.len(), 6, "satisfied only when all are gone ({gone} ms)");
    world.settles(60);
    world.assert_whole(id);
    assert!(world.status(id).anti_affinity_ok, "those beside their own shard went");
    world.put_cluster(cluster(id, World::SUBNET, 3, 0)).unwrap();
    world.settles(60);
    world.assert_whole(id);
    let after: Vec<_> = world.nodes_of(id).iter().filter(|n| n.is_slot_master()).map(|n| n.id).collect();
    assert_eq!(after, primaries);
    let state = &world.leader.state;
    let shrinks: Vec<_> = state.operations.values().filter(|o| o.kind == OperationKind::Shrink).collect();
    assert!(shrinks.len() == 2 && shrinks.iter().all(|o| o.state == OperationState::Succeeded));
    // And back.
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    world.settles(200);
    world.assert_whole(id);
}

#[test]
fn fewer_replicas_while_a_host_is_lost_takes_the_lost_one_and_builds_none() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.wipe(2);
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    world.settles(120);
    world.assert_whole(id);
    assert_eq!(on(&world, 0) + on(&world, 1), 6);
    let placed = world.leader.state.events.values().filter(|event| event.reason == "Placed").count();
    assert_eq!(placed, 9, "nothing was made for the lost ones");
}

#[test]
fn what_a_drain_and_a_loss_lead_to_is_foreseen_and_nothing_changes() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    let pinned = world.create(1000, 1, 0);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    let asks = |w: &World, host: usize, question| {
        let leader = &w.leader;
        let (host, now) = (w.hosts[host].id, shardplane_model::time::Timestamp(w.now));
        foresee(&leader.state, &leader.observed, now, host, question)
    };
    let before = world.leader.state.clone();
    for question in [Question::Drain { force: false }, Question::Loss] {
        let (moves, clusters) = asks(&world, victim, question);
        let own: Vec<_> = moves.iter().filter(|m| m.cluster == id.into()).collect();
        assert!(!own.is_empty() && own.iter().all(|m| m.to.is_ok()), "{question:?}: {moves:#?}");
        assert!(own.iter().all(|m| m.to != Ok(world.hosts[victim].id)));
        let seen = clusters.iter().find(|c| c.outlook.cluster == id.into()).unwrap();
        let (outlook, pauses) = (&seen.outlook, &seen.pauses);
        let led =
            own.iter().filter(|m| world.seats(id).iter().any(|s| s[0] == victim) && m.to.is_ok()).count();
        let leading = own.iter().filter(|m| m.slots > 0).count();
        assert!(led > 0 && leading > 0 && pauses.len() == leading, "{question:?}: {pauses:?}");
        let switched =
            |pause: &Pause| pause.milliseconds == 1_000 && pause.what.starts_with("writes to shard");
        assert_eq!(pauses.iter().all(switched), question != Question::Loss, "{pauses:?}");
        // Every simulated engine has 1 MiB, and each of three shards a third of the slots.
        assert!(own.iter().all(|m| m.bytes == 1 << 20 && matches!(m.slots, 0 | 5461 | 5462)), "{own:?}");
        assert!(outlook.anti_affinity_ok && outlook.primary_spread_ok, "{question:?}: {moves:#?}");
        let (moves, clusters) = asks(&world, world.seats(pinned)[0][0], question);
        let single = moves.iter().find(|m| m.cluster == pinned.into()).unwrap();
        assert!(single.to.as_ref().is_err_and(|why| why.contains("no other copy")), "{moves:#?}");
        let unled = if question == Question::Loss { 16_384 } else { 0 };
        assert_eq!((single.slots, single.bytes), (unled, 0), "{question:?}");
        let kept =
            clusters.iter().find(|c| c.outlook.cluster == pinned.into()).unwrap().outlook.anti_affinity_ok;
        assert_eq!(kept, question != Question::Loss, "a shard that is lost has no primary");
    }
    assert!(before == world.leader.state);
    // What was foreseen comes about.
    let (moves, _) = asks(&world, victim, Question::Drain { force: false });
    world.drain(victim, DrainMode::KeepSpread);
    let blocked = moves.iter().filter(|m| m.to.is_err()).count();
    world.until(300, "as far as foreseen", |w| on(w, victim) == blocked);
}

/// How long the cluster was not served after these hosts were lost, in ms, and how long that was foreseen to be.
fn lost(world: &mut World, id: ResourceId, hosts: &[usize]) -> (u64, u64, String) {
    let leader = &world.leader;
    let now = shardplane_model::time::Timestamp(world.now);
    let ids = hosts.iter().map(|host| world.hosts[*host].id).collect();
    let (moves, clusters) = foresee_all(&leader.state, &leader.observed, now, &ids, Question::Loss);
    assert!(moves.iter().all(|m| m.to.is_ok()), "each gets another place: {moves:#?}");
    let longest = clusters[0].pauses.first().unwrap().clone();
    hosts.iter().for_each(|host| world.wipe(*host));
    world.run(1);
    let serves = |w: &World| {
        let nodes = w.nodes_of(id);
        let led = nodes.iter().filter(|n| n.up && n.primary.is_none()).flat_map(|n| n.owns(n.id));
        let led: u32 = led.map(|(start, end)| end - start + 1).sum();
        led == 16_384
    };
    let took = world.until(180, "serves again", serves) + 1_000;
    (took, longest.milliseconds.into(), longest.what)
}

#[test]
fn how_long_a_lost_shard_is_down_is_foreseen_with_and_without_a_vote() {
    // One of three primaries: the others elect another.
    let mut world = ready(6, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let one = world.seats(id)[0][0];
    let (took, foreseen, what) = lost(&mut world, id, &[one]);
    assert!(what.contains("until the others have elected instance"), "{what}");
    assert!(took <= foreseen + 5_000 && foreseen <= 15_000, "{took} ms, {foreseen} foreseen");
    // Two of three: a takeover, when the lease of the lost hosts is over.
    let mut world = ready(6, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let seats = world.seats(id);
    let two = [seats[0][0], seats[1][0]];
    let (took, foreseen, what) = lost(&mut world, id, &two);
    assert!(
        what.contains("takes over when it is proved") && what.contains("takes it 60 s (repl-timeout)"),
        "{what}"
    );
    assert!(foreseen == 80_000 && took.abs_diff(foreseen) <= 10_000, "{took} ms, {foreseen} foreseen");
    // A single shard has nobody who votes.
    let mut world = ready(3, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    let only = world.seats(id)[0][0];
    let (took, foreseen, what) = lost(&mut world, id, &[only]);
    assert!(what.contains("too few primaries are left to vote"), "{what}");
    assert!(foreseen == 80_000 && took.abs_diff(foreseen) <= 10_000, "{took} ms, {foreseen} foreseen");
}

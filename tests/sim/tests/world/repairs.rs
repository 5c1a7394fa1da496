//! Histories of members that are replaced or moved: what must have happened before, what waits, what comes first.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::{Command, Decision, ReplaceCause, Replaced},
    resource::Outcome,
    state::{Instance, OperationKind, Settings},
};
use shardplane_proto::ids::{ClusterId, GroupId, InstanceId, ResourceId};

use shardplane_sim::world::{LOST_AFTER, World, settings};

use super::scenarios::{distinct, ready};

/// Whose place was taken at once, when and why.
fn replaced(world: &World) -> Vec<(u64, Replaced)> {
    let mut all = Vec::new();
    for (at, decision) in &world.leader.decided {
        let Decision::Place { retire, .. } = decision else { continue };
        all.extend(retire.iter().map(|one| (*at, *one)));
    }
    all
}

fn wanted(world: &World, id: InstanceId) -> bool {
    world.leader.state.instances.get(&id).is_some_and(Instance::wanted)
}

fn waits(world: &World, id: ResourceId, why: &str) -> bool {
    world.leader.last.waiting.get(&ClusterId::from(id)).is_some_and(|all| all.iter().any(|w| w.contains(why)))
}

fn member(world: &World, id: ResourceId, shard: usize, primary: bool) -> InstanceId {
    let shard = world.status(id).shards.remove(shard);
    let member =
        if primary { shard.primary_instance_id.unwrap() } else { shard.replica_instance_ids[0].clone() };
    member.parse().unwrap()
}

#[test]
fn a_member_that_its_live_host_cannot_run_is_replaced_on_another_host() {
    for primary in [false, true] {
        let mut world = ready(3, 8);
        let id = world.create(0, 3, 1);
        world.settles(60);
        let failed = member(&world, id, 0, primary);
        let old = world.leader.state.instances[&failed].clone();
        world.fail(failed);
        world.run(LOST_AFTER / 1000 - 1);
        assert!(wanted(&world, failed), "replaced before the grace is over");
        world.until(3, "replaced", |w| !wanted(w, failed));
        let heir =
            world.leader.state.instances_of(id.into()).filter(|i| i.group == old.group).last().unwrap();
        assert!(heir.wanted() && heir.host != old.host, "back on the host that cannot run it");
        world.settles(120);
        world.assert_whole(id);
        let status = world.status(id);
        assert!(status.anti_affinity_ok && status.primary_spread_ok, "{status:#?}");
        let causes: Vec<_> = replaced(&world).into_iter().map(|(_, one)| (one.instance, one.cause)).collect();
        assert_eq!(causes, [(failed, ReplaceCause::CannotRun)]);
    }
}

#[test]
fn a_member_that_runs_nowhere_does_not_wander_quickly() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let first = member(&world, id, 0, false);
    let (group, born) = {
        let instance = &world.leader.state.instances[&first];
        (instance.group, instance.created)
    };
    world.fail(first);
    for _ in 0..600 {
        world.run(1);
        let new = world.leader.state.instances_of(id.into()).filter(|i| i.group == group && i.created > born);
        new.map(|i| i.id).collect::<Vec<_>>().into_iter().for_each(|i| world.fail(i));
    }
    let times: Vec<u64> = replaced(&world).into_iter().map(|(at, _)| at).collect();
    assert!(times.len() >= 3, "it is given up: {times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] > 120_000), "{times:?}");
    world.hosts.iter_mut().for_each(|host| host.failed.clear());
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn a_failed_member_with_the_only_copy_is_kept() {
    let mut world = ready(3, 8);
    let id = world.create(0, 1, 0);
    world.settles(60);
    let only = member(&world, id, 0, true);
    world.fail(only);
    world.run(300);
    assert!(wanted(&world, only) && waits(&world, id, "may hold the only copy"));
    world.hosts.iter_mut().for_each(|host| host.failed.clear());
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn a_member_that_its_host_calls_failed_while_peers_see_it_is_kept() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    for primary in [false, true] {
        let member = member(&world, id, 1, primary);
        let home = world.host_of(member);
        world.hosts[home].misreported.insert(member);
        world.run(180);
        assert!(wanted(&world, member) && waits(&world, id, "the other members still see it working"));
        world.hosts[home].misreported.clear();
    }
    world.settles(30);
    assert_eq!(replaced(&world), []);
}

#[test]
fn of_three_lost_members_those_that_fit_are_rebuilt_and_the_third_says_why_not() {
    let mut world = ready(3, 3);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.add_host("", 2);
    world.run(20);
    world.wipe(0);
    world.run(90);
    let gone: Vec<_> = replaced(&world).into_iter().map(|(_, one)| one.instance).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");
    let lost = world.hosts[0].id;
    let rest: Vec<_> =
        world.leader.state.instances_of(id.into()).filter(|i| i.host == lost && i.wanted()).collect();
    assert_eq!(rest.len(), 1);
    assert!(waits(&world, id, &format!("no place for what replaces instance {}", rest[0].id)));
    assert!(waits(&world, id, "host h4 is short of vCPU"));
    assert_eq!(world.status(id).cluster_state.as_deref(), Some("ok"));
    world.add_host("", 1);
    world.settles(120);
    world.assert_whole(id);
}

#[test]
fn shards_with_the_fewest_copies_are_rebuilt_first() {
    let mut tried = 0;
    for (a, b) in (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b))) {
        let mut world = ready(5, 3);
        let id = world.create(0, 5, 2);
        world.settles(60);
        world.add_host("", 1);
        world.run(5);
        let dead = [world.hosts[a].id, world.hosts[b].id];
        let seats = world.seats(id);
        let mut lost: BTreeMap<GroupId, Vec<InstanceId>> = BTreeMap::new();
        for instance in world.leader.state.instances_of(id.into()).filter(|i| dead.contains(&i.host)) {
            lost.entry(instance.group).or_default().push(instance.id);
        }
        let most = lost.values().map(Vec::len).max().unwrap();
        let worst: BTreeSet<_> = lost.iter().filter(|(_, l)| l.len() == most).map(|(g, _)| *g).collect();
        let eldest = lost.iter().min_by_key(|(_, l)| l[0]).map(|(g, _)| *g).unwrap();
        let primaries = seats.iter().filter(|s| [a, b].contains(&s[0])).count();
        // Without the rule the eldest member would come first; and the rest of the primaries must be able to vote.
        if worst.contains(&eldest) || primaries > 2 {
            continue;
        }
        tried += 1;
        world.power_off(a);
        world.power_off(b);
        world.until(60, "one is rebuilt", |w| !replaced(w).is_empty());
        let first: Vec<_> =
            replaced(&world).iter().map(|(_, r)| world.leader.state.instances[&r.instance].group).collect();
        assert!(first.len() == 1 && worst.contains(&first[0]), "{first:?} of {lost:?}");
    }
    assert!(tried > 0, "no pair of hosts fits");
}

#[test]
fn a_moved_replica_stays_until_its_heir_has_read_as_much() {
    let mut world = ready(1, 8);
    let id = world.create(0, 1, 1);
    world.settles(60);
    world.add_hosts(1, 8);
    world.run(5);
    let heir = |w: &World| w.leader.state.instances.values().find(|i| i.replaces.is_some()).cloned();
    world.until(60, "a move begins", |w| heir(w).is_some());
    let new = heir(&world).unwrap();
    let old = new.replaces.unwrap();
    world.until(30, "the heir runs", |w| w.mesh.nodes.values().any(|n| n.instance == new.id));
    world.mesh.nodes.values_mut().find(|n| n.instance == new.id).unwrap().lag = 500;
    world.run(60);
    assert!(wanted(&world, old), "its heir has less than it");
    assert!(waits(&world, id, &format!("instance {} becomes in sync to replace {old}", new.id)));
    world.mesh.nodes.values_mut().for_each(|n| n.lag = 0);
    world.until(10, "the old one goes", |w| !wanted(w, old));
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn a_primary_on_an_overfull_host_waits_for_a_replica_that_is_behind() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    // Another member takes over by itself: its host then has two of three primaries.
    let taker = member(&world, id, 0, false);
    world.mesh.nodes.values_mut().for_each(|n| n.offset = 1 << 30);
    let robbed = member(&world, id, 0, true);
    world.take_over(taker);
    world.mesh.nodes.values_mut().find(|n| n.instance == robbed).unwrap().lag = 1 << 29;
    world.until(10, "it leads", |w| member(w, id, 0, true) == taker);
    assert!(!world.status(id).primary_spread_ok);
    let places =
        |w: &World| w.leader.decided.iter().filter(|(_, d)| matches!(d, Decision::Place { .. })).count();
    let before = places(&world);
    world.until(40, "it waits", |w| {
        waits(w, id, "a replica catches up before its primary leaves an overfull host")
    });
    // The other primary of the overfull host has a place to go, or waits as well.
    world.run(60);
    assert_eq!(places(&world), before, "something is moved although it only has to catch up");
    world.mesh.nodes.values_mut().for_each(|n| n.lag = 0);
    world.settles(90);
    world.assert_whole(id);
    assert!(world.status(id).primary_spread_ok);
}

#[test]
fn a_cluster_is_repaired_after_its_offers_left_the_catalogue() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let none = Settings { vm_offers: BTreeMap::new(), volume_offers: BTreeMap::new(), ..settings() };
    let now = world.now;
    world.leader.apply(now, vec![Command::Configure(none)]);
    world.wipe(world.seats(id)[0][0]);
    world.run(8);
    world.settles(120);
    world.assert_whole(id);
    let all: BTreeSet<_> =
        world.leader.state.instances_of(id.into()).map(|i| (i.footprint.memory_mib, i.vcpus)).collect();
    assert_eq!(all.len(), 1, "the new ones have the shape of the others");
}

#[test]
fn a_shard_that_serves_before_its_replica_has_a_copy_is_worth_keeping() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.until(60, "every shard serves", |w| w.leader.state.clusters[&ClusterId::from(id)].formed);
    assert_eq!(world.leader.state.resources[&id].change.outcome, Outcome::InFlight, "it is not whole yet");
    assert!(
        !world.mesh.nodes.values().any(|n| n.has_data && !n.is_slot_master()),
        "there are copies already"
    );
    let first = world.leader.state.instances_of(id.into()).find(|i| i.first_primary).unwrap().id;
    let home = world.host_of(first);
    world.power_off(home);
    world.run(120);
    assert!(wanted(&world, first) && waits(&world, id, "may hold the only copy"));
    world.power_on(home);
    world.settles(180);
    world.assert_whole(id);
    assert!(wanted(&world, first) && distinct(&world.seats(id)));
}

#[test]
fn a_cluster_that_has_instances_does_not_become_impossible() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.until(5, "placed", |w| !w.leader.state.instances.is_empty());
    for host in 0..3 {
        world.hosts[host].facts.images[0].version = "9.0.0".to_owned();
        world.power_off(host);
        world.power_on(host);
    }
    world.settles(90);
    assert_eq!(world.leader.state.resources[&id].change.outcome, Outcome::Done);
    world.assert_whole(id);
}

#[test]
fn a_member_whose_host_is_lost_while_it_is_being_moved_goes_and_its_heir_takes_its_place() {
    let mut world = World::new(1);
    for room in [4, 4, 1] {
        world.add_host("", room);
    }
    world.run(2);
    let id = world.create(0, 3, 2);
    world.settles(60);
    assert!(!distinct(&world.seats(id)), "the third host has room for one only");
    world.add_host("", 8);
    let heir = |w: &World| w.leader.state.instances.values().find(|i| i.replaces.is_some()).cloned();
    world.until(60, "a move begins", |w| heir(w).is_some());
    let new = heir(&world).unwrap();
    let old = new.replaces.unwrap();
    let home = world.host_of(old);
    assert!(world.leader.state.operations.values().any(|o| o.kind == OperationKind::Move));
    assert!(wanted(&world, old), "a move retires nothing before its heir is in sync");
    world.wipe(home);
    world.until(40, "the old one goes", |w| !wanted(w, old));
    assert!(
        replaced(&world).iter().any(|(_, r)| *r == Replaced { instance: old, cause: ReplaceCause::HostLost })
    );
    let took = &world.leader.state.instances[&new.id];
    assert!(took.wanted() && took.replaces.is_none());
    let later = world
        .leader
        .state
        .instances_of(id.into())
        .filter(|i| i.group == new.group && i.created > new.created);
    let others = replaced(&world).iter().filter(|(_, r)| r.instance != old).count();
    assert!(later.count() <= others, "the seat of the old one is filled twice");
    world.power_on(home);
    world.settles(240);
    world.assert_whole(id);
    assert!(world.status(id).anti_affinity_ok, "{}", world.status(id).anti_affinity_message);
}

#[test]
fn a_primary_that_comes_back_empty_at_once_is_succeeded_by_its_replica() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        world.add_hosts(2, 8);
        world.run(2);
        let id = world.create(0, 3, 1);
        world.settles(60);
        // The host with one primary: the two others can vote.
        let seats = world.seats(id);
        let victim = (0..2).find(|host| seats.iter().filter(|s| s[0] == *host).count() == 1).unwrap();
        world.wipe(victim);
        world.power_on(victim);
        world.hosts[victim].connect_at = world.now;
        world.run(20);
        world.settles(120);
        world.assert_whole(id);
    }
}

#[test]
fn a_member_that_knows_nobody_is_met_again_although_the_others_know_it() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let alone = member(&world, id, 1, false);
    let node = world.mesh.nodes.values_mut().find(|node| node.instance == alone).unwrap();
    node.peers.clear();
    world.run(5);
    world.settles(60);
    world.assert_whole(id);
}

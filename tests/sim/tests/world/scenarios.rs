//! Named histories. Each test name begins with the scenario it covers.

use shardplane_model::{
    command::Decision,
    refusal::RefusalCode,
    resource::Outcome,
    state::{Instance, OperationKind, Presence},
};
use shardplane_proto::ids::ClusterId;

use shardplane_sim::world::{LOST_AFTER, World, cluster};

pub fn ready(hosts: usize, room: u64) -> World {
    let mut world = World::new(1);
    world.add_hosts(hosts, room);
    world.run(2);
    world
}

pub fn distinct(seats: &[Vec<usize>]) -> bool {
    seats.iter().all(|hosts| hosts.iter().collect::<std::collections::BTreeSet<_>>().len() == hosts.len())
}

pub fn most_primaries(seats: &[Vec<usize>]) -> usize {
    let on = |host: usize| seats.iter().filter(|hosts| hosts.first() == Some(&host)).count();
    (0..16).map(on).max().unwrap()
}

pub fn moves(world: &World) -> usize {
    let kinds = [OperationKind::Move, OperationKind::Switchover];
    world.leader.state.operations.values().filter(|o| kinds.contains(&o.kind)).count()
}

#[test]
fn val_1_three_by_two_on_three_hosts() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    let took = world.settles(60);
    world.assert_whole(id);
    let (status, seats) = (world.status(id), world.seats(id));
    assert!(status.anti_affinity_ok && status.primary_spread_ok, "{status:#?}");
    assert!(distinct(&seats) && most_primaries(&seats) == 1, "{seats:?}");
    assert!((0..3).all(|h| seats.iter().flatten().filter(|s| **s == h).count() == 2), "{seats:?}");
    assert_eq!(moves(&world), 0, "a fresh cluster needs no moves");
    assert!(took < 30_000, "took {took} ms");
}

#[test]
fn ubi_1_one_host_first_then_a_second_is_degraded_then_heals() {
    let mut world = World::new(2);
    let id = world.create(0, 1, 1);
    world.run(3);
    assert_eq!(world.status(id).state, "scheduling");
    assert!(world.leader.last.waiting.values().flatten().any(|w| w.contains("no host with an image")));
    world.add_host("", 8);
    world.until(60, "formed on one host", |w| w.status(id).state == "stable");
    let status = world.status(id);
    assert!(!status.anti_affinity_ok, "both members are on one host");
    assert!(status.anti_affinity_message.contains("share host h1"), "{}", status.anti_affinity_message);
    world.add_host("", 8);
    world.until(90, "anti-affinity holds", |w| w.status(id).anti_affinity_ok);
    world.settles(60);
    world.assert_whole(id);
    assert_eq!(moves(&world), 1);
}

#[test]
fn ubi_4_delete_of_a_cluster_that_never_got_a_host() {
    let mut world = World::new(3);
    let id = world.create(0, 3, 1);
    world.run(1);
    let request = world.delete(id).unwrap();
    world.until(2, "gone", |w| !w.leader.state.resources.contains_key(&id));
    assert_eq!(world.leader.state.requests[&request].outcome, Outcome::Done);
    world.settles(1);
}

#[test]
fn omi_8_many_members_on_three_hosts_are_placed_or_wait_and_never_share_needlessly() {
    let mut world = ready(3, 4);
    let clusters: Vec<_> = (0..4).map(|n| world.create(n * 1000, 1, 2)).collect();
    world.settles(90);
    for id in clusters {
        world.assert_whole(id);
        assert!(distinct(&world.seats(id)), "{:?}", world.seats(id));
    }
    let one_more = world.create(5000, 1, 0);
    world.run(5);
    assert_eq!(world.status(one_more).state, "scheduling");
    let waiting = &world.leader.last.waiting[&ClusterId::from(one_more)];
    assert!(waiting.iter().any(|w| w.contains("host h1 is short of vCPU")), "{waiting:?}");
}

#[test]
fn val_5_lost_host_node_is_forgotten_everywhere_within_the_ban() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    let dead: Vec<_> = world.nodes_of(id).iter().filter(|n| n.host == victim).map(|n| n.id).collect();
    world.wipe(victim);
    let lost = world.until(40, "declared lost", |w| {
        w.leader.state.hosts.values().any(|h| matches!(h.presence, Presence::Lost { .. }))
    });
    assert!((LOST_AFTER..LOST_AFTER + 2_000).contains(&lost), "{lost}");
    let forgotten = world.until(20, "forgotten on every node", |w| {
        w.nodes_of(id).iter().all(|n| dead.iter().all(|d| !n.peers.contains_key(d)))
    });
    assert!(forgotten < 10_000, "{forgotten} ms");
    world.run(70);
    assert!(world.nodes_of(id).iter().all(|n| dead.iter().all(|d| !n.peers.contains_key(d))), "it came back");
    world.settles(60);
    world.assert_whole(id);
    let status = world.status(id);
    assert!(status.anti_affinity_ok && status.primary_spread_ok, "{status:#?}");
}

#[test]
fn val_15_replicas_zero_to_one() {
    let mut world = ready(2, 8);
    let id = world.create(0, 1, 0);
    world.settles(60);
    world.assert_whole(id);
    let first = world.nodes_of(id)[0].id;
    world.put_cluster(cluster(id, World::SUBNET, 1, 1)).unwrap();
    let refused = world.put_cluster(cluster(id, World::SUBNET, 1, 2)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceIsScheduling);
    world.settles(60);
    world.assert_whole(id);
    assert!(world.nodes_of(id).iter().any(|n| n.id == first && n.is_slot_master()), "the primary stayed");
    assert!(distinct(&world.seats(id)));
}

#[test]
fn three_by_two_on_two_hosts_is_degraded_and_heals_when_a_third_joins() {
    let mut world = ready(2, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    world.assert_whole(id);
    let status = world.status(id);
    assert!(status.anti_affinity_ok, "{}", status.anti_affinity_message);
    assert!(
        !status.primary_spread_ok && status.primary_spread_message.contains("its loss takes the majority")
    );
    assert_eq!(moves(&world), 0, "nothing moves while there is nowhere to go");
    world.add_host("", 8);
    world.until(120, "primaries are spread", |w| w.status(id).primary_spread_ok);
    world.settles(60);
    world.assert_whole(id);
    assert!(world.status(id).anti_affinity_ok);
    assert!(moves(&world) <= 3, "{} moves", moves(&world));
}

#[test]
fn a_host_cut_off_from_the_coordinator_alone_is_not_replaced_while_peers_see_its_member() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let before = world.seats(id);
    let victim = before[1][0];
    world.hosts[victim].control_cut = true;
    world.run(180);
    assert!(matches!(world.leader.state.hosts[&world.hosts[victim].id].presence, Presence::Lost { .. }));
    let waiting = &world.leader.last.waiting[&ClusterId::from(id)];
    assert!(waiting.iter().any(|w| w.contains("the other members still see it working")), "{waiting:?}");
    world.hosts[victim].control_cut = false;
    world.hosts[victim].connect_at = world.now;
    world.settles(30);
    assert_eq!(world.seats(id), before, "nothing moved");
    world.assert_whole(id);
}

#[test]
fn a_returning_host_s_replaced_members_are_removed() {
    let mut world = ready(4, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let victim = world.seats(id)[0][0];
    world.power_off(victim);
    world.run(90);
    world.power_on(victim);
    world.settles(120);
    world.assert_whole(id);
    let here =
        world.leader.state.instances.values().filter(|i| i.host == world.hosts[victim].id && !i.wanted());
    assert_eq!(here.count(), 0);
    let wanted: Vec<_> = world.leader.state.instances.keys().copied().collect();
    assert!(
        world.hosts.iter().flat_map(|h| h.machines.keys()).all(|id| wanted.contains(id)),
        "a stale machine"
    );
}

#[test]
fn a_version_without_image_fails_names_versions_leaves_nothing_and_can_be_put_again() {
    let mut world = ready(3, 8);
    let id = shardplane_proto::ids::ResourceId::from_u128(16 << 100);
    let mut wrong = cluster(id, World::SUBNET, 3, 1);
    wrong.spec.as_mut().unwrap().valkey_version = Some("9.9.9".to_owned());
    let request = world.put_cluster(wrong.clone()).unwrap();
    world.settles(10);
    let Outcome::Failed { message } = world.leader.state.requests[&request].outcome.clone() else {
        panic!("did not fail")
    };
    assert!(message.contains("9.9.9") && message.contains("8.1.1"), "{message}");
    let status = world.status(id);
    assert_eq!(status.state, "schedulingfailed");
    assert_eq!(status.last_change_request.unwrap().error_message, Some(message));
    assert!(world.leader.state.instances.is_empty());
    world.put_cluster(cluster(id, World::SUBNET, 3, 1)).unwrap();
    world.settles(60);
    world.assert_whole(id);

    let second = shardplane_proto::ids::ResourceId::from_u128(17 << 100);
    wrong.metadata.as_mut().unwrap().id = second.to_string();
    world.put_cluster(wrong).unwrap();
    world.settles(10);
    world.delete(second).unwrap();
    world.until(2, "gone", |w| !w.leader.state.resources.contains_key(&second));
}

#[test]
fn images_on_hosts_that_have_not_found_a_new_leader_yet_count() {
    let mut world = ready(3, 8);
    for host in [1, 2] {
        world.hosts[host].facts.images[0].version = "8.0.0".to_owned();
        world.power_off(host);
        world.power_on(host);
    }
    world.run(10);
    let id = world.create(0, 1, 0);
    world.change_leader(0);
    world.hosts[0].connect_at = world.now + 5_000;
    world.hosts[1].connect_at = world.now;
    world.settles(60);
    world.assert_whole(id);
}

#[test]
fn a_cluster_with_a_member_on_a_lost_host_can_be_deleted() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    world.power_off(0);
    world.run(40);
    world.delete(id).unwrap();
    world.until(20, "gone", |w| !w.leader.state.resources.contains_key(&id));
    assert!(
        !world.leader.state.instances.is_empty(),
        "what is on the lost host keeps its address until proved gone"
    );
    let again = world.create(1000, 3, 1);
    world.run(10);
    world.power_on(0);
    world.settles(120);
    world.assert_whole(again);
    assert_eq!(world.mesh.nodes.len(), 6, "nothing of the deleted one runs");
}

#[test]
fn two_creates_on_scarce_capacity_promise_nothing_twice() {
    let mut world = ready(3, 3);
    let (first, second) = (world.create(0, 3, 1), world.create(1000, 3, 1));
    world.run(40);
    let words = [world.status(first).state, world.status(second).state];
    assert_eq!(words.iter().filter(|w| *w == "stable").count(), 1, "{words:?}");
    assert_eq!(words.iter().filter(|w| *w == "scheduling").count(), 1, "{words:?}");
    world.add_hosts(1, 3);
    world.settles(120);
    world.assert_whole(first);
    world.assert_whole(second);
}

#[test]
fn sch_5_leader_change_in_the_middle_of_forming() {
    for at in [0, 2, 4, 8, 12, 16, 20, 28, 40] {
        let mut world = ready(3, 8);
        let id = world.create(0, 3, 1);
        (0..at).for_each(|_| world.step());
        world.change_leader(2_000);
        world.settles(60);
        world.assert_whole(id);
        let places = world.leader.decided.iter().filter(|(_, d)| matches!(d, Decision::Place { .. })).count();
        assert_eq!(places, 1, "leader changed after {at} steps");
        assert!(
            distinct(&world.seats(id)) && most_primaries(&world.seats(id)) == 1,
            "{at}: {:?}",
            world.seats(id)
        );
    }
}

#[test]
fn the_host_of_a_first_primary_dies_at_every_moment_of_forming() {
    for at in 0..60 {
        let mut world = ready(4, 8);
        let id = world.create(0, 3, 1);
        (0..at).for_each(|_| world.step());
        let first = world.leader.state.instances_of(id.into()).find(|i| i.first_primary).map(|i| i.host);
        let Some(first) = first else { continue };
        // A shard that serves before its replica has a copy loses its data with its host: then nothing may take its place.
        let serves = world.leader.state.clusters[&ClusterId::from(id)].formed;
        let has_data = |i: &Instance| world.mesh.nodes.values().any(|n| n.instance == i.id && n.has_data);
        let own = || world.leader.state.instances_of(id.into());
        let alone = own()
            .filter(|i| i.host == first)
            .any(|i| !own().any(|other| other.group == i.group && other.host != first && has_data(other)));
        if serves && alone {
            continue;
        }
        let victim = world.hosts.iter().position(|h| h.id == first).unwrap();
        world.wipe(victim);
        world.run(8);
        world.settles(240);
        world.assert_whole(id);
    }
}

#[test]
fn a_single_shard_without_replicas_on_a_lost_host_is_never_replaced() {
    let mut world = ready(3, 8);
    let id = world.create(0, 1, 0);
    world.settles(60);
    let before = world.seats(id);
    world.power_off(before[0][0]);
    world.run(300);
    let waiting = &world.leader.last.waiting[&ClusterId::from(id)];
    assert!(waiting.iter().any(|w| w.contains("may hold the only copy")), "{waiting:?}");
    world.power_on(before[0][0]);
    world.settles(60);
    assert_eq!(world.seats(id), before);
    world.assert_whole(id);
}

#[test]
fn a_retired_address_rests() {
    let mut world = ready(1, 8);
    let id = world.create(0, 1, 0);
    world.settles(60);
    let old = world.leader.state.instances.values().next().unwrap().ipv4;
    world.delete(id).unwrap();
    world.until(20, "gone", |w| w.leader.state.instances.is_empty());
    let next = world.create(1000, 1, 0);
    world.settles(60);
    assert_ne!(world.leader.state.instances.values().next().unwrap().ipv4, old);
    world.delete(next).unwrap();
    world.run(130);
    world.create(2000, 1, 0);
    world.settles(60);
    assert_eq!(
        world.leader.state.instances.values().next().unwrap().ipv4,
        old,
        "after its rest it is used again"
    );
}

#[test]
fn an_identical_put_changes_nothing() {
    let mut world = ready(3, 8);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let generations: Vec<_> = world.leader.state.hosts.values().map(|h| h.generation).collect();
    let answer = world.put_cluster(cluster(id, World::SUBNET, 3, 1));
    assert!(answer.is_ok());
    assert_eq!(world.status(id).state, "stable");
    assert_eq!(generations, world.leader.state.hosts.values().map(|h| h.generation).collect::<Vec<_>>());
}

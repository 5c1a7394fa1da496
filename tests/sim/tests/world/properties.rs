//! Random worlds. After every step the audit, the copies, the views and every decision are checked (see `check`); then all faults
//! end, and within a bound the plan runs empty and every cluster is whole and spread.

use proptest::prelude::*;
use shardplane_model::{command::DrainMode, state::OperationKind, view::spread::most_primaries_on_a_host};
use shardplane_proto::ids::ResourceId;

use shardplane_sim::world::{STEP, World, cluster};

/// What may happen to the world in one moment.
#[derive(Debug, Clone, Copy)]
enum Event {
    Nothing,
    PowerOff(usize),
    PowerOn(usize),
    ControlCut(usize),
    PeersCut(usize),
    Rejoin(usize),
    Wipe(usize),
    /// A machine on this host fails, the host does not.
    Fail(usize),
    Mend(usize),
    NewLeader(u64),
    NewHost,
    Create(usize, i32),
    Grow(usize),
    Shrink(usize),
    Cordon(usize),
    Drain(usize),
    Uncordon(usize),
    Delete(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let host = 0..6_usize;
    prop_oneof![
        4 => Just(Event::Nothing),
        3 => host.clone().prop_map(Event::PowerOff),
        4 => host.clone().prop_map(Event::PowerOn),
        2 => host.clone().prop_map(Event::ControlCut),
        2 => host.clone().prop_map(Event::PeersCut),
        3 => host.clone().prop_map(Event::Rejoin),
        3 => host.clone().prop_map(Event::Wipe),
        3 => host.clone().prop_map(Event::Fail),
        2 => host.clone().prop_map(Event::Mend),
        2 => host.clone().prop_map(Event::Cordon),
        3 => host.clone().prop_map(Event::Drain),
        3 => host.prop_map(Event::Uncordon),
        2 => (0..10_000_u64).prop_map(Event::NewLeader),
        1 => Just(Event::NewHost),
        3 => (prop_oneof![Just(1_usize), 3..=6_usize], 0..=2_i32).prop_map(|(shards, replicas)| Event::Create(shards, replicas)),
        1 => (0..4_usize).prop_map(Event::Grow),
        2 => (0..4_usize).prop_map(Event::Shrink),
        1 => (0..4_usize).prop_map(Event::Delete),
    ]
}

#[derive(Debug, Clone)]
struct History {
    seed: u64,
    /// Decisions of former leaders come late.
    late: bool,
    /// Rack and room of each host.
    hosts: Vec<(u8, u64)>,
    clusters: Vec<(usize, i32)>,
    /// Each with the steps that pass before it.
    events: Vec<(usize, Event)>,
}

fn history() -> impl Strategy<Value = History> {
    let shards = prop_oneof![Just(1_usize), 3..=6_usize];
    (
        any::<u64>(),
        any::<bool>(),
        prop::collection::vec((0..3_u8, 2..16_u64), 1..6),
        prop::collection::vec((shards, 0..=2_i32), 1..3),
        prop::collection::vec((0..160_usize, event()), 0..12),
    )
        .prop_map(|(seed, late, hosts, clusters, events)| History {
            seed,
            late,
            hosts,
            clusters,
            events,
        })
}

/// Disks may only be destroyed when every shard has a copy elsewhere that works and the rest can vote: otherwise the truth itself has
/// lost the data, and no planner heals that.
fn may_wipe(world: &World, host: usize) -> bool {
    let others_fine = world
        .hosts
        .iter()
        .enumerate()
        .all(|(i, h)| i == host || (h.up && !h.control_cut && !h.peers_cut && h.failed.is_empty()));
    others_fine
        && world.leader.state.clusters.iter().all(|(id, cluster)| {
            let resource: ResourceId = (*id).into();
            let nodes = world.nodes_of(resource);
            let groups = world.status(resource).shards;
            let here = |n: &&&shardplane_sim::node::Node| n.host == host;
            let primaries = nodes.iter().filter(here).filter(|n| n.is_slot_master()).count();
            let kept = groups.iter().all(|group| {
                world
                    .leader
                    .state
                    .instances_of(*id)
                    .filter(|i| i.group.to_string() == group.id && i.wanted())
                    .any(|i| {
                        nodes.iter().any(|n| {
                            n.instance == i.id
                                && n.host != host
                                && n.up
                                && n.state_ok(world.now)
                                && (n.link_up || n.is_slot_master())
                        })
                    })
            });
            let votes =
                groups.len() >= 3 && primaries <= most_primaries_on_a_host(groups.len()) || primaries == 0;
            (kept && votes && cluster.formed) || nodes.iter().filter(here).count() == 0
        })
}

fn cause(world: &mut World, event: Event, known: &mut Vec<(ResourceId, usize, i32)>) {
    let hosts = world.hosts.len();
    let now = world.now;
    match event {
        Event::Nothing => {}
        Event::PowerOff(host) => world.power_off(host % hosts),
        Event::PowerOn(host) if !world.hosts[host % hosts].up => world.power_on(host % hosts),
        Event::PowerOn(_) => {}
        Event::ControlCut(host) => world.hosts[host % hosts].control_cut = true,
        Event::PeersCut(host) => world.hosts[host % hosts].peers_cut = true,
        Event::Rejoin(host) => {
            let host = &mut world.hosts[host % hosts];
            (host.control_cut, host.peers_cut, host.connect_at) = (false, false, now);
        }
        Event::Wipe(host) if may_wipe(world, host % hosts) => {
            world.wipe(host % hosts);
            // A replica that is restarted before it took over does not stand for election any more: then the truth is lost, too.
            world.run(20);
        }
        Event::Wipe(_) => {}
        Event::Fail(host) => {
            let host = &mut world.hosts[host % hosts];
            let some = world.rng.below(host.machines.len() as u64);
            host.failed.extend(host.machines.keys().nth(usize::try_from(some).unwrap()));
        }
        Event::Mend(host) => world.hosts[host % hosts].failed.clear(),
        Event::NewLeader(gap) => world.change_leader(gap),
        Event::NewHost => {
            world.add_host("new", 8);
        }
        Event::Create(..) if known.len() > 2 => {}
        Event::Create(shards, replicas) => {
            let id = world.create(1000 * u128::from(world.leader.index), shards, replicas);
            known.push((id, shards, replicas));
        }
        Event::Grow(which) => {
            let at = which % known.len().max(1);
            let Some((id, shards, replicas)) = known.get_mut(at).filter(|(_, _, r)| *r < 2) else { return };
            if world.put_cluster(cluster(*id, World::SUBNET, *shards, *replicas + 1)).is_ok() {
                *replicas += 1;
            }
        }
        Event::Shrink(which) => {
            let at = which % known.len().max(1);
            let Some((id, shards, replicas)) = known.get_mut(at).filter(|(_, _, r)| *r > 0) else { return };
            if world.put_cluster(cluster(*id, World::SUBNET, *shards, *replicas - 1)).is_ok() {
                *replicas -= 1;
            }
        }
        // A host that never had a session is not known to the log.
        Event::Cordon(host) | Event::Drain(host) | Event::Uncordon(host)
            if !world.leader.state.hosts.contains_key(&world.hosts[host % hosts].id) => {}
        Event::Cordon(host) => {
            // A time for a host that is drained is refused.
            let drained = world.leader.state.hosts.get(&world.hosts[host % hosts].id);
            if drained.is_none_or(|host| host.drain().is_none()) {
                world.cordon(host % hosts, Some(20));
            }
        }
        Event::Drain(host) => {
            let mode = if host.is_multiple_of(2) { DrainMode::Force } else { DrainMode::KeepSpread };
            world.drain(host % hosts, mode);
        }
        Event::Uncordon(host) => world.uncordon(host % hosts),
        Event::Delete(which) => {
            let at = which % known.len().max(1);
            if let Some((id, _, _)) = known.get(at).copied()
                && world.delete(id).is_ok()
            {
                known.retain(|(other, _, _)| *other != id);
            }
        }
    }
}

fn live(history: &History) -> Result<(), TestCaseError> {
    let mut world = World::new(history.seed);
    world.late = history.late;
    for (rack, room) in &history.hosts {
        world.add_host(&format!("r{rack}"), *room);
    }
    let mut known = Vec::new();
    for (shards, replicas) in &history.clusters {
        cause(&mut world, Event::Create(*shards, *replicas), &mut known);
    }
    for (steps, event) in &history.events {
        (0..*steps).for_each(|_| world.step());
        cause(&mut world, *event, &mut known);
    }
    heal(&mut world);
    // With room for everything, a drain leaves only what has no copy elsewhere.
    for at in 0..world.hosts.len() {
        let host = &world.leader.state.hosts[&world.hosts[at].id];
        if host.drain().is_some() {
            let left = world.left(at);
            prop_assert!(left.iter().all(|left| left.why.contains("no other copy")), "{:#?}", left);
            prop_assert!(world.drained(at) == left.is_empty());
        }
    }
    for (id, shards, replicas) in known {
        world.assert_whole(id);
        let status = world.status(id);
        prop_assert_eq!(
            (status.shards.len(), status.nodes.len()),
            (shards, shards * (1 + usize::try_from(replicas).unwrap()))
        );
        prop_assert!(status.anti_affinity_ok, "{}", status.anti_affinity_message);
        prop_assert!(
            status.primary_spread_ok || replicas == 0,
            "{} {:?}",
            status.primary_spread_message,
            world.seats(id)
        );
    }
    Ok(())
}

fn heal(world: &mut World) {
    world.late = false;
    // Six hosts with room for everything: spread is possible for every cluster there is.
    for _ in 0..6 {
        world.add_host("", 60);
    }
    for at in 0..world.hosts.len() {
        let now = world.now;
        let host = &mut world.hosts[at];
        (host.control_cut, host.peers_cut, host.connect_at) = (false, false, now);
        host.failed.clear();
        if !host.up {
            world.power_on(at);
        }
    }
    // A host whose shards have no copy elsewhere never gets empty; the others do.
    let closed: Vec<usize> = (0..world.hosts.len())
        .filter(|at| world.leader.state.hosts.get(&world.hosts[*at].id).is_some_and(|h| h.cordon.is_some()))
        .collect();
    closed.into_iter().filter(|at| at % 3 == 0).for_each(|at| world.uncordon(at));
    let began = world.now;
    world.run(8);
    world.settles(900);
    let members = world.leader.state.instances.len();
    let moves = world
        .leader
        .state
        .operations
        .values()
        .filter(|o| {
            o.created.0 >= began && [OperationKind::Move, OperationKind::Switchover].contains(&o.kind)
        })
        .count();
    assert!(moves <= 2 * members, "{moves} moves for {members} members: that is ping-pong");
    let (index, decided) = (world.leader.index, world.leader.decided.len());
    (0..20_000 / STEP).for_each(|_| world.step());
    assert!(
        world.leader.decided.len() == decided,
        "decided in a healthy world: {:#?}",
        &world.leader.decided[decided..]
    );
    assert!(world.leader.index - index <= 1, "nothing is logged in a healthy world");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10,
        // Shrinking says nothing while it runs: a failure is told within a minute, be it not the smallest.
        max_shrink_iters: 100,
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_happens_no_rule_breaks_and_all_heals(history in history()) {
        live(&history)?;
    }
}

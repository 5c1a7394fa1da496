//! Nothing moves without a cause, and one cause moves nothing twice: random worlds that are disturbed by one thing after another, each
//! time until nothing is decided any more.

use proptest::prelude::*;
use shardplane_model::command::DrainMode;
use shardplane_proto::ids::{InstanceId, ResourceId};
use shardplane_sim::world::World;

use crate::spread::moved_once;

/// Nothing that is still to come is later than this, in seconds: a single shard's replica is believed to be without its primary 75 s
/// after the host fell silent, when its own link has timed out.
const REST: u64 = 100;

/// Until nothing was decided for as long as it rests; whoever waits may wait.
fn quiet(world: &mut World) {
    let (mut decided, mut since) = (world.leader.decided.len(), world.now);
    let began = world.now;
    while world.now - since < REST * 1000 {
        assert!(world.now - began < 3_600_000, "no rest for an hour: {:?}", world.leader.decided.last());
        world.step();
        if world.leader.decided.len() != decided {
            (decided, since) = (world.leader.decided.len(), world.now);
        }
    }
}

/// One thing that makes the spread worse, or that lets it become better.
#[derive(Debug, Clone, Copy)]
enum Disturbance {
    NewHost(u8),
    Reboot(usize),
    Lost(usize),
    Back,
    Failover(usize),
    CloseAndOpen(usize),
    Drain(usize),
    Open,
    Delete,
}

fn disturbance() -> impl Strategy<Value = Disturbance> {
    prop_oneof![
        (0..3_u8).prop_map(Disturbance::NewHost),
        (0..8_usize).prop_map(Disturbance::Reboot),
        (0..8_usize).prop_map(Disturbance::Lost),
        Just(Disturbance::Back),
        (0..8_usize).prop_map(Disturbance::Failover),
        (0..8_usize).prop_map(Disturbance::CloseAndOpen),
        (0..8_usize).prop_map(Disturbance::Drain),
        Just(Disturbance::Open),
        Just(Disturbance::Delete),
    ]
}

fn disturb(world: &mut World, what: Disturbance, ids: &mut Vec<ResourceId>) {
    let hosts = world.hosts.len();
    let down: Vec<usize> = (0..hosts).filter(|h| !world.hosts[*h].up).collect();
    match what {
        Disturbance::NewHost(rack) => {
            world.add_host(&format!("r{rack}"), 8);
        }
        Disturbance::Reboot(host) if down.is_empty() => {
            world.power_off(host % hosts);
            world.run(12);
            world.power_on(host % hosts);
        }
        Disturbance::Lost(host) if down.is_empty() => world.power_off(host % hosts),
        Disturbance::Back => down.into_iter().for_each(|host| world.power_on(host)),
        Disturbance::Failover(which) => {
            let replicas = world.mesh.nodes.values().filter(|n| n.up && n.link_up && n.primary.is_some());
            let replicas: Vec<InstanceId> = replicas.map(|n| n.instance).collect();
            if !replicas.is_empty() {
                world.take_over(replicas[which % replicas.len()]);
            }
        }
        Disturbance::CloseAndOpen(host) => {
            world.cordon(host % hosts, None);
            world.run(5);
            world.uncordon(host % hosts);
        }
        Disturbance::Drain(host) => world.drain(host % hosts, DrainMode::KeepSpread),
        Disturbance::Open => (0..hosts).for_each(|host| world.uncordon(host)),
        Disturbance::Delete if ids.len() > 1 => {
            let id = ids.remove(0);
            world.delete(id).unwrap();
        }
        Disturbance::Reboot(_) | Disturbance::Lost(_) | Disturbance::Delete => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5,
        max_shrink_iters: 60,
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A stable world moves nothing, and one disturbance moves no instance twice.
    #[test]
    fn one_cause_moves_an_instance_once_and_no_cause_moves_none(
        seed in any::<u64>(),
        hosts in prop::collection::vec((0..3_u8, 3..12_u64), 3..8),
        clusters in prop::collection::vec((prop_oneof![Just(1_usize), 3..=5_usize], 1..=2_i32), 1..4),
        events in prop::collection::vec(disturbance(), 1..7),
    ) {
        let mut world = World::new(seed);
        for (rack, room) in hosts {
            world.add_host(&format!("r{rack}"), room);
        }
        let mut ids = Vec::new();
        for (shards, replicas) in clusters {
            ids.push(world.create(1000 * ids.len() as u128, shards, replicas));
        }
        quiet(&mut world);
        for event in events {
            let from = world.leader.decided.len();
            disturb(&mut world, event, &mut ids);
            quiet(&mut world);
            moved_once(&world, from);
            let decided = world.leader.decided.len();
            world.run(30);
            prop_assert_eq!(world.leader.decided.len(), decided, "{:?}", &world.leader.decided[decided..]);
        }
    }
}

//! What goes wrong, and ends. In: chance. Out: a fault in the world, undone after its time. One host is taken at a time for the loss of
//! disks, and only when every shard has a copy elsewhere: what the truth itself has lost no planner heals.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::view::spread::most_primaries_on_a_host;
use shardplane_proto::ids::ResourceId;

use super::{leader::Deposed, world::World};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    HostLoss,
    HostPause,
    DisksLost,
    PeersCut,
    Split,
    ControlCut,
    OneWayUp,
    OneWayDown,
    LossyWire,
    SlowWire,
    HostClock,
    SlowBoot,
    RefusedBoot,
    DiskFull,
    EngineCrash,
    GuestCrash,
    LeaderChange,
    LeaderClock,
    OldLeader,
    AgentRestart,
    LedgerLost,
    EnginesRefuse,
    ReplicaLags,
    LateDecisions,
}

impl Fault {
    /// Those that come up more often stand here more than once.
    pub const ALL: [Fault; 27] = [
        Fault::HostLoss,
        Fault::HostLoss,
        Fault::HostLoss,
        Fault::HostPause,
        Fault::DisksLost,
        Fault::DisksLost,
        Fault::PeersCut,
        Fault::Split,
        Fault::ControlCut,
        Fault::OneWayUp,
        Fault::OneWayDown,
        Fault::LossyWire,
        Fault::SlowWire,
        Fault::HostClock,
        Fault::SlowBoot,
        Fault::RefusedBoot,
        Fault::DiskFull,
        Fault::EngineCrash,
        Fault::GuestCrash,
        Fault::LeaderChange,
        Fault::LeaderClock,
        Fault::OldLeader,
        Fault::AgentRestart,
        Fault::LedgerLost,
        Fault::EnginesRefuse,
        Fault::ReplicaLags,
        Fault::LateDecisions,
    ];
}

/// A fault under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    pub fault: Fault,
    pub host: usize,
    pub until: u64,
}

/// What goes wrong now.
#[derive(Debug, Default)]
pub struct Faults {
    pub running: Vec<Running>,
    pub counts: BTreeMap<Fault, u64>,
}

/// Disks may only be destroyed when every shard has a copy elsewhere that works and the rest can vote.
pub fn may_wipe(world: &World, host: usize) -> bool {
    let fine = |(at, h): (usize, &super::host::SimHost)| {
        let sound = h.up && !h.frozen && !h.control_cut && !h.peers_cut && h.failed.is_empty();
        at == host || (sound && h.wire.is_sound() && !h.disk_full && h.session.is_some())
    };
    let others_fine = world.split.is_empty() && world.hosts.iter().enumerate().all(fine);
    others_fine
        && world.leader.state.clusters.iter().all(|(id, cluster)| {
            let resource: ResourceId = (*id).into();
            let nodes = world.nodes_of(resource);
            let here = nodes.iter().filter(|node| node.host == host).count();
            if here == 0 {
                return true;
            }
            let groups: BTreeSet<_> = world.leader.state.instances_of(*id).map(|i| i.group).collect();
            let primaries = nodes.iter().filter(|n| n.host == host && n.is_slot_master()).count();
            let works = |node: &&&super::node::Node| {
                node.host != host
                    && node.up
                    && node.state_ok(world.now)
                    && !node.stands_down
                    && (node.link_up || node.is_slot_master())
            };
            let open = nodes.iter().any(|node| !node.migrating.is_empty() || !node.importing.is_empty());
            let kept = groups.iter().all(|group| {
                let of_it = |node: &&&super::node::Node| {
                    let instance = world.leader.state.instances.get(&node.instance);
                    instance.is_some_and(|i| i.group == *group && i.wanted())
                };
                nodes.iter().filter(of_it).any(|node| works(&node))
            });
            let votes = groups.len() >= 3 && primaries <= most_primaries_on_a_host(groups.len());
            kept && (votes || primaries == 0) && cluster.formed && !open
        })
}

impl Faults {
    /// Something goes wrong. `lasts` in milliseconds.
    pub fn begin(&mut self, world: &mut World, fault: Fault, lasts: u64) {
        let hosts = world.hosts.len() as u64;
        let host = usize::try_from(world.rng.below(hosts)).unwrap();
        let now = world.now;
        if self.running.iter().any(|running| running.host == host && running.fault == fault) {
            return;
        }
        let down = world.hosts.iter().filter(|host| !host.up).count();
        // Two hosts at once are enough.
        let too_much = fault == Fault::HostLoss && down >= 2;
        if too_much || (fault == Fault::DisksLost && !may_wipe(world, host)) {
            return;
        }
        *self.counts.entry(fault).or_default() += 1;
        world.leader.trace.line(now, format!("fault {fault:?} host {host} for {lasts} ms"));
        self.running.push(Running { fault, host, until: now + lasts });
        match fault {
            Fault::HostLoss => world.power_off(host),
            Fault::DisksLost => world.wipe(host),
            Fault::HostPause => world.hosts[host].frozen = true,
            Fault::PeersCut => world.hosts[host].peers_cut = true,
            Fault::Split => {
                let side = (0..world.hosts.len()).filter(|_| world.rng.below(2) == 0).collect::<Vec<_>>();
                world.split = side.into_iter().collect();
            }
            Fault::ControlCut => world.hosts[host].control_cut = true,
            Fault::OneWayUp => world.hosts[host].wire.up_cut = true,
            Fault::OneWayDown => world.hosts[host].wire.down_cut = true,
            Fault::LossyWire => {
                let wire = &mut world.hosts[host].wire;
                (wire.lost, wire.twice, wire.reorders, wire.delay) = (250, 300, true, 1_000);
            }
            Fault::SlowWire => world.hosts[host].wire.delay = 4_000,
            Fault::HostClock => {
                let rate = 900 + world.rng.below(201);
                world.hosts[host].clock.goes(now, rate);
            }
            Fault::SlowBoot => world.hosts[host].slow = 45_000,
            Fault::RefusedBoot => {
                let host = &mut world.hosts[host];
                let some = usize::try_from(world.rng.below(host.machines.len() as u64)).unwrap();
                host.failed.extend(host.machines.keys().nth(some));
            }
            Fault::DiskFull => world.hosts[host].disk_full = true,
            Fault::EngineCrash | Fault::GuestCrash => {
                let machines = &mut world.hosts[host].machines;
                let some = usize::try_from(world.rng.below(machines.len() as u64)).unwrap();
                if let Some(machine) = machines.values_mut().nth(some) {
                    if fault == Fault::EngineCrash {
                        machine.engine_dies(&mut world.mesh, now);
                    } else {
                        machine.dies(&mut world.mesh);
                    }
                }
            }
            Fault::LeaderChange | Fault::LeaderClock | Fault::OldLeader => {
                let old = (world.leader.state.clone(), world.leader.term);
                let gap = world.rng.below(8_000);
                world.change_leader(gap);
                if fault == Fault::LeaderClock {
                    let (rate, ahead) = (900 + world.rng.below(201), world.rng.below(600_000));
                    world.leader.clock.jumps(now, if ahead > 300_000 { ahead } else { 0 });
                    world.leader.clock.goes(now, rate);
                    let since = world.leader.stamp(now + gap);
                    world.leader.observed.since = since;
                }
                if fault == Fault::OldLeader {
                    world.leader.deposed = Some(Deposed { state: old.0, term: old.1, until: now + lasts });
                }
            }
            Fault::AgentRestart | Fault::LedgerLost => {
                let host = &mut world.hosts[host];
                host.agent_dies();
                host.agent.down_until = now + lasts;
                if fault == Fault::LedgerLost {
                    host.agent.accepted = None;
                }
            }
            Fault::EnginesRefuse => world.mesh.refuses = true,
            Fault::ReplicaLags => {
                let replica = world.mesh.nodes.values_mut().filter(|n| n.host == host && n.primary.is_some());
                replica.for_each(|node| node.lag = 5_000);
            }
            Fault::LateDecisions => world.late = true,
        }
    }

    /// What has had its time is undone.
    pub fn end_due(&mut self, world: &mut World) {
        let now = world.now;
        let due: Vec<Running> = self.running.extract_if(.., |running| running.until <= now).collect();
        for Running { fault, host, .. } in due {
            world.leader.trace.line(now, format!("end of {fault:?} host {host}"));
            undo(world, fault, host);
        }
    }

    /// Everything is undone.
    pub fn end_all(&mut self, world: &mut World) {
        self.running.iter_mut().for_each(|running| running.until = 0);
        self.end_due(world);
        for host in 0..world.hosts.len() {
            undo(world, Fault::HostLoss, host);
        }
    }
}

fn undo(world: &mut World, fault: Fault, host: usize) {
    let now = world.now;
    let connects = now + world.rng.below(3_000);
    match fault {
        Fault::HostLoss | Fault::DisksLost => {
            if !world.hosts[host].up {
                world.power_on(host);
            }
        }
        Fault::HostPause => world.hosts[host].frozen = false,
        Fault::PeersCut => world.hosts[host].peers_cut = false,
        Fault::Split => world.split.clear(),
        Fault::ControlCut => {
            world.hosts[host].control_cut = false;
            world.hosts[host].connect_at = connects;
        }
        Fault::OneWayUp | Fault::OneWayDown | Fault::LossyWire | Fault::SlowWire => {
            world.hosts[host].wire.mend();
        }
        Fault::HostClock => world.hosts[host].clock.goes(now, 1_000),
        Fault::SlowBoot => world.hosts[host].slow = 0,
        Fault::RefusedBoot => world.hosts[host].failed.clear(),
        Fault::DiskFull => world.hosts[host].disk_full = false,
        Fault::EngineCrash
        | Fault::GuestCrash
        | Fault::LeaderChange
        | Fault::OldLeader
        | Fault::AgentRestart
        | Fault::LedgerLost => {}
        Fault::LeaderClock => world.leader.clock.goes(now, 1_000),
        Fault::EnginesRefuse => world.mesh.refuses = false,
        Fault::ReplicaLags => world.mesh.nodes.values_mut().for_each(|node| node.lag = 0),
        Fault::LateDecisions => world.late = false,
    }
}

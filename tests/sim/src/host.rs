//! Simulated hosts. In: faults, time, and what the agent (`agent`) makes of its specs. Out: machines that start after delays, nodes that
//! run in them, outcomes of tasks, reports. A host keeps what is on its disks through a reboot.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::Ended, engine::Report, observed::MemberReport, state::HostFacts, time::Timestamp,
};
use shardplane_proto::{
    ids::{HostId, InstanceId, TaskId},
    v1,
};

use super::{agent::Agent, clock::Clock, machine::Machine, mesh::Mesh, rng::Rng, wire::Wire};

#[derive(Debug)]
pub struct SimHost {
    pub id: HostId,
    pub facts: HostFacts,
    pub up: bool,
    /// Everything on it stands still.
    pub frozen: bool,
    pub control_cut: bool,
    pub peers_cut: bool,
    /// The spec in force; none while its agent has accepted none since it started.
    pub spec: Option<v1::HostSpec>,
    /// Term of the leader it has a session with.
    pub session: Option<u64>,
    pub connect_at: u64,
    pub machines: BTreeMap<InstanceId, Machine>,
    /// Machines that do not run here, and it says so.
    pub failed: BTreeSet<InstanceId>,
    /// Machines that run although it says that they failed.
    pub misreported: BTreeSet<InstanceId>,
    /// Machines that run, and whose supervisor says nothing.
    pub mute: BTreeSet<InstanceId>,
    /// Engines here cannot write.
    pub disk_full: bool,
    /// Milliseconds that a boot takes longer.
    pub slow: u64,
    pub clock: Clock,
    pub agent: Agent,
    pub wire: Wire,
}

impl SimHost {
    pub fn new(id: HostId, facts: HostFacts, connect_at: u64, rng: Rng) -> Self {
        Self {
            id,
            facts,
            up: true,
            frozen: false,
            control_cut: false,
            peers_cut: false,
            spec: None,
            session: None,
            connect_at,
            machines: BTreeMap::new(),
            failed: BTreeSet::new(),
            misreported: BTreeSet::new(),
            mute: BTreeSet::new(),
            disk_full: false,
            slow: 0,
            clock: Clock::right(),
            agent: Agent::default(),
            wire: Wire::new(rng),
        }
    }

    /// Whether its agent runs.
    pub fn acts(&self, now: u64) -> bool {
        self.up && !self.frozen && now >= self.agent.down_until
    }

    pub fn session_ends(&mut self) {
        self.session = None;
        self.wire.breaks();
    }

    pub fn power_off(&mut self, mesh: &mut Mesh) {
        self.up = false;
        self.agent_dies();
        for machine in self.machines.values_mut() {
            machine.stopped();
            if let Some(node) = machine.node_mut(mesh) {
                node.crash();
            }
        }
    }

    pub fn power_on(&mut self, now: u64, rng: &mut Rng) {
        self.up = true;
        self.facts.boot_id = format!("{:x}", rng.draw());
        self.connect_at = now + 1_000 + rng.below(4_000);
    }

    /// How its tasks ended.
    pub fn outcomes(&self) -> impl Iterator<Item = (TaskId, &Ended)> {
        self.machines.values().flat_map(|machine| &machine.outcomes).map(|(task, ended)| (*task, ended))
    }

    /// Everything on it is destroyed.
    pub fn wipe(&mut self, mesh: &mut Mesh) {
        self.power_off(mesh);
        for machine in std::mem::take(&mut self.machines).into_values() {
            machine.node.and_then(|id| mesh.nodes.remove(&id));
        }
        self.agent.accepted = None;
    }

    /// Whether its nodes stand still, and whether they can write.
    pub fn touch_nodes(&self, mesh: &mut Mesh) {
        for node in self.machines.values().filter_map(|machine| machine.node) {
            if let Some(node) = mesh.nodes.get_mut(&node) {
                (node.frozen, node.disk_full) = (self.frozen, self.disk_full);
            }
        }
    }

    /// What it says of each machine.
    pub fn members(&self, mesh: &Mesh, now: u64) -> Vec<(InstanceId, MemberReport)> {
        let report = |(id, machine): (&InstanceId, &Machine)| {
            let node = machine.node(mesh).filter(|node| node.up && !self.mute.contains(id));
            let state = if machine.gone_at.is_some() {
                v1::MachineState::Stopping
            } else if self.failed.contains(id) || self.misreported.contains(id) {
                v1::MachineState::Failed
            } else if machine.ready_at.is_some_and(|at| now >= at) {
                v1::MachineState::Running
            } else {
                v1::MachineState::Preparing
            };
            let said = MemberReport {
                host: self.id,
                at: Timestamp::default(),
                machine: state,
                message: String::new(),
                engine_state: machine.engine_state(mesh, now),
                engine_message: String::new(),
                engine: node.map(|node| Report::Valkey(Box::new(node.report(now)))),
                config_generation: machine.config_generation,
                restart_generation: machine.restart_generation,
                failed_since: None,
                silent_since: None,
                detached_since: None,
                under_way: None,
                fenced: machine.fenced(now),
                port_cut: machine.cut,
            };
            (*id, said)
        };
        self.machines.iter().map(report).collect()
    }
}

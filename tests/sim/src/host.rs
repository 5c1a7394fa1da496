//! Simulated hosts with their agents. In: host specs and time. Out: machines that start after delays, nodes that run in them,
//! outcomes of tasks, reports. An agent keeps its spec through a reboot and starts nothing before it has heard a leader again.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use shardplane_model::{
    command::Ended,
    engine::{EngineKind, Report},
    observed::MemberReport,
    state::HostFacts,
    time::Timestamp,
};
use shardplane_proto::{
    ids::{HostId, InstanceId, TaskId},
    v1,
};

use super::{
    machine::{Around, Machine},
    mesh::Mesh,
    rng::Rng,
};

#[derive(Debug, Clone)]
pub struct SimHost {
    pub id: HostId,
    pub facts: HostFacts,
    pub up: bool,
    pub control_cut: bool,
    pub peers_cut: bool,
    pub spec: Option<v1::HostSpec>,
    /// Term of the leader it has a session with.
    pub session: Option<u64>,
    pub connect_at: u64,
    pub machines: BTreeMap<InstanceId, Machine>,
    /// Machines that do not run here, and it says so.
    pub failed: BTreeSet<InstanceId>,
    /// Machines that run although it says that they failed.
    pub misreported: BTreeSet<InstanceId>,
    /// Engines here cannot write.
    pub disk_full: bool,
}

impl SimHost {
    pub fn generation(&self) -> u64 {
        self.spec.as_ref().map_or(0, |spec| spec.generation)
    }

    /// Accepts a spec unless it is older than what it has.
    pub fn accept(&mut self, spec: v1::HostSpec) {
        let key = |spec: &v1::HostSpec| (spec.term, spec.generation);
        assert!(
            spec.term >= self.spec.as_ref().map_or(0, |known| known.term),
            "an old leader is never connected"
        );
        if self.spec.as_ref().is_none_or(|known| key(known) <= key(&spec)) {
            self.spec = Some(spec);
        }
    }

    pub fn power_off(&mut self, mesh: &mut Mesh) {
        self.up = false;
        self.session = None;
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
        self.spec = None;
    }

    /// One turn of the agent: machines follow the spec, tasks are performed.
    pub fn step(
        &mut self,
        index: usize,
        mesh: &mut Mesh,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
        rng: &mut Rng,
    ) {
        if !self.up {
            return;
        }
        let Some(spec) = self.spec.clone() else { return };
        let wanted: BTreeMap<InstanceId, &v1::InstanceSpec> =
            spec.instances.iter().map(|i| (i.instance_id.parse().unwrap(), i)).collect();
        for (id, machine) in &mut self.machines {
            if !wanted.contains_key(id) && machine.gone_at.is_none() {
                machine.gone_at = Some(now + 250 + rng.below(1_500));
            }
            if machine.gone_at.is_some_and(|at| now >= at)
                && let Some(node) = machine.node
            {
                mesh.nodes.remove(&node);
            }
        }
        self.machines.retain(|_, machine| machine.gone_at.is_none_or(|at| now < at));
        let may_start = self.session.is_some();
        for (id, instance) in wanted {
            let fails = self.failed.contains(&id);
            let machine = self.machines.entry(id).or_default();
            let mut around = Around { host: index, mesh, reach, now, rng };
            machine.step(id, instance, may_start, fails, &mut around);
            if let Some(node) = machine.node_mut(mesh) {
                node.disk_full = self.disk_full;
            }
        }
    }

    /// What it says of each machine.
    pub fn members(&self, mesh: &Mesh, now: Timestamp) -> Vec<(InstanceId, MemberReport)> {
        let report = |(id, machine): (&InstanceId, &Machine)| {
            let node = machine.node(mesh).filter(|node| node.up);
            let engine = node.map(|node| node.report(now.0).encode_to_vec());
            let state = if machine.gone_at.is_some() {
                v1::MachineState::Stopping
            } else if self.failed.contains(id) || self.misreported.contains(id) {
                v1::MachineState::Failed
            } else if machine.ready_at.is_some_and(|at| now.0 >= at) {
                v1::MachineState::Running
            } else {
                v1::MachineState::Preparing
            };
            let said = MemberReport {
                host: self.id,
                at: now,
                machine: state,
                message: String::new(),
                engine_state: machine.engine_state(mesh, now.0),
                engine_message: String::new(),
                engine: engine.and_then(|bytes| -> Option<Report> { EngineKind::Valkey.read_report(&bytes) }),
                config_generation: machine.config_generation,
                failed_since: None,
            };
            (*id, said)
        };
        self.machines.iter().map(report).collect()
    }
}

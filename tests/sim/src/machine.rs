//! One simulated machine with its supervisor. In: what the host's spec says of it. Out: an engine that boots after a delay, is held
//! back as the supervisor holds it back, gets its config, performs tasks, is fenced and restarted.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use shardplane_model::command::Ended;
use shardplane_proto::{
    ids::{InstanceId, TaskId},
    v1::{self, valkey_config::OtherPrimary},
};

use super::{
    fencing::GuestLease,
    mesh::Mesh,
    node::{NODE_TIMEOUT, Node, NodeId, number},
    perform::Job,
    rng::Rng,
};

/// A primary that died is held back that long, so that its replicas can take over.
const HELD_BACK: u64 = NODE_TIMEOUT * 2 + 5_000;

/// What its spec says, read once.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub generation: u64,
    pub spec: v1::InstanceSpec,
    pub config: v1::ValkeyConfig,
}

#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// None while its agent only observes it.
    pub wanted: Option<Wanted>,
    pub node: Option<NodeId>,
    /// When its supervisor can start the engine; none while its host has heard no leader since it booted.
    pub ready_at: Option<u64>,
    /// Until when its engine is held back; none when that was not looked at since the last start.
    pub held_until: Option<u64>,
    pub gone_at: Option<u64>,
    /// When it is cut off and stopped, on a spec that says fenced.
    pub fenced_at: Option<u64>,
    /// Whether its port is cut.
    pub cut: bool,
    /// What its guest was granted since it booted.
    pub lease: GuestLease,
    /// Its process does not end, whatever is done to it.
    pub stuck: bool,
    /// Tasks that wait for their moment, or go on.
    pub jobs: BTreeMap<TaskId, Job>,
    pub outcomes: BTreeMap<TaskId, Ended>,
    /// Of the spec whose directives the engine was told.
    set_generation: u64,
    /// In force.
    pub config_generation: u64,
    /// Under which the running engine was started.
    pub restart_generation: u64,
}

/// What a machine works with in one step.
pub struct Around<'a> {
    pub host: usize,
    pub mesh: &'a mut Mesh,
    pub reach: &'a dyn Fn(usize, usize) -> bool,
    pub now: u64,
    pub rng: &'a mut Rng,
    /// Milliseconds that a boot takes longer.
    pub slow: u64,
}

impl Machine {
    pub fn node<'m>(&self, mesh: &'m Mesh) -> Option<&'m Node> {
        self.node.and_then(|id| mesh.nodes.get(&id))
    }

    pub fn node_mut<'m>(&self, mesh: &'m mut Mesh) -> Option<&'m mut Node> {
        self.node.and_then(|id| mesh.nodes.get_mut(&id))
    }

    /// Its process is gone: whoever starts it begins anew.
    pub fn stopped(&mut self) {
        (self.ready_at, self.held_until) = (None, None);
        self.lease = GuestLease::default();
        self.jobs.clear();
    }

    /// Whether its host has proved it cut off and stopped.
    pub fn fenced(&self, now: u64) -> bool {
        !self.stuck && self.fenced_at.is_some_and(|at| now >= at)
    }

    pub fn running(&self, now: u64) -> bool {
        self.ready_at.is_some_and(|at| now >= at) && self.fenced_at.is_none()
    }

    pub fn engine_state(&self, mesh: &Mesh, now: u64) -> v1::EngineState {
        if self.node(mesh).is_some_and(|node| node.up) {
            v1::EngineState::Running
        } else if self.held_until.is_some_and(|until| now < until) {
            v1::EngineState::Holding
        } else {
            v1::EngineState::Starting
        }
    }

    /// The spec of this generation says so.
    pub fn want(&mut self, spec: &v1::InstanceSpec, generation: u64) {
        if self.wanted.as_ref().is_none_or(|wanted| wanted.generation != generation) {
            let config = v1::ValkeyConfig::decode(spec.engine_config.as_slice()).unwrap();
            let tasks: BTreeSet<TaskId> =
                spec.tasks.iter().map(|task| task.task_id.parse().unwrap()).collect();
            self.outcomes.retain(|task, _| tasks.contains(task));
            self.jobs.retain(|task, _| tasks.contains(task));
            self.wanted = Some(Wanted { generation, spec: spec.clone(), config });
        }
    }

    pub fn step(&mut self, id: InstanceId, may_start: bool, fails: bool, around: &mut Around<'_>) {
        // Its owner has it while the steps below look at it.
        let Some(wanted) = self.wanted.take() else { return };
        self.follow(id, &wanted, may_start, fails, around);
        self.wanted = Some(wanted);
    }

    fn follow(
        &mut self,
        id: InstanceId,
        Wanted { spec, config, generation }: &Wanted,
        may_start: bool,
        fails: bool,
        around: &mut Around<'_>,
    ) {
        if self.fence(spec.fenced, around) {
            return;
        }
        if self.ready_at.is_none() && may_start {
            self.ready_at = Some(around.now + 500 + around.slow + around.rng.below(2_500));
        }
        if !self.running(around.now) {
            return;
        }
        if fails {
            if let Some(node) = self.node_mut(around.mesh).filter(|node| node.up) {
                node.crash();
            }
            (self.held_until, self.jobs) = (None, BTreeMap::new());
            return;
        }
        if !self.start(id, spec.restart_generation, config, around) {
            return;
        }
        let Some(node) = self.node else { return };
        let refuses = &around.mesh.refuses_directives;
        if self.set_generation != *generation || around.now.is_multiple_of(1_000) {
            if let Some(engine) = around.mesh.nodes.get_mut(&node) {
                engine.directives.set(&config.directives, refuses);
            }
            self.set_generation = *generation;
        }
        self.config_generation = spec.config_generation;
        if self.restart(spec.restart_generation, config, around) {
            return;
        }
        for task in &spec.tasks {
            let task_id: TaskId = task.task_id.parse().unwrap();
            if self.outcomes.contains_key(&task_id) {
                continue;
            }
            let (now, delay) = (around.now, around.rng.below(750));
            let job = self.jobs.entry(task_id).or_insert_with(|| Job::new(task_id, now + delay));
            if now < job.began {
                continue;
            }
            if let Some(result) = around.mesh.perform(node, job, &task.payload, around.reach, now) {
                let ended = job.ended(result);
                self.outcomes.insert(task_id, ended);
                self.jobs.remove(&task_id);
            }
        }
    }

    /// Its engine ends by itself: the supervisor starts it again.
    pub fn engine_dies(&mut self, mesh: &mut Mesh, now: u64) {
        if let Some(node) = self.node_mut(mesh).filter(|node| node.up) {
            node.end();
            self.stopped();
            self.ready_at = Some(now + 500);
        }
    }

    /// The machine ends by itself: its host starts it again.
    pub fn dies(&mut self, mesh: &mut Mesh) {
        if let Some(node) = self.node_mut(mesh).filter(|node| node.up) {
            node.crash();
            self.stopped();
        }
    }

    /// The machine ends soon after its port was cut, and starts again when the fence is lifted.
    fn fence(&mut self, fenced: bool, around: &mut Around<'_>) -> bool {
        if !fenced {
            if self.fenced_at.take().is_some() {
                self.stopped();
            }
            return false;
        }
        let at = *self.fenced_at.get_or_insert_with(|| around.now + around.rng.below(1_500));
        let (now, stuck) = (around.now, self.stuck);
        if let Some(node) = self.node_mut(around.mesh).filter(|node| now >= at && node.up && !stuck) {
            node.crash();
        }
        true
    }

    /// A restart that was ordered, once what goes without one is in force. One that leads others waits until another leads.
    fn restart(&mut self, generation: u64, config: &v1::ValkeyConfig, around: &mut Around<'_>) -> bool {
        let (now, delay) = (around.now, 500 + around.rng.below(1_500));
        let starts = self.restart_generation < generation;
        let Some(node) = self.node_mut(around.mesh).filter(|node| node.up && starts) else { return false };
        if (node.is_slot_master() && config.has_replicas) || !node.directives.refused.is_empty() {
            return false;
        }
        node.end();
        self.stopped();
        self.ready_at = Some(now + delay);
        true
    }

    /// Starts the engine unless it is held back. Answers whether it runs.
    fn start(
        &mut self,
        id: InstanceId,
        restart_generation: u64,
        config: &v1::ValkeyConfig,
        around: &mut Around<'_>,
    ) -> bool {
        if !self.running(around.now) {
            return false;
        }
        let node = *self.node.get_or_insert_with(|| around.rng.draw() >> 1);
        let ip = config.announce_ip.parse().unwrap();
        let fresh = || Node::new(node, id, around.host, ip);
        let engine = around.mesh.nodes.entry(node).or_insert_with(fresh);
        if engine.up {
            return true;
        }
        let fences = engine.fences;
        engine.fences = fences.max(config.other_primary.as_ref().map_or(0, |heir| heir.succeeded));
        let after = |heir: &&OtherPrimary| heir.succeeded > fences || heir.config_epoch > engine.epoch;
        let heir = config.other_primary.as_ref().filter(after);
        if let Some(heir) = heir.filter(|_| engine.started > 0 && engine.primary.is_none()) {
            engine.yields(number(&heir.node_id).unwrap(), heir.ip.parse().unwrap(), around.now);
        }
        if engine.is_slot_master() && config.has_replicas {
            let ends = if config.persistent { around.now + HELD_BACK } else { u64::MAX };
            if around.now < *self.held_until.get_or_insert(ends) {
                return false;
            }
        }
        engine.up = true;
        engine.started = around.now;
        let refuses = &around.mesh.refuses_directives;
        engine.directives.start(&config.directives, refuses);
        engine.verify_keys();
        self.restart_generation = restart_generation;
        self.held_until = None;
        true
    }
}

//! The agent of a simulated host: the real one's decisions (order of specs, what to do with each instance, whether a machine may
//! start) around simulated machines. In: messages of leaders, old ones too. Out: machines made, told, let go.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use shardplane_agent::decide::{Accepted, Action, BootTime, Contact, Existing, check_order, diff, may_start};
use shardplane_proto::{ids::InstanceId, v1};

use super::{
    host::SimHost,
    machine::{Around, Machine},
    mesh::Mesh,
    rng::Rng,
    wire::{Said, Told},
};

/// A session in which nothing is heard for that long is given up, in milliseconds.
const SILENT_AFTER: u64 = 10_000;

#[derive(Debug, Default)]
pub struct Agent {
    pub contact: Contact,
    /// The ledger: the newest accepted spec.
    pub accepted: Option<Accepted>,
    /// It does not run before that.
    pub down_until: u64,
    /// Specs that it refused, because an older leader or moment sent them.
    pub refused: u64,
    heard_at: u64,
}

impl SimHost {
    pub fn generation(&self) -> u64 {
        self.agent.accepted.as_ref().map_or(0, |accepted| accepted.generation)
    }

    pub(super) fn boot_time(&self, now: u64) -> BootTime {
        BootTime::after(Duration::from_millis(self.clock.at(now)))
    }

    /// Its memory is gone; ledger and machines stay.
    pub fn agent_dies(&mut self) {
        self.session_ends();
        self.spec = None;
        // It is noted where it lasts as long as the boot.
        let granted = self.agent.contact.now().granted.filter(|_| self.up);
        self.agent.contact = Contact::default();
        granted.into_iter().for_each(|granted| self.agent.contact.granted(granted));
        // An agent that comes back observes only, until it is told what is wanted.
        for machine in self.machines.values_mut().filter(|machine| machine.gone_at.is_some()) {
            machine.gone_at = None;
        }
    }

    /// It takes what has arrived.
    pub fn receive(&mut self, now: u64) {
        if !self.acts(now) {
            return;
        }
        for told in self.wire.received(now) {
            match told {
                Told::Welcome { term, lost_after } if self.session == Some(term) => {
                    self.agent.contact.welcomed(self.boot_time(now), Duration::from_millis(lost_after));
                    self.agent.heard_at = now;
                }
                Told::Heartbeat { term, answers } if self.session == Some(term) => {
                    self.hears(now);
                    let sent = answers.map(|sent| BootTime::after(Duration::from_millis(sent)));
                    sent.into_iter().for_each(|sent| self.agent.contact.granted(sent));
                }
                Told::Welcome { .. } | Told::Heartbeat { .. } => {}
                Told::Spec(spec) => {
                    let current = self.session == Some(spec.term);
                    if current {
                        self.hears(now);
                    }
                    self.accept(spec, current);
                }
            }
        }
        if self.session.is_some() && now - self.agent.heard_at > SILENT_AFTER {
            self.give_up(now);
        }
    }

    fn hears(&mut self, now: u64) {
        self.agent.heard_at = now;
        if !self.agent.contact.heard(self.boot_time(now)) {
            self.give_up(now);
        }
    }

    fn give_up(&mut self, now: u64) {
        self.session_ends();
        self.connect_at = now + 1_000;
    }

    /// Accepts a spec unless it is older than what it has.
    fn accept(&mut self, spec: v1::HostSpec, current: bool) {
        if check_order(&spec, self.agent.accepted.as_ref()).is_err() {
            self.agent.refused += 1;
            return;
        }
        let (term, generation) = (spec.term, spec.generation);
        self.agent.accepted = Some(Accepted { term, generation, spec: v1::HostSpec::default() });
        self.spec = Some(spec);
        if current {
            self.agent.contact.confirm(self.agent.contact.now().session);
        }
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
        self.receive(now);
        if self.acts(now) {
            self.reconcile(mesh, now, rng);
            self.cut_ports(mesh, now);
            let starts = may_start(self.agent.contact.now(), self.boot_time(now)).is_ok();
            for (id, machine) in &mut self.machines {
                let fails = self.failed.contains(id);
                let mut around = Around { host: index, mesh, reach, now, rng, slow: self.slow };
                machine.step(*id, starts, fails, &mut around);
            }
        }
        self.touch_nodes(mesh);
        if self.up && !self.frozen {
            self.hold_writes(mesh, now);
        }
    }

    fn reconcile(&mut self, mesh: &mut Mesh, now: u64, rng: &mut Rng) {
        for machine in self.machines.values().filter(|machine| machine.gone_at.is_some_and(|at| now >= at)) {
            machine.node.and_then(|node| mesh.nodes.remove(&node));
        }
        self.machines.retain(|_, machine| machine.gone_at.is_none_or(|at| now < at));
        let Some(spec) = &self.spec else { return };
        let wanted: BTreeMap<InstanceId, &v1::InstanceSpec> =
            spec.instances.iter().map(|i| (i.instance_id.parse().unwrap(), i)).collect();
        let ids: BTreeSet<InstanceId> = wanted.keys().copied().collect();
        let state = |machine: &Machine| match machine.gone_at {
            Some(_) => Existing::Leaving,
            None => Existing::Owned,
        };
        let existing = self.machines.iter().map(|(id, machine)| (*id, state(machine))).collect();
        for action in diff(&ids, &existing, true, self.agent.contact.now(), self.boot_time(now)) {
            match action {
                Action::Create(id) | Action::Update(id) => {
                    self.machines.entry(id).or_default().want(wanted[&id], spec.generation);
                }
                Action::Retire(id) => {
                    let at = now + 250 + rng.below(1_500);
                    self.machines.entry(id).or_default().gone_at = Some(at);
                }
                // Nothing of a simulated machine is left when it is gone.
                Action::Forget(_) | Action::Nothing(..) => {}
            }
        }
    }

    /// What it says to the leader.
    pub fn said(&self, mesh: &Mesh, now: u64) -> Said {
        let outcomes = self.outcomes().map(|(task, ended)| (task, ended.clone())).collect();
        let sent = self.clock.at(now);
        Said { sent, accepted: self.generation(), members: self.members(mesh, now), outcomes }
    }
}

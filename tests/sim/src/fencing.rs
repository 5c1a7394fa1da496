//! Ports of simulated machines, cut by the agent's own rule, and writes that guests hold by theirs. In: specs, what engines say, when the
//! leader last answered the host. Out: nodes that nobody reaches and that reach nobody; nodes that take no writes.

use std::{collections::BTreeMap, time::Duration};

use shardplane_agent::decide::{BootTime, Cut, cuts, grant};
use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1,
};

use super::{host::SimHost, mesh::Mesh, world::World};

/// Agents look at leases once a second.
const LOOK_EVERY: u64 = 1_000;

impl SimHost {
    /// A look at all ports: at fences at once, at leases now and then.
    pub fn cut_ports(&mut self, mesh: &mut Mesh, now: u64) {
        let (heard, at) = (self.agent.contact.now(), self.boot_time(now));
        for machine in self.machines.values_mut().filter(|machine| machine.gone_at.is_none()) {
            let Some(wanted) = &machine.wanted else { continue };
            let node = machine.node(mesh).filter(|node| node.up && !node.frozen);
            let guest = node.map(|node| v1::GuestReport {
                live_copies: node.live_copies(),
                read_only: node.primary.is_some(),
                ..v1::GuestReport::default()
            });
            let why = cuts(&wanted.spec, guest.as_ref(), heard, machine.cut, at);
            match why {
                Some(Cut::Fenced) => machine.cut = true,
                Some(Cut::LeaseOver) | None if now.is_multiple_of(LOOK_EVERY) => machine.cut = why.is_some(),
                Some(Cut::LeaseOver) | None => {}
            }
            let cut = machine.cut;
            if let Some(node) = machine.node_mut(mesh) {
                node.cut = cut;
            }
        }
    }
}

/// What a guest knows of its lease: the supervisor's rule.
#[derive(Debug, Clone, Copy, Default)]
pub struct GuestLease {
    /// Until when, and how many copies make it needless.
    granted: Option<(BootTime, u32)>,
    over: bool,
}

impl SimHost {
    /// Guests that run hear the agent when it acts, and hold their writes when it has said nothing for too long.
    pub fn hold_writes(&mut self, mesh: &mut Mesh, now: u64) {
        let (heard, at, acts) = (self.agent.contact.now(), self.boot_time(now), self.acts(now));
        for machine in self.machines.values_mut() {
            let spec = machine.wanted.as_ref().filter(|_| acts && machine.gone_at.is_none());
            let granted = spec.and_then(|wanted| grant(&wanted.spec, 0, heard, machine.cut, at));
            if let Some(granted) = granted {
                let until = at + Duration::from_millis(granted.remaining_ms);
                machine.lease = GuestLease { granted: Some((until, granted.copies_needed)), over: false };
            }
            let lease = machine.lease;
            let Some(node) = machine.node_mut(mesh).filter(|node| node.up) else { continue };
            let over = lease.granted.is_some_and(|(until, needed)| {
                needed > 0 && at >= until && node.primary.is_none() && node.live_copies() < needed
            });
            node.held = lease.over || over;
            machine.lease.over |= over;
        }
    }
}

impl World {
    /// Who takes writes now, by shard: whoever a client that stands beside it can write to.
    pub fn writers(&self) -> BTreeMap<GroupId, Vec<InstanceId>> {
        let mut writers: BTreeMap<GroupId, Vec<InstanceId>> = BTreeMap::new();
        let takes = |node: &&super::node::Node| {
            node.up
                && !node.cut
                && !node.held
                && !node.frozen
                && node.is_slot_master()
                && node.state_ok(self.now)
        };
        for node in self.mesh.nodes.values().filter(takes) {
            if let Some(instance) = self.leader.state.instances.get(&node.instance) {
                writers.entry(instance.group).or_default().push(instance.id);
            }
        }
        writers
    }

    /// Its process dies, on a host that lives.
    pub fn kill(&mut self, instance: InstanceId) {
        if let Some(node) = self.mesh.nodes.values_mut().find(|node| node.instance == instance) {
            node.crash();
        }
    }

    /// The same, but it does not end when its host wants it to.
    pub fn sticks(&mut self, instance: InstanceId) {
        let host = self.host_of(instance);
        if let Some(machine) = self.hosts[host].machines.get_mut(&instance) {
            machine.stuck = true;
        }
    }
}

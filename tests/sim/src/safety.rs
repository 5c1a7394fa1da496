//! What must hold after every step, whatever happens: one function a rule, named after it. In: the world's truth and the log. Out:
//! nothing, or a panic that says what is broken. Rules of the log itself are in the model's audit, of placement in `check`, of
//! acknowledged writes in `clients`.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::{Command, Decision},
    state::Footprint,
};
use shardplane_proto::ids::{HostId, InstanceId};

use super::{
    clients::Members,
    mesh::{Cause, Promotion},
    node::Node,
    truth,
    world::World,
};

/// What has to be remembered from step to step.
#[derive(Debug, Default)]
pub struct Safety {
    /// Every instance that the log ever placed.
    placed: BTreeSet<InstanceId>,
    /// Those that the log took for gone.
    gone: BTreeSet<InstanceId>,
    /// The newest (term, generation) that each host ever had in force, since its ledger was lost.
    obeyed: BTreeMap<HostId, (u64, u64)>,
    /// When the fence of each instance was taken away of late.
    unfenced: BTreeMap<InstanceId, Vec<u64>>,
}

impl Safety {
    pub fn check(&mut self, world: &World, promotions: &[Promotion]) {
        self.nothing_runs_that_was_not_placed(world);
        self.older_specs_are_not_obeyed(world);
        no_address_twice(world);
        no_host_is_overfull(world);
        let state = &world.leader.state;
        for (cluster, mut members) in truth::members(state, &world.mesh) {
            // What never served is made anew with the same epochs, and what was let go is on its way out.
            members.retain(|(_, node)| state.instances.get(&node.instance).is_some_and(|i| i.wanted()));
            if state.clusters.get(&cluster).is_some_and(|cluster| cluster.formed) {
                one_owner_a_slot(&members);
            }
        }
        for promotion in promotions.iter().filter(|promotion| promotion.cause == Cause::Takeover) {
            takeover_with_proof(world, promotion);
        }
    }

    /// design.md section 7: instances run where the log placed them, and not after their host proved them gone.
    fn nothing_runs_that_was_not_placed(&mut self, world: &World) {
        let state = &world.leader.state;
        let before = self.placed.len();
        self.placed.extend(state.instances.keys());
        if self.placed.len() != before || self.placed.len() != state.instances.len() + self.gone.len() {
            self.gone = self.placed.iter().filter(|id| !state.instances.contains_key(*id)).copied().collect();
        }
        let mut seen = BTreeMap::new();
        for host in &world.hosts {
            for instance in host.machines.keys() {
                assert!(self.placed.contains(instance), "{instance} exists on a host and was never placed");
                assert!(
                    !self.gone.contains(instance),
                    "{instance} exists on host {} although the log takes it for gone",
                    host.facts.name
                );
                if let Some(other) = seen.insert(*instance, host.id) {
                    panic!("{instance} exists on {other} and {}", host.id);
                }
                if let Some(known) = state.instances.get(instance) {
                    assert_eq!(known.host, host.id, "{instance} exists on another host than its own");
                }
            }
        }
    }

    /// design.md section 2, decision 3: an agent refuses what is older than what it has accepted.
    fn older_specs_are_not_obeyed(&mut self, world: &World) {
        for host in &world.hosts {
            if host.agent.accepted.is_none() {
                self.obeyed.remove(&host.id);
            }
            let Some(spec) = &host.spec else { continue };
            let now = (spec.term, spec.generation);
            let before = self.obeyed.insert(host.id, now).unwrap_or_default();
            assert!(before <= now, "host {} obeys {now:?} after {before:?}", host.facts.name);
        }
    }

    /// What is done is not undone and done again at once. A plan that undoes itself does so every few seconds, a hundred times in five
    /// minutes; faults that come one upon the other may ask for a fence each.
    pub fn no_fence_flaps(&mut self, decision: &Decision, now: u64) {
        let Decision::Unfence { instances, .. } = decision else { return };
        for instance in instances {
            let times = self.unfenced.entry(*instance).or_default();
            times.retain(|at| now - at < 300_000);
            times.push(now);
            assert!(times.len() <= 12, "{instance} is fenced and unfenced again and again: {times:?}");
        }
    }

    /// A ledger that is lost remembers nothing.
    pub fn ledger_lost(&mut self, host: HostId) {
        self.obeyed.remove(&host);
    }
}

/// No address is in use on two machines that exist.
fn no_address_twice(world: &World) {
    let mut addresses: BTreeMap<_, &Node> = BTreeMap::new();
    for node in world.mesh.nodes.values() {
        if let Some(other) = addresses.insert(node.ip, node) {
            panic!("instances {} and {} both have address {}", node.instance, other.instance, node.ip);
        }
    }
}

/// Machines that exist on a host take no more than it has.
fn no_host_is_overfull(world: &World) {
    for host in &world.hosts {
        let known = host.machines.keys().filter_map(|id| world.leader.state.instances.get(id));
        let taken = known.fold(Footprint::default(), |sum, instance| sum.plus(instance.footprint));
        let short = taken.exceeds(host.facts.capacity);
        assert!(short.is_empty(), "host {} has more machines than {short:?} for them", host.facts.name);
    }
}

/// seeds-valkey.md: each slot has one owner: of the claims to it no two have the same, highest epoch. One that is fenced may have
/// raised its own where its successor did not see it: it never claims them again.
fn one_owner_a_slot(members: &Members<'_>) {
    let claims = |node: &&Node| node.is_slot_master() && node.up && !node.cut;
    let masters: Vec<&Node> = members.iter().map(|(_, node)| *node).filter(claims).collect();
    for (at, one) in masters.iter().enumerate() {
        for other in masters.iter().skip(at + 1).filter(|other| other.epoch == one.epoch) {
            let theirs = other.owns(other.id);
            let both =
                one.owns(one.id).into_iter().any(|(a, b)| theirs.iter().any(|(c, d)| a <= *d && *c <= b));
            assert!(
                !both,
                "nodes {:x} and {:x} own the same slots by the same epoch {}",
                one.id, other.id, one.epoch
            );
        }
    }
}

/// design.md section 2: fence first. When a replica takes over without a vote, nobody else of its shard can take a write: not by its
/// own view, be it that its port is cut, that it is down, or that it stands still or alone.
fn takeover_with_proof(world: &World, promotion: &Promotion) {
    let instances = &world.leader.state.instances;
    let Some(node) = world.mesh.nodes.get(&promotion.node) else { return };
    let group = |node: &Node| instances.get(&node.instance).map(|instance| instance.group);
    let serves = |other: &&Node| {
        let there = world.hosts[other.host].up && other.up && !other.cut && !other.frozen;
        there && other.is_slot_master() && other.state_ok(world.now) && world.now >= other.rejoins_at
    };
    let mut others =
        world.mesh.nodes.values().filter(|other| other.id != node.id && group(other) == group(node));
    if let Some(other) = others.find(serves) {
        panic!(
            "node {:x} took over without a vote while {:x} still serves: {} on host {}, epoch {}, {:?}",
            node.id,
            other.id,
            other.instance,
            other.host,
            other.epoch,
            instances.get(&other.instance).map(|instance| (&instance.intent, &instance.fence))
        );
    }
}

/// Rules about one decision, looked at when the log has accepted it.
pub fn decision(world: &World, command: &Command) {
    let Command::Decide(Decision::Place { reservations, .. }) = command else { return };
    if world.late {
        // It may have been decided for another drain.
        return;
    }
    // A drain that was not forced keeps the spread.
    for reservation in reservations {
        let Some(old) = reservation.instance.replaces.and_then(|id| world.leader.state.instances.get(&id))
        else {
            continue;
        };
        let host = world.leader.state.hosts.get(&old.host);
        if host.and_then(|host| host.drain()).is_some_and(|drain| !drain.force) {
            let beside = world.leader.state.instances_of(old.cluster).filter(|other| {
                other.wanted() && other.group == old.group && other.host == old.host && other.id != old.id
            });
            assert!(
                usize::try_from(reservation.own_group_on_host).unwrap() <= beside.count(),
                "a drain that was not forced puts {} beside its own shard",
                reservation.instance.id
            );
        }
    }
}

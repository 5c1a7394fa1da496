//! A cluster with keys whose slots can move, and what has to hold after every step while they do: each slot has one owner, no shard that
//! owns something loses its members, one task at a time moves slots. In: a seed and what a test does. Out: the same history every time.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::Command,
    engine::Layout,
    resource::{Outcome, User},
    state::{Operation, OperationKind, OperationState},
};
use shardplane_proto::ids::{ClusterId, GroupId, InstanceId, OperationId, ResourceId};
use shardplane_sim::{
    keys,
    node::Answer,
    truth,
    world::{World, cluster},
};

const SLOTS: u32 = 16_384;

/// A world with one cluster whose keys are all written; `hosts` hosts with room for 8.
pub struct Scene {
    pub world: World,
    pub id: ResourceId,
    /// How many instances each shard has had at most that owned slots.
    seen: BTreeSet<InstanceId>,
    /// A host was destroyed: until then its successors may not have been elected.
    blind_until: u64,
}

pub fn shard(id: ResourceId, index: u128) -> GroupId {
    GroupId::from_u128(id.as_u128() + 1 + index)
}

impl Scene {
    pub fn new(seed: u64, hosts: usize, shards: usize, replicas: i32) -> Self {
        let mut world = World::new(seed);
        world.add_hosts(hosts, 8);
        world.run(2);
        let id = world.create(0, shards, replicas);
        world.settles(60);
        let mut scene = Self { world, id, seen: BTreeSet::new(), blind_until: 0 };
        scene.write();
        scene
    }

    pub fn write(&mut self) {
        for key in 0..keys::KEYS {
            let owner = self.owner(keys::slot_of(key));
            let now = self.world.now;
            let node = self.world.mesh.nodes.get_mut(&owner).unwrap();
            assert_eq!(node.write(key, 100 + key as u64, false, now), Answer::Acknowledged);
        }
        // The replicas have them, and the disks.
        self.world.run(2);
    }

    pub fn owner(&self, slot: u32) -> u64 {
        truth::table(self.world.nodes_of(self.id).into_iter()).owner(slot).unwrap()
    }

    pub fn put(&mut self, shards: usize) {
        let spec = cluster(self.id, World::SUBNET, shards, self.replicas());
        self.world.put_cluster(spec).unwrap();
    }

    pub fn replicas(&self) -> i32 {
        let spec = self.world.leader.state.resources[&self.id].cluster_spec().unwrap().groups();
        i32::try_from(spec[0].members).unwrap() - 1
    }

    pub fn outcome(&self) -> Outcome {
        self.world.leader.state.resources[&self.id].change.outcome.clone()
    }

    pub fn reshards(&self) -> Vec<Operation> {
        let operations = self.world.leader.state.operations.values();
        operations.filter(|o| o.kind == OperationKind::Reshard).cloned().collect()
    }

    pub fn running(&self) -> Option<Operation> {
        self.reshards().into_iter().find(|o| o.state == OperationState::Running)
    }

    pub fn cancel(&mut self) -> OperationId {
        let operation = self.running().unwrap().id;
        let by = User { id: "u".to_owned(), name: "tester".to_owned() };
        let command = Command::CancelOperation { operation, by };
        self.world.leader.apply(self.world.now, vec![command]).remove(0).unwrap();
        operation
    }

    /// Nodes of one shard that run, its primary first.
    pub fn nodes_of(&self, group: GroupId) -> Vec<u64> {
        let state = &self.world.leader.state;
        let own = self.world.nodes_of(self.id).into_iter().filter(|node| {
            state.instances.get(&node.instance).is_some_and(|i| i.group == group && i.wanted())
        });
        let mut own: Vec<_> = own.map(|node| (node.primary.is_some(), node.id)).collect();
        own.sort_unstable();
        own.into_iter().map(|(_, id)| id).collect()
    }

    pub fn host_of_primary(&self, group: GroupId) -> usize {
        self.world.mesh.nodes[&self.nodes_of(group)[0]].host
    }

    /// Source and target of the task that moves slots now.
    pub fn moving(&self) -> Option<(GroupId, GroupId)> {
        let state = &self.world.leader.state;
        let cluster = &state.clusters[&ClusterId::from(self.id)];
        let Some(Layout::Valkey(layout)) = &cluster.layout else { return None };
        let task = state.running_tasks(self.id.into()).find(|task| task.name.starts_with("move slots"))?;
        let start: u32 = task.name["move slots ".len()..].split('-').next()?.parse().ok()?;
        Some((state.instances[&task.instance].group, layout.of(start)?))
    }

    /// One step, and what has to hold after each.
    pub fn step(&mut self) {
        self.world.step();
        let owning = self.owning();
        let state = &self.world.leader.state;
        let nodes = self.world.nodes_of(self.id);
        let table = truth::table(nodes.iter().copied());
        // Each slot has one owner by the highest epoch; what a host that is down claims counts, too.
        if self.world.now > self.blind_until {
            assert_eq!(table.covered(), SLOTS, "a slot has no owner");
        }
        self.seen.extend(nodes.iter().filter(|n| table.has(n.id)).map(|n| n.instance));
        let retiring: Vec<_> = state.instances_of(self.id.into()).filter(|i| !i.wanted()).collect();
        for instance in retiring {
            let others = state.instances_of(self.id.into()).any(|i| i.group == instance.group && i.wanted());
            let owned = owning.get(&instance.group).copied().unwrap_or(false);
            assert!(others || !owned, "shard {} goes while it owns slots", instance.group);
        }
        let moving =
            state.running_tasks(self.id.into()).filter(|task| task.name.starts_with("move slots")).count();
        assert!(moving <= 1, "{moving} tasks move slots at a time");
    }

    pub fn wipe(&mut self, host: usize) {
        self.world.wipe(host);
        self.blind_until = self.world.now + 30_000;
    }

    pub fn owning(&self) -> BTreeMap<GroupId, bool> {
        let state = &self.world.leader.state;
        let nodes = self.world.nodes_of(self.id);
        let table = truth::table(nodes.iter().copied());
        let mut owning = BTreeMap::new();
        for node in nodes {
            let Some(instance) = state.instances.get(&node.instance) else { continue };
            *owning.entry(instance.group).or_insert(false) |= table.has(node.id);
        }
        owning
    }

    pub fn run(&mut self, seconds: u64) {
        (0..seconds * 4).for_each(|_| self.step());
    }

    pub fn until(&mut self, seconds: u64, what: &str, done: impl Fn(&Scene) -> bool) -> u64 {
        let begin = self.world.now;
        while !done(self) {
            if self.world.now - begin > seconds * 1000 {
                // Says what is waited for.
                self.world.until(0, what, |_| false);
            }
            self.step();
        }
        self.world.now - begin
    }

    /// Until so many slots have moved in the operation that runs.
    pub fn until_moved(&mut self, slots: u64) {
        self.until(120, "some slots move", |scene| {
            scene.running().is_some_and(|o| o.counts.get("slots").copied().unwrap_or(0) >= slots)
                && scene.moving().is_some()
        });
    }

    pub fn settles(&mut self, seconds: u64) {
        let begin = self.world.now;
        loop {
            self.step();
            let world = &self.world;
            let idle = world.now >= world.leader.leads_from
                && world.leader.last.is_empty()
                && world.hosts.iter().all(|h| !h.up || h.session == Some(world.leader.term))
                && self.outcome() == Outcome::Done;
            if idle {
                break;
            }
            if world.now - begin > seconds * 1000 {
                self.world.until(0, "settles", |_| false);
            }
        }
    }

    /// Whole, contiguous, even, every key where it belongs and nowhere else, no slot marked.
    pub fn assert_even(&self, shards: usize) {
        self.world.assert_whole(self.id);
        let status = self.world.status(self.id);
        assert_eq!(status.shards.len(), shards);
        let mut ranges: Vec<(i32, i32)> = Vec::new();
        for shard in &status.shards {
            assert_eq!(shard.slot_ranges.len(), 1, "{:?}", shard.slot_ranges);
            let (start, end) = (shard.slot_start.unwrap(), shard.slot_end.unwrap());
            assert_eq!(shard.slot_count, end - start + 1);
            ranges.push((start, end));
        }
        ranges.sort_unstable();
        let each = 16_384 / i32::try_from(shards).unwrap();
        assert!(ranges.iter().all(|(a, b)| (each..=each + 1).contains(&(b - a + 1))), "{ranges:?}");
        assert!(ranges.windows(2).all(|w| w[0].1 + 1 == w[1].0), "{ranges:?}");
        assert!(status.anti_affinity_ok, "{}", status.anti_affinity_message);
        let settled = status.conditions.iter().find(|c| c.r#type == "SlotsSettled").unwrap();
        assert_eq!(settled.status, "True", "{settled:?}");
        let nodes = self.world.nodes_of(self.id);
        for node in &nodes {
            assert!(node.migrating.is_empty() && node.importing.is_empty(), "{node:#?}");
        }
        for key in 0..keys::KEYS {
            let (owner, expected) = (self.owner(keys::slot_of(key)), 100 + key as u64);
            for node in nodes.iter().filter(|node| node.primary.is_none()) {
                let value = if node.id == owner { expected } else { 0 };
                assert_eq!(node.keys.values[key], value, "key {key} on {:x}, owner {owner:x}", node.id);
            }
        }
        let layout = &self.world.leader.state.clusters[&ClusterId::from(self.id)];
        assert!(layout.layout.is_none() && layout.leaving.is_empty());
    }
}

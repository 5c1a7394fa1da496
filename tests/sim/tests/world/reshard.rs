//! A shard more and a shard less: slots move while machines, hosts and leaders fail. After every step each slot has one owner, every key
//! is in exactly one place, and no shard that owns something loses its members.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_model::{
    command::{Command, Decision},
    engine::Layout,
    refusal::RefusalCode,
    resource::{Outcome, User},
    state::{Operation, OperationKind, OperationState, TaskState},
};
use shardplane_proto::{
    ids::{ClusterId, GroupId, InstanceId, OperationId, ResourceId},
    v1,
};
use shardplane_sim::{
    keys,
    node::Answer,
    truth,
    world::{World, cluster},
};

const SLOTS: u32 = 16_384;

/// A world with one cluster whose keys are all written; `hosts` hosts with room for 8.
struct Scene {
    world: World,
    id: ResourceId,
    /// How many instances each shard has had at most that owned slots.
    seen: BTreeSet<InstanceId>,
    /// A host was destroyed: until then its successors may not have been elected.
    blind_until: u64,
}

fn shard(id: ResourceId, index: u128) -> GroupId {
    GroupId::from_u128(id.as_u128() + 1 + index)
}

impl Scene {
    fn new(seed: u64, hosts: usize, shards: usize, replicas: i32) -> Self {
        let mut world = World::new(seed);
        world.add_hosts(hosts, 8);
        world.run(2);
        let id = world.create(0, shards, replicas);
        world.settles(60);
        let mut scene = Self { world, id, seen: BTreeSet::new(), blind_until: 0 };
        scene.write();
        scene
    }

    fn write(&mut self) {
        for key in 0..keys::KEYS {
            let owner = self.owner(keys::slot_of(key));
            let now = self.world.now;
            let node = self.world.mesh.nodes.get_mut(&owner).unwrap();
            assert_eq!(node.write(key, 100 + key as u64, false, now), Answer::Acknowledged);
        }
        // The replicas have them, and the disks.
        self.world.run(2);
    }

    fn owner(&self, slot: u32) -> u64 {
        truth::table(self.world.nodes_of(self.id).into_iter()).owner(slot).unwrap()
    }

    fn put(&mut self, shards: usize) {
        let spec = cluster(self.id, World::SUBNET, shards, self.replicas());
        self.world.put_cluster(spec).unwrap();
    }

    fn replicas(&self) -> i32 {
        let spec = self.world.leader.state.resources[&self.id].cluster_spec().unwrap().groups();
        i32::try_from(spec[0].members).unwrap() - 1
    }

    fn outcome(&self) -> Outcome {
        self.world.leader.state.resources[&self.id].change.outcome.clone()
    }

    fn reshards(&self) -> Vec<Operation> {
        let operations = self.world.leader.state.operations.values();
        operations.filter(|o| o.kind == OperationKind::Reshard).cloned().collect()
    }

    fn running(&self) -> Option<Operation> {
        self.reshards().into_iter().find(|o| o.state == OperationState::Running)
    }

    fn cancel(&mut self) -> OperationId {
        let operation = self.running().unwrap().id;
        let by = User { id: "u".to_owned(), name: "tester".to_owned() };
        let command = Command::CancelOperation { operation, by };
        self.world.leader.apply(self.world.now, vec![command]).remove(0).unwrap();
        operation
    }

    /// Nodes of one shard that run, its primary first.
    fn nodes_of(&self, group: GroupId) -> Vec<u64> {
        let state = &self.world.leader.state;
        let own = self.world.nodes_of(self.id).into_iter().filter(|node| {
            state.instances.get(&node.instance).is_some_and(|i| i.group == group && i.wanted())
        });
        let mut own: Vec<_> = own.map(|node| (node.primary.is_some(), node.id)).collect();
        own.sort_unstable();
        own.into_iter().map(|(_, id)| id).collect()
    }

    fn host_of_primary(&self, group: GroupId) -> usize {
        self.world.mesh.nodes[&self.nodes_of(group)[0]].host
    }

    /// Source and target of the task that moves slots now.
    fn moving(&self) -> Option<(GroupId, GroupId)> {
        let state = &self.world.leader.state;
        let cluster = &state.clusters[&ClusterId::from(self.id)];
        let Some(Layout::Valkey(layout)) = &cluster.layout else { return None };
        let task = state.running_tasks(self.id.into()).find(|task| task.name.starts_with("move slots"))?;
        let start: u32 = task.name["move slots ".len()..].split('-').next()?.parse().ok()?;
        Some((state.instances[&task.instance].group, layout.of(start)?))
    }

    /// One step, and what has to hold after each.
    fn step(&mut self) {
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

    fn wipe(&mut self, host: usize) {
        self.world.wipe(host);
        self.blind_until = self.world.now + 30_000;
    }

    fn owning(&self) -> BTreeMap<GroupId, bool> {
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

    fn run(&mut self, seconds: u64) {
        (0..seconds * 4).for_each(|_| self.step());
    }

    fn until(&mut self, seconds: u64, what: &str, done: impl Fn(&Scene) -> bool) -> u64 {
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
    fn until_moved(&mut self, slots: u64) {
        self.until(120, "some slots move", |scene| {
            scene.running().is_some_and(|o| o.counts.get("slots").copied().unwrap_or(0) >= slots)
                && scene.moving().is_some()
        });
    }

    fn settles(&mut self, seconds: u64) {
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
    fn assert_even(&self, shards: usize) {
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

#[test]
fn three_to_four_moves_no_more_than_it_must_and_tells_how_far_it_is() {
    let mut scene = Scene::new(1, 4, 3, 1);
    let before = scene.owning().len();
    scene.put(4);
    let refused = scene.world.put_cluster(cluster(scene.id, World::SUBNET, 5, 1)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceIsScheduling);
    scene.until_moved(1000);
    assert_eq!(before, 3);
    let operation = scene.running().unwrap();
    let goal = operation.goal.clone().unwrap();
    assert!(goal.what == "slots" && goal.amount <= 5462, "{goal:?}");
    assert!(operation.cause.contains("is added"), "{operation:?}");
    assert_eq!(scene.world.leader.state.uncancellable(&operation), None);
    let status = scene.world.status(scene.id);
    let settled = status.conditions.iter().find(|c| c.r#type == "SlotsSettled").unwrap();
    assert!(settled.status == "False" && settled.message.contains("slots have moved"), "{settled:?}");
    assert!(settled.message.contains("to go"), "{settled:?}");
    assert_eq!(status.shards.iter().map(|s| s.slot_count).sum::<i32>(), 16_384);
    scene.settles(600);
    scene.assert_even(4);
    let operation = scene.reshards().remove(0);
    assert_eq!(operation.state, OperationState::Succeeded);
    assert_eq!(operation.counts["slots"], goal.amount, "no slot moved twice");
    let placed =
        scene.world.leader.state.operations.values().find(|o| o.kind == OperationKind::Grow).unwrap();
    assert!(placed.state == OperationState::Succeeded && placed.ended < operation.ended);
    assert!(placed.cause.contains("a shard is added"));
}

#[test]
fn four_to_three_lets_the_shard_go_when_it_owns_nothing() {
    for gone in [0, 1, 3] {
        let mut scene = Scene::new(2 + gone as u64, 4, 4, 1);
        let mut spec = cluster(scene.id, World::SUBNET, 4, 1);
        let leaving: GroupId = spec.spec.as_mut().unwrap().shards.remove(gone).id.parse().unwrap();
        scene.world.put_cluster(spec).unwrap();
        scene.until_moved(500);
        let shown = scene.world.status(scene.id).shards;
        assert!(
            shown.len() == 4 && shown[3].id == leaving.to_string() && shown[3].slot_count > 0,
            "{shown:?}"
        );
        scene.settles(900);
        scene.assert_even(3);
        let state = &scene.world.leader.state;
        assert!(state.instances.values().all(|i| i.group != leaving));
        assert_eq!(state.events.values().filter(|e| e.reason == "ShardRemoved").count(), 1);
        assert_eq!(scene.reshards()[0].state, OperationState::Succeeded);
    }
}

#[test]
fn four_to_five_and_back_with_leaders_that_change() {
    let mut scene = Scene::new(9, 5, 4, 1);
    scene.put(5);
    for _ in 0..4 {
        scene.run(12);
        scene.world.change_leader(2_000);
    }
    scene.settles(900);
    scene.assert_even(5);
    scene.put(4);
    for _ in 0..4 {
        scene.run(12);
        scene.world.change_leader(1_000);
    }
    scene.settles(900);
    scene.assert_even(4);
    assert!(scene.reshards().iter().all(|o| o.state == OperationState::Succeeded));
}

/// Which of the two machines that a move is between dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Source,
    Target,
}

fn host(scene: &Scene, victim: Victim) -> usize {
    let (from, to) = scene.moving().unwrap();
    scene.host_of_primary(if victim == Victim::Source { from } else { to })
}

#[test]
fn val_7_a_host_that_dies_and_returns_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(20, 1), (21, 700), (22, 3000)] {
            for (from, to) in [(3, 4), (4, 3)] {
                let mut scene = Scene::new(seed, 5, from, 1);
                scene.put(to);
                scene.until_moved(moved);
                let host = host(&scene, victim);
                scene.world.power_off(host);
                scene.run(20);
                scene.world.power_on(host);
                scene.settles(900);
                scene.assert_even(to);
            }
        }
    }
}

#[test]
fn val_7_a_host_that_is_lost_for_good_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(30, 600), (31, 2000)] {
            for (from, to) in [(3, 4), (4, 3)] {
                let mut scene = Scene::new(seed, 6, from, 1);
                scene.put(to);
                scene.until_moved(moved);
                let host = host(&scene, victim);
                scene.wipe(host);
                scene.settles(1200);
                scene.assert_even(to);
                let repairs = scene.world.leader.state.operations.values();
                let repairs: Vec<_> = repairs.filter(|o| o.kind == OperationKind::Repair).collect();
                assert!(repairs.iter().all(|o| o.state == OperationState::Succeeded), "{repairs:#?}");
            }
        }
    }
}

#[test]
fn val_7_a_machine_that_dies_in_the_middle_of_a_move() {
    for victim in [Victim::Source, Victim::Target] {
        for (seed, moved) in [(40, 1), (41, 1500)] {
            let mut scene = Scene::new(seed, 5, 3, 1);
            scene.put(4);
            scene.until_moved(moved);
            let (from, to) = scene.moving().unwrap();
            let node = scene.nodes_of(if victim == Victim::Source { from } else { to })[0];
            let instance = scene.world.mesh.nodes[&node].instance;
            scene.world.fail(instance);
            scene.run(15);
            let host = scene.world.mesh.nodes[&node].host;
            scene.world.hosts[host].failed.clear();
            scene.settles(900);
            scene.assert_even(4);
        }
    }
}

#[test]
fn a_cancelled_move_stays_where_it_is_and_the_same_spec_goes_on() {
    let mut scene = Scene::new(50, 4, 3, 1);
    scene.put(4);
    scene.until_moved(1200);
    let half_way = |scene: &Scene| {
        let nodes = scene.world.nodes_of(scene.id);
        nodes.iter().any(|node| node.primary.is_none() && !node.importing.is_empty())
    };
    scene.until(60, "a slot is half way", half_way);
    // The task breaks off there, and somebody cancels before it is tried again.
    scene.world.mesh.refuses = true;
    scene.run(1);
    let operation = scene.cancel();
    assert!(half_way(&scene));
    scene.world.mesh.refuses = false;
    let Outcome::Failed { message } = scene.outcome() else { panic!("{:?}", scene.outcome()) };
    assert!(
        message.contains("cancelled by tester") && message.contains("put the same spec again"),
        "{message}"
    );
    assert!(matches!(
        scene.world.leader.state.operations[&operation].state,
        OperationState::Cancelled { .. }
    ));
    scene.until(60, "nothing is on its way", |scene| {
        scene.world.leader.last.is_empty()
            && scene.world.nodes_of(scene.id).iter().all(|n| n.migrating.is_empty() && n.importing.is_empty())
    });
    let counts = |scene: &Scene| -> Vec<i32> {
        scene.world.status(scene.id).shards.iter().map(|s| s.slot_count).collect()
    };
    let stays = counts(&scene);
    scene.run(60);
    assert_eq!(counts(&scene), stays, "nothing moves");
    assert!(stays[3] >= 1200 && stays[3] < 4096, "{stays:?}");
    scene.put(4);
    scene.until_moved(100);
    let goal = scene.running().unwrap().goal.unwrap().amount;
    assert!(goal <= 5462 - 1200, "{goal}");
    scene.settles(600);
    scene.assert_even(4);
}

#[test]
fn a_cancelled_move_goes_back_when_the_spec_does() {
    for (from, to) in [(3, 4), (4, 3)] {
        let mut scene = Scene::new(60 + from as u64, 5, from, 1);
        scene.put(to);
        scene.until_moved(900);
        scene.cancel();
        scene.run(5);
        scene.put(from);
        scene.settles(900);
        scene.assert_even(from);
        let states: Vec<_> = scene.reshards().into_iter().map(|o| o.state).collect();
        assert!(
            matches!(&states[..], [OperationState::Cancelled { .. }, OperationState::Succeeded]),
            "{states:?}"
        );
    }
}

#[test]
fn val_10_a_move_that_always_fails_halts_with_the_engines_text_and_can_be_cancelled() {
    let mut scene = Scene::new(70, 4, 3, 1);
    scene.put(4);
    scene.until_moved(300);
    scene.world.mesh.refuses = true;
    scene.until(400, "it halts", |scene| scene.running().is_some_and(|o| o.halted.is_some()));
    let operation = scene.running().unwrap();
    let tasks = |scene: &Scene| {
        let tasks = scene.world.leader.state.tasks.values();
        tasks.filter(|task| task.name.starts_with("move slots")).map(|task| task.id).collect::<BTreeSet<_>>()
    };
    let (tried, halted) = (tasks(&scene), operation.halted.unwrap());
    assert!(halted.contains("ERR refused"), "{halted}");
    let failed = scene.world.leader.state.tasks.values();
    let failed = failed.filter(|t| matches!(&t.state, TaskState::Failed { error } if error == "ERR refused"));
    assert_eq!(failed.filter(|t| t.name.starts_with("move slots")).count(), 8);
    scene.run(1200);
    assert_eq!(tasks(&scene), tried, "nothing is tried in 20 minutes");
    let events = scene.world.leader.state.events.values().filter(|e| e.reason == "ReshardHalted");
    assert_eq!(events.count(), 1);
    let status = scene.world.status(scene.id);
    let settled = status.conditions.iter().find(|c| c.r#type == "SlotsSettled").unwrap();
    assert!(settled.status == "False" && settled.message.contains("ERR refused"), "{settled:?}");
    // Somebody puts right what stood in the way.
    scene.world.mesh.refuses = false;
    scene.cancel();
    scene.put(4);
    scene.settles(600);
    scene.assert_even(4);
}

#[test]
fn deleting_while_slots_move_leaves_nothing() {
    let mut scene = Scene::new(80, 4, 3, 1);
    scene.put(4);
    scene.until_moved(500);
    scene.world.delete(scene.id).unwrap();
    scene.world.run(60);
    assert!(scene.world.leader.state.clusters.is_empty() && scene.world.mesh.nodes.is_empty());
    assert!(matches!(scene.reshards()[0].state, OperationState::Failed { .. }));
}

#[test]
fn a_new_shard_without_slots_is_expendable_but_not_one_that_has_some() {
    // Without replicas: the only instance of the new shard is lost before it gets anything.
    let mut scene = Scene::new(90, 5, 3, 0);
    scene.put(4);
    let new = shard(scene.id, 3);
    scene.until(60, "the new shard is placed", |scene| !scene.nodes_of(new).is_empty());
    let host = scene.host_of_primary(new);
    assert!(scene.running().is_none());
    let owned = scene.owning();
    assert!(!owned[&new]);
    let others = owned.keys().any(|group| *group != new && scene.host_of_primary(*group) == host);
    assert!(!others, "this seed loses the new shard alone");
    scene.wipe(host);
    scene.until(120, "another takes its place", |scene| {
        scene.nodes_of(new).iter().any(|node| scene.world.mesh.nodes[node].host != host)
    });
    scene.settles(900);
    scene.assert_even(4);
    // The same when it owns a few: it waits for the host, and goes on when that returns.
    let mut scene = Scene::new(91, 5, 3, 0);
    scene.put(4);
    scene.until_moved(700);
    let host = scene.host_of_primary(new);
    let instance = scene.world.mesh.nodes[&scene.nodes_of(new)[0]].instance;
    scene.world.power_off(host);
    scene.run(90);
    assert!(scene.world.leader.state.instances[&instance].wanted(), "it holds the only copy");
    scene.world.power_on(host);
    scene.settles(900);
    scene.assert_even(4);
}

#[test]
fn drains_wait_for_slots_on_their_way() {
    let mut scene = Scene::new(95, 5, 3, 1);
    scene.put(4);
    scene.until_moved(300);
    let host = scene.host_of_primary(shard(scene.id, 0));
    scene.world.drain(host, shardplane_model::command::DrainMode::KeepSpread);
    while scene.running().is_some() {
        scene.step();
        let moved = scene.world.leader.decided.iter().any(|(_, decision)| {
            matches!(decision, Decision::Place { operation, .. } if operation.kind == OperationKind::Move)
        });
        assert!(!moved, "a member moves while slots do");
    }
    scene.until(400, "drained", |scene| scene.world.drained(host));
    scene.settles(300);
    scene.assert_even(4);
}

#[test]
fn slots_that_a_successor_never_heard_of_come_to_it() {
    let mut scene = Scene::new(98, 4, 3, 1);
    let nodes = scene.nodes_of(shard(scene.id, 0));
    let (primary, replica, other) = (nodes[0], nodes[1], scene.nodes_of(shard(scene.id, 1))[0]);
    let first = scene.world.mesh.nodes[&primary].owns(primary)[0].0;
    // Its primary got them a moment before, from another shard.
    let heir = scene.world.mesh.nodes.get_mut(&replica).unwrap();
    heir.slots.set(first, first + 600, other);
    let instance = heir.instance;
    scene.world.take_over(instance);
    scene.settles(200);
    scene.assert_even(3);
    assert_eq!(scene.owner(first), replica);
}

#[test]
fn decisions_that_come_late_do_no_harm() {
    let mut scene = Scene::new(97, 5, 3, 1);
    scene.world.late = true;
    scene.put(4);
    scene.until_moved(1000);
    scene.cancel();
    scene.run(5);
    scene.put(3);
    scene.settles(900);
    scene.world.late = false;
    scene.assert_even(3);
    let _: &v1::ValkeyStatus = &scene.world.status(scene.id);
}

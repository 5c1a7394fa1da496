//! The simulated world: hosts, nodes, a leader, and time in steps of [`STEP`] ms. In: a seed and what a test does to it. Out: the
//! same history every time. The planner sees only what hosts report.

use std::{collections::BTreeSet, net::Ipv4Addr};

use shardplane_model::{
    command::{Command, CordonHost, Delete, DrainMode, Put},
    engine::EngineKind,
    plan,
    refusal::Refusal,
    resource::{Kind, User},
    state::{Footprint, HostFacts, Image, Sealed, Settings, VmOffer, VolumeOffer},
    time::{Millis, Timestamp},
    validate,
};
use shardplane_proto::{
    ids::{ClusterId, GroupId, HostId, InstanceId, RequestId, ResourceId},
    v1::{self, resource::Body},
};

use super::{
    check,
    host::SimHost,
    leader::Leader,
    mesh::{Cause, Mesh},
    node::Node,
    rng::Rng,
    truth,
    watch::Watch,
};

pub const STEP: u64 = 250;
pub const BEGIN: u64 = 1_764_000_000_000;
pub const LOST_AFTER: u64 = 30_000;

pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub hosts: Vec<SimHost>,
    pub mesh: Mesh,
    pub leader: Leader,
    pub was_primary: BTreeSet<InstanceId>,
    /// Groups that own slots.
    pub owners: BTreeSet<GroupId>,
    /// Decisions of former leaders come late.
    pub late: bool,
    /// Hosts that reach each other and none of the rest; empty when all reach all.
    pub split: BTreeSet<usize>,
    /// Views are looked at every so many steps.
    pub views_every: u64,
    /// Who looks at it after every step.
    pub watch: Option<Watch>,
}

pub fn settings() -> Settings {
    let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.01 };
    let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0001 };
    Settings {
        vm_offers: [("g3-1c1-100".to_owned(), vm)].into(),
        volume_offers: [("gp3-750".to_owned(), volume)].into(),
        lost_after: Millis(LOST_AFTER),
        ..Settings::default()
    }
}

pub fn user() -> User {
    User { id: "u".to_owned(), name: "tester".to_owned() }
}

pub fn metadata(id: ResourceId, name: &str) -> Option<v1::Metadata> {
    Some(v1::Metadata { id: id.to_string(), name: name.to_owned(), ..v1::Metadata::default() })
}

pub fn vpc(id: ResourceId) -> v1::Resource {
    let vpc =
        v1::Vpc { metadata: metadata(id, "net"), spec: Some(v1::VpcSpec::default()), ..v1::Vpc::default() };
    v1::Resource { body: Some(Body::Vpc(vpc)) }
}

pub fn subnet(id: ResourceId, vpc: ResourceId, cidr: &str) -> v1::Resource {
    let spec = v1::VpcSubnetSpec { vpc_id: vpc.to_string(), ipv4_cidr: cidr.to_owned() };
    let subnet =
        v1::VpcSubnet { metadata: metadata(id, "subnet"), spec: Some(spec), ..v1::VpcSubnet::default() };
    v1::Resource { body: Some(Body::VpcSubnet(subnet)) }
}

/// A cluster as a client sends it; ids of shards follow from its own.
pub fn cluster(id: ResourceId, subnet: ResourceId, shards: usize, replicas: i32) -> v1::Valkey {
    let shard = |index: usize| v1::ValkeyShardSpec {
        id: ResourceId::from_u128(id.as_u128() + 1 + index as u128).to_string(),
        vpc_subnet_id: subnet.to_string(),
    };
    let spec = v1::ValkeySpec {
        shards: (0..shards).map(shard).collect(),
        replicas_per_shard: Some(replicas),
        root_password: Some("secret".to_owned()),
        valkey_version: Some("8.1.1".to_owned()),
        vm_offer_id: Some("g3-1c1-100".to_owned()),
        volume_offer_id: Some("gp3-750".to_owned()),
        volume_size_gib: Some(10),
        ..v1::ValkeySpec::default()
    };
    v1::Valkey { metadata: metadata(id, "cache"), spec: Some(spec), ..v1::Valkey::default() }
}

impl World {
    pub const VPC: ResourceId = ResourceId::from_u128(1 << 100);
    pub const SUBNET: ResourceId = ResourceId::from_u128(2 << 100);

    pub fn new(seed: u64) -> Self {
        let mut world = Self {
            now: BEGIN,
            rng: Rng::new(seed),
            hosts: Vec::new(),
            mesh: Mesh::default(),
            leader: Leader::new(BEGIN),
            was_primary: BTreeSet::new(),
            owners: BTreeSet::new(),
            late: false,
            split: BTreeSet::new(),
            views_every: 4,
            watch: None,
        };
        world.leader.apply(BEGIN, vec![Command::Configure(settings())]);
        world.put(&vpc(Self::VPC)).unwrap();
        world.put(&subnet(Self::SUBNET, Self::VPC, "10.20.0.0/24")).unwrap();
        world
    }

    /// Another host with room for `room` instances; it connects soon.
    pub fn add_host(&mut self, rack: &str, room: u64) -> usize {
        let index = self.hosts.len();
        let facts = HostFacts {
            name: format!("h{}", index + 1),
            rack: rack.to_owned(),
            zone: String::new(),
            underlay: Ipv4Addr::from(0xc0a8_0001 + u32::try_from(index).unwrap()),
            capacity: Footprint {
                vcpu_percent: room * 100,
                memory_mib: room * 1024,
                disk_gib: room * 10,
                iops: room * 750,
            },
            images: vec![Image {
                engine: EngineKind::Valkey.name().to_owned(),
                version: "8.1.1".to_owned(),
                digest: "d".repeat(64),
                size: 1,
            }],
            vmm: "namespace".to_owned(),
            agent_version: "0".to_owned(),
            boot_id: format!("{index}"),
            conditions: Vec::new(),
        };
        let id = HostId::from_u128((7 << 100) + index as u128);
        self.hosts.push(SimHost::new(id, facts, self.now, Rng::new(index as u64)));
        index
    }

    pub fn add_hosts(&mut self, count: usize, room: u64) {
        (0..count).for_each(|_| {
            self.add_host("", room);
        });
    }

    pub fn put(&mut self, resource: &v1::Resource) -> Result<RequestId, Refusal> {
        let mut number = self.leader.ids;
        let mut ids = || {
            number += 1;
            u128::from(self.now) << 80 | u128::from(number)
        };
        let submission = validate::put(&self.leader.state, resource, &mut ids)?;
        self.leader.ids = number;
        let sealed = submission.secret.clone().map(|secret| Sealed(secret.into_bytes()));
        let request = RequestId::from_u128(self.leader.id(self.now));
        let put: Put = submission.into_put(request, user(), sealed);
        self.leader.apply(self.now, vec![Command::Put(put)]).remove(0).map(|_| request)
    }

    pub fn put_cluster(&mut self, cluster: v1::Valkey) -> Result<RequestId, Refusal> {
        self.put(&v1::Resource { body: Some(Body::Valkey(cluster)) })
    }

    pub fn create(&mut self, number: u128, shards: usize, replicas: i32) -> ResourceId {
        let id = ResourceId::from_u128((16 + number) << 100);
        self.put_cluster(cluster(id, Self::SUBNET, shards, replicas)).unwrap();
        id
    }

    pub fn delete(&mut self, id: ResourceId) -> Result<RequestId, Refusal> {
        let request = RequestId::from_u128(self.leader.id(self.now));
        let delete = Delete { id, kind: Kind::Cluster(EngineKind::Valkey), request, by: user() };
        self.leader.apply(self.now, vec![Command::Delete(delete)]).remove(0).map(|_| request)
    }

    fn cordon_with(&mut self, host: usize, until: Option<u64>, drain: Option<DrainMode>) {
        let asked = CordonHost {
            host: self.hosts[host].id,
            by: user(),
            reason: "new disks".to_owned(),
            until: until.map(Timestamp),
            drain,
        };
        self.leader.apply(self.now, vec![Command::Cordon(asked)]).remove(0).unwrap();
    }

    /// Closes a host, for `seconds` when given.
    pub fn cordon(&mut self, host: usize, seconds: Option<u64>) {
        self.cordon_with(host, seconds.map(|seconds| self.leader.stamp(self.now).0 + seconds * 1000), None);
    }

    pub fn drain(&mut self, host: usize, mode: DrainMode) {
        self.cordon_with(host, None, Some(mode));
    }

    pub fn uncordon(&mut self, host: usize) {
        let command = Command::Uncordon { host: self.hosts[host].id, by: user() };
        self.leader.apply(self.now, vec![command]).remove(0).unwrap();
    }

    pub fn left(&self, host: usize) -> Vec<plan::Left> {
        let leader = &self.leader;
        plan::left(&leader.state, &leader.observed, leader.stamp(self.now), self.hosts[host].id)
    }

    /// Whether the log says that the host was emptied.
    pub fn drained(&self, host: usize) -> bool {
        let host = &self.leader.state.hosts[&self.hosts[host].id];
        host.drain().is_some_and(|drain| drain.done.is_some())
    }

    /// Another leader after `gap` ms without one; hosts find it one after another.
    pub fn change_leader(&mut self, gap: u64) {
        self.leader.change(self.now + gap);
        for host in &mut self.hosts {
            host.session_ends();
            host.connect_at = self.now + gap + self.rng.below(4_000);
        }
    }

    /// Where an instance is placed.
    pub fn host_of(&self, instance: InstanceId) -> usize {
        let at = self.leader.state.instances[&instance].host;
        self.hosts.iter().position(|host| host.id == at).unwrap()
    }

    /// Its machine does not run any more, on a host that does.
    pub fn fail(&mut self, instance: InstanceId) {
        let host = self.host_of(instance);
        self.hosts[host].failed.insert(instance);
    }

    /// A replica takes over by itself, whatever the coordinator thinks.
    pub fn take_over(&mut self, instance: InstanceId) {
        let node = self.mesh.nodes.values().find(|node| node.instance == instance).unwrap();
        let (id, from) = (node.id, node.primary.unwrap());
        self.mesh.promote(id, from, Cause::Test);
    }

    pub fn power_off(&mut self, host: usize) {
        self.hosts[host].power_off(&mut self.mesh);
    }

    pub fn power_on(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].power_on(now, &mut self.rng);
    }

    pub fn wipe(&mut self, host: usize) {
        self.hosts[host].wipe(&mut self.mesh);
    }

    pub fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        let links: Vec<(bool, bool)> = self.hosts.iter().map(|h| (h.up && !h.frozen, h.peers_cut)).collect();
        let split = self.split.clone();
        let reach = move |a: usize, b: usize| {
            let together = !(links[a].1 || links[b].1) && split.contains(&a) == split.contains(&b);
            links[a].0 && links[b].0 && (a == b || together)
        };
        self.mesh.step(&reach, now, &mut self.rng);
        for (index, host) in self.hosts.iter_mut().enumerate() {
            host.step(index, &mut self.mesh, &reach, now, &mut self.rng);
        }
        let masters = self.mesh.nodes.values().filter(|n| n.is_slot_master()).map(|n| n.instance);
        self.was_primary.extend(masters);
        truth::owners(&self.leader.state, &self.mesh, &mut self.owners);
        self.leader.step(&mut self.hosts, &self.mesh, now);
        self.hosts.iter_mut().for_each(|host| host.receive(now));
        if self.late {
            self.leader.late(now, &mut self.rng);
        }
        check::copies_are_kept(self);
        // A view costs more than a step; nothing in it lasts shorter than that.
        if now.is_multiple_of(STEP * self.views_every) {
            check::views(self);
        }
        match self.watch.take() {
            Some(mut watch) => {
                watch.step(self);
                self.watch = Some(watch);
            }
            None => self.mesh.promotions.clear(),
        }
    }

    pub fn run(&mut self, seconds: u64) {
        (0..seconds * 1000 / STEP).for_each(|_| self.step());
    }

    /// Steps until `done`; panics with what is waited for when that takes longer than `seconds`. Answers how long it took, in ms.
    pub fn until(&mut self, seconds: u64, what: &str, done: impl Fn(&World) -> bool) -> u64 {
        let begin = self.now;
        while !done(self) {
            assert!(
                self.now - begin <= seconds * 1000,
                "{what}: not within {seconds} s; waiting: {:#?}; proposed {:?}; nodes {:#?}",
                self.leader.last.waiting,
                self.leader.last.propose,
                self.mesh
                    .nodes
                    .values()
                    .map(|n| format!(
                        "{:x} i{} h{} {} up {} primary {:x?} link {} slots {:?} epoch {} peers {}",
                        n.id,
                        n.instance,
                        n.host,
                        n.ip,
                        n.up,
                        n.primary,
                        n.link_up,
                        n.owns(n.id),
                        n.epoch,
                        n.peers.len()
                    ))
                    .collect::<Vec<_>>()
            );
            self.step();
        }
        self.now - begin
    }

    /// Until nothing is to do for anybody and every host has a session.
    pub fn settles(&mut self, seconds: u64) -> u64 {
        self.until(seconds, "settles", |world| {
            world.now >= world.leader.leads_from
                && world.leader.index > 0
                && world.leader.last.is_empty()
                // A cordon is brought to mind once a day: that is not work.
                && world.leader.last.again_at.is_none_or(|at| at.0 > world.now + 3_600_000)
                && world
                    .hosts
                    .iter()
                    .all(|host| !host.up || host.control_cut || host.session == Some(world.leader.term))
                && world
                    .leader
                    .state
                    .resources
                    .values()
                    .all(|r| r.change.outcome != shardplane_model::resource::Outcome::InFlight)
        })
    }

    pub fn status(&self, id: ResourceId) -> v1::ValkeyStatus {
        check::valkey(self, id).status.unwrap()
    }

    /// Hosts of the wanted members, shard by shard, the observed primary first.
    pub fn seats(&self, id: ResourceId) -> Vec<Vec<usize>> {
        let status = self.status(id);
        let host = |instance: &String| {
            let instance: InstanceId = instance.parse().unwrap();
            let at = self.leader.state.instances[&instance].host;
            self.hosts.iter().position(|h| h.id == at).unwrap()
        };
        let shard = |s: &v1::ValkeyShardStatus| {
            s.primary_instance_id.iter().chain(&s.replica_instance_ids).map(host).collect::<Vec<_>>()
        };
        status.shards.iter().map(shard).collect()
    }

    pub fn nodes_of(&self, id: ResourceId) -> Vec<&Node> {
        let cluster = ClusterId::from(id);
        let instances: BTreeSet<_> = self.leader.state.instances_of(cluster).map(|i| i.id).collect();
        self.mesh.nodes.values().filter(|n| instances.contains(&n.instance)).collect()
    }

    pub fn assert_whole(&self, id: ResourceId) {
        let status = self.status(id);
        let spec = check::valkey(self, id).spec.unwrap();
        assert_eq!(
            (status.state.as_str(), status.cluster_state.as_deref()),
            ("stable", Some("ok")),
            "{status:#?}"
        );
        let each = usize::try_from(spec.replicas_per_shard.unwrap()).unwrap();
        for shard in &status.shards {
            assert!(
                shard.primary_instance_id.is_some() && shard.replica_instance_ids.len() == each,
                "{status:#?}"
            );
        }
        assert_eq!(status.shards.iter().map(|s| s.slot_count).sum::<i32>(), 16_384);
        let nodes = self.nodes_of(id);
        assert_eq!(nodes.len(), spec.shards.len() * (each + 1), "nodes that really run");
        for node in &nodes {
            assert!(node.up && node.state_ok(self.now) && node.peers.len() == nodes.len() - 1, "{node:#?}");
        }
    }
}

//! A coordinator's log and planner over simulated hosts with PostgreSQL guests. In: what a test does to the world. Out: a state to look at.
//! One turn is a second. Everything follows from what is called: there is no chance in it.

use std::collections::BTreeSet;

use prost::Message as _;
use shardplane_model::{
    command::{Command, CordonHost, DrainMode, Ended, Entry, Notice},
    engine::{Class, EngineKind, Role},
    hostspec::host_spec,
    observed::{HostReport, MemberReport, Observed},
    plan::{self, cluster_view},
    refusal::Refusal,
    resource::{Outcome, User},
    state::{Footprint, HostFacts, Image, Instance, Sealed, Settings, State, VmOffer, VolumeOffer},
    time::{Millis, Timestamp},
    validate,
};
use shardplane_proto::{
    ids::{ClusterId, Generation, HostId, InstanceId, RequestId, ResourceId},
    v1::{self, resource::Body},
};

use crate::guests::Guests;

pub const CLUSTER: u128 = 1 << 100;

struct SimHost {
    id: HostId,
    facts: HostFacts,
    up: bool,
    has: BTreeSet<InstanceId>,
}

pub struct World {
    pub state: State,
    pub observed: Observed,
    pub guests: Guests,
    pub now: u64,
    hosts: Vec<SimHost>,
    index: u64,
    ids: u128,
}

pub fn user() -> User {
    User { id: "u".to_owned(), name: "u".to_owned() }
}

fn metadata(id: u128, name: &str) -> Option<v1::Metadata> {
    let id = ResourceId::from_u128(id).to_string();
    Some(v1::Metadata { id, name: name.to_owned(), ..v1::Metadata::default() })
}

/// A cluster of one group.
pub fn cluster(replicas: i32) -> v1::PostgreSql {
    let group = v1::PostgreSqlShardGroupSpec {
        name: "main".to_owned(),
        vpc_subnet_id: ResourceId::from_u128(2).to_string(),
    };
    let spec = v1::PostgreSqlSpec {
        shard_groups: vec![group],
        replicas_per_shard_group: Some(replicas),
        backup_retention_days: Some(7),
        vm_offer_id: Some("o".to_owned()),
        volume_offer_id: Some("v".to_owned()),
        volume_size_gib: Some(10),
        ..v1::PostgreSqlSpec::default()
    };
    v1::PostgreSql { metadata: metadata(CLUSTER, "pg"), spec: Some(spec), ..v1::PostgreSql::default() }
}

impl World {
    /// Hosts, each in a rack of its own when `racks` is more than one.
    pub fn new(hosts: usize) -> Self {
        let mut world = Self {
            state: State::default(),
            observed: Observed { since: Timestamp(1_000), ..Observed::default() },
            guests: Guests::default(),
            now: 1_000,
            hosts: Vec::new(),
            index: 0,
            ids: 1 << 64,
        };
        let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.0 };
        let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0 };
        world.apply(Command::Configure(Settings {
            vm_offers: [("o".to_owned(), vm)].into(),
            volume_offers: [("v".to_owned(), volume)].into(),
            lost_after: Millis::seconds(30),
            ..Settings::default()
        }));
        world.put(Body::Vpc(v1::Vpc { metadata: metadata(1, "vpc"), ..v1::Vpc::default() })).unwrap();
        let spec = v1::VpcSubnetSpec {
            vpc_id: ResourceId::from_u128(1).to_string(),
            ipv4_cidr: "10.0.0.0/24".to_owned(),
        };
        let subnet =
            v1::VpcSubnet { metadata: metadata(2, "net"), spec: Some(spec), ..v1::VpcSubnet::default() };
        world.put(Body::VpcSubnet(subnet)).unwrap();
        (0..hosts).for_each(|_| world.add_host());
        world.run(2);
        world
    }

    pub fn add_host(&mut self) {
        let number = u32::try_from(self.hosts.len()).unwrap();
        let image = Image {
            engine: EngineKind::Postgres.name().to_owned(),
            version: "17.12".to_owned(),
            digest: "d".to_owned(),
            size: 1,
        };
        let facts = HostFacts {
            name: format!("h{number}"),
            rack: format!("r{number}"),
            zone: String::new(),
            underlay: std::net::Ipv4Addr::from(0x0a80_0001 + number),
            capacity: Footprint { vcpu_percent: 1600, memory_mib: 16_384, disk_gib: 1_000, iops: 20_000 },
            images: vec![image],
            vmm: String::new(),
            agent_version: String::new(),
            boot_id: String::new(),
            conditions: Vec::new(),
        };
        let id = HostId::from_u128(1000 + u128::from(number));
        self.hosts.push(SimHost { id, facts, up: true, has: BTreeSet::new() });
    }

    fn apply(&mut self, command: Command) {
        self.try_apply(command).unwrap();
    }

    fn try_apply(&mut self, command: Command) -> Result<(), Refusal> {
        self.index += 1;
        let entry = Entry { at: Timestamp(self.now), commands: vec![command] };
        self.state.apply(self.index, &entry).remove(0).map(|_| ())
    }

    pub fn put(&mut self, body: Body) -> Result<(), Refusal> {
        let mut ids = self.ids;
        let mut id = || {
            ids += 1;
            ids
        };
        let submission = validate::put(&self.state, &v1::Resource { body: Some(body) }, &mut id)?;
        self.ids = ids + 1;
        let put = submission.into_put(RequestId::from_u128(self.ids), user(), Some(Sealed(b"s".to_vec())));
        self.try_apply(Command::Put(put))
    }

    pub fn create(&mut self, replicas: i32) {
        self.put(Body::PostgreSql(cluster(replicas))).unwrap();
    }

    /// The host's power goes, with its disks.
    pub fn lose(&mut self, host: HostId) {
        let host = self.hosts.iter_mut().find(|h| h.id == host).unwrap();
        host.up = false;
        for id in std::mem::take(&mut host.has) {
            self.guests.remove(id);
        }
    }

    /// A machine comes back without what was on its disk.
    pub fn wipe(&mut self, instance: InstanceId) {
        self.guests.remove(instance);
    }

    pub fn drain(&mut self, host: HostId) {
        let drain = Some(DrainMode::KeepSpread);
        let cordon = CordonHost { host, by: user(), reason: "test".to_owned(), until: None, drain };
        self.apply(Command::Cordon(cordon));
    }

    fn up(&self) -> BTreeSet<InstanceId> {
        self.hosts.iter().filter(|host| host.up).flat_map(|host| host.has.iter().copied()).collect()
    }

    fn obey(&mut self) {
        let mut ended = Vec::new();
        let mut gone = Vec::new();
        for host in self.hosts.iter_mut().filter(|host| host.up) {
            let clear = |_: ResourceId, sealed: &Sealed| String::from_utf8(sealed.0.clone());
            let Some(spec) = host_spec(&self.state, host.id, 1, &clear).unwrap() else { continue };
            let wanted: BTreeSet<InstanceId> =
                spec.instances.iter().map(|instance| instance.instance_id.parse().unwrap()).collect();
            for id in host.has.difference(&wanted).copied().collect::<Vec<_>>() {
                host.has.remove(&id);
                self.guests.remove(id);
                gone.push((id, host.id));
            }
            for instance in spec.instances {
                let id: InstanceId = instance.instance_id.parse().unwrap();
                host.has.insert(id);
                self.guests.configure(id, instance.config_generation, &instance.engine_config);
                ended.extend(instance.tasks.into_iter().map(|task| (id, task)));
            }
        }
        let up = self.up();
        for (instance, host) in gone {
            self.apply(Command::Notice(Notice::Gone { instance, host }));
        }
        for (id, task) in ended {
            let error = self.guests.perform(id, &task.payload, &up).err();
            let task = task.task_id.parse().unwrap();
            self.apply(Command::Notice(Notice::TaskEnded { task, ended: Ended::with(error) }));
        }
    }

    fn hear(&mut self) {
        let up = self.up();
        let at = Timestamp(self.now);
        for index in 0..self.hosts.len() {
            let host = &self.hosts[index];
            let (id, has) = (host.id, host.has.clone());
            if !host.up {
                if let Some(report) = self.observed.hosts.get_mut(&id) {
                    report.connected = false;
                }
                continue;
            }
            if !self.state.hosts.contains_key(&id) {
                let facts = host.facts.clone();
                self.apply(Command::Notice(Notice::Host { host: id, facts }));
            }
            let accepted = self.state.hosts.get(&id).map_or(Generation(0), |host| host.generation);
            let problems = Vec::new();
            let report = HostReport { connected: true, at, accepted, complete: true, problems, granted: at };
            self.observed.hosts.insert(id, report);
            for instance in has {
                self.hear_guest(id, instance, &up);
            }
        }
    }

    fn hear_guest(&mut self, host: HostId, instance: InstanceId, up: &BTreeSet<InstanceId>) {
        let bytes = self.guests.report(instance, up).encode_to_vec();
        let engine = EngineKind::Postgres.read_report(&bytes);
        let fact = engine.as_ref().map(shardplane_model::engine::Report::fact);
        let said = MemberReport {
            host,
            at: Timestamp(self.now),
            machine: v1::MachineState::Running,
            message: String::new(),
            engine_state: v1::EngineState::Running,
            engine_message: String::new(),
            engine,
            config_generation: self.guests.guests[&instance].generation,
            restart_generation: 0,
            failed_since: None,
            silent_since: None,
            detached_since: None,
            under_way: None,
            fenced: false,
            port_cut: false,
        };
        let lasting = self.observed.members.get(&instance).map(MemberReport::lasting);
        self.observed.members.insert(instance, said.heard(lasting, Timestamp(self.now)));
        let known = self.state.instances.get(&instance).and_then(|i| i.fact.as_ref()).map(|(_, fact)| fact);
        if let Some(fact) = fact.filter(|fact| Some(fact) != known) {
            self.apply(Command::Notice(Notice::Engine { instance, fact }));
        }
    }

    /// That many seconds.
    pub fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.now += 1_000;
        self.obey();
        let up = self.up();
        self.guests.live(&up);
        self.hear();
        let mut ids = self.ids;
        let mut id = || {
            ids += 1;
            ids
        };
        let plan = plan::plan(&self.state, &self.observed, Timestamp(self.now), &mut id);
        self.ids = ids;
        self.observed.waiting = plan.waiting.clone();
        for command in plan.commands() {
            // One that another of the same plan has overtaken is outdated.
            let _ = self.try_apply(command);
        }
        self.voters_are_apart();
    }

    /// The hard rule, at every moment.
    fn voters_are_apart(&self) {
        let mut hosts = BTreeSet::new();
        for voter in self.of(Class::Quorum) {
            assert!(hosts.insert(voter.host), "two voters on host {}", voter.host);
        }
    }

    /// Runs until the last change is done and nothing is waited for.
    pub fn settle(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.turn();
            if self.settled() {
                return;
            }
        }
        panic!("not settled after {seconds} s: {:?} {:?}", self.observed.waiting, self.outcome());
    }

    pub fn settled(&self) -> bool {
        let nothing = self.observed.waiting.values().all(Vec::is_empty) || self.observed.waiting.is_empty();
        nothing
            && self.outcome() == Some(Outcome::Done)
            && self.state.tasks.values().all(|task| task.ended.is_some())
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.state.resources.get(&ResourceId::from_u128(CLUSTER)).map(|r| r.change.outcome.clone())
    }

    /// Wanted instances of a class.
    pub fn of(&self, class: Class) -> Vec<Instance> {
        let id = ClusterId::from(ResourceId::from_u128(CLUSTER));
        let Some(view) = cluster_view(&self.state, &self.observed, id, Timestamp(self.now)) else {
            return Vec::new();
        };
        view.wanted().map(|m| m.instance.clone()).filter(|i| view.class_of(i.group) == class).collect()
    }

    /// The host of the leader.
    pub fn leader(&self) -> Option<Instance> {
        let id = ClusterId::from(ResourceId::from_u128(CLUSTER));
        let view = cluster_view(&self.state, &self.observed, id, Timestamp(self.now))?;
        let primary = view.roles().into_iter().find(|(_, role)| *role == Role::Primary)?.0;
        self.state.instances.get(&primary).cloned()
    }

    pub fn status(&self) -> v1::PostgreSqlStatus {
        let resource = &self.state.resources[&ResourceId::from_u128(CLUSTER)];
        let message = shardplane_model::view::resource(
            &self.state,
            &self.observed,
            resource,
            Timestamp(self.now),
            None,
        );
        match message.body {
            Some(Body::PostgreSql(cluster)) => cluster.status.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub fn condition(&self, name: &str) -> v1::Condition {
        self.status().conditions.into_iter().find(|c| c.r#type == name).unwrap()
    }
}

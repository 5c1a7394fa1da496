//! A plan of a large healthy installation: 200 hosts, 500 clusters of three shards with a replica each, all formed and heard. It has
//! nothing to do, and finds that out quickly. The bound is far above what is measured: it catches what grows with the square.
#![allow(clippy::unwrap_used)]
// What is measured here is real time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use shardplane_model::{
    command::{Command, Decision, Entry, Notice},
    engine::{ClusterSpec, Fact, Report, valkey},
    observed::{HostReport, MemberReport, Observed},
    plan,
    resource::{Metadata, Spec, User},
    state::{Footprint, HostFacts, Image, Sealed, Settings, State, VmOffer, VolumeOffer},
    time::{Millis, Timestamp},
};
use shardplane_proto::{
    ids::{ClusterId, GroupId, HostId, InstanceId, RequestId, ResourceId},
    v1,
};

const HOSTS: u128 = 200;
/// Fewer without optimisation: making the world takes longer than the plan.
const CLUSTERS: u128 = if cfg!(debug_assertions) { 100 } else { 500 };
const SHARDS: usize = 3;
const NOW: u64 = 1_764_000_000_000;

struct Log {
    state: State,
    index: u64,
    ids: u128,
}

impl Log {
    fn apply(&mut self, commands: Vec<Command>) {
        self.index += 1;
        let answers = self.state.apply(self.index, &Entry { at: Timestamp(NOW), commands });
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }

    fn put(&mut self, id: u128, spec: Spec) {
        let metadata = Metadata {
            name: "n".to_owned(),
            description: None,
            folder: None,
            labels: [].into(),
            delete_protection: false,
        };
        let by = User { id: "u".to_owned(), name: "u".to_owned() };
        let request = RequestId::from_u128((1 << 90) + id);
        let put =
            shardplane_model::command::Put { id: ResourceId::from_u128(id), metadata, spec, request, by };
        self.apply(vec![Command::Put(put)]);
    }

    fn plan(&mut self, observed: &Observed) -> plan::Plan {
        let mut ids = self.ids;
        let mut id = || {
            ids += 1;
            ids
        };
        let plan = plan::plan(&self.state, observed, Timestamp(NOW), &mut id);
        self.ids = ids;
        plan
    }
}

fn node(instance: InstanceId) -> String {
    format!("{:040x}", instance.as_u128())
}

/// What every member reports when its cluster is whole.
fn healthy(state: &State, observed: &mut Observed) {
    for id in state.clusters.keys() {
        let members: Vec<_> = state.instances_of(*id).collect();
        let groups = state.resources[&ResourceId::from(*id)].cluster_spec().unwrap().groups();
        for member in &members {
            let primary = members.iter().find(|m| m.group == member.group && m.first_primary).unwrap().id;
            let index = u32::try_from(groups.iter().position(|g| g.id == member.group).unwrap()).unwrap();
            let (start, end) = valkey::slots_of(index, u32::try_from(SHARDS).unwrap());
            let peers = members.iter().filter(|m| m.id != member.id).map(|m| v1::ValkeyPeer {
                node_id: node(m.id),
                connected: true,
                ..v1::ValkeyPeer::default()
            });
            let replica = member.id != primary;
            let report = v1::ValkeyReport {
                node_id: node(member.id),
                role: if replica { "slave" } else { "master" }.to_owned(),
                primary_node_id: if replica { node(primary) } else { String::new() },
                link_up: replica,
                slots: if replica { Vec::new() } else { vec![v1::ValkeySlots { start, end }] },
                cluster_state: "ok".to_owned(),
                config_epoch: u64::from(index) + 1,
                peers: peers.collect(),
                ..v1::ValkeyReport::default()
            };
            let said = MemberReport {
                host: member.host,
                at: Timestamp(NOW),
                machine: v1::MachineState::Running,
                message: String::new(),
                engine_state: v1::EngineState::Running,
                engine_message: String::new(),
                engine: Some(Report::Valkey(Box::new(report))),
                config_generation: 0,
                restart_generation: 0,
                failed_since: None,
                silent_since: None,
                detached_since: None,
                under_way: None,
                fenced: false,
                port_cut: false,
            };
            observed.members.insert(member.id, said);
        }
    }
}

fn world() -> (Log, Observed) {
    let mut log = Log { state: State::default(), index: 0, ids: 0 };
    let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.0 };
    let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0 };
    log.apply(vec![Command::Configure(Settings {
        vm_offers: [("o".to_owned(), vm)].into(),
        volume_offers: [("v".to_owned(), volume)].into(),
        lost_after: Millis::seconds(30),
        ..Settings::default()
    })]);
    log.put(1, Spec::Vpc { provider: None });
    log.put(2, Spec::VpcSubnet { vpc: ResourceId::from_u128(1), cidr: "10.0.0.0/16".parse().unwrap() });
    let mut observed = Observed { since: Timestamp(NOW), ..Observed::default() };
    for number in 0..HOSTS {
        let facts = HostFacts {
            name: format!("h{number}"),
            rack: format!("r{}", number % 20),
            zone: String::new(),
            underlay: std::net::Ipv4Addr::from(0x0a80_0000 + u32::try_from(number).unwrap()),
            capacity: Footprint { vcpu_percent: 6400, memory_mib: 65_536, disk_gib: 10_000, iops: 100_000 },
            images: vec![Image {
                engine: "valkey".to_owned(),
                version: "8".to_owned(),
                digest: "d".to_owned(),
                size: 1,
            }],
            vmm: String::new(),
            agent_version: String::new(),
            boot_id: String::new(),
            conditions: Vec::new(),
        };
        log.apply(vec![Command::Notice(Notice::Host { host: HostId::from_u128(1000 + number), facts })]);
    }
    let mut hear = |state: &State| {
        for host in state.hosts.values() {
            let report = HostReport {
                connected: true,
                at: Timestamp(NOW),
                accepted: host.generation,
                complete: true,
                problems: Vec::new(),
                granted: Timestamp(NOW),
            };
            observed.hosts.insert(host.id, report);
        }
        healthy(state, &mut observed);
        observed.clone()
    };
    for number in 0..CLUSTERS {
        let id = (1 << 80) + number * 100;
        let shards = (0..SHARDS as u128).map(|n| valkey::spec::Shard {
            id: GroupId::from_u128(id + 1 + n),
            subnet: ResourceId::from_u128(2),
        });
        let spec = valkey::spec::ValkeySpec {
            shards: shards.collect(),
            replicas_per_shard: 1,
            root_password: Sealed(vec![1]),
            parameters_set: None,
            version: "8".to_owned(),
            vm_offer: "o".to_owned(),
            volume_offer: "v".to_owned(),
            volume_size_gib: 10,
            use_fqdn: false,
            create_public_ipv4: false,
        };
        log.put(id, Spec::Cluster(ClusterSpec::Valkey(spec)));
    }
    let heard = hear(&log.state);
    let placing = Instant::now();
    let plan = log.plan(&heard);
    println!("planning the placement of {CLUSTERS} clusters: {:?}", placing.elapsed());
    let applying = Instant::now();
    log.apply(plan.commands());
    println!("applying it: {:?}", applying.elapsed());
    let instances: Vec<_> = log.state.instances.keys().copied().collect();
    let heard = hear(&log.state);
    let facts = instances.iter().map(|id| {
        let fact: Fact = heard.members[id].engine.as_ref().unwrap().fact();
        Command::Notice(Notice::Engine { instance: *id, fact })
    });
    log.apply(facts.collect());
    // A history: every operation that made a cluster has seven ended tasks.
    let clusters: Vec<ClusterId> = log.state.clusters.keys().copied().collect();
    for cluster in clusters {
        let operation = log.state.operations.values().find(|o| o.cluster == cluster).unwrap().id;
        let members: Vec<_> = log.state.instances_of(cluster).map(|i| i.id).collect();
        let tasks = members.iter().map(|instance| {
            log.ids += 1;
            shardplane_model::command::NewTask {
                id: shardplane_proto::ids::TaskId::from_u128(log.ids),
                instance: *instance,
                name: "t".to_owned(),
                payload: vec![1],
            }
        });
        let tasks: Vec<_> = tasks.collect();
        let request = log.state.resources[&ResourceId::from(cluster)].change.request;
        log.apply(vec![
            Command::Decide(Decision::StartTasks { cluster, operation, new_operation: None, tasks }),
            Command::Decide(Decision::Satisfied { cluster, request }),
        ]);
    }
    let heard = hear(&log.state);
    (log, heard)
}

#[test]
fn a_plan_over_many_hosts_and_formed_clusters_is_empty_and_quick() {
    let (mut log, observed) = world();
    assert_eq!(log.state.instances.len() as u128, CLUSTERS * SHARDS as u128 * 2);
    let begin = Instant::now();
    let plan = log.plan(&observed);
    let took = begin.elapsed();
    println!("one plan: {took:?}");
    assert!(plan.is_empty(), "{:?} {:?}", plan.propose, plan.waiting);
    let begin = Instant::now();
    let host = *log.state.hosts.keys().next().unwrap();
    let spec =
        shardplane_model::hostspec::host_spec::<()>(&log.state, host, 1, &|_, _| Ok(String::new())).unwrap();
    println!("one host spec of {} instances: {:?}", spec.unwrap().instances.len(), begin.elapsed());
    assert!(took < Duration::from_secs(1), "a plan took {took:?}");
}

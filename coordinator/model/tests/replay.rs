//! What replicas and later releases rely on: the same entries lead to the same state and the same JSON, a state survives JSON,
//! and what an earlier release wrote is still read. `tests/golden` holds one log and the state it led to; it is rewritten with
//! `REWRITE_GOLDEN=1` only when the format changes on purpose.
#![allow(clippy::unwrap_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "golden files are read and rewritten here; the crate itself does no I/O"
)]

use std::{fs, path::PathBuf};

use shardplane_model::{
    command::{Command, Decision, Ended, Entry, NewOperation, NewTask, Notice, Put, Reservation},
    engine::{ClusterSpec, Fact, valkey},
    resource::{Metadata, Spec, User},
    state::{
        Footprint, HostFacts, Image, Instance, Intent, OperationKind, Parameters, Sealed, Settings, State,
        VmOffer, VolumeOffer,
    },
    time::{Millis, Timestamp},
};
use shardplane_proto::ids::{
    ClusterId, Generation, GroupId, HostId, InstanceId, OperationId, RequestId, ResourceId, TaskId,
};

fn put(number: u128, spec: Spec) -> Command {
    let metadata = Metadata {
        name: format!("r{number}"),
        description: Some("d".to_owned()),
        folder: None,
        labels: [("k".to_owned(), "v".to_owned())].into(),
        delete_protection: false,
    };
    let by = User { id: "u".to_owned(), name: "u".to_owned() };
    Command::Put(Put {
        id: ResourceId::from_u128(number),
        metadata,
        spec,
        request: RequestId::from_u128(900 + number),
        by,
    })
}

/// A log with every sort of thing that a state can hold.
fn log() -> Vec<Entry> {
    let (subnet, host, instance) =
        (ResourceId::from_u128(2), HostId::from_u128(30), InstanceId::from_u128(40));
    let cluster = ClusterId::from_u128(10);
    let footprint = Footprint { vcpu_percent: 100, memory_mib: 1024, disk_gib: 10, iops: 750 };
    let valkey = valkey::spec::ValkeySpec {
        shards: vec![valkey::spec::Shard { id: GroupId::from_u128(100), subnet }],
        replicas_per_shard: 0,
        root_password: Sealed(vec![1, 2, 255]),
        parameters_set: None,
        version: "8.1.1".to_owned(),
        vm_offer: "g3-1c1-100".to_owned(),
        volume_offer: "gp3-750".to_owned(),
        volume_size_gib: 10,
        use_fqdn: false,
        create_public_ipv4: false,
    };
    let facts = HostFacts {
        name: "h1".to_owned(),
        rack: "r".to_owned(),
        zone: "z".to_owned(),
        underlay: [192, 168, 0, 1].into(),
        capacity: Footprint { vcpu_percent: 800, memory_mib: 8192, disk_gib: 100, iops: 9000 },
        images: vec![Image {
            engine: "valkey".to_owned(),
            version: "8.1.1".to_owned(),
            digest: "d".to_owned(),
            size: 1,
        }],
        vmm: "namespace".to_owned(),
        agent_version: "0".to_owned(),
        boot_id: "b".to_owned(),
        conditions: Vec::new(),
    };
    let placed = Instance {
        id: instance,
        cluster,
        group: GroupId::from_u128(100),
        host,
        subnet,
        vpc: ResourceId::from_u128(1),
        ipv4: [10, 20, 0, 2].into(),
        mac: "02:00:0a:14:00:02".to_owned(),
        footprint,
        vcpus: 1,
        vcpu_share: 100,
        image_digest: "d".to_owned(),
        first_primary: true,
        intent: Intent::Wanted,
        replaces: None,
        created: Timestamp(1),
        fact: None,
        moved: None,
        parameters: Parameters::default(),
        config_generation: Generation::default(),
        restart_generation: Generation::default(),
        fence: None,
        succeeded_by: None,
    };
    let fact = valkey::facts::ValkeyFact {
        stands_down: false,
        blank: false,
        node_id: "a".repeat(40),
        role: "master".to_owned(),
        primary_node_id: String::new(),
        slots: vec![(0, 16_383)],
        epoch: 1,
        cluster_state: "ok".to_owned(),
    };
    let settings = Settings {
        vm_offers: [(
            "g3-1c1-100".to_owned(),
            VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.1 },
        )]
        .into(),
        volume_offers: [(
            "gp3-750".to_owned(),
            VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.3 },
        )]
        .into(),
        lost_after: Millis::seconds(30),
        ..Settings::default()
    };
    let operation = NewOperation {
        id: OperationId::from_u128(50),
        kind: OperationKind::Create,
        cause: "made".to_owned(),
        goal: None,
    };
    let task = NewTask {
        id: TaskId::from_u128(60),
        instance,
        name: "assign".to_owned(),
        payload: vec![0, 127, 255],
    };
    let tasks =
        Decision::StartTasks { cluster, operation: operation.id, new_operation: None, tasks: vec![task] };
    let place = Decision::Place {
        cluster,
        reservations: vec![Reservation { instance: placed, own_group_on_host: 0 }],
        retire: Vec::new(),
        operation,
    };
    let cidr = "10.20.0.0/24".parse().unwrap();
    let commands = vec![
        vec![Command::Configure(settings)],
        vec![
            put(1, Spec::Vpc { provider: None }),
            put(2, Spec::VpcSubnet { vpc: ResourceId::from_u128(1), cidr }),
        ],
        vec![
            Command::Notice(Notice::Host { host, facts }),
            put(10, Spec::Cluster(ClusterSpec::Valkey(valkey))),
        ],
        vec![Command::Decide(place.clone())],
        vec![Command::Decide(place), Command::Decide(tasks)],
        vec![Command::Notice(Notice::Engine { instance, fact: Fact::Valkey(fact) })],
        vec![Command::Notice(Notice::TaskEnded {
            task: TaskId::from_u128(60),
            ended: Ended::with(Some("ERR".to_owned())),
        })],
        vec![Command::Decide(Decision::Satisfied { cluster, request: RequestId::from_u128(910) })],
        vec![Command::Decide(Decision::DeclareLost { host, message: "silent".to_owned() })],
    ];
    (1..).zip(commands).map(|(at, commands)| Entry { at: Timestamp(at * 1000), commands }).collect()
}

fn replay(log: &[Entry]) -> State {
    let mut state = State::default();
    for (index, entry) in (1..).zip(log) {
        state.apply(index, entry);
    }
    state
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn the_same_entries_lead_to_the_same_state_and_the_same_json() {
    let (one, other) = (replay(&log()), replay(&log()));
    assert!(one == other);
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&other).unwrap());
    assert!(one.instances.len() == 1 && one.tasks.len() == 1 && one.clusters.values().all(|c| c.formed));
}

#[test]
fn a_state_and_a_log_survive_json() {
    let (state, log) = (replay(&log()), log());
    let back: State = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    assert!(state == back);
    let back: Vec<Entry> = serde_json::from_str(&serde_json::to_string(&log).unwrap()).unwrap();
    assert_eq!(log, back);
}

#[test]
fn a_snapshot_in_the_middle_changes_nothing() {
    let log = log();
    for cut in 0..log.len() {
        let snapshot = serde_json::to_string(&replay(&log[..cut])).unwrap();
        let mut state: State = serde_json::from_str(&snapshot).unwrap();
        for (index, entry) in (1..).zip(&log).skip(cut) {
            state.apply(index, entry);
        }
        assert!(state == replay(&log), "cut after {cut}");
    }
}

#[test]
fn what_an_earlier_release_wrote_is_read() {
    if std::env::var_os("REWRITE_GOLDEN").is_some() {
        fs::create_dir_all(golden("")).unwrap();
        fs::write(golden("log-v1.json"), serde_json::to_string_pretty(&log()).unwrap() + "\n").unwrap();
        fs::write(golden("state-v1.json"), serde_json::to_string_pretty(&replay(&log())).unwrap() + "\n")
            .unwrap();
    }
    let read = |name: &str| fs::read_to_string(golden(name)).unwrap();
    let old_log: Vec<Entry> = serde_json::from_str(&read("log-v1.json")).unwrap();
    let old_state: State = serde_json::from_str(&read("state-v1.json")).unwrap();
    assert_eq!(old_log, log());
    assert!(
        old_state == replay(&old_log),
        "an old log leads to another state now: old snapshots and replays part ways"
    );
}

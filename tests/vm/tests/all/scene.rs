//! Specs and the stage of each test: a host of its own, the agent on it, a session with it.
//!
//! In: a test's story. Out: it played, or one line that says why not.

use std::{cell::RefCell, collections::BTreeSet};

use shardplane_harness::coordinator::{Coordinator, Session, TOKEN};
use shardplane_proto::{
    ids::{InstanceId, ResourceId},
    v1::{self, MachineState},
};
use shardplane_vm_tests::{
    cannot_run,
    host::{DIGEST, Host},
};

/// The VPC of all machines.
pub const VPC: ResourceId = ResourceId::from_u128(11);
const SUBNET: ResourceId = ResourceId::from_u128(12);

/// The instance of this number.
pub const fn id(number: usize) -> InstanceId {
    InstanceId::from_u128(0x0193_0000_0000_0000_0000_0000_0000_0001 + number as u128)
}

/// One instance; its host name tells the tiny guest what to do.
pub fn instance(number: usize, hostname: &str) -> v1::InstanceSpec {
    v1::InstanceSpec {
        instance_id: id(number).to_string(),
        engine: "tiny".into(),
        image_digest: DIGEST.into(),
        vcpus: 2,
        vcpu_share: 50,
        memory_mib: 64,
        iops: 750,
        volume_gib: 1,
        vpc_id: VPC.to_string(),
        subnet_id: SUBNET.to_string(),
        mac: format!("02:00:0a:14:00:{:02x}", number + 5),
        ipv4: format!("10.20.0.{}", number + 5),
        hostname: hostname.into(),
        config_generation: 1,
        ..Default::default()
    }
}

/// What the host is to run.
pub fn spec(generation: u64, instances: Vec<v1::InstanceSpec>) -> v1::HostSpec {
    let subnet = v1::SubnetSpecOnHost {
        subnet_id: SUBNET.to_string(),
        vni: 4242,
        ipv4_cidr: "10.20.0.0/24".into(),
        gateway: "10.20.0.1".into(),
        remotes: Vec::new(),
    };
    let vpcs = vec![v1::VpcSpecOnHost { vpc_id: VPC.to_string(), subnets: vec![subnet] }];
    v1::HostSpec { generation, term: 1, vpcs, instances }
}

/// What a report says of an instance.
pub fn of(report: &v1::HostReport, number: usize) -> Option<&v1::InstanceReport> {
    report.instances.iter().find(|one| one.instance_id == id(number).to_string())
}

/// Whether a report says that an instance is in this state, with these words.
pub fn is(report: &v1::HostReport, number: usize, state: MachineState, words: &str) -> bool {
    of(report, number).is_some_and(|one| one.machine() == state && one.message.contains(words))
}

/// The stage.
pub struct Stage {
    /// The host, with a running agent.
    pub host: Host,
    /// The coordinator.
    pub coordinator: Coordinator,
    /// The agent's session.
    pub session: Session,
}

impl Stage {
    /// Waits until an instance runs, as the agent says.
    pub async fn runs(&mut self, number: usize) -> v1::HostReport {
        self.session.report("it runs", |report| is(report, number, MachineState::Running, "")).await
    }

    /// Waits until the first so many instances run, as the agent says in whatever order.
    pub async fn all_run(&mut self, count: usize) {
        let running = RefCell::new(BTreeSet::new());
        let noted = |report: &v1::HostReport| {
            let mut running = running.borrow_mut();
            running.extend((0..count).filter(|number| is(report, *number, MachineState::Running, "")));
            running.len() == count
        };
        self.session.report("all of them run", noted).await;
    }

    /// Kills the agent, starts it again and waits for its session. The new one is told nothing yet.
    pub async fn restart_agent(&mut self) -> v1::HostHello {
        self.host.kill_agent();
        self.host.start_agent();
        let (hello, session) = self.coordinator.session().await;
        self.session = session;
        hello
    }
}

/// Plays a story on a stage of its own.
pub fn play(story: impl AsyncFnOnce(&mut Stage)) {
    play_on(|_| {}, story);
}

/// The same on a host that was prepared for it.
pub fn play_on(prepare: impl FnOnce(&mut Host), story: impl AsyncFnOnce(&mut Stage)) {
    if let Some(why) = cannot_run() {
        println!("skipped: virtual machines: {why}");
        return;
    }
    let mut host = Host::new();
    prepare(&mut host);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address, TOKEN);
        host.start_agent();
        let (_, session) = coordinator.session().await;
        let mut stage = Stage { host, coordinator, session };
        story(&mut stage).await;
    });
}

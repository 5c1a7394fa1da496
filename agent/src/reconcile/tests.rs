//! Scenarios of reconciler and owners together, on a host in memory.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_proto::{
    ids::{HostId, InstanceId, ResourceId},
    v1::{self, MachineState},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};

use super::{
    Received, Reconciler,
    adopt::adopt,
    network::{Attachment, HostNetwork},
};
use crate::{
    board::Board,
    boot_time::BootTime,
    contact::Contact,
    digests::Digests,
    identity::{MachineTag, MachineUuid},
    images::Images,
    ledger::Ledger,
    machine::Shared,
    vmm::{
        Vmm,
        cgroup::OutOfMemory,
        fake::{BOOT, Button, FakeVmm, eventually},
    },
    volumes::Volumes,
};

const ID: InstanceId = InstanceId::from_u128(7);
const HOST: HostId = HostId::from_u128(1);
const VPC: ResourceId = ResourceId::from_u128(3);
/// sha256 of the empty file that is the image here.
const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// sha256 of "b", which is another.
const OTHER_DIGEST: &str = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d";

#[derive(Default)]
struct FakeNetwork {
    broken: AtomicBool,
    stuck: AtomicBool,
}

impl HostNetwork for FakeNetwork {
    fn ensure<'a>(&'a self, _: &'a v1::HostSpec) -> BoxFuture<'a, Result<(), String>> {
        let (broken, stuck) = (self.broken.load(Ordering::SeqCst), self.stuck.load(Ordering::SeqCst));
        async move {
            if stuck {
                std::future::pending::<()>().await;
            }
            if broken { Err("the cable is cut".into()) } else { Ok(()) }
        }
        .boxed()
    }

    fn attachment(&self, _: InstanceId, _: ResourceId) -> Attachment {
        Attachment { netns: "/nowhere".into(), interface: "eth0".into() }
    }

    fn mtu(&self) -> u32 {
        1450
    }
}

/// One life of an agent.
struct Agent {
    shared: Arc<Shared>,
    specs: watch::Sender<Option<Received>>,
    task: JoinHandle<()>,
}

impl Agent {
    async fn start(dir: &Path, vmm: &Arc<FakeVmm>, network: &Arc<FakeNetwork>) -> Self {
        let image_dir = dir.join("images");
        fs::create_dir_all(&image_dir).unwrap();
        for (name, version, digest, content) in [("e-1", "1", DIGEST, ""), ("e-2", "2", OTHER_DIGEST, "b")] {
            fs::write(image_dir.join(format!("{name}.erofs")), content).unwrap();
            let size = content.len();
            let manifest =
                format!(r#"{{"engine":"e","version":"{version}","digest":"{digest}","sizeBytes":{size}}}"#);
            fs::write(image_dir.join(format!("{name}.json")), manifest).unwrap();
        }
        let (ledger, _) = Ledger::open(dir).unwrap();
        let volumes = Volumes::new(dir, None);
        let vmm: Arc<dyn Vmm> = Arc::<FakeVmm>::clone(vmm);
        let (adopted, _) = adopt(&vmm, &ledger, &volumes, BOOT).await.unwrap();
        let (removed, removals) = mpsc::channel(4);
        let shared = Arc::new(Shared {
            host: HOST,
            boot_id: BOOT.into(),
            machines_dir: dir.join("machines"),
            vmm,
            volumes,
            images: Images::load(&image_dir, Arc::new(Digests::open(dir))).unwrap(),
            network: Arc::<FakeNetwork>::clone(network),
            ledger,
            board: Arc::new(Board::default()),
            contact: Arc::new(Contact::default()),
            starts: Semaphore::new(1),
            removed,
        });
        let (specs, newest) = watch::channel(None);
        let reconciler = Reconciler::new(Arc::clone(&shared), adopted, newest, removals).unwrap();
        Self { shared, specs, task: tokio::spawn(reconciler.run()) }
    }

    fn hear(&self) {
        self.shared.contact.welcomed(BootTime::now(), Duration::from_secs(60));
    }

    fn send(&self, generation: u64, ids: &[InstanceId]) {
        self.send_spec(spec(generation, ids));
    }

    fn send_spec(&self, spec: v1::HostSpec) {
        let session = self.shared.contact.now().session;
        self.specs.send_replace(Some(Received { session, spec: Arc::new(spec) }));
    }

    fn machine(&self) -> Option<v1::InstanceReport> {
        self.shared.board.full().instances.into_iter().next()
    }

    fn is(&self, state: MachineState) -> bool {
        self.machine().is_some_and(|machine| machine.machine() == state)
    }

    fn problems(&self) -> String {
        self.shared.board.heartbeat().problems.join("; ")
    }

    /// As by kill -9.
    async fn kill(self) {
        self.task.abort();
        let _aborted = self.task.await;
    }
}

fn spec(generation: u64, ids: &[InstanceId]) -> v1::HostSpec {
    let subnet =
        v1::SubnetSpecOnHost { subnet_id: "s".into(), ipv4_cidr: "10.0.0.0/24".into(), ..Default::default() };
    let instance = |id: &InstanceId| v1::InstanceSpec {
        instance_id: id.to_string(),
        image_digest: DIGEST.into(),
        volume_gib: 1,
        vpc_id: VPC.to_string(),
        subnet_id: "s".into(),
        ..Default::default()
    };
    v1::HostSpec {
        generation,
        term: 1,
        vpcs: vec![v1::VpcSpecOnHost { vpc_id: VPC.to_string(), subnets: vec![subnet] }],
        instances: ids.iter().map(instance).collect(),
    }
}

struct Host {
    dir: tempfile::TempDir,
    vmm: Arc<FakeVmm>,
    network: Arc<FakeNetwork>,
}

impl Host {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), vmm: Arc::default(), network: Arc::default() }
    }

    async fn agent(&self) -> Agent {
        Agent::start(self.dir.path(), &self.vmm, &self.network).await
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("volumes").join(ID.to_string()).join("data.raw")
    }
}

#[tokio::test]
async fn a_machine_starts_is_restarted_after_its_death_and_goes_with_its_volume() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    host.vmm.fail_starts(1);
    agent.send(1, &[ID]);
    eventually("the failed start is told", || {
        agent
            .machine()
            .is_some_and(|m| m.machine() == MachineState::Failed && m.message.contains("told to fail"))
    })
    .await;
    eventually("it runs", || agent.is(MachineState::Running)).await;
    assert!(host.volume().exists());
    host.vmm.die(ID);
    eventually("its death is told", || agent.is(MachineState::Down)).await;
    eventually("it runs again", || agent.is(MachineState::Running)).await;
    assert_eq!(agent.machine().map(|m| m.machine_starts), Some(2));
    agent.shared.board.full();
    agent.send(2, &[]);
    eventually("it is gone", || {
        agent.shared.board.changes().is_some_and(|report| report.gone == [ID.to_string()])
    })
    .await;
    assert!(!host.volume().exists());
    assert_eq!(host.vmm.living(), 0);
    assert!(agent.shared.ledger.contents().machines.is_empty());
}

/// OMI-1 and HOST-4: the agent is restarted; the machine is adopted, not started twice, not stopped without a spec.
#[tokio::test]
async fn a_restarted_agent_adopts_and_neither_starts_nor_stops_on_its_own() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    agent.send(5, &[ID]);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    agent.kill().await;
    let agent = host.agent().await;
    eventually("it is adopted", || agent.is(MachineState::Running)).await;
    agent.hear();
    agent.send(4, &[]);
    eventually("an older spec is refused", || agent.problems().contains("refused generation 4")).await;
    assert_eq!(host.vmm.living(), 1);
    agent.send(5, &[ID]);
    eventually("the same again is accepted", || agent.problems().is_empty()).await;
    assert_eq!((host.vmm.living(), host.vmm.starts()), (1, 1));
    agent.kill().await;
    host.vmm.die(ID);
    let agent = host.agent().await;
    eventually("it is known to be down", || agent.is(MachineState::Down)).await;
    assert!(agent.machine().is_some_and(|m| m.message.contains("has not confirmed")));
    assert_eq!(host.vmm.starts(), 1, "nothing starts without the coordinator");
    assert!(host.volume().exists(), "HOST-2: no check at start removes a volume");
    agent.send(5, &[ID]);
    eventually("a spec without contact does not start it", || {
        agent.machine().is_some_and(|m| m.message.starts_with("not started"))
    })
    .await;
    agent.hear();
    agent.send(5, &[ID]);
    eventually("with contact it runs", || agent.is(MachineState::Running)).await;
}

/// OMI-2: the ledger is lost while a machine runs.
#[tokio::test]
async fn a_machine_that_no_ledger_knows_is_found_and_stopped_only_by_a_spec() {
    let host = Host::new();
    host.vmm.plant(MachineTag { host: HOST, instance: ID, uuid: MachineUuid::generate() });
    fs::write(host.dir.path().join("ledger.json"), "{ damaged").unwrap();
    let agent = host.agent().await;
    eventually("it is adopted", || agent.is(MachineState::Running)).await;
    host.vmm.set_unkillable(true);
    agent.hear();
    agent.send(1, &[]);
    eventually("it is being stopped", || agent.is(MachineState::Stopping)).await;
    // Its process does not end: whatever else happens, it is not gone.
    assert_eq!(host.vmm.living(), 1);
    host.vmm.set_unkillable(false);
    host.vmm.die(ID);
    eventually("it is gone", || agent.machine().is_none()).await;
}

#[tokio::test]
async fn without_a_port_nothing_starts_and_nothing_running_is_touched() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    host.network.broken.store(true, Ordering::SeqCst);
    agent.send(1, &[ID]);
    eventually("the problem is told", || agent.problems().contains("the cable is cut")).await;
    assert!(agent.machine().is_none_or(|m| m.machine() == MachineState::Preparing));
    host.network.broken.store(false, Ordering::SeqCst);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    host.network.broken.store(true, Ordering::SeqCst);
    let other = InstanceId::from_u128(8);
    agent.send(2, &[ID, other]);
    eventually("the problem is told again", || agent.problems().contains("the cable is cut")).await;
    assert_eq!(host.vmm.living(), 1);
    agent.send(3, &[]);
    eventually("the machine ends", || host.vmm.living() == 0).await;
    assert!(agent.machine().is_some(), "it is not gone while its port may be left");
    host.network.broken.store(false, Ordering::SeqCst);
    eventually("it is gone", || agent.machine().is_none()).await;
}

#[tokio::test]
async fn an_image_that_is_not_here_fails_with_what_is_here() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    let mut wrong = spec(1, &[ID]);
    wrong.instances.iter_mut().for_each(|one| one.image_digest = "00".into());
    agent.send_spec(wrong);
    eventually("it failed", || {
        agent.machine().is_some_and(|m| m.machine() == MachineState::Failed && m.message.contains("e 1 ("))
    })
    .await;
    let machines: BTreeMap<_, _> = agent.shared.ledger.contents().machines;
    assert!(machines.is_empty(), "nothing was started");
}

/// A host that was cut off for long: its machine was given to another host, and then died here.
#[tokio::test]
async fn a_new_session_starts_nothing_that_an_earlier_one_wanted() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    agent.send(1, &[ID]);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    agent.hear();
    host.vmm.die(ID);
    eventually("it is not started", || {
        agent.machine().is_some_and(|m| m.message.contains("has not confirmed"))
    })
    .await;
    assert_eq!(host.vmm.starts(), 1);
    // The new spec takes its time in the kernel, and does not have it any more.
    host.network.stuck.store(true, Ordering::SeqCst);
    agent.send(2, &[InstanceId::from_u128(8)]);
    eventually("its volume goes", || !host.volume().exists()).await;
    assert_eq!(host.vmm.starts(), 1);
    agent.kill().await;
    host.network.stuck.store(false, Ordering::SeqCst);

    // A spec that waited in this agent while the next session opened is of the earlier one.
    let agent = host.agent().await;
    agent.hear();
    let earlier = Received { session: agent.shared.contact.now().session, spec: Arc::new(spec(2, &[ID])) };
    agent.hear();
    agent.specs.send_replace(Some(earlier));
    eventually("it is accepted", || agent.shared.board.accepted() == 2).await;
    assert_eq!(host.vmm.starts(), 1);
    agent.send(3, &[ID]);
    eventually("the session's own spec starts it", || agent.is(MachineState::Running)).await;
}

#[tokio::test]
async fn machines_end_before_the_network_is_made() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    agent.send(1, &[ID]);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    host.network.stuck.store(true, Ordering::SeqCst);
    agent.send(2, &[InstanceId::from_u128(8)]);
    eventually("it ends", || host.vmm.living() == 0).await;
}

#[tokio::test]
async fn another_image_is_for_the_next_start_only() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    agent.send(1, &[ID]);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    let mut other = spec(2, &[ID]);
    other.instances.iter_mut().for_each(|one| one.image_digest = OTHER_DIGEST.into());
    agent.send_spec(other);
    eventually("it is accepted", || agent.shared.board.accepted() == 2).await;
    let image = |name: &str| host.dir.path().join("images").join(name);
    assert_eq!(host.vmm.images(), [image("e-1.erofs")], "what runs is left alone");
    assert!(agent.is(MachineState::Running));
    host.vmm.die(ID);
    eventually("it runs again", || host.vmm.living() == 1).await;
    assert_eq!(host.vmm.images(), [image("e-1.erofs"), image("e-2.erofs")]);
}

/// A supervisor that does not answer its agent may sit on a kernel that answers its power button; if not, it is killed.
#[tokio::test]
async fn a_machine_whose_supervisor_is_silent_is_asked_by_its_power_button_and_killed_if_that_does_not_help()
{
    for (button, kills) in [(Button::HearsPress(1), 0), (Button::None, 1)] {
        let host = Host::new();
        host.vmm.set_power_button(button);
        let agent = host.agent().await;
        agent.hear();
        agent.send(1, &[ID]);
        eventually("it runs", || agent.is(MachineState::Running)).await;
        agent.send(2, &[]);
        eventually("it is gone", || host.vmm.living() == 0).await;
        assert_eq!((host.vmm.presses(), host.vmm.kills()), (1, kills), "{button:?}");
    }
}

/// HOST-5: the kernel killed the machine because memory ran out: that is said, and it is started again.
#[tokio::test]
async fn host_5_a_machine_that_ran_out_of_memory_is_told_as_such_and_repaired() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    agent.send(1, &[ID]);
    eventually("it runs", || agent.is(MachineState::Running)).await;
    host.vmm.run_out_of_memory(OutOfMemory::OfMachine { limit_mib: 192 });
    host.vmm.die(ID);
    eventually("the reason is told", || {
        agent.machine().is_some_and(|m| {
            m.machine() == MachineState::Down
                && m.message.contains("out of memory")
                && m.message.contains("192 MiB")
        })
    })
    .await;
    eventually("it runs again", || agent.is(MachineState::Running)).await;
}

/// OMI-6, without migration: a start that failed, a death, and an end that was asked for are three things to whoever reads reports.
#[tokio::test]
async fn omi_6_how_a_machine_came_to_its_end_is_told_apart() {
    let host = Host::new();
    let agent = host.agent().await;
    agent.hear();
    let seen = || agent.machine().map(|machine| (machine.machine(), machine.message));
    host.vmm.fail_starts(1);
    agent.send(1, &[ID]);
    let failed = |seen: Option<(MachineState, String)>| {
        seen.is_some_and(|(state, text)| state == MachineState::Failed && !text.contains("died"))
    };
    eventually("its start failed", || failed(seen())).await;
    eventually("it runs", || agent.is(MachineState::Running)).await;
    host.vmm.die(ID);
    let died = |seen: Option<(MachineState, String)>| {
        seen.is_some_and(|(state, text)| state == MachineState::Down && text.starts_with("the machine died"))
    };
    eventually("it died", || died(seen())).await;
    eventually("it runs again", || agent.is(MachineState::Running)).await;
    // Until the end that was asked for is over, and proved, it stops; never has it died or failed.
    host.vmm.set_unkillable(true);
    agent.send(2, &[]);
    eventually("it stops", || agent.is(MachineState::Stopping)).await;
    assert_eq!(host.vmm.living(), 1);
    host.vmm.die(ID);
    eventually("it is gone", || {
        agent.shared.board.changes().is_some_and(|report| report.gone == [ID.to_string()])
    })
    .await;
}

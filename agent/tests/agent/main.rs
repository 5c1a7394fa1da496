//! The real agent with real machines, driven by a scripted coordinator over the wire. Needs root and the image.

#![allow(clippy::unwrap_used)]

mod device;
mod fences;
mod host;

use std::{
    fs,
    io::Write as _,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use prost::Message as _;
use shardplane_harness::coordinator::{Coordinator, Session};
use shardplane_proto::{
    ids::{InstanceId, ResourceId},
    v1::{self, EngineState, MachineState},
};

use crate::host::{Host, eventually, valkey};

const ID: InstanceId = id(0);

const fn id(number: usize) -> InstanceId {
    InstanceId::from_u128(0x0193_0000_0000_0000_0000_0000_0000_0001 + number as u128)
}

fn spec(term: u64, generation: u64, digest: &str, instances: usize) -> v1::HostSpec {
    let (vpc, subnet) = (ResourceId::from_u128(11).to_string(), ResourceId::from_u128(12).to_string());
    let engine = v1::ValkeyConfig {
        password: "swordfish".into(),
        port: 6379,
        bus_port: 16379,
        announce_ip: "10.20.0.5".into(),
        node_timeout_ms: 2000,
        ..Default::default()
    };
    let task = v1::ValkeyTask {
        step: Some(v1::valkey_task::Step::AssignSlots(v1::valkey_task::AssignSlots {
            start: 0,
            end: 16383,
            config_epoch: 1,
        })),
    };
    let instance = |number: usize| v1::InstanceSpec {
        instance_id: id(number).to_string(),
        engine: "valkey".into(),
        image_digest: digest.into(),
        vcpus: 1,
        vcpu_share: 100,
        memory_mib: 128,
        iops: 750,
        volume_gib: 1,
        vpc_id: vpc.clone(),
        subnet_id: subnet.clone(),
        mac: format!("02:00:0a:14:00:{:02x}", number + 5),
        ipv4: format!("10.20.0.{}", number + 5),
        hostname: "machine-of-the-test".into(),
        config_generation: 1,
        engine_config: engine.encode_to_vec(),
        tasks: vec![v1::GuestTask { task_id: format!("slots-{generation}"), payload: task.encode_to_vec() }],
        ..Default::default()
    };
    let instances = (0..instances).map(instance).collect();
    let subnet = v1::SubnetSpecOnHost {
        subnet_id: subnet,
        vni: 4242,
        ipv4_cidr: "10.20.0.0/24".into(),
        gateway: "10.20.0.1".into(),
        remotes: Vec::new(),
    };
    v1::HostSpec {
        generation,
        term,
        vpcs: vec![v1::VpcSpecOnHost { vpc_id: vpc, subnets: vec![subnet] }],
        instances,
    }
}

fn machine(report: &v1::HostReport) -> Option<&v1::InstanceReport> {
    report.instances.iter().find(|one| one.instance_id == ID.to_string())
}

fn is(report: &v1::HostReport, state: MachineState) -> bool {
    machine(report).is_some_and(|one| one.machine() == state)
}

fn engine_runs(report: &v1::HostReport) -> bool {
    let guest = machine(report).and_then(|one| one.guest.as_ref());
    guest.is_some_and(|guest| guest.state() == EngineState::Running && !guest.engine_report.is_empty())
}

async fn engine(session: &mut Session) {
    session.report("the engine runs", engine_runs).await;
}

/// Runs a scenario on a host of its own, or says in one line why it cannot.
fn on_a_host(scenario: impl AsyncFnOnce(&mut Host)) {
    if let Some(why) = host::cannot_run() {
        eprintln!("skipped: {why}");
        return;
    }
    let mut host = Host::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(scenario(&mut host));
}

#[test]
fn machines_outlive_the_agent_and_leave_no_trace() {
    on_a_host(scenario);
}

async fn scenario(host: &mut Host) {
    let mut coordinator = Coordinator::start().await;
    host.configure(coordinator.address);
    host.start_agent();
    let (hello, mut session) = coordinator.session().await;
    assert_eq!((hello.name.as_str(), hello.vmm.as_str()), ("host-of-the-test", "namespace"));
    let digest = valkey(&hello);
    assert!(session.report("full", |report| report.full).await.instances.is_empty());

    session.spec(spec(2, 1, &digest, 1)).await;
    session.report("it runs", |report| is(report, MachineState::Running)).await;
    engine(&mut session).await;
    let outcome = session.outcome("slots-1").await;
    assert!(outcome.ok, "{}", outcome.error);
    let machines = host.machines();
    assert_eq!(machines.len(), 1);
    confined(machines[0]);
    let ledger = fs::read_to_string(host.path("state/ledger.json")).unwrap();
    assert!(!ledger.contains("swordfish") && !ledger.contains("c3dvcmRmaXNo"), "no secret on disk");

    host.end_agent(Signal::SIGKILL);
    assert_eq!(host.machines(), machines, "HOST-4: the machine lives on");
    host.start_agent();
    let (again, mut session) = coordinator.session().await;
    assert_eq!((again.host_id, again.accepted_generation), (hello.host_id, 1));
    let report = session.report("full", |report| report.full).await;
    assert_eq!(
        machine(&report).map(|one| (one.machine(), one.machine_starts)),
        Some((MachineState::Running, 1))
    );
    engine(&mut session).await;

    // OMI-2: the agent loses its memory.
    host.end_agent(Signal::SIGKILL);
    fs::write(host.path("state/ledger.json"), "{ half a ledger").unwrap();
    host.start_agent();
    let (forgetful, mut session) = coordinator.session().await;
    assert_eq!(forgetful.accepted_generation, 0);
    let report = session.report("full", |report| report.full).await;
    assert!(
        is(&report, MachineState::Running) && report.problems.iter().any(|text| text.contains("damaged"))
    );
    assert_eq!(host.machines(), machines);

    // HOST-5: the machine dies; the agent notices and starts it again.
    session.spec(spec(2, 1, &digest, 1)).await;
    kill(Pid::from_raw(machines[0]), Signal::SIGKILL).unwrap();
    session.report("it is down", |report| is(report, MachineState::Down)).await;
    let report = session.report("it runs again", |report| is(report, MachineState::Running)).await;
    assert_eq!(machine(&report).map(|one| one.machine_starts), Some(2));
    engine(&mut session).await;

    // SCH-5: an old leader.
    session.spec(spec(1, 9, &digest, 0)).await;
    session.report("refused", |report| report.problems.iter().any(|text| text.contains("old leader"))).await;
    assert_eq!(host.machines().len(), 1);

    session.spec(spec(2, 2, &digest, 0)).await;
    let report = session.report("it is gone", |report| !report.gone.is_empty()).await;
    assert_eq!((report.gone, report.accepted_generation), (vec![ID.to_string()], 2));
    assert!(host.machines().is_empty() && !host.path("state/volumes").join(ID.to_string()).exists());

    session.spec(spec(2, 3, &digest, 2)).await;
    let both =
        |report: &v1::HostReport| report.instances.iter().any(|one| one.instance_id == id(1).to_string());
    session.report("the second", |report| both(report)).await;
    eventually("both run", || host.machines().len() == 2);
    engine(&mut session).await;
    assert_eq!(host.loops("volumes"), 2);
    assert_eq!(host.loops(".erofs"), 1, "an image is attached once");
    host.end_agent(Signal::SIGTERM);
    assert_eq!(host.machines().len(), 2);
    let swept = host.sweep();
    assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
    assert!(host.machines().is_empty());
    eventually("nothing is mounted or attached", || host.traces().is_empty());
    assert!(!host.path("run").exists() && !host.path("state/volumes").exists());
}

#[test]
fn a_machine_that_does_not_stop_in_order_is_killed() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, mut session) = coordinator.session().await;
        let digest = valkey(&hello);
        session.spec(spec(1, 1, &digest, 1)).await;
        engine(&mut session).await;
        kill(Pid::from_raw(host.machines()[0]), Signal::SIGSTOP).unwrap();
        let asked = Instant::now();
        session.spec(spec(1, 2, &digest, 0)).await;
        session.report("stopping", |report| is(report, MachineState::Stopping)).await;
        session.report("gone", |report| report.gone == [ID.to_string()]).await;
        assert!(asked.elapsed() > Duration::from_secs(10), "it had its time");
        assert!(host.machines().is_empty());
    });
}

/// OMI-1, HOST-12: an agent that is killed at any moment of a start never makes two machines of one instance.
#[test]
fn a_kill_at_any_moment_of_a_start_leaves_one_machine_at_most() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        for round in 0..12u64 {
            host.start_agent();
            let (hello, session) = coordinator.session().await;
            let digest = valkey(&hello);
            session.spec(spec(1, 2 * round + 1, &digest, 1)).await;
            tokio::time::sleep(Duration::from_millis(round * 15)).await;
            host.end_agent(Signal::SIGKILL);

            host.start_agent();
            let (_, mut session) = coordinator.session().await;
            session.report("full", |report| report.full).await;
            session.spec(spec(1, 2 * round + 1, &digest, 1)).await;
            engine(&mut session).await;
            assert_eq!(host.machines().len(), 1, "killed after {} ms", round * 15);
            session.spec(spec(1, 2 * round + 2, &digest, 0)).await;
            session.report("gone", |report| report.gone == [ID.to_string()]).await;
            assert!(host.machines().is_empty());
            host.end_agent(Signal::SIGKILL);
        }
    });
}

/// OMI-1: every machine is adopted, by the process it was, before anything is obeyed.
#[test]
fn many_machines_are_adopted_and_go_together() {
    const MANY: usize = 12;
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, session) = coordinator.session().await;
        let digest = valkey(&hello);
        session.spec(spec(1, 1, &digest, MANY)).await;
        eventually("all run", || host.machines().len() == MANY);
        let machines = host.machines();
        assert_eq!((host.loops("volumes"), host.loops(".erofs")), (MANY, 1));
        host.end_agent(Signal::SIGKILL);
        host.start_agent();
        let (_, mut session) = coordinator.session().await;
        let report = session.report("full", |report| report.full).await;
        let running = report.instances.iter().filter(|one| one.machine() == MachineState::Running).count();
        assert_eq!((running, host.machines()), (MANY, machines));
        session.spec(spec(1, 2, &digest, 0)).await;
        let mut gone = 0;
        while gone < MANY {
            gone += session.report("gone", |report| !report.gone.is_empty()).await.gone.len();
        }
        assert!(host.machines().is_empty());
        eventually("nothing is mounted or attached", || {
            host.traces().iter().all(|line| line.contains("/netns/"))
        });
    });
}

#[test]
fn a_full_disk_is_told_and_kills_nothing() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.limit_state("size=96m");
        host.start_agent();
        let (hello, mut session) = coordinator.session().await;
        let digest = valkey(&hello);
        session.spec(spec(1, 1, &digest, 1)).await;
        engine(&mut session).await;
        let machines = host.machines();
        // Page by page until nothing fits.
        let mut filler = fs::File::create(host.path("state/filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        session.spec(spec(1, 2, &digest, 0)).await;
        let report = session.report("the problem", |report| !report.problems.is_empty()).await;
        assert!(report.problems.iter().any(|text| text.contains("cannot write the ledger")), "{report:?}");
        assert_eq!(
            (report.accepted_generation, host.machines()),
            (1, machines),
            "not accepted, so not acted upon"
        );
        drop(filler);
        fs::remove_file(host.path("state/filler")).unwrap();
        session.report("carried out when there is room", |report| report.gone == [ID.to_string()]).await;
    });
}

#[test]
fn an_agent_follows_the_leader_and_notices_a_dead_peer() {
    on_a_host(async |host| {
        let mut leader = Coordinator::start().await;
        let follower = Coordinator::follower_of(leader.address).await;
        host.configure(follower.address);
        host.start_agent();
        let (_, mut session) = leader.session().await;
        session.report("full", |report| report.full).await;
        // As when its host loses power: nobody closes the connection.
        let cut = Instant::now();
        Host::ip("link set lo down");
        eventually("the agent notices", || host.log().contains("session ended"));
        assert!(cut.elapsed() < Duration::from_secs(6), "after {:?}", cut.elapsed());
        Host::ip("link set lo up");
        leader.session().await;
    });
}

/// A host that was away for long, as in a suspension: its machine died, and another host has the instance now. Neither the
/// heartbeats that waited for the agent nor the next welcome make it start the machine of the old spec.
#[test]
fn a_host_that_comes_back_waits_for_the_new_spec() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, mut session) = coordinator.session().await;
        let digest = valkey(&hello);
        let lost_after = Duration::from_secs(3);
        let lost_after_ms = u64::try_from(lost_after.as_millis()).unwrap();
        session.say(v1::to_host::Body::Welcome(v1::Welcome { term: 1, lost_after_ms })).await;
        session.spec(spec(1, 1, &digest, 1)).await;
        engine(&mut session).await;
        host.signal_agent(Signal::SIGSTOP);
        kill(Pid::from_raw(host.machines()[0]), Signal::SIGKILL).unwrap();
        // The pause itself is what is tested.
        tokio::time::sleep(lost_after * 2).await;
        host.signal_agent(Signal::SIGCONT);
        let (_, mut session) = coordinator.session().await;
        let waits = |report: &v1::HostReport| {
            machine(report).is_some_and(|one| one.message.contains("has not confirmed"))
        };
        let report = session.report("it waits", waits).await;
        assert_eq!(machine(&report).map(|one| one.machine_starts), Some(1));
        session.spec(spec(1, 2, &digest, 0)).await;
        session.report("gone", |report| report.gone == [ID.to_string()]).await;
        let started =
            session.reports.iter().any(|report| machine(report).is_some_and(|one| one.machine_starts > 1));
        assert!(!started && host.machines().is_empty());
    });
}

/// What PID 1 of a machine may do and sees, from outside.
fn confined(pid: i32) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap().trim();
    let bounding = u64::from_str_radix(bounding, 16).unwrap();
    for forbidden in
        [16 /* SYS_MODULE */, 19 /* SYS_PTRACE */, 21 /* SYS_ADMIN */, 27 /* MKNOD */]
    {
        assert_eq!(bounding >> forbidden & 1, 0, "capability {forbidden}");
    }
    assert!(status.lines().any(|line| line == "NoNewPrivs:\t1"));
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    assert_eq!(environment.iter().filter(|byte| **byte == 0).count(), 1, "only the tag");
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let at = |point: &str| {
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(point));
        line.unwrap_or_else(|| panic!("{point} is not mounted:\n{mounts}")).to_owned()
    };
    for read_only in ["/", "/sys", "/proc/sys", "/dev", "/run/shardplane"] {
        assert!(at(read_only).split(' ').nth(5).unwrap().starts_with("ro"), "{read_only}");
    }
    assert!(at("/data").contains("ext4") && at("/data").split(' ').nth(5).unwrap().starts_with("rw"));
    assert!(!mounts.contains(" /oldroot"));
    let root = fs::metadata(format!("/proc/{pid}/root/data")).unwrap();
    assert!(root.is_dir());
}

//! What a machine is from its start to its end, and that agents come and go while it runs.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_proto::v1::MachineState;
use shardplane_vm_tests::{
    eventually,
    host::{Host, Traces},
    promptly,
};

use crate::scene::{VPC, id, instance, is, of, play, spec};

#[test]
fn a_machine_is_a_process_that_may_do_nothing_else_and_goes_without_a_trace() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![])).await;
        // Its own loopback, the bridge and the tunnel. How many files the agent has open is for the test of leaks.
        eventually("the VPC is there", || stage.host.traces(&VPC.to_string()).interfaces == 3);
        let traces = |host: &Host| Traces { files: 0, ..host.traces(&VPC.to_string()) };
        let before = traces(&stage.host);
        stage.session.spec(spec(2, vec![instance(0, "idle")])).await;
        let report = stage.runs(0).await;
        assert_eq!(of(&report, 0).unwrap().machine_starts, 1);
        let vm = stage.host.vm(id(0)).unwrap();
        assert!(stage.host.uids().contains(&vm.uid()), "a user of its own: {}", vm.uid());
        for (key, expected) in [
            ("CapEff", "0000000000000000"),
            ("CapPrm", "0000000000000000"),
            ("CapBnd", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Groups", ""),
        ] {
            assert_eq!(vm.status(key), expected, "{key}");
        }
        for thread in ["vmm", "vcpu0", "http-server"] {
            assert_eq!(vm.seccomp(thread).as_deref(), Some("2"), "the thread {thread} is filtered");
        }
        assert_eq!(vm.session(), Some(vm.pid), "a session of its own");
        let netns = stage.host.path(&format!("run/netns/vpc-{VPC}"));
        let inode = fs::metadata(netns).unwrap().ino();
        assert_eq!(vm.link("ns/net").display().to_string(), format!("net:[{inode}]"));
        let dir = stage.host.path(&format!("run/machines/{}/vm", id(0)));
        assert_eq!(vm.link("cwd"), dir);
        let meta = fs::metadata(&dir).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (vm.uid(), 0o700));
        let socket = fs::metadata(dir.join("vsock_1024")).unwrap();
        assert_eq!((socket.uid(), socket.mode() & 0o777), (vm.uid(), 0o600), "its guest reaches the agent");
        let volume = fs::metadata(stage.host.path(&format!("state/volumes/{}/data.raw", id(0)))).unwrap();
        assert_eq!((volume.uid(), volume.mode() & 0o777), (vm.uid(), 0o600));
        let devices = fs::read_dir(format!("/proc/{}/root/dev", vm.pid)).unwrap();
        let mut devices: Vec<_> =
            devices.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        devices.sort();
        assert_eq!(devices, ["kvm", "null", "urandom"]);

        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", vm.pid)).unwrap();
        for (name, expected) in [("root", "ro"), ("kernel", "ro"), ("initramfs", "ro"), ("data", "rw")] {
            let at = dir.join(name).display().to_string();
            let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let options = fields.find(|fields| fields[4] == at).unwrap()[5].to_owned();
            assert_eq!(options.split(',').next(), Some(expected), "{name}");
        }

        let info = vm.info().unwrap();
        assert_eq!(info["state"], "Running");
        let config = &info["config"];
        let cmdline = config["payload"]["cmdline"].as_str().unwrap();
        assert!(cmdline.ends_with(" shardplane.hostname=idle words.of=kernel"), "{cmdline}");
        assert_eq!(config["cpus"]["boot_vcpus"], 2);
        assert_eq!(config["memory"]["size"], 64 << 20);
        assert_eq!(config["disks"][1]["rate_limiter_config"]["ops"]["size"], 750);
        assert_eq!(config["net"].as_array().unwrap().len(), 1);
        assert_eq!(config["net"][0]["mac"], "02:00:0a:14:00:05");
        assert_eq!(config["landlock_enable"], true);
        eventually("its console is kept", || stage.host.console(id(0)).contains("guest up: idle"));

        stage.session.spec(spec(3, vec![])).await;
        stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        eventually("nothing is left", || traces(&stage.host) == before);
        let swept = stage.host.agent_command(&["sweep", "--purge"]);
        assert!(!swept.status.success(), "not while the agent runs");
    });
}

#[test]
fn twenty_machines_at_once() {
    play(async |stage| {
        let all = || (0..20).map(|number| instance(number, "idle")).collect();
        stage.session.spec(spec(1, all())).await;
        stage.all_run(20).await;
        let vms = stage.host.vms();
        assert_eq!(vms.len(), 20);
        let uids: std::collections::BTreeSet<u32> = vms.iter().map(|vm| vm.uid()).collect();
        assert_eq!(uids.len(), 20, "no two share a user");
        let status = fs::read_to_string(format!("/proc/{}/status", stage.host.agent_pid())).unwrap();
        let memory = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        println!(
            "measured: agent with 20 virtual machines: {}",
            memory.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
        );
    });
}

/// HOST-8: an instance that goes and comes back at once finds the tap of its last machine free, whatever the kernel still closes.
#[test]
fn host_8_a_machine_that_is_deleted_and_made_anew_at_once_has_its_tap() {
    play(async |stage| {
        for round in 0..10 {
            stage.session.spec(spec(2 * round + 1, vec![instance(0, "idle")])).await;
            stage.runs(0).await;
            let vm = stage.host.vm(id(0)).unwrap();
            // The quickest end there is.
            kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
            stage.session.spec(spec(2 * round + 2, vec![])).await;
            stage.session.spec(spec(2 * round + 3, vec![instance(0, "idle")])).await;
        }
        stage.runs(0).await;
        assert_eq!(stage.host.vms().len(), 1);
        let log = stage.host.log();
        assert!(!log.contains("did not start"), "no start failed on the way: {log}");
    });
}

#[test]
fn a_machine_outlives_its_agent_and_is_adopted() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        let written = stage.host.console(id(0));
        for _ in 0..2 {
            let hello = stage.restart_agent().await;
            assert_eq!(hello.vmm, "cloud-hypervisor");
            stage.runs(0).await;
            assert_eq!(stage.host.vms(), [vm], "the same process and no other");
        }
        // It knows its death at once, also as a foster child.
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
        stage.session.report("it died", |report| is(report, 0, MachineState::Down, "the machine died")).await;
        let report = stage.runs(0).await;
        assert_eq!(of(&report, 0).unwrap().machine_starts, 2);
        eventually("the console goes on", || stage.host.console(id(0)).len() > written.len());

        // Dead while nobody watched: it is known, and started again when the coordinator wants it.
        let vm = stage.host.vm(id(0)).unwrap();
        stage.host.kill_agent();
        kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
        stage.host.start_agent();
        let (_, session) = stage.coordinator.session().await;
        stage.session = session;
        stage.session.report("it is down", |report| is(report, 0, MachineState::Down, "")).await;
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        assert_eq!(stage.host.vms().len(), 1);

        // An operator clears the host.
        stage.host.kill_agent();
        let swept = stage.host.sweep();
        assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
        assert!(stage.host.tagged().is_empty());
        assert!(!stage.host.path("run").exists(), "nothing of it is left");
    });
}

/// Wherever in a start the agent is killed, the next one ends up with exactly one machine that runs.
#[test]
fn an_agent_killed_in_any_phase_of_a_start_leaves_one_machine_or_none() {
    play(async |stage| {
        let mut seen = std::collections::BTreeSet::new();
        for (generation, delay_ms) in (1..).zip([0, 2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100]) {
            stage.session.spec(spec(2 * generation, vec![instance(0, "idle")])).await;
            // From the moment on at which something of the start can be seen.
            promptly("its volume is there", || {
                stage.host.path(&format!("state/volumes/{}/data.raw", id(0))).exists()
            });
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            stage.host.kill_agent();
            let left: Vec<bool> = stage.host.tagged().iter().map(|(_, is_vmm)| *is_vmm).collect();
            seen.insert(left.clone());
            stage.restart_agent().await;
            stage.session.spec(spec(2 * generation, vec![instance(0, "idle")])).await;
            stage.runs(0).await;
            let vms = stage.host.vms();
            assert_eq!(vms.len(), 1, "killed {delay_ms} ms after the volume was there, leaving {left:?}");
            assert_eq!(stage.host.tagged().len(), 1);
            assert_eq!(vms[0].info().unwrap()["state"], "Running");
            stage.session.spec(spec(2 * generation + 1, vec![])).await;
            stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        }
        println!("measured: one at a time: {}", stage.host.timeline());
        println!("measured: left by killed agents: {seen:?}");
    });
}

/// A stop takes seconds when the guest does not listen; the agent's death in it changes nothing.
#[test]
fn an_agent_killed_while_a_machine_stops_stops_it_in_its_next_life() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        stage.session.spec(spec(2, vec![])).await;
        stage.session.report("it stops", |report| is(report, 0, MachineState::Stopping, "")).await;
        stage.restart_agent().await;
        assert_eq!(stage.host.vms().len(), 1, "adopted, as it was not yet stopped");
        stage.session.spec(spec(2, vec![])).await;
        stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        assert!(stage.host.tagged().is_empty());
    });
}

//! Machines that die, by whatever hand: it is noticed, said and repaired, and what a dead one left is in nobody's way.

use std::time::{Duration, Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_proto::v1::MachineState;
use shardplane_vm_tests::eventually;

use crate::scene::{id, instance, is, of, play, spec};

/// A killed VMM leaves its sockets; the next one makes its own.
#[test]
fn stale_sockets_of_a_killed_machine_are_in_nobodys_way() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        let killed = Instant::now();
        kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
        for name in ["api", "vsock", "serial"] {
            let left = stage.host.path(&format!("run/machines/{}/vm/{name}", id(0)));
            assert!(left.exists(), "{name} is left by a kill, or this test shows nothing");
        }
        stage.session.report("its death is told", |report| is(report, 0, MachineState::Down, "died")).await;
        println!("measured: a killed machine is told after {} ms", killed.elapsed().as_millis());
        let report = stage.runs(0).await;
        assert_eq!(of(&report, 0).unwrap().machine_starts, 2);
        let next = stage.host.vm(id(0)).unwrap();
        assert_ne!(next.pid, vm.pid);
        let disks = next.info().unwrap()["config"]["disks"].as_array().unwrap().len();
        assert_eq!(disks, 2);
    });
}

/// A machine may be killed before it has a socket, while it is being told what it is, or just after its boot.
#[test]
fn a_machine_killed_in_any_phase_of_its_start_is_started_again() {
    play(async |stage| {
        for (generation, delay_ms) in (1..).zip([0, 1, 2, 4, 8, 16, 32, 64]) {
            stage.session.spec(spec(2 * generation, vec![instance(0, "idle")])).await;
            let deadline = Instant::now() + Duration::from_secs(60);
            let victim = loop {
                if let Some((first, _)) = stage.host.tagged().into_iter().next() {
                    break first;
                }
                assert!(Instant::now() < deadline, "nothing was started");
            };
            std::thread::sleep(Duration::from_millis(delay_ms));
            let _gone_already = kill(Pid::from_raw(victim.pid), Signal::SIGKILL);
            eventually("the victim is dead", || stage.host.vms().iter().all(|vm| vm.pid != victim.pid));
            eventually("another one runs", || {
                let vm = stage.host.vm(id(0));
                vm.and_then(|vm| vm.info()).is_some_and(|info| info["state"] == "Running")
            });
            stage.runs(0).await;
            assert_eq!(stage.host.tagged().len(), 1, "{delay_ms} ms");
            stage.session.spec(spec(2 * generation + 1, vec![])).await;
            stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        }
    });
}

/// A crash of a vCPU ends the VMM with code 0, as a guest that powers itself off does: neither was asked for.
#[test]
fn an_end_that_nobody_asked_for_is_a_death_whatever_its_exit_code() {
    for (hostname, words) in [("crash", "guest up: crash"), ("off", "guest up: off")] {
        play(async |stage| {
            stage.session.spec(spec(1, vec![instance(0, hostname)])).await;
            stage
                .session
                .report("its death is told with its last words", |report| {
                    is(report, 0, MachineState::Down, "the machine died")
                        && is(report, 0, MachineState::Down, words)
                })
                .await;
            let again = |report: &_| of(report, 0).is_some_and(|one| one.machine_starts >= 2);
            stage.session.report("it is started again", again).await;
        });
    }
}

/// HOST-14: a guest that restarts keeps its process, its UUID, its address and its disks, and what it wrote before; nobody starts it anew.
#[test]
fn host_14_a_guest_that_restarts_is_the_same_machine() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "triple")])).await;
        let report = stage.runs(0).await;
        assert_eq!(of(&report, 0).unwrap().machine_starts, 1);
        let vm = stage.host.vm(id(0)).unwrap();
        let config = || vm.info().map(|info| info["config"].clone());
        let first = config().unwrap();
        assert_eq!(first["net"][0]["mac"], "02:00:0a:14:00:05");
        assert_eq!(first["disks"].as_array().unwrap().len(), 2);
        let written = stage.host.console(id(0)).matches("guest up").count();
        eventually("it restarted twice", || {
            stage.host.console(id(0)).matches("guest up").count() > written + 1
        });
        assert_eq!(stage.host.vms(), [vm]);
        let same = |config: &serde_json::Value, pointer: &str| {
            assert_eq!(config.pointer(pointer), first.pointer(pointer), "{pointer}");
        };
        let now = config().unwrap();
        for pointer in ["/platform", "/net/0/mac", "/net/0/id", "/disks", "/vsock", "/memory/size"] {
            same(&now, pointer);
        }
        // The agent has seen no death, also when it is asked from the start.
        stage.restart_agent().await;
        stage.session.spec(spec(1, vec![instance(0, "triple")])).await;
        let report = stage.runs(0).await;
        assert_eq!((of(&report, 0).unwrap().machine_starts, report.accepted_generation), (1, 1));
        assert_eq!(stage.host.vms(), [vm]);
    });
}

/// HOST-7: a machine that somebody has paused goes on and is asked; this guest never hears its button, so that it is killed when its time is over.
#[test]
fn host_7_a_paused_machine_is_stopped() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        assert!(vm.tell("vm.pause"));
        assert_eq!(vm.info().unwrap()["state"], "Paused");
        stage.session.spec(spec(2, vec![])).await;
        stage.session.report("it stops", |report| is(report, 0, MachineState::Stopping, "")).await;
        eventually("it goes on, or it could hear nothing", || {
            vm.info().is_none_or(|info| info["state"] == "Running")
        });
        stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        assert!(stage.host.tagged().is_empty());
        let log = stage.host.log();
        assert!(log.contains("it did not stop in order and is killed"), "{log}");
        assert!(!log.contains("power button had no answer"), "the VMM took every press");
    });
}

/// HOST-7: a VMM that does not answer at all, as one that hangs in the kernel: its button's deadline ends, and it is killed.
#[test]
fn host_7_a_vmm_that_gives_no_answer_is_killed() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        kill(Pid::from_raw(vm.pid), Signal::SIGSTOP).unwrap();
        stage.session.spec(spec(2, vec![])).await;
        stage.session.report("it is gone", |report| report.gone == [id(0).to_string()]).await;
        assert!(stage.host.tagged().is_empty());
    });
}

/// A guest that writes without end fills neither the host's memory nor its disk.
#[test]
fn a_chatty_guest_has_a_short_console() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "chatty")])).await;
        stage.runs(0).await;
        let mut longest = 0;
        let mut last = 0;
        eventually("its console was cut", || {
            let length = stage.host.console(id(0)).len();
            longest = longest.max(length);
            let cut = length < last;
            last = length;
            cut
        });
        assert!(longest < 300 << 10, "{longest}");
    });
}

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

/// HOST-14: a guest that restarts keeps its process, its address and its disks, and what it wrote before.
#[test]
fn a_guest_that_restarts_is_the_same_machine() {
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "triple")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        eventually("it restarted twice", || stage.host.console(id(0)).matches("guest up").count() > 2);
        assert_eq!(stage.host.vms(), [vm]);
        let config = vm.info().unwrap()["config"].clone();
        assert_eq!(config["net"][0]["mac"], "02:00:0a:14:00:05");
        assert_eq!(config["disks"].as_array().unwrap().len(), 2);
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

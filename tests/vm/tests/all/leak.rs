//! A hundred machines come and go, half of them killed, and nothing of them stays.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_vm_tests::eventually;

use crate::scene::{VPC, id, instance, play, spec};

const ROUNDS: u64 = 10;
const AT_ONCE: usize = 10;

#[test]
fn a_hundred_machines_that_come_and_go_leave_nothing() {
    play(async |stage| {
        let vpc = VPC.to_string();
        stage.session.spec(spec(1, vec![])).await;
        eventually("the VPC is there", || stage.host.traces(&vpc).interfaces == 3);
        let mut before = None;
        for round in 1..=ROUNDS {
            let all = (0..AT_ONCE).map(|number| instance(number, "idle")).collect();
            stage.session.spec(spec(2 * round, all)).await;
            stage.all_run(AT_ONCE).await;
            let vms = stage.host.vms();
            assert_eq!(vms.len(), AT_ONCE);
            stage.session.spec(spec(2 * round + 1, vec![])).await;
            if round % 2 == 0 {
                // Dead before it could be asked: the other way to go.
                for vm in vms {
                    let _gone = kill(Pid::from_raw(vm.pid), Signal::SIGKILL);
                }
            }
            let mut left: Vec<String> = (0..AT_ONCE).map(|number| id(number).to_string()).collect();
            while !left.is_empty() {
                let report = stage.session.report("some are gone", |report| !report.gone.is_empty()).await;
                left.retain(|one| !report.gone.contains(one));
            }
            // What the agent keeps open from its first machines on, such as its runtime's own, is no leak.
            let settled = before.get_or_insert_with(|| stage.host.traces(&vpc));
            eventually("nothing is left", || {
                let now = stage.host.traces(&vpc);
                now.files <= settled.files
                    && (now.processes, now.folders, now.uids, now.volumes) == (0, 0, 0, 0)
                    && (now.interfaces, now.cgroups, now.mounts)
                        == (settled.interfaces, settled.cgroups, settled.mounts)
            });
        }
        println!("measured: ten at once: {}", stage.host.timeline());
        println!(
            "measured: left after {} machines: {:?}",
            ROUNDS as usize * AT_ONCE,
            stage.host.traces(&vpc)
        );
    });
}

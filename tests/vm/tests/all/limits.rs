//! What a machine may use: memory from the host's huge pages, and groups where cgroup v2 has the controllers.

use std::{fs, path::Path};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_proto::v1::MachineState;
use shardplane_vm_tests::{cannot_run, eventually};

use crate::scene::{id, instance, is, play, play_on, spec};

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
/// Of a machine with 64 MiB.
const OF_ONE: u64 = 32;

fn pages(name: &str) -> u64 {
    fs::read_to_string(Path::new(PAGES).join(name)).unwrap_or_default().trim().parse().unwrap_or(0)
}

/// Pages that are set aside for this test, besides those that were there; given back when it is dropped.
struct Pages {
    before: u64,
    /// Whoever else wants to do so has to wait: the number is the whole host's.
    _turn: Flock<fs::File>,
}

impl Pages {
    fn add(more: u64) -> Option<Self> {
        let file = fs::File::create("/run/lock/shardplane-hugepages").ok()?;
        let turn = Flock::lock(file, FlockArg::LockExclusive).ok()?;
        let before = pages("nr_hugepages");
        let set = Self { before, _turn: turn };
        fs::write(Path::new(PAGES).join("nr_hugepages"), (before + more).to_string()).ok()?;
        (pages("nr_hugepages") == before + more).then_some(set)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _given_back = fs::write(Path::new(PAGES).join("nr_hugepages"), self.before.to_string());
    }
}

/// UBI-6: the pages of a machine that is dead are free for the next one, and for the host when it is removed.
#[test]
fn ubi_6_huge_pages_of_a_dead_machine_are_free_for_the_next() {
    if cannot_run().is_some() {
        return play(async |_| {});
    }
    let Some(set_aside) = Pages::add(OF_ONE) else {
        println!("skipped: machines on huge pages: this host cannot set {OF_ONE} of them aside");
        return;
    };
    let free_before = pages("free_hugepages");
    // One machine of this size, and not a page more.
    assert!(free_before >= OF_ONE);
    play_on(
        |host| host.set_of_vmm("hugepages = true".into()),
        async |stage| {
            stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
            stage.runs(0).await;
            let vm = stage.host.vm(id(0)).unwrap();
            assert_eq!(vm.info().unwrap()["config"]["memory"]["hugepages"], true);
            let taken = || {
                let (free, reserved) = (pages("free_hugepages"), pages("resv_hugepages"));
                free_before.saturating_sub(free.saturating_sub(reserved))
            };
            assert_eq!(taken(), OF_ONE, "its memory is on them");
            // Its start again finds the pages of the one that died.
            kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
            stage.session.report("it died", |report| is(report, 0, MachineState::Down, "died")).await;
            stage.runs(0).await;
            assert_eq!(taken(), OF_ONE);
            // So does another instance of the same size, when this one is dead and removed.
            let vm = stage.host.vm(id(0)).unwrap();
            kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
            stage.session.spec(spec(2, vec![instance(1, "idle")])).await;
            stage.runs(1).await;
            assert_eq!((taken(), stage.host.vms().len()), (OF_ONE, 1));
            // A second one has to wait, and is told why.
            stage.session.spec(spec(3, vec![instance(1, "idle"), instance(2, "idle")])).await;
            stage
                .session
                .report("no page is left", |report| is(report, 2, MachineState::Failed, "vm.boot"))
                .await;
            stage.session.spec(spec(4, vec![])).await;
            eventually("all pages are free", || taken() == 0);
        },
    );
    drop(set_aside);
}

/// The folder of the v2 hierarchy, when it has what limits machines.
fn hierarchy() -> Option<&'static Path> {
    let roots = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")];
    let has = |root: &&Path| {
        let text = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        ["cpu", "memory"].iter().all(|name| text.split_ascii_whitespace().any(|one| one == *name))
    };
    roots.into_iter().find(has)
}

/// HOST-5: the kernel kills the VMM because its group has no memory left: noticed at once, told as such, repaired.
#[test]
fn host_5_a_machine_that_the_kernel_kills_for_want_of_memory_is_told_as_such_and_repaired() {
    let Some(root) = hierarchy() else {
        println!("skipped: limits of machines: cgroup v2 has not both cpu and memory here");
        return;
    };
    play(async |stage| {
        stage.session.spec(spec(1, vec![instance(0, "idle")])).await;
        stage.runs(0).await;
        let vm = stage.host.vm(id(0)).unwrap();
        let group = root.join(vm.cgroup().trim_start_matches('/'));
        let read = |name: &str| fs::read_to_string(group.join(name)).unwrap().trim().to_owned();
        assert_eq!(read("cpu.max"), "100000 100000", "two vCPUs of which each has half");
        assert_eq!(read("memory.max"), ((64 + 129) << 20).to_string(), "its memory and what the VMM needs");
        fs::write(group.join("memory.max"), "1M").unwrap();
        stage
            .session
            .report("the reason is told", |report| is(report, 0, MachineState::Down, "out of memory"))
            .await;
        stage.runs(0).await;
        assert_eq!(read("memory.max"), ((64 + 129) << 20).to_string(), "a group of its own again");
        // Another death is not blamed on memory.
        let vm = stage.host.vm(id(0)).unwrap();
        kill(Pid::from_raw(vm.pid), Signal::SIGKILL).unwrap();
        let report = stage
            .session
            .report("it died", |report| is(report, 0, MachineState::Down, "the machine died"))
            .await;
        assert!(!is(&report, 0, MachineState::Down, "out of memory"));
    });
}

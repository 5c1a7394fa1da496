//! Boots the emulated host once for each story and reads its verdict off the console.
//!
//! In: what `images/build` makes, qemu-system-x86_64 and a cloud-hypervisor binary (on PATH, or named by `CLOUD_HYPERVISOR`). Out: the
//! stories' own verdicts and figures. Needs root, as images/build does. What is built for it stays in `target/nested`.

#![allow(clippy::unwrap_used)]

mod host;

use host::{Host, cannot_run};

/// Boots a host that tells a story; nothing of it is left behind.
fn tell(story: &str, memory_mib: u32) -> Option<String> {
    if let Err(why) = cannot_run() {
        println!("skipped: {story}: {why}");
        return None;
    }
    let said = Host::build().tell(story, memory_mib);
    for line in said.lines().filter(|line| line.starts_with("measured: ") || line.starts_with("nested: ")) {
        println!("{line}");
    }
    assert!(said.contains("nested: all is well"), "{said}");
    assert!(said.contains("nested: nothing is left"), "{said}");
    Some(said)
}

/// What only the host's end of a guest's link, its VMM and its console show: standing still, a kernel's panic, the power button, the end.
#[test]
fn a_virtual_machine_serves_notices_that_it_stood_still_and_turns_itself_off() {
    tell("machine", 1024);
}

/// Coordinator, agents and virtual machines together: two that replicate, their limits, and the deaths of an agent, a VMM and a host.
#[test]
fn a_cluster_of_virtual_machines_survives_its_agent_its_vmm_and_its_host() {
    tell("stack", 3072);
}

/// A guest that does nothing but read and write gets the IOPS of its offer, within a tenth.
#[test]
fn a_volume_has_the_iops_of_its_offer() {
    tell("iops", 2048);
}

/// `deploy/demo --vmm cloud-hypervisor`, whole.
#[test]
fn the_demo_runs_with_virtual_machines() {
    let Some(said) = tell("demo", 6144) else { return };
    assert!(said.contains("repaired, "), "{said}");
    assert!(
        said.lines().any(|line| line.trim_start().starts_with("deploy/demo --down")),
        "its last line: {said}"
    );
}

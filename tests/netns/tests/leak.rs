//! A hundred machines come and go, and nothing stays. One test alone in its process: it counts the process's own files.

use std::{collections::BTreeMap, fs};

use anyhow::Result;
use shardplane_netns::{
    Host, Lab, able,
    machine::Guest,
    sh,
    spec::{Vpc, network},
    wait_for,
};

/// What is there, by its kind.
type Count = BTreeMap<&'static str, usize>;

fn count(host: &Host, vpc: &Vpc) -> Result<Count> {
    let have = host.inventory()?;
    let at = host.open(&format!("vpc-{}", vpc.vpc))?;
    let netns = host.run_dir.path().join("netns");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(Count::from([
        ("files", fs::read_dir("/proc/self/fd")?.count()),
        ("threads", fs::read_dir("/proc/self/task")?.count()),
        ("mounts", mounts.lines().filter(|line| line.contains(netns.to_str().unwrap_or_default())).count()),
        ("namespaces", fs::read_dir(&netns)?.count()),
        ("links", have.links()),
        ("host links", sh(&host.namespace, "ip -o link")?.lines().count()),
        ("forwarding", sh(&at, "bridge fdb")?.lines().count() + sh(&at, "ip neigh")?.lines().count()),
    ]))
}

/// The kinds of which there is more than before. Less is no leak: a thread of the set-up may still have been ending when it was counted.
fn more(before: &Count, now: &Count) -> Count {
    now.iter()
        .filter(|(kind, count)| **count > before.get(**kind).copied().unwrap_or(0))
        .map(|(kind, count)| (*kind, *count))
        .collect()
}

#[test]
fn a_hundred_machines_that_come_and_go_leave_nothing() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(2)?;
    let host = &lab.hosts[0];
    let mut vpc = Vpc::new(400, &[0, 1]);
    host.ensure(&network(0, &[&vpc]))?;
    let before = count(host, &vpc)?;
    for cycle in 0..100 {
        let stays = vpc.clone();
        vpc.add(0);
        // Every other one only as a machine elsewhere.
        if cycle % 2 == 1 {
            vpc.add(1);
        }
        host.ensure(&network(0, &[&vpc]))?;
        if cycle % 10 == 0 {
            drop(Guest::boot(host, &vpc.machines[2])?);
        }
        vpc = stays;
        host.ensure(&network(0, &[&vpc]))?;
    }
    // Threads of finished jobs and sockets of a dropped connection end a moment later.
    let gone = wait_for("the last threads to end", || {
        Ok(more(&before, &count(host, &vpc)?).is_empty().then_some(()))
    });
    assert!(gone.is_ok(), "more than before, {before:?}: {:?}", more(&before, &count(host, &vpc)?));
    host.sweep_all()?;
    assert!(host.inventory()?.is_empty());
    Ok(())
}

//! Work on hosts and fewer replicas, under a client that writes: nothing that it was promised is lost.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use shardplane_e2e::{Cluster, Instance, Shape, lib_dir, measured, on_stage, process};
use shardplane_harness::{WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{host_id, nothing_lost, order, writer},
};

#[test]
fn omi_7_a_host_is_emptied_under_a_writer_and_used_again() {
    on_stage(WorldOptions::named("drain"), |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        let all = cluster.instances()?;
        // The host of a primary with the most instances: all three phases of a move happen there.
        let count = |i: &&Instance| all.iter().filter(|other| other.host == i.host).count();
        let primary = all.iter().filter(|i| i.primary()).max_by_key(count).context("no primary")?;
        let there: Vec<Instance> = all.iter().filter(|i| i.host == primary.host).cloned().collect();
        let writer = writer(&cluster, "drain", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let host = host_id(&cluster.api, primary.host)?;
        order(&cluster.api, &host, "drain", &json!({"reason": "new disks"}))?;
        let drained = || {
            let reply = cluster.api.get(&format!("/api/v1/hosts/{host}/drain"));
            let reply = reply.map_err(|error| format!("{error:#}"))?;
            if reply.body["phase"] == "drained" { Ok(()) } else { Err(reply.body.to_string()) }
        };
        let ((), took) = wait_until("the host being drained", 2 * REPAIR, drained)?;
        measured(format!("drain of a host with {} instances", there.len()), took);
        let volumes = lib_dir(world).join(format!("h{}/volumes", primary.host));
        for old in &there {
            ensure!(process::inits_of(&old.id)?.is_empty(), "{} still runs", old.id);
            ensure!(!volumes.join(&old.id).exists(), "the volume of {} is still there", old.id);
        }
        cluster.wait_whole(SOON)?;
        cluster.wait_agreed(SOON)?;
        let status = cluster.status()?;
        ensure!(status["antiAffinityOk"] == true && status["primarySpreadOk"] == true, "{status}");
        ensure!(cluster.instances()?.iter().all(|i| i.host != primary.host), "something came back");
        let host = order(&cluster.api, &host, "uncordon", &json!({}))?;
        ensure!(host["cordon"].is_null() && host["drain"].is_null(), "{host}");
        nothing_lost(&cluster, writer)
    });
}

#[test]
fn replicas_are_taken_away_one_at_a_time_under_a_writer() {
    let options = WorldOptions { hosts: 3, coordinators: 1, ..WorldOptions::named("shrink") };
    on_stage(options, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(1, 2))?;
        cluster.wait_agreed(SOON)?;
        let all = cluster.instances()?;
        let (primary, _) = cluster.pair(0)?;
        let others: Vec<u32> = all.iter().map(|i| i.host).filter(|host| *host != primary.host).collect();
        let writer = writer(&cluster, "shrink", &others)?;
        writer.progresses(100, SOON)?;
        fewer(&mut cluster, 1)?;
        // Nothing confirms a write when the last replica has gone, so the writer ends before.
        writer.progresses(50, SOON)?;
        let written = writer.stop()?;
        measured("longest gap in writes", written.longest_gap);
        fewer(&mut cluster, 0)?;
        ensure!(cluster.instances()?.iter().all(|i| i.id == primary.id), "the primary went");
        for gone in all.iter().filter(|i| i.id != primary.id) {
            ensure!(process::inits_of(&gone.id)?.is_empty(), "{} still runs", gone.id);
        }
        written.verify(&mut cluster.client(&[])?, SOON)
    });
}

/// One replica fewer: the change is done when its instance is gone and forgotten.
fn fewer(cluster: &mut Cluster<'_>, replicas: usize) -> Result<()> {
    cluster.manifest["spec"]["replicasPerShard"] = replicas.into();
    let took = cluster.api.apply("valkey", &cluster.manifest, SOON)?;
    measured(format!("replicas {} to {replicas}", replicas + 1), took);
    let kept = cluster.all_instances()?;
    ensure!(kept.len() == replicas + 1, "the change is done and {kept:?} are there");
    cluster.wait_whole(Duration::from_secs(10))?;
    cluster.wait_agreed(SOON)?;
    Ok(())
}

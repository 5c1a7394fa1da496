//! Hosts that are cut off. Whoever runs well is not replaced, whoever cannot be reached is failed over, and no write that was
//! acknowledged is lost on either side.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shardplane_e2e::{Cluster, Shape, measured, on_stage};
use shardplane_harness::{Cut, World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{failover, nothing_lost, stepped_down, writer},
};

const LOST_AFTER_S: u32 = 8;

#[test]
fn omi_12_a_host_is_cut_off_from_coordinators_from_peers_and_from_all() {
    let options = WorldOptions { lost_after_s: LOST_AFTER_S, ..WorldOptions::named("cut") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        from_coordinators(world, &cluster)?;
        from_peers(world, &cluster)?;
        from_all(world, &cluster)
    });
}

fn from_coordinators(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (primary, _) = cluster.pair(0)?;
    let before = cluster.wait_agreed(SOON)?;
    let ids = |cluster: &Cluster<'_>| -> Result<Vec<String>> {
        Ok(cluster.instances()?.into_iter().map(|i| i.id).collect())
    };
    let members = ids(cluster)?;
    let writer = writer(cluster, "silent", &[])?;
    world.partition_host(primary.host, Cut::Coordinators)?;
    let lost = || match cluster.api.items("hosts", &format!("host-{}", primary.host)) {
        Ok(items) if items.first().is_some_and(|host| host["state"] == "Lost") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let (_, took) = wait_until("the silent host being declared lost", SOON, lost)?;
    measured("host cut off from coordinators: lost after", took);
    let said = || {
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        let text = status["conditions"].to_string();
        if text.contains("still see it working") { Ok(()) } else { Err(text) }
    };
    wait_until("the status saying that the peers see it", SOON, said)?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(u64::from(LOST_AFTER_S)) {
        ensure!(ids(cluster)? == members, "a working member was replaced: {:?}", cluster.all_instances()?);
        writer.progresses(20, SOON)?;
    }
    let status = cluster.status()?;
    ensure!(status["clusterState"] == "ok", "the cluster works, the status says {}", status["clusterState"]);
    let message = status["antiAffinityMessage"].as_str().unwrap_or_default();
    ensure!(message.contains("not confirmed now"), "the silence of a member is not told: {message:?}");
    world.heal_host(primary.host)?;
    measured("host heard of again: whole again", cluster.wait_whole(SOON)?);
    ensure!(
        ids(cluster)? == members && cluster.wait_agreed(SOON)? == before,
        "something was replaced after all"
    );
    nothing_lost(cluster, writer)
}

fn from_peers(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (primary, replica) = cluster.pair(1)?;
    let before = cluster.wait_agreed(SOON)?;
    let writer = writer(cluster, "split", &[primary.host])?;
    // This one keeps writing to the old side: it stands beside the primary.
    let inside = crate::story::writer(cluster, "inside", &other_hosts(world, primary.host)?)?;
    let mut client = cluster.client(&[primary.host])?;
    world.partition_host(primary.host, Cut::Peers)?;
    let result = failover(cluster, &mut client, &replica, "host cut off from peers");
    world.heal_host(primary.host)?;
    result?;
    measured("host's peers back: whole again", cluster.wait_whole(SOON)?);
    stepped_down(cluster, &primary)?;
    ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
    nothing_lost(cluster, inside)?;
    nothing_lost(cluster, writer)
}

fn other_hosts(world: &World, host: u32) -> Result<Vec<u32>> {
    Ok(world.hosts()?.into_iter().map(|member| member.index).filter(|index| *index != host).collect())
}

fn from_all(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (primary, replica) = cluster.pair(2)?;
    let old = cluster.instances()?;
    let writer = writer(cluster, "all", &[primary.host])?;
    let mut client = cluster.client(&[primary.host])?;
    world.partition_host(primary.host, Cut::All)?;
    let start = Instant::now();
    let result = failover(cluster, &mut client, &replica, "host cut off from all").and_then(|()| {
        wait_until("the cut off host's instances being replaced", REPAIR, || match cluster.instances() {
            Ok(now) if now.len() == 6 && now.iter().all(|i| i.host != primary.host) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        cluster.wait_agreed(REPAIR)?;
        measured("host cut off from all: repaired", start.elapsed());
        Ok(())
    });
    world.heal_host(primary.host)?;
    result?;
    // Its machines ran throughout, one of them as a primary. They go, and nobody follows them.
    let stale: Vec<_> = old.into_iter().filter(|i| i.host == primary.host).collect();
    wait_until("the machines of the past being stopped", SOON, || {
        let left = stale
            .iter()
            .find(|i| !shardplane_e2e::process::inits_of(&i.id).is_ok_and(|pids| pids.is_empty()));
        left.map_or(Ok(()), |left| Err(left.id.clone()))
    })?;
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    nothing_lost(cluster, writer)
}

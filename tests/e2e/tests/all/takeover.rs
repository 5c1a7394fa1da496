//! Where the engine cannot vote: most primaries die at once, or the only one with its host. The old ones are fenced, the most advanced
//! replicas are promoted, the old ones come back as replicas, and a client that writes loses nothing.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use shardplane_e2e::{Cluster, Instance, Shape, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{PROVED, host_id, leads, nothing_lost, order, taken_over, writer},
};

#[test]
fn val_3_two_of_three_primaries_die_at_the_same_instant() {
    on_stage(WorldOptions::named("majority"), |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let (first, second) = (cluster.pair(0)?, cluster.pair(1)?);
        let before = cluster.wait_agreed(SOON)?;
        let writer = writer(&cluster, "majority", &[])?;
        writer.progresses(100, SOON)?;
        let guests = [process::init_of(&first.0.id)?, process::init_of(&second.0.id)?];
        let start = Instant::now();
        for guest in guests {
            process::murder(guest)?;
        }
        let mut client = cluster.client(&[])?;
        for (_, replica) in [&first, &second] {
            leads(&mut client, replica, SOON)?;
        }
        measured("two of three primaries killed: both shards lead again", start.elapsed());
        cluster.wait_agreed(SOON)?;
        cluster.wait_whole(SOON)?;
        measured("two of three primaries killed: whole again", start.elapsed());
        ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
        taken_over(&cluster)?;
        nothing_lost(&cluster, writer)
    });
}

#[test]
fn a_single_shard_whose_primary_dies_with_its_host_is_taken_over_when_the_lease_is_over() {
    let more = ["--lease", "8s"].map(str::to_owned).to_vec();
    let options = WorldOptions { lost_after_s: 8, more, ..WorldOptions::named("lease") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(1, 1))?;
        let (primary, replica) = cluster.pair(0)?;
        let writer = writer(&cluster, "lease", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let start = Instant::now();
        world.kill_host(primary.host)?;
        let waits = || match cluster.complaint("CanElect") {
            Ok(Some(why)) if why.contains(&primary.id) || why.contains("lease") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the status saying what is waited for", SOON, waits)?;
        let mut client = cluster.client(&[primary.host])?;
        leads(&mut client, &replica, PROVED)?;
        measured("host of a single shard's primary killed: its replica leads", start.elapsed());
        cluster.wait_whole(PROVED)?;
        measured("host of a single shard's primary killed: whole again", start.elapsed());
        taken_over(&cluster)?;
        world.start_host(primary.host)?;
        let gone = || match cluster.all_instances() {
            Ok(known) if known.iter().all(|i| i.id != primary.id) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the old primary's leaving", SOON, gone)?;
        cluster.wait_agreed(SOON)?;
        nothing_lost(&cluster, writer)
    });
}

/// A replica whose host holds the primary of another shard, and that primary.
fn beside_a_primary(cluster: &Cluster<'_>) -> Result<(Instance, Instance)> {
    let all = cluster.instances()?;
    let with = |replica: &&Instance| all.iter().find(|i| i.primary() && i.host == replica.host);
    let found = all.iter().filter(|i| !i.primary()).find_map(|replica| Some((replica, with(&replica)?)));
    let (replica, primary) = found.with_context(|| format!("no replica sits beside a primary: {all:?}"))?;
    Ok((replica.clone(), primary.clone()))
}

/// Fails over by the engine's own command, behind the coordinator's back, so that two primaries sit on one host; waits until the status
/// says what is wrong. Answers both.
fn crowd(cluster: &Cluster<'_>) -> Result<[Instance; 2]> {
    let (replica, primary) = beside_a_primary(cluster)?;
    let mut client = cluster.client(&[])?;
    client.ask::<()>(&replica.endpoint, redis::cmd("CLUSTER").arg("FAILOVER"))?;
    leads(&mut client, &replica, SOON)?;
    let told = || {
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        let message = status["primarySpreadMessage"].as_str().unwrap_or_default();
        let named = message.contains(&format!("host-{}", replica.host)) && message.contains("majority");
        if status["primarySpreadOk"] == false && named { Ok(()) } else { Err(status.to_string()) }
    };
    let ((), took) = wait_until("the status saying that a host has too many primaries", SOON, told)?;
    measured("failed over by hand to a host with a primary: told after", took);
    Ok([replica, primary])
}

/// The mover had brought one of them back before their host died.
fn moved_in_time(cluster: &Cluster<'_>) -> Result<()> {
    let [first, second] = crowd(cluster)?;
    let apart = || {
        let all = cluster.instances().map_err(|error| format!("{error:#}"))?;
        let there: Vec<_> = all.into_iter().filter(|i| i.primary() && i.host == first.host).collect();
        if there.len() == 1 { Ok(()) } else { Err(format!("{there:?}")) }
    };
    let ((), took) = wait_until("one of the two primaries going elsewhere", REPAIR, apart)?;
    measured("two primaries on a host: apart after", took);
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    let operation = cluster.operation("switchover")?;
    ensure!(operation["phase"] == "succeeded", "{} and {} were parted by {operation}", first.id, second.id);
    Ok(())
}

/// Nothing moves to closed hosts, so nobody parts them. Their host dies; the shards lead again in order.
fn killed_together(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (replica, _) = beside_a_primary(cluster)?;
    let others: Vec<u32> =
        world.hosts()?.iter().map(|host| host.index).filter(|i| *i != replica.host).collect();
    for other in &others {
        order(&cluster.api, &host_id(&cluster.api, *other)?, "cordon", &json!({"reason": "no moves"}))?;
    }
    let mut pair = crowd(cluster)?;
    pair.sort_by_key(|primary| primary.shard);
    let host = pair[0].host;
    let heirs = [cluster.pair(pair[0].shard)?.1, cluster.pair(pair[1].shard)?.1];
    let writer = writer(cluster, "crowd", &[host])?;
    writer.progresses(100, SOON)?;
    let mut client = cluster.client(&[host])?;
    let start = Instant::now();
    world.kill_host(host)?;
    for heir in &heirs {
        leads(&mut client, heir, PROVED)?;
    }
    measured("host with two of three primaries killed: both shards lead again", start.elapsed());
    let served = || match cluster.status() {
        Ok(status) if status["clusterState"] == "ok" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the cluster being ok", SOON, served)?;
    measured("host with two of three primaries killed: cluster ok", start.elapsed());
    taken_over(cluster)?;
    let operation = cluster.operation("takeover")?;
    let steps: Vec<_> = operation["steps"].as_array().into_iter().flatten().collect();
    // Once the first leads there is a majority, which may elect the second.
    ensure!(steps.first().is_some_and(|step| step["instanceId"] == heirs[0].id.as_str()), "{operation}");
    for other in &others {
        order(&cluster.api, &host_id(&cluster.api, *other)?, "uncordon", &json!({}))?;
    }
    cluster.wait_whole(PROVED)?;
    measured("host with two of three primaries killed: whole again", start.elapsed());
    world.start_host(host)?;
    let gone = || match cluster.all_instances() {
        Ok(all) if pair.iter().all(|old| all.iter().all(|i| i.id != old.id)) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the old primaries' leaving", SOON, gone)?;
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    nothing_lost(cluster, writer)
}

#[test]
fn val_2_two_primaries_that_came_to_sit_on_one_host_are_parted_or_taken_over() {
    let more = ["--lease", "8s"].map(str::to_owned).to_vec();
    let options = WorldOptions { lost_after_s: 8, more, ..WorldOptions::named("crowd") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        moved_in_time(&cluster)?;
        killed_together(world, &cluster)
    });
}

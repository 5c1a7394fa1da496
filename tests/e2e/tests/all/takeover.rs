//! Where the engine cannot vote: most primaries die at once, or the only one with its host. The old ones are fenced, the most advanced
//! replicas are promoted, the old ones come back as replicas, and a client that writes loses nothing.

use std::{fs::File, os::fd::AsRawFd as _, process::Command, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use shardplane_e2e::{Cluster, Instance, Kc, Shape, measured, on_stage, process};
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

/// A file system that takes no writes: whoever writes to it stands still and cannot even be killed, as with a disk that hangs.
struct Hung(File);

impl Hung {
    /// The volume of an instance, as its machine sees it.
    fn volume_of(instance: &Instance) -> Result<Self> {
        let data = format!("/proc/{}/root/data", process::engine_of(&instance.id)?);
        // Open, so that it can be let go whatever becomes of the machine.
        let hung = Self(File::open(&data).with_context(|| format!("cannot open {data}"))?);
        ensure!(hung.freezes("--freeze"), "cannot freeze {data}");
        Ok(hung)
    }

    fn freezes(&self, how: &str) -> bool {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        Command::new("fsfreeze").arg(how).arg(path).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        assert!(self.freezes("--unfreeze"), "the volume stays frozen");
    }
}

/// The host is heard, but its disk hangs, so the machine cannot be stopped: nothing proves that its engine serves nobody.
#[test]
fn a_takeover_without_proof_waits_and_kc_says_for_what() {
    let more = ["--lease", "8s"].map(str::to_owned).to_vec();
    let options =
        WorldOptions { hosts: 2, coordinators: 1, lost_after_s: 8, more, ..WorldOptions::named("hung") };
    on_stage(options, |world| {
        let kc = Kc::of(world)?;
        let (cluster, _) = Cluster::create(world, &Shape::of(1, 1))?;
        let (primary, replica) = cluster.pair(0)?;
        let writer = writer(&cluster, "hung", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let start = Instant::now();
        let hung = Hung::volume_of(&primary)?;
        let name = cluster.manifest["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let about = format!("cluster/{name}");
        let told = || match kc.says(&["events", "--for", &about], "") {
            Ok(text) if text.contains("WaitsForProof") => Ok(text),
            other => Err(format!("{other:?}")),
        };
        let (events, _) = wait_until("the event", PROVED, told)?;
        measured(
            "disk of a single shard's primary hangs: told that a takeover waits for proof",
            start.elapsed(),
        );
        let line = events.lines().find(|line| line.contains("WaitsForProof")).unwrap_or_default();
        for word in [primary.id.as_str(), &format!("host-{}", primary.host), "power the host off"] {
            ensure!(line.contains(word), "no {word} in {line}");
        }
        ensure!(!events.contains("TakenOver"), "{events}");
        let shown = kc.shows(&["get", "valkey", &name], "")?;
        let conditions = shown["status"]["conditions"].as_array().into_iter().flatten();
        let elects = conditions.into_iter().find(|c| c["type"] == "CanElect").context("no CanElect")?;
        let why = elects["message"].as_str().unwrap_or_default();
        ensure!(elects["status"] == "False" && why.contains("waits for proof"), "{elects}");
        let waits = ["wait", "valkey", &name, "--for", "condition=CanElect", "--timeout", "1s"];
        kc.refused(&waits, "")?;
        ensure!(kc.says(&["describe", "valkey", &name], "")?.contains("waits for proof"), "not described");
        let mut client = cluster.client(&[primary.host])?;
        ensure!(shardplane_e2e::engine::role(&mut client, &replica.endpoint)? == "slave", "it was promoted");

        // The disk answers again: the machine ends, which is the proof.
        drop(hung);
        leads(&mut client, &replica, SOON)?;
        taken_over(&cluster)?;
        kc.says(&["wait", "valkey", &name, "--for", "condition=CanElect", "--timeout", "2m"], "")?;
        cluster.wait_whole(REPAIR)?;
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

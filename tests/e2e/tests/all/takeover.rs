//! Where the engine cannot vote: most primaries die at once, or the only one with its host. The old ones are fenced, the most advanced
//! replicas are promoted, the old ones come back as replicas, and a client that writes loses nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shardplane_e2e::{Cluster, Instance, Shape, engine, measured, on_stage, process};
use shardplane_harness::{ValkeyClient, WorldOptions, wait_until};

use crate::{
    SOON,
    story::{nothing_lost, writer},
};

/// A replica hears from the silence of a dead host's network only after the engine's own repl-timeout (60 s).
const PROVED: Duration = Duration::from_secs(180);

/// Waits until `replica` is a master by its own word.
fn leads(client: &mut ValkeyClient, replica: &Instance, deadline: Duration) -> Result<Duration> {
    let is_master = || match engine::role(client, &replica.endpoint) {
        Ok(role) if role == "master" => Ok(()),
        Ok(role) => Err(role),
        Err(error) => Err(format!("{error:#}")),
    };
    Ok(wait_until(&format!("{} taking over", replica.endpoint), deadline, is_master)?.1)
}

/// The operation that promoted the first of them, with the proofs told in an event; once a majority is there again the engine elects
/// the others itself.
fn taken_over(cluster: &Cluster<'_>) -> Result<()> {
    let ended = || match cluster.operation("takeover") {
        Ok(operation) if operation["phase"] == "succeeded" => Ok(()),
        Ok(operation) => Err(operation.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    wait_until("the takeover having ended", SOON, ended)?;
    let events = cluster.api.items("events", &cluster.id)?;
    let told = |reason: &str| events.iter().filter(|event| event["reason"] == reason).count();
    ensure!(told("Fenced") >= 1 && told("TakenOver") >= 1, "{events:?}");
    Ok(())
}

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

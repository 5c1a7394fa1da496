//! Too few hosts: the cluster is placed all the same, the status says from the start what is wrong, and hosts that are added heal it
//! one move at a time and for good.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Shape, measured, on_stage};
use shardplane_harness::{WorldOptions, wait_until};

use crate::{
    SOON,
    story::{nothing_lost, writer},
};

/// For three moves with a rest between them.
const HEAL: Duration = Duration::from_secs(120);

#[test]
fn ubi_1_a_degraded_placement_says_so_and_heals_once() {
    let options = WorldOptions { hosts: 1, coordinators: 1, ..WorldOptions::named("spread") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let status = cluster.status()?;
        ensure!(status["antiAffinityOk"] == false, "all on one host, and antiAffinityOk is true: {status}");
        for shard in 0..3 {
            let (primary, replica) = cluster.pair(shard)?;
            let message = status["antiAffinityMessage"].as_str().unwrap_or_default();
            let group =
                cluster.manifest["spec"]["shards"][usize::try_from(shard)?]["id"].as_str().unwrap_or("?");
            for name in [group, &primary.id, &replica.id, "host-1"] {
                ensure!(message.contains(name), "the message does not name {name}: {message}");
            }
        }
        ensure!(status["primarySpreadOk"] == false, "host-1 holds all primaries: {status}");

        let writer = writer(&cluster, "spread", &[])?;
        world.add_host()?;
        verdicts(&cluster, true, false, "second host added")?;
        world.add_host()?;
        verdicts(&cluster, true, true, "third host added")?;
        cluster.wait_whole(SOON)?;
        cluster.wait_agreed(SOON)?;
        stays(&cluster)?;
        nothing_lost(&cluster, writer)
    });
}

fn verdicts(cluster: &Cluster<'_>, affinity: bool, spread: bool, what: &str) -> Result<()> {
    let reached = || {
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        let as_wished = status["antiAffinityOk"] == affinity && status["primarySpreadOk"] == spread;
        let text = |member: &str| status[member].as_str().unwrap_or_default().to_owned();
        if as_wished {
            Ok(())
        } else {
            Err(text("antiAffinityMessage") + "; " + &text("primarySpreadMessage"))
        }
    };
    let ((), took) = wait_until(what, HEAL, reached)?;
    measured(format!("{what}: healed"), took);
    let status = cluster.status()?;
    if !spread {
        let message = status["primarySpreadMessage"].as_str().unwrap_or_default().to_owned();
        ensure!(message.contains("host-") && message.contains("majority"), "the message is {message:?}");
    }
    Ok(())
}

/// No ping-pong: for twice the time between two moves nothing is begun.
fn stays(cluster: &Cluster<'_>) -> Result<()> {
    let ended = || match cluster.operations() {
        Ok(all) if all.iter().all(|(_, phase)| phase == "succeeded") => Ok(all),
        other => Err(format!("{other:?}")),
    };
    let (operations, _) = wait_until("the end of all moves", SOON, ended)?;
    println!("operations: {operations:?}");
    let placed: Vec<Value> =
        cluster.api.items("instances", &cluster.id)?.iter().map(|i| i["hostName"].clone()).collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(32) {
        let now = cluster.operations()?;
        ensure!(now == operations, "a healed cluster is moved again: {now:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    let now: Vec<Value> =
        cluster.api.items("instances", &cluster.id)?.iter().map(|i| i["hostName"].clone()).collect();
    ensure!(now == placed, "instances moved from {placed:?} to {now:?}");
    Ok(())
}

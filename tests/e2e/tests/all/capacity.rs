//! Clusters that cannot be: a version that no image has, no room, no host. They say why, leave nothing, and can be deleted.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Inventory, Shape, on_stage};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{REPAIR, SOON, create::nothing_stays};

#[test]
fn ubi_4_omi_8_what_cannot_be_placed_says_why_and_leaves_nothing() {
    let scarce = ["--memory-mib", "2048"].map(str::to_owned).to_vec();
    let options = WorldOptions { hosts: 3, lost_after_s: 5, more: scarce, ..WorldOptions::named("scarce") };
    on_stage(options, |world| {
        let before = Inventory::of(world)?;
        unknown_version(world, &before)?;
        parallel_creates(world, &before)?;
        never_got_a_host(world)
    });
}

fn unknown_version(world: &World, before: &Inventory) -> Result<()> {
    let shape = Shape { version: "9.9.9".to_owned(), ..Shape::of(3, 1) };
    let (cluster, request) = Cluster::submit(world, &shape)?;
    let path = format!("/api/v1/valkey/request/{request}");
    let failed = || match cluster.api.get(&path) {
        Ok(reply) if reply.body["errorCode"].is_string() => Ok(reply),
        other => Err(format!("{other:?}")),
    };
    let (reply, _) = wait_until("the failure of the request", SOON, failed)?;
    let message = reply.body["errorMessage"].as_str().unwrap_or_default();
    ensure!(
        reply.body["errorCode"] == "UnableToReconcile" && reply.body["succeeded"] != true,
        "the request is answered with {reply:?}"
    );
    ensure!(message.contains("9.9.9") && message.contains(Shape::VERSION), "the message is {message:?}");
    ensure!(cluster.status()?["state"] == "schedulingfailed", "the state is {}", cluster.status()?["state"]);
    ensure!(cluster.all_instances()?.is_empty(), "instances were placed: {:?}", cluster.all_instances()?);
    nothing_stays(world, before)?;
    cluster.delete()?;
    Ok(())
}

/// Room for one, asked for by three at once: one gets all, nobody gets a part, and the next follows when the first goes.
fn parallel_creates(world: &World, before: &Inventory) -> Result<()> {
    let made: Vec<Result<(Cluster<'_>, String)>> = thread::scope(|scope| {
        let makers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| Cluster::submit(world, &Shape::of(3, 1)))).collect();
        makers.into_iter().map(|maker| maker.join().map_err(|_| anyhow!("a create panicked"))?).collect()
    });
    let mut waiting: Vec<Cluster<'_>> = made.into_iter().map(|made| Ok(made?.0)).collect::<Result<_>>()?;
    while !waiting.is_empty() {
        let winner = || waiting.iter().position(|c| c.whole().is_ok()).ok_or("nobody has got a place");
        let (index, _) = wait_until("one cluster being whole", SOON, winner)?;
        let winner = waiting.swap_remove(index);
        for host in winner.api.items("hosts", "")? {
            let (promised, capacity) =
                (host["promised"]["memoryMib"].as_u64(), host["capacity"]["memoryMib"].as_u64());
            ensure!(promised <= capacity, "more is promised than there is: {host}");
        }
        for shard in 0..3 {
            let (primary, replica) = winner.pair(shard)?;
            ensure!(primary.host != replica.host, "a pair shares host {}", primary.host);
        }
        for loser in &waiting {
            ensure!(loser.all_instances()?.is_empty(), "a loser got a part: {:?}", loser.all_instances()?);
            // While hosts keep the coordinator waiting it says that none is ready.
            let told = || {
                let status = loser.status().map_err(|error| format!("{error:#}"))?;
                let why = status["conditions"].to_string();
                let known = why.contains("no place") && why.contains("memory");
                (known && status["state"] != "stable").then_some(()).ok_or(why)
            };
            wait_until("a loser being told what it lacks", SOON, told)?;
        }
        winner.delete()?;
    }
    nothing_stays(world, before)
}

fn never_got_a_host(world: &World) -> Result<()> {
    // No room anywhere.
    let shape = Shape::of(5, 3);
    let (cluster, _) = Cluster::submit(world, &shape)?;
    waits(&cluster)?;
    cluster.delete()?;
    // No host at all.
    for host in world.hosts()? {
        world.kill_host(host.index)?;
    }
    let api = world.api()?;
    let lost = || match api.items("hosts", "") {
        Ok(hosts) if hosts.iter().all(|host| host["state"] == "Lost") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the loss of all hosts", REPAIR, lost)?;
    let (cluster, _) = Cluster::submit(world, &Shape::of(1, 0))?;
    waits(&cluster)?;
    let took = cluster.delete()?;
    ensure!(took < Duration::from_secs(5), "the delete of nothing took {took:?}");
    let gone = api.get(&format!("/api/v1/valkey/{}", cluster.id))?;
    ensure!(gone.status == 422 && gone.body["errorCode"] == "NotFound", "it is still there: {gone:?}");
    Ok(())
}

fn waits(cluster: &Cluster<'_>) -> Result<()> {
    let told = || {
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let why = conditions.iter().find(|c| c["type"] == "NothingWaits").map(|c| c["message"].clone());
        match why.as_ref().and_then(Value::as_str) {
            Some(why) if !why.is_empty() => Ok(why.to_owned()),
            Some(_) | None => Err(status.to_string()),
        }
    };
    let (why, _) = wait_until("the status saying what it waits for", SOON, told)?;
    println!("it waits: {why}");
    let state = cluster.status()?["state"].as_str().context("no state")?.to_owned();
    ensure!(state == "scheduling" || state == "reconciling", "the state is {state}");
    Ok(())
}

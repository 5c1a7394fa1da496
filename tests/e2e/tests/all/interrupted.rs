//! Something dies in the middle of something else: a host in a create, a host in a delete, the coordinator's quorum in a failover.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use shardplane_e2e::{Cluster, Inventory, Shape, engine, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    create::nothing_stays,
    story::{nothing_lost, writer},
};

#[test]
fn what_is_interrupted_is_finished() {
    let options = WorldOptions { lost_after_s: 6, ..WorldOptions::named("interrupted") };
    on_stage(options, |world| {
        let before = Inventory::of(world)?;
        let cluster = create_without_a_host(world)?;
        failover_without_a_quorum(world, &cluster)?;
        delete_without_a_host(world, &cluster, &before)
    });
}

/// A host dies as soon as machines run on it.
fn create_without_a_host(world: &World) -> Result<Cluster<'_>> {
    let (cluster, request) = Cluster::submit(world, &Shape::of(3, 1))?;
    let victim = || {
        let instances = cluster.instances().map_err(|error| format!("{error:#}"))?;
        let running = |i: &&shardplane_e2e::Instance| process::init_of(&i.id).is_ok();
        instances.iter().find(running).cloned().ok_or_else(|| format!("{instances:?}"))
    };
    let (victim, _) = wait_until("the first machine of a create", SOON, victim)?;
    let start = Instant::now();
    world.kill_host(victim.host)?;
    cluster.api.settle("valkey", &request, REPAIR)?;
    measured("host killed in a create: stable", start.elapsed());
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    let instances = cluster.instances()?;
    ensure!(instances.iter().all(|i| i.host != victim.host), "a member is on the dead host: {instances:?}");
    world.start_host(victim.host)?;
    wait_for_host(&cluster, victim.host, "Ready")?;
    let unlisted = || match cluster.all_instances() {
        Ok(known) if known.len() == 6 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the stale instance leaving the list", SOON, unlisted)?;
    ensure!(process::inits_of(&victim.id)?.is_empty(), "the stale instance runs");
    Ok(cluster)
}

fn wait_for_host(cluster: &Cluster<'_>, host: u32, state: &str) -> Result<Duration> {
    let look = || match cluster.api.items("hosts", &format!("host-{host}")) {
        Ok(items) if items.first().is_some_and(|host| host["state"] == state) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    Ok(wait_until(&format!("host {host} being {state}"), REPAIR, look)?.1)
}

/// Two of three coordinators are dead. The engine fails over all the same, the API says that it cannot answer, and the truth is
/// told as soon as one is back.
fn failover_without_a_quorum(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (primary, replica) = cluster.pair(0)?;
    let writer = writer(cluster, "quorum", &[primary.host])?;
    let mut client = cluster.client(&[primary.host])?;
    let dead: Vec<u32> = world.coordinators()?.iter().take(2).map(|member| member.index).collect();
    for index in &dead {
        world.kill_coordinator(*index)?;
    }
    let init = process::init_of(&primary.id)?;
    process::murder(init)?;
    let took_over = || match engine::role(&mut client, &replica.endpoint) {
        Ok(role) if role == "master" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let (_, took) = wait_until("a failover without coordinators", SOON, took_over)?;
    measured("guest killed without a quorum: failover", took);
    let left = world.api_of(3)?;
    let refused = || match left.get(&format!("/api/v1/valkey/{}", cluster.id)) {
        // The client takes a 503 for a member that does not answer.
        Err(error) if format!("{error:#}").contains("503") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the last coordinator saying that it has no quorum", SOON, refused)?;
    let start = Instant::now();
    world.start_coordinator(dead[0])?;
    let told = || match cluster.status() {
        Ok(status) if status["shards"][0]["primaryEndpoint"] == replica.endpoint.as_str() => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the status telling of the failover", SOON, told)?;
    measured("quorum back: status true", start.elapsed());
    world.start_coordinator(dead[1])?;
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    nothing_lost(cluster, writer)
}

/// The delete ends when the host is lost; what lies there goes when it is back.
fn delete_without_a_host(world: &World, cluster: &Cluster<'_>, before: &Inventory) -> Result<()> {
    let (primary, _) = cluster.pair(1)?;
    world.kill_host(primary.host)?;
    let took = cluster.delete()?;
    measured("delete with a dead host", took);
    let left = Inventory::of(world)?;
    ensure!(left.count("volumes/") > 0, "the dead host has lost its volumes by itself");
    world.start_host(primary.host)?;
    nothing_stays(world, before)
}

//! The coordinator's leader dies or hangs in the middle of things: the next one goes on from the log, and the old one's orders
//! come to nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Shape, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{nothing_lost, writer},
};

#[test]
fn sch_5_a_new_leader_goes_on_with_a_create_and_a_repair() {
    let options = WorldOptions { lost_after_s: 6, ..WorldOptions::named("leader") };
    on_stage(options, |world| {
        let cluster = create_under_fire(world)?;
        repair_under_a_hanging_leader(world, &cluster)
    });
}

/// Waits until an operation of `kind` runs and has a step, so that the middle of it is hit.
fn in_the_middle(cluster: &Cluster<'_>, kind: &str) -> Result<()> {
    let look = || match cluster.api.items("operations", &cluster.id) {
        Ok(items) => {
            let running = items.iter().find(|o| o["kind"] == kind && o["phase"] == "running");
            let forming =
                running.is_some_and(|o| o["steps"].as_array().is_some_and(|steps| !steps.is_empty()));
            if forming { Ok(()) } else { Err(format!("{items:?}")) }
        }
        Err(error) => Err(format!("{error:#}")),
    };
    wait_until(&format!("the middle of a {kind}"), REPAIR, look)?;
    Ok(())
}

fn leader(world: &World) -> Result<u32> {
    let look =
        || world.leader().map_err(|error| format!("{error:#}"))?.ok_or_else(|| "nobody leads".to_owned());
    Ok(wait_until("a leader", SOON, look)?.0)
}

/// All that are wanted are the six that are there: a second leader did not place them again.
fn six_once(cluster: &Cluster<'_>, kind: &str, times: usize) -> Result<()> {
    let instances = cluster.instances()?;
    ensure!(instances.len() == 6, "there are {} instances: {instances:?}", instances.len());
    for instance in &instances {
        process::init_of(&instance.id)?;
    }
    let operations = cluster.operations()?;
    let of_kind = operations.iter().filter(|(k, _)| k == kind).count();
    ensure!(of_kind == times, "{of_kind} operations of kind {kind}: {operations:?}");
    let ended = || match cluster.operations() {
        Ok(all) if all.iter().all(|(_, phase)| phase == "succeeded") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the end of all operations", SOON, ended)?;
    Ok(())
}

fn create_under_fire(world: &World) -> Result<Cluster<'_>> {
    let (cluster, request) = Cluster::submit(world, &Shape::of(3, 1))?;
    in_the_middle(&cluster, "create")?;
    let old = leader(world)?;
    let start = Instant::now();
    world.kill_coordinator(old)?;
    cluster.api.settle("valkey", &request, REPAIR)?;
    measured("leader killed in a create: stable", start.elapsed());
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    six_once(&cluster, "create", 1)?;
    world.start_coordinator(old)?;
    let member = world.coordinators()?.into_iter().find(|m| m.index == old).context("the member is gone")?;
    ensure!(member.pid.is_some(), "the killed member does not run again");
    let own = world.api_of(old)?;
    let answers = || match own.resource("valkey", &cluster.id) {
        Ok(resource) if resource["status"]["state"] == "stable" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the killed leader answering as a follower", SOON, answers)?;
    Ok(cluster)
}

/// As after a long pause of its machine: it still believes to lead when it wakes up.
fn repair_under_a_hanging_leader(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let (primary, _) = cluster.pair(0)?;
    let writer = writer(cluster, "leader", &[primary.host])?;
    world.kill_host(primary.host)?;
    in_the_middle(cluster, "repair")?;
    let old = leader(world)?;
    let pid = world.coordinators()?.into_iter().find(|m| m.index == old).and_then(|m| m.pid);
    let pid = pid.context("the leader has no process")?;
    let start = Instant::now();
    process::freeze(pid, true)?;
    let others: Vec<u32> =
        world.coordinators()?.iter().map(|m| m.index).filter(|index| *index != old).collect();
    let next = || {
        let health = |index: u32| world.api_of(index).and_then(|api| api.get("/healthz"));
        let leads = |index: &&u32| health(**index).is_ok_and(|reply| reply.body["role"] == "leader");
        others.iter().find(leads).copied().ok_or("nobody else leads")
    };
    let awake = wait_until("another leader", SOON, next).and_then(|(_, took)| {
        measured("leader frozen: another leads", took);
        // Some placement or step is decided without it, then it wakes up among its own old orders.
        let api = world.api_of(others[0])?;
        wait_until("the next leader's status", SOON, || {
            api.resource("valkey", &cluster.id).map_err(|e| format!("{e:#}"))
        })?;
        Ok(())
    });
    process::freeze(pid, false)?;
    awake?;
    cluster.wait_whole(REPAIR)?;
    measured("leader frozen in a repair: whole again", start.elapsed());
    cluster.wait_agreed(SOON)?;
    six_once(cluster, "repair", 1)?;
    let quiet = cluster.operations()?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(cluster.operations()? == quiet, "the old leader's return began something new");
    nothing_lost(cluster, writer)
}

//! The agent of a host dies and forgets. What runs goes on, is adopted once, is swept when nobody wants it, and is never stopped
//! for the agent's own loss of memory.

use std::{collections::BTreeMap, fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Instance, Inventory, Shape, lib_dir, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    SOON,
    create::nothing_stays,
    story::{nothing_lost, reborn, writer},
};

#[test]
fn omi_1_omi_2_omi_11_host_4_agents_die_and_machines_live() {
    let options = WorldOptions { hosts: 3, lost_after_s: 60, ..WorldOptions::named("agent") };
    on_stage(options, |world| {
        let before = Inventory::of(world)?;
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        adopted(world, &cluster)?;
        stranger_untouched(world, &cluster)?;
        ledger_lost(world, &cluster)?;
        deleted_meanwhile(world, &cluster, &before)
    });
}

fn inits(cluster: &Cluster<'_>) -> Result<BTreeMap<String, i32>> {
    cluster.instances()?.into_iter().map(|i| Ok((i.id.clone(), process::init_of(&i.id)?))).collect()
}

fn busiest(cluster: &Cluster<'_>) -> Result<Instance> {
    let (primary, _) = cluster.pair(0)?;
    Ok(primary)
}

/// Waits until the coordinator hears again of a host's machines from its new agent.
fn heard(cluster: &Cluster<'_>, host: u32) -> Result<()> {
    let look = || match cluster.api.items("hosts", &format!("host-{host}")) {
        Ok(items) if items.len() == 1 && items[0]["state"] == "Ready" => cluster.whole(),
        other => Err(format!("{other:?}")),
    };
    wait_until(&format!("host {host} being heard of"), SOON, look)?;
    Ok(())
}

/// All agents die at once; while one is away its host is asked for something.
fn adopted(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let machines = inits(cluster)?;
    let writer = writer(cluster, "adopt", &[])?;
    for host in world.hosts()? {
        world.kill_agent(host.index)?;
    }
    writer.progresses(100, SOON)?;
    // A second cluster is wanted of agents that have not adopted the first.
    let (second, request) = Cluster::submit(world, &Shape::of(1, 0))?;
    for host in world.hosts()? {
        world.start_agent(host.index)?;
    }
    second.api.settle("valkey", &request, SOON)?;
    for host in world.hosts()? {
        heard(cluster, host.index)?;
    }
    ensure!(inits(cluster)? == machines, "machines changed: {machines:?} became {:?}", inits(cluster)?);
    second.delete()?;
    nothing_lost(cluster, writer)
}

/// HOST-1: a machine dies while its agent is away, and its pid is that of somebody else when the agent is back.
fn stranger_untouched(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let instance = busiest(cluster)?;
    world.kill_agent(instance.host)?;
    let dead = process::init_of(&instance.id)?;
    process::murder(dead)?;
    let mut stranger = Command::new("sleep").arg("300").spawn().context("cannot start a stranger")?;
    let ledger = lib_dir(world).join(format!("h{}/ledger.json", instance.host));
    let mut contents: Value = serde_json::from_slice(&fs::read(&ledger)?)?;
    let pid = &mut contents["machines"][&instance.id]["run"]["process"]["pid"];
    let recorded = pid.as_i64() == Some(i64::from(dead));
    *pid = stranger.id().into();
    let result =
        fs::write(&ledger, contents.to_string()).context("cannot change the ledger").and_then(|()| {
            world.start_agent(instance.host)?;
            reborn(cluster, &instance, process::init_of, dead, "machine died without its agent")
        });
    let alive = stranger.try_wait()?.is_none();
    stranger.kill()?;
    stranger.wait()?;
    result?;
    ensure!(recorded, "the ledger recorded another pid than {dead}");
    ensure!(alive, "the agent killed the stranger that has the pid of its machine");
    Ok(())
}

fn ledger_lost(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let instance = busiest(cluster)?;
    let machines = inits(cluster)?;
    world.kill_agent(instance.host)?;
    let ledger = lib_dir(world).join(format!("h{}/ledger.json", instance.host));
    fs::remove_file(&ledger)?;
    let writer = writer(cluster, "ledger", &[])?;
    // Without a coordinator to tell what is wanted nothing is stopped.
    world.partition_host(instance.host, shardplane_harness::Cut::Coordinators)?;
    world.start_agent(instance.host)?;
    let pause = std::time::Instant::now();
    while pause.elapsed() < Duration::from_secs(5) {
        ensure!(inits(cluster)? == machines, "an agent without memory and without orders touched a machine");
        writer.progresses(20, SOON)?;
    }
    world.heal_host(instance.host)?;
    heard(cluster, instance.host)?;
    wait_until("a new ledger", SOON, || if ledger.exists() { Ok(()) } else { Err(()) })?;
    ensure!(inits(cluster)? == machines, "the agent without memory replaced a machine");
    nothing_lost(cluster, writer)
}

/// The cluster is deleted while an agent without ledger is away: what it does not know is found and swept all the same.
fn deleted_meanwhile(world: &World, cluster: &Cluster<'_>, before: &Inventory) -> Result<()> {
    let (known, unknown) = (busiest(cluster)?.host, cluster.pair(1)?.0.host);
    ensure!(known != unknown, "both primaries are on host {known}");
    world.kill_agent(known)?;
    world.kill_agent(unknown)?;
    fs::remove_file(lib_dir(world).join(format!("h{unknown}/ledger.json")))?;
    let request = cluster.api.submit_delete("valkey", &cluster.id)?;
    let gone = || match cluster.all_instances() {
        Ok(left) if left.iter().all(|i| i.host == known || i.host == unknown) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the delete on the host whose agent lives", SOON, gone)?;
    for host in [known, unknown] {
        ensure!(
            Inventory::of(world)?.count(&format!("host {host}: process")) > 0,
            "host {host} is empty already"
        );
        world.start_agent(host)?;
    }
    measured("deleted without the agents: done after", cluster.api.settle("valkey", &request, SOON)?);
    nothing_stays(world, before)
}

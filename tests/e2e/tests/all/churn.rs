//! Machines and agents die a hundred times: nothing of them is left.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Inventory, Shape, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{SOON, create::nothing_stays};

const ROUNDS: u32 = 9;
const CLUSTERS: usize = 4;
/// Sessions, sockets and epoll come and go; a leak of one file a machine would be a multiple of that.
const FILES_MORE: usize = 12;

#[test]
fn host_12_a_hundred_kills_leave_nothing() {
    let options =
        WorldOptions { hosts: 3, coordinators: 1, lost_after_s: 60, ..WorldOptions::named("churn") };
    on_stage(options, |world| {
        let before = Inventory::of(world)?;
        let mut kills = 0;
        let mut files = BTreeMap::new();
        let start = Instant::now();
        for turn in 0..ROUNDS {
            kills += round(world, turn)?;
            // Agents that live on are compared from the first round on; one is new in each.
            for host in world.hosts()? {
                let pid = host.pid.context("an agent does not run")?;
                files.entry(pid).or_insert(process::open_files(pid)?);
            }
        }
        measured(format!("{kills} kills in {ROUNDS} rounds"), start.elapsed());
        ensure!(kills >= 100, "{kills} kills only");
        nothing_stays(world, &before)?;
        for host in world.hosts()? {
            let pid = host.pid.context("an agent does not run")?;
            let (first, now) = (files.get(&pid).copied().unwrap_or(0), process::open_files(pid)?);
            println!("host {}: {first} files open in the beginning, {now} at the end", host.index);
            ensure!(now <= first + FILES_MORE, "host {} leaks files: {first} became {now}", host.index);
        }
        Ok(())
    });
}

fn round(world: &World, turn: u32) -> Result<u32> {
    let mut kills = 0;
    let made: Vec<_> =
        (0..CLUSTERS).map(|_| Cluster::submit(world, &Shape::of(1, 1))).collect::<Result<_>>()?;
    for (cluster, request) in &made {
        cluster.api.settle("valkey", request, SOON)?;
    }
    let mut victims = Vec::new();
    for (cluster, _) in &made {
        for instance in cluster.instances()? {
            victims.push(process::init_of(&instance.id)?);
        }
    }
    let host = turn % 3 + 1;
    // Half of the machines die before their agent, half of them without it.
    let (first, rest) = victims.split_at(victims.len() / 2);
    for pid in first {
        process::murder(*pid)?;
        kills += 1;
    }
    world.kill_agent(host)?;
    for pid in rest {
        process::murder(*pid)?;
        kills += 1;
    }
    world.start_agent(host)?;
    kills += 1;
    // The machines are killed a third time, by the delete, some of them while they start again.
    if turn.is_multiple_of(2) {
        for (cluster, _) in &made {
            for instance in cluster.instances()? {
                wait_until("the machine being back", SOON, || {
                    process::init_of(&instance.id).map_err(|e| format!("{e:#}"))
                })?;
            }
        }
    }
    for (cluster, _) in &made {
        cluster.delete()?;
    }
    Ok(kills + u32::try_from(victims.len())? / 2)
}

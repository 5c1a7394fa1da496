//! A process or a guest dies under a client that writes: the engine fails over, the status follows, what died comes back.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Shape, measured, on_stage, process};
use shardplane_harness::WorldOptions;

use crate::{
    SOON,
    story::{failover, nothing_lost, reborn, stepped_down, writer},
};

#[test]
fn host_5_a_process_or_a_guest_dies_and_comes_back_as_it_should() {
    on_stage(WorldOptions::named("deaths"), |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        primary_process(&cluster)?;
        primary_guest(&cluster)?;
        replica_guest(&cluster)?;
        shard_ids_disagree(&cluster)
    });
}

/// The engine may be back before its peers vote: then it stays the primary. Held back, it must become a replica.
fn primary_process(cluster: &Cluster<'_>) -> Result<()> {
    let (primary, _) = cluster.pair(0)?;
    let before = cluster.wait_agreed(SOON)?;
    let writer = writer(cluster, "process", &[primary.host])?;
    writer.progresses(100, SOON)?;
    let engine = process::engine_of(&primary.id)?;
    process::murder(engine)?;
    reborn(cluster, &primary, process::engine_of, engine, "primary's process killed")?;
    ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
    nothing_lost(cluster, writer)?;

    // One that hangs for longer than the engine's time-out is failed over; it wakes up as a primary of the past.
    let (primary, replica) = cluster.pair(0)?;
    let writer = crate::story::writer(cluster, "frozen", &[primary.host])?;
    let engine = process::engine_of(&primary.id)?;
    let mut client = cluster.client(&[primary.host])?;
    process::freeze(engine, true)?;
    let result = failover(cluster, &mut client, &replica, "primary's process frozen");
    process::freeze(engine, false)?;
    result?;
    measured("primary's process frozen: whole again", cluster.wait_whole(SOON)?);
    stepped_down(cluster, &primary)?;
    ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
    nothing_lost(cluster, writer)
}

fn primary_guest(cluster: &Cluster<'_>) -> Result<()> {
    let (primary, _) = cluster.pair(1)?;
    let before = cluster.wait_agreed(SOON)?;
    let writer = writer(cluster, "guest", &[primary.host])?;
    writer.progresses(100, SOON)?;
    let init = process::init_of(&primary.id)?;
    process::murder(init)?;
    reborn(cluster, &primary, process::init_of, init, "primary's guest killed")?;
    ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
    nothing_lost(cluster, writer)
}

fn replica_guest(cluster: &Cluster<'_>) -> Result<()> {
    let (primary, replica) = cluster.pair(2)?;
    let writer = writer(cluster, "replica", &[replica.host])?;
    writer.progresses(100, SOON)?;
    let init = process::init_of(&replica.id)?;
    process::murder(init)?;
    reborn(cluster, &replica, process::init_of, init, "replica's guest killed")?;
    let (now, _) = cluster.pair(2)?;
    ensure!(now.id == primary.id, "the loss of a replica moved the primary to {now:?}");
    nothing_lost(cluster, writer)
}

/// Shard ids travel by gossip after the roles: an engine that dies in between leaves a file that it calls corrupted itself.
fn shard_ids_disagree(cluster: &Cluster<'_>) -> Result<()> {
    let before = cluster.wait_agreed(SOON)?;
    let (_, replica) = cluster.pair(0)?;
    let (_, other) = cluster.pair(1)?;
    let (init, engine) = (process::init_of(&replica.id)?, process::engine_of(&replica.id)?);
    // Stopped, it does not write the file again.
    process::freeze(engine, true)?;
    let path = format!("/proc/{init}/root/data/valkey/nodes.conf");
    let nodes = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let of_other = before.get(&other.endpoint).context("the other replica has no node id")?;
    let line = nodes.lines().find(|line| line.starts_with(of_other.as_str())).context("it is not known")?;
    let (head, rest) = line.split_once("shard-id=").context("it has no shard id")?;
    let changed = format!("{head}shard-id={}{}", "0123456789".repeat(4), &rest[40..]);
    fs::write(&path, nodes.replace(line, &changed)).with_context(|| format!("cannot write {path}"))?;
    process::murder(init)?;
    reborn(cluster, &replica, process::init_of, init, "replica with two shard ids killed")?;
    ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
    Ok(())
}

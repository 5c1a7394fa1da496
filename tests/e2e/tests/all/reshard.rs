//! Shards come and go under a client that writes: slots move with their keys, and nothing is lost, doubled or left behind.

use std::{collections::BTreeSet, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Instance, Shape, engine, lib_dir, measured, on_stage, process, slots};
use shardplane_harness::{World, WorldOptions, Writer, wait_until};

use crate::{REPAIR, SOON, story::writer};

/// Keys that are there before a change.
const KEYS: u64 = 30_000;
/// Where slots are many and it is about them.
const FEW: u64 = 3_000;
/// The fewest slots that make four even shards of three, or three of four, and the most that may travel for it.
const TRAVEL: std::ops::RangeInclusive<u64> = 4096..=5462;

#[test]
fn aws_7_shards_come_and_go_under_a_writer() {
    on_stage(WorldOptions::named("reshard"), |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", KEYS)?;
        let writer = writer(&cluster, "reshard", &[])?;
        writer.progresses(100, SOON)?;

        let added = cluster.add_shard();
        watch(&cluster, "3 to 4 shards", None)?;
        settled(&cluster)?;
        let members: Vec<Instance> =
            cluster.instances()?.into_iter().filter(|i| i.shard_id == added).collect();
        let hosts: BTreeSet<u32> = members.iter().map(|i| i.host).collect();
        ensure!(members.len() == 2 && hosts.len() == 2, "the new shard has the members {members:?}");
        ensure!(slots::seen(&cluster, "old", KEYS)? == KEYS, "keys are not at their owners");

        // One of the first three, so that the others close ranks.
        let leaving: Vec<Instance> = cluster.instances()?.into_iter().filter(|i| i.shard == 1).collect();
        cluster.remove_shard(1);
        watch(&cluster, "4 to 3 shards", Some(&leaving))?;
        settled(&cluster)?;
        gone(world, &cluster, &leaving)?;
        conserved(&cluster, writer, "reshard", &[("old", KEYS)])
    });
}

#[test]
fn five_shards_become_three_in_two_steps() {
    on_stage(WorldOptions { coordinators: 1, ..WorldOptions::named("five") }, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(5, 1))?;
        cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", FEW)?;
        let writer = writer(&cluster, "five", &[])?;
        writer.progresses(100, SOON)?;
        let five = cluster.manifest.clone();
        cluster.remove_shard(4);
        cluster.remove_shard(3);
        let refused = cluster.api.put("/api/v1/valkey", &cluster.manifest)?;
        let text = refused.body["errorMessage"].as_str().unwrap_or_default();
        ensure!(
            refused.status == 400 && text.contains("from 5 to 3") && text.contains("allowed is 4"),
            "{refused:?}"
        );
        cluster.manifest = five;
        for left in [4, 3] {
            let leaving: Vec<Instance> =
                cluster.instances()?.into_iter().filter(|i| usize::try_from(i.shard) == Ok(left)).collect();
            cluster.remove_shard(left);
            let took = cluster.api.apply("valkey", &cluster.manifest, 4 * REPAIR)?;
            measured(format!("{} to {left} shards", left + 1), took);
            settled(&cluster)?;
            gone(world, &cluster, &leaving)?;
            ensure!(cluster.instances()?.len() == 2 * left, "{:?}", cluster.instances()?);
            ensure!(slots::seen(&cluster, "old", FEW)? == FEW, "keys are not at their owners");
        }
        conserved(&cluster, writer, "five", &[("old", FEW)])
    });
}

/// Puts the spec and looks on until the change has ended: progress only rises, the status tells it, shards that leave stay until they
/// are empty.
fn watch(cluster: &Cluster<'_>, what: &str, leaving: Option<&[Instance]>) -> Result<()> {
    let start = Instant::now();
    let request = cluster.api.submit("valkey", &cluster.manifest)?;
    let mut client = cluster.client(&[])?;
    let path = format!("/api/v1/valkey/request/{request}");
    let (mut before, mut moving) = (0, None);
    let (mut told, mut split, mut estimated) = (0, false, false);
    let mut ended = || -> Result<bool> {
        let reply = cluster.api.get(&path)?;
        if reply.body["succeeded"] == true {
            return Ok(true);
        }
        ensure!(reply.body["errorCode"].is_null(), "the change failed: {reply:?}");
        let status = cluster.status()?;
        ensure!(
            status["clusterState"] == "ok",
            "clusterState is {} while slots move",
            status["clusterState"]
        );
        if let Some(leaving) = leaving {
            stay_until_empty(cluster, &mut client, leaving)?;
        }
        let Ok(operation) = cluster.operation("reshard") else { return Ok(false) };
        if operation["phase"] != "running" {
            return Ok(false);
        }
        ensure!(operation["error"].as_str() == Some(""), "it has halted: {operation}");
        moving.get_or_insert_with(Instant::now);
        let goal = operation["goal"]["amount"].as_u64().context("no goal")?;
        ensure!(operation["goal"]["what"] == "slots" && TRAVEL.contains(&goal), "the goal: {operation}");
        let moved = operation["counts"]["slots"].as_u64().unwrap_or(0);
        ensure!(moved >= before && moved <= goal, "{moved} slots after {before}: {operation}");
        before = moved;
        estimated |= operation["estimateSeconds"].is_number();
        let shards = status["shards"].as_array().cloned().unwrap_or_default();
        split |= shards.iter().any(|s| s["slotRanges"].as_array().is_some_and(|ranges| ranges.len() > 1));
        if let Some(message) = cluster.complaint("SlotsSettled")? {
            let words = message.split_once(&format!(" of {goal} slots have moved, "));
            let (now, _) = words.with_context(|| format!("SlotsSettled says {message:?}"))?;
            let now: u64 = now.parse()?;
            ensure!(now >= told, "{now} slots after {told}: {message}");
            told = now;
        }
        Ok(false)
    };
    let mut result = Ok(());
    wait_until(what, 2 * REPAIR, || match ended() {
        Ok(true) => Ok(()),
        Ok(false) => Err(cluster.operation("reshard").map_err(|error| format!("{error:#}"))),
        Err(error) => {
            result = Err(error);
            Ok(())
        }
    })?;
    result?;
    measured(what, start.elapsed());
    figures(&cluster.operation("reshard")?, what, moving.context("no slot was seen moving")?)?;
    ensure!(told > 0, "SlotsSettled never told of the move");
    ensure!(split && estimated, "no slotRanges ({split}) or no estimate ({estimated}) while slots moved");
    Ok(())
}

fn figures(operation: &Value, what: &str, start: Instant) -> Result<()> {
    ensure!(operation["phase"] == "succeeded", "the operation is {operation}");
    let count = |name: &str| operation["counts"][name].as_u64().unwrap_or(0);
    ensure!(TRAVEL.contains(&count("slots")), "{} slots moved: {operation}", count("slots"));
    let took = start.elapsed();
    measured(format!("{what}: {} slots with {} keys", count("slots"), count("keys")), took);
    let (slots, keys) = (count("slots") as f64, count("keys") as f64);
    let seconds = took.as_secs_f64();
    println!("measured: {what}: {:.0} slots and {:.0} keys a second", slots / seconds, keys / seconds);
    Ok(())
}

/// A member that retires belongs to a shard that owns nothing, as the others see it.
fn stay_until_empty(
    cluster: &Cluster<'_>,
    client: &mut shardplane_harness::ValkeyClient,
    leaving: &[Instance],
) -> Result<()> {
    let all = cluster.all_instances()?;
    let stays = |old: &&Instance| all.iter().any(|i| i.id == old.id && i.intent == "wanted");
    if leaving.iter().all(|old| stays(&old)) {
        return Ok(());
    }
    let other =
        cluster.instances()?.into_iter().find(|i| i.primary() && leaving.iter().all(|l| l.id != i.id));
    let table = engine::nodes(client, &other.context("no primary")?.endpoint)?;
    for old in leaving {
        let node = table.iter().find(|node| node.endpoint == old.endpoint);
        ensure!(node.is_none_or(|node| node.slots.is_empty()), "{old:?} retires and has slots: {node:?}");
    }
    Ok(())
}

/// The product and all engines agree that everything is where it shall be: one range a shard.
pub fn settled(cluster: &Cluster<'_>) -> Result<()> {
    // Primaries that met on a host by failovers are parted when no slot moves any more.
    let spread = || match cluster.status() {
        Ok(status) if status["antiAffinityOk"] == true && status["primarySpreadOk"] == true => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the cluster being spread", REPAIR, spread)?;
    cluster.wait_whole(SOON)?;
    cluster.wait_agreed(SOON)?;
    let status = cluster.status()?;
    let mut next = 0;
    let mut shards = status["shards"].as_array().cloned().unwrap_or_default();
    shards.sort_by_key(|shard| shard["slotStart"].as_i64());
    for shard in &shards {
        let (start, end) = (shard["slotStart"].as_i64(), shard["slotEnd"].as_i64());
        let (start, end) = start.zip(end).with_context(|| format!("no range: {shard}"))?;
        ensure!(start == next && shard["slotCount"] == end - start + 1, "the shards have {shards:?}");
        ensure!(shard["slotRanges"].as_array().is_some_and(|ranges| ranges.len() == 1), "{shard}");
        next = end + 1;
    }
    ensure!(next == i64::from(engine::SLOTS), "the shards have {shards:?}");
    Ok(())
}

/// Nothing runs or lies about of these instances.
pub fn gone(world: &World, cluster: &Cluster<'_>, leaving: &[Instance]) -> Result<()> {
    let unlisted = || match cluster.all_instances() {
        Ok(all) if all.iter().all(|i| leaving.iter().all(|l| l.id != i.id)) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the end of the removed shard's instances", SOON, unlisted)?;
    for old in leaving {
        ensure!(process::inits_of(&old.id)?.is_empty(), "{} still runs", old.id);
        let volume = lib_dir(world).join(format!("h{}/volumes/{}", old.host, old.id));
        ensure!(!volume.exists(), "{} is still there", volume.display());
    }
    Ok(())
}

/// Every acknowledged write and every key of before is there, once, at its owner, and nothing is anywhere else.
pub fn conserved(cluster: &Cluster<'_>, writer: Writer, prefix: &str, before: &[(&str, u64)]) -> Result<()> {
    writer.progresses(50, SOON)?;
    let written = writer.stop()?;
    let acknowledged = u64::try_from(written.acknowledged.len())?;
    println!(
        "{acknowledged} acknowledged writes, {} uncertain, last error {:?}",
        written.uncertain, written.last_error
    );
    measured("longest gap in writes", written.longest_gap);
    written.verify(&mut cluster.client(&[])?, SOON)?;
    let mut keys = 0;
    for (prefix, count) in before {
        let seen = slots::seen(cluster, prefix, *count)?;
        ensure!(seen == *count, "{} of {count} keys {prefix} are lost", count - seen);
        keys += count;
    }
    // Writes that were not acknowledged may be there, once.
    let own = slots::seen(cluster, prefix, acknowledged + written.uncertain)?;
    ensure!(own >= acknowledged, "{own} keys are there, {acknowledged} writes were acknowledged");
    let tidy = || match slots::tidy(cluster) {
        Ok(sum) if sum == keys + own => Ok(()),
        Ok(sum) => Err(format!("there are {sum} keys, of which {} are known", keys + own)),
        Err(error) => Err(format!("{error:#}")),
    };
    // Replicas may be a moment behind.
    wait_until("order among the keys", SOON, tidy)?;
    Ok(())
}

//! A move of slots meets trouble: a large key, an engine that refuses, a user who changes his mind.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use shardplane_e2e::{Cluster, Instance, Shape, measured, on_stage, slots};
use shardplane_harness::{Reply, World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    reshard::{conserved, gone, settled},
    story::writer,
};

/// Fields of the large key.
const FIELDS: u64 = 1_000_000;
/// Makes fields of a hash.
const FILL: &str =
    "for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do redis.call('HSET', KEYS[1], 'field:' .. i, i) end";

#[test]
fn val_8_a_large_key_is_told_of_and_arrives_whole() {
    let options = WorldOptions { hosts: 4, coordinators: 1, ..WorldOptions::named("large-key") };
    on_stage(options, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(4, 0))?;
        cluster.wait_agreed(SOON)?;
        let mut client = cluster.client(&[])?;
        // All slots of a shard that goes travel.
        let leaving: Vec<Instance> = cluster.instances()?.into_iter().filter(|i| i.shard == 3).collect();
        let from = leaving.first().context("no shard 3")?.endpoint.clone();
        let own = (0..100)
            .map(|n| format!("large:{n}"))
            .find(|key| client.ask::<bool>(&from, redis::cmd("EXISTS").arg(key)).is_ok());
        let key = own.context("no key is in a slot of shard 3")?;
        for start in (0..FIELDS).step_by(10_000) {
            let mut fill = redis::cmd("EVAL");
            fill.arg(FILL).arg(1).arg(&key).arg(start).arg(start + 10_000);
            client.ask::<()>(&from, &fill)?;
        }
        slots::load(&cluster, "old", 2000)?;
        cluster.remove_shard(3);
        let request = cluster.api.submit("valkey", &cluster.manifest)?;
        let warned = || -> Result<String> {
            let operation = cluster.operation("reshard")?;
            let notes = operation["notes"].as_array().context("no notes")?;
            let note = notes.iter().filter_map(Value::as_str).find(|note| note.contains(&key));
            note.map(str::to_owned).with_context(|| format!("{operation}"))
        };
        let (note, _) =
            wait_until("the note about a large key", REPAIR, || warned().map_err(|e| format!("{e:#}")))?;
        println!("{note}");
        let told = note.contains(" MiB: moving it stops both primaries for about ") && note.ends_with(" s");
        ensure!(told, "the note has no size or no pause: {note}");
        let took = cluster.api.settle("valkey", &request, 2 * REPAIR)?;
        measured(format!("4 to 3 shards with a hash of {FIELDS} fields"), took);
        settled(&cluster)?;
        gone(world, &cluster, &leaving)?;
        let (fields, _): (u64, _) = client.query(redis::cmd("HLEN").arg(&key))?;
        ensure!(fields == FIELDS, "{fields} of {FIELDS} fields are there");
        for field in [0, FIELDS / 3, FIELDS - 1] {
            let (value, _): (Option<u64>, _) =
                client.query(redis::cmd("HGET").arg(&key).arg(format!("field:{field}")))?;
            ensure!(value == Some(field), "field {field} is {value:?}");
        }
        let keys = slots::tidy(&cluster)?;
        ensure!(keys == 2001, "there are {keys} keys");
        Ok(())
    });
}

/// Everything as the change's own page shows it, once it has ended.
fn ended(cluster: &Cluster<'_>, request: &str) -> Result<Reply> {
    let path = format!("/api/v1/valkey/request/{request}");
    let look = || match cluster.api.get(&path) {
        Ok(reply) if reply.body["succeeded"] == true || reply.body["errorCode"].is_string() => Ok(reply),
        other => Err(format!("{other:?}")),
    };
    Ok(wait_until("the end of the change", SOON, look)?.0)
}

/// No engine marks a slot, and each key is where its slot is.
fn closed(cluster: &Cluster<'_>, prefix: &str, count: u64) -> Result<()> {
    let tidy = || slots::tidy(cluster).map_err(|error| format!("{error:#}"));
    let (_, took) = wait_until("open slots being closed", SOON, tidy)?;
    measured("cancel: no slot is open", took);
    let seen = slots::seen(cluster, prefix, count)?;
    ensure!(seen == count, "{} of {count} keys are lost", count - seen);
    Ok(())
}

fn failed_as_cancelled(cluster: &Cluster<'_>, request: &str) -> Result<()> {
    let reply = ended(cluster, request)?;
    let text = reply.body["errorMessage"].as_str().unwrap_or_default();
    let told = text.starts_with("cancelled by ") && text.contains("put the same spec again to go on");
    ensure!(reply.body["succeeded"] == false && told, "the change ended as {reply:?}");
    Ok(())
}

/// Waits until so many slots have moved.
fn moved(cluster: &Cluster<'_>, slots: u64) -> Result<Value> {
    let look = || match cluster.operation("reshard") {
        Ok(operation) if operation["counts"]["slots"].as_u64() >= Some(slots) => Ok(operation),
        other => Err(format!("{other:?}")),
    };
    Ok(wait_until(&format!("{slots} slots having moved"), REPAIR, look)?.0)
}

#[test]
fn a_move_is_cancelled_and_the_old_spec_leads_back() {
    on_stage(WorldOptions { coordinators: 1, ..WorldOptions::named("cancel") }, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", 20_000)?;
        let writer = writer(&cluster, "cancel", &[])?;
        writer.progresses(100, SOON)?;
        cluster.add_shard();
        let request = cluster.api.submit("valkey", &cluster.manifest)?;
        let operation = moved(&cluster, 700)?;
        let id = operation["id"].as_str().context("no id")?;
        ensure!(operation["cancellable"] == true, "{operation}");
        let output = kc(world, &["cancel", "operation", id])?;
        println!("{output}");
        failed_as_cancelled(&cluster, &request)?;
        let operation = cluster.operation("reshard")?;
        ensure!(operation["phase"] == "cancelled" && operation["id"] == id, "{operation}");
        closed(&cluster, "old", 20_000)?;
        writer.progresses(50, SOON)?;
        ensure!(cluster.operation("reshard")?["id"] == id, "another move began by itself");

        // The spec of before: what has moved goes back.
        let leaving: Vec<Instance> = cluster.instances()?.into_iter().filter(|i| i.shard == 3).collect();
        ensure!(leaving.len() == 2, "the new shard's members are {leaving:?}");
        cluster.remove_shard(3);
        let took = cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
        measured("back to 3 shards", took);
        settled(&cluster)?;
        gone(world, &cluster, &leaving)?;
        conserved(&cluster, writer, "cancel", &[("old", 20_000)])
    });
}

/// Runs kc as a user of the world's first coordinator.
fn kc(world: &World, arguments: &[&str]) -> Result<String> {
    let test = std::env::current_exe()?;
    let program: PathBuf = test.ancestors().nth(2).context("no target directory")?.join("kc");
    let member = world.coordinators()?.into_iter().next().context("no coordinator")?;
    let output = Command::new(&program)
        .args(arguments)
        .env("KC_API_URL", format!("http://{}", member.address))
        .env("KC_TOKEN", world.api()?.token())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "kc {arguments:?}: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Lets all primaries perform MIGRATE, or refuse it.
fn allow_migrate(cluster: &Cluster<'_>, allowed: bool) -> Result<()> {
    let mut client = cluster.client(&[])?;
    let rule = if allowed { "+migrate" } else { "-migrate" };
    for member in cluster.instances()? {
        client.ask::<()>(&member.endpoint, redis::cmd("ACL").arg("SETUSER").arg("default").arg(rule))?;
    }
    Ok(())
}

#[test]
fn val_10_a_move_that_fails_says_why_halts_and_goes_on_when_put_right() {
    let options = WorldOptions { hosts: 4, coordinators: 1, ..WorldOptions::named("refused") };
    on_stage(options, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 0))?;
        cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", 5000)?;
        allow_migrate(&cluster, false)?;
        cluster.add_shard();
        let request = cluster.api.submit("valkey", &cluster.manifest)?;

        // The engine's own words while it is tried again, and no later than the first try.
        let failing = || -> Result<()> {
            let operation = cluster.operation("reshard")?;
            let steps = operation["steps"].as_array().context("no steps")?;
            let told = steps.iter().any(|s| s["error"].as_str().is_some_and(|e| e.contains("NOPERM")));
            ensure!(told, "{operation}");
            Ok(())
        };
        let ((), took) =
            wait_until("the engine's refusal", REPAIR, || failing().map_err(|e| format!("{e:#}")))?;
        measured("refused move: the engine's text is shown", took);
        let halted = || match cluster.operation("reshard") {
            Ok(operation) if operation["error"].as_str().is_some_and(|e| !e.is_empty()) => Ok(operation),
            other => Err(format!("{other:?}")),
        };
        let (operation, took) = wait_until("the move halting", 3 * REPAIR, halted)?;
        measured("refused move: halted", took);
        let failed = |operation: &Value| {
            let steps = operation["steps"].as_array().cloned().unwrap_or_default();
            // Slots without keys went before the first one that is refused; the same step is tried again after that.
            let last = steps.last().map(|step| step["name"].clone());
            steps.iter().filter(|s| s["phase"] == "failed" && Some(&s["name"]) == last.as_ref()).count()
        };
        let tries = failed(&operation);
        ensure!((2..=8).contains(&tries), "{tries} tries: {operation}");
        ensure!(operation["error"].as_str().is_some_and(|e| e.contains("NOPERM")), "{operation}");
        ensure!(operation["phase"] == "running" && operation["cancellable"] == true, "{operation}");
        let told = cluster.complaint("SlotsSettled")?.unwrap_or_default();
        ensure!(told.contains("halted") && told.contains("NOPERM"), "SlotsSettled says {told:?}");
        closed(&cluster, "old", 5000)?;

        let id = operation["id"].as_str().context("no id")?;
        let reply = cluster.api.post(&format!("/api/v1/operations/{id}:cancel"), &json!({}))?;
        ensure!(reply.status == 200 && reply.body["phase"] == "cancelled", "{reply:?}");
        ensure!(failed(&reply.body) == tries, "it went on after it had halted: {reply:?}");
        failed_as_cancelled(&cluster, &request)?;
        allow_migrate(&cluster, true)?;
        let took = cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
        measured("the same spec again, after putting right", took);
        settled(&cluster)?;
        closed(&cluster, "old", 5000)
    });
}

//! What most stories have in common. In: a cluster. Out: a writer beside it, the moment of a failover, what an operator orders, and the
//! verdict at the end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Instance, engine, measured, process};
use shardplane_harness::{Api, ValkeyClient, World, Writer, wait_until};

use crate::SOON;

/// Starts a writer that stands on a host not in `avoid`.
pub fn writer(cluster: &Cluster<'_>, prefix: &str, avoid: &[u32]) -> Result<Writer> {
    Writer::start(cluster.client(avoid)?, prefix)
}

/// Lets the writer go on for a little, stops it, and checks that nothing that it was promised is lost.
pub fn nothing_lost(cluster: &Cluster<'_>, writer: Writer) -> Result<()> {
    writer.progresses(50, SOON)?;
    let written = writer.stop()?;
    written.verify(&mut cluster.client(&[])?, SOON)?;
    let (count, gap) = (written.acknowledged.len(), written.longest_gap);
    println!(
        "{count} acknowledged writes are there, {} uncertain, last error {:?}",
        written.uncertain, written.last_error
    );
    measured("longest gap in writes", gap);
    Ok(())
}

/// Waits until `replica` is a master by its own word, then for the status to say so: within 2 s of the engine's change.
pub fn failover(
    cluster: &Cluster<'_>,
    client: &mut ValkeyClient,
    replica: &Instance,
    what: &str,
) -> Result<()> {
    let start = Instant::now();
    let is_master = || match engine::role(client, &replica.endpoint) {
        Ok(role) if role == "master" => Ok(()),
        Ok(role) => Err(role),
        Err(error) => Err(format!("{error:#}")),
    };
    wait_until(&format!("{} taking over", replica.endpoint), SOON, is_master)?;
    measured(format!("{what}: failover by the engine"), start.elapsed());
    let index = usize::try_from(replica.shard)?;
    let shown = || match cluster.status() {
        Ok(status) if status["shards"][index]["primaryEndpoint"] == replica.endpoint.as_str() => Ok(()),
        Ok(status) => Err(status["shards"][index].to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    let ((), late) = wait_until("the status following the engine", SOON, shown)?;
    measured(format!("{what}: status after the engine"), late);
    ensure!(late < Duration::from_secs(2), "the status followed the engine after {late:?}");
    Ok(())
}

/// Waits until an instance has another process than `old`, its guest's PID 1 or its engine as `of` finds it, and the cluster is
/// whole with it.
pub fn reborn(
    cluster: &Cluster<'_>,
    instance: &Instance,
    of: impl Fn(&str) -> Result<i32>,
    old: i32,
    what: &str,
) -> Result<()> {
    let start = Instant::now();
    let another = || match of(&instance.id) {
        Ok(pid) if pid != old => process::engine_of(&instance.id).map_err(|error| format!("{error:#}")),
        other => Err(format!("{other:?}")),
    };
    wait_until(&format!("a new process of {}", instance.id), SOON, another)?;
    // The report of the time before may be the last that is known, so the engines have to say it too.
    cluster.wait_agreed(SOON)?;
    cluster.wait_whole(SOON)?;
    measured(format!("{what}: whole again"), start.elapsed());
    Ok(())
}

/// Checks that a primary of the past is a replica, or became a primary again since because spread asked for it.
pub fn stepped_down(cluster: &Cluster<'_>, old: &Instance) -> Result<()> {
    cluster.wait_agreed(SOON)?;
    cluster.wait_whole(SOON)?;
    let (primary, _) = cluster.pair(old.shard)?;
    let back = format!("switch over to {}", old.id);
    let operations = cluster.api.items("operations", &cluster.id)?;
    let steps = operations.iter().filter_map(|operation| operation["steps"].as_array()).flatten();
    let ordered = steps.into_iter().any(|step| step["name"] == back.as_str());
    ensure!(primary.id != old.id || ordered, "the old primary is the primary: {primary:?}; {operations:?}");
    Ok(())
}

/// The id of a host by its index.
pub fn host_id(api: &Api, index: u32) -> Result<String> {
    let hosts = api.items("hosts", "")?;
    let is = |host: &&Value| host["name"].as_str().and_then(World::host_index) == Some(index);
    let host = hosts.iter().find(is).with_context(|| format!("no host {index} in {hosts:?}"))?;
    Ok(host["id"].as_str().context("a host without an id")?.to_owned())
}

/// What an operator orders of a host: a verb of its resource.
pub fn order(api: &Api, host: &str, verb: &str, body: &Value) -> Result<Value> {
    let reply = api.post(&format!("/api/v1/hosts/{host}:{verb}"), body)?;
    ensure!(reply.status == 200, "{verb} of host {host}: {} {}", reply.status, reply.body);
    Ok(reply.body)
}

/// A replica hears from the silence of a dead host's network only after the engine's own repl-timeout (60 s).
pub const PROVED: Duration = Duration::from_secs(180);

/// Waits until `replica` is a master by its own word.
pub fn leads(client: &mut ValkeyClient, replica: &Instance, deadline: Duration) -> Result<Duration> {
    let is_master = || match engine::role(client, &replica.endpoint) {
        Ok(role) if role == "master" => Ok(()),
        Ok(role) => Err(role),
        Err(error) => Err(format!("{error:#}")),
    };
    Ok(wait_until(&format!("{} taking over", replica.endpoint), deadline, is_master)?.1)
}

/// The operation that promoted the first of them, with the proofs told in an event; once a majority is there again the engine elects
/// the others itself.
pub fn taken_over(cluster: &Cluster<'_>) -> Result<()> {
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

//! A cluster is made and deleted: what its engines and its status say, how it is spread, and that nothing of it stays.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Inventory, Shape, measured, on_stage};
use shardplane_harness::{World, WorldOptions, wait_until};

#[test]
fn val_1_a_cluster_is_spread_true_and_leaves_nothing() {
    let options = WorldOptions { hosts: 3, ..WorldOptions::named("create") };
    on_stage(options, |world| {
        let before = Inventory::of(world)?;
        let (cluster, took) = Cluster::create(world, &Shape::of(3, 1))?;
        measured("create to stable", took);
        ensure!(took < Duration::from_secs(30), "the create took {took:?}");
        let ids = cluster.wait_agreed(Duration::from_secs(10))?;
        spread(&cluster)?;
        status_is_true(&cluster, &ids.into_values().collect())?;
        status_is_stable(&cluster)?;
        protected(&cluster)?;
        let took = cluster.delete()?;
        measured("delete", took);
        nothing_stays(world, &before)
    });
}

fn spread(cluster: &Cluster<'_>) -> Result<()> {
    let instances = cluster.instances()?;
    let primaries: Vec<u32> = instances.iter().filter(|i| i.primary()).map(|i| i.host).collect();
    let hosts: BTreeSet<u32> = primaries.iter().copied().collect();
    ensure!(primaries.len() == 3 && hosts.len() == 3, "two primaries share a host: {instances:#?}");
    for shard in 0..3 {
        let (primary, replica) = cluster.pair(shard)?;
        ensure!(primary.host != replica.host, "shard {shard} has both members on host {}", primary.host);
    }
    Ok(())
}

/// Every member of the status, against what engines and instances say.
fn status_is_true(cluster: &Cluster<'_>, node_ids: &BTreeSet<String>) -> Result<()> {
    let status = cluster.status()?;
    let resource = cluster.api.resource("valkey", &cluster.id)?;
    let instances = cluster.instances()?;
    let endpoints: BTreeSet<&str> = instances.iter().map(|i| i.endpoint.as_str()).collect();
    let texts = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    for (member, expected) in [
        ("state", "stable".into()),
        ("clusterState", "ok".into()),
        ("port", 6379.into()),
        ("dnsSeedFqdn", Value::Null),
        ("antiAffinityOk", true.into()),
        ("primarySpreadOk", true.into()),
        ("password", "only-for-tests".into()),
    ] {
        ensure!(status[member] == expected, "status.{member} is {}, not {expected}", status[member]);
    }
    ensure!(resource["spec"]["rootPassword"] == "only-for-tests", "an admin token reads the password");
    let uri = status["connectionUri"].as_str().context("no connectionUri")?;
    let place = uri.strip_prefix("valkey://:only-for-tests@").with_context(|| format!("the URI is {uri}"))?;
    ensure!(endpoints.contains(place), "the URI leads to {place}");
    let listed = texts(&status["clusterEndpoints"]);
    ensure!(
        listed.iter().map(String::as_str).collect::<BTreeSet<_>>() == endpoints,
        "clusterEndpoints are {listed:?}"
    );
    for message in ["antiAffinityMessage", "primarySpreadMessage"] {
        let text = status[message].as_str().unwrap_or_default();
        ensure!(text.contains("oldest report"), "status.{message} does not tell its age: {text:?}");
    }
    ensure!(
        status["lastChangeRequest"]["state"] == "stable",
        "the last change is {}",
        status["lastChangeRequest"]
    );
    for price in ["hour", "day", "month"] {
        ensure!(
            status["pricing"][price].as_f64().is_some_and(|p| p > 0.0),
            "the price is {}",
            status["pricing"]
        );
    }
    let mut next = 0;
    let shards = status["shards"].as_array().context("no shards")?;
    for (index, shard) in shards.iter().enumerate() {
        let (primary, replica) = cluster.pair(i64::try_from(index)?)?;
        let sound = shard["index"] == index
            && shard["id"] == cluster.manifest["spec"]["shards"][index]["id"]
            && shard["primaryInstanceId"] == primary.id.as_str()
            && texts(&shard["replicaInstanceIds"]) == [replica.id.clone()]
            && shard["primaryEndpoint"] == primary.endpoint.as_str()
            && texts(&shard["replicaEndpoints"]) == [replica.endpoint.clone()]
            && status["primaryEndpoints"][index] == primary.endpoint.as_str()
            && shard["slotStart"] == next;
        ensure!(sound, "shard {index} is {shard}, with {primary:?} and {replica:?}");
        next = shard["slotEnd"].as_i64().context("no slotEnd")? + 1;
    }
    ensure!(shards.len() == 3 && next == 16_384, "the slots end at {next}");
    let nodes = status["nodes"].as_array().context("no nodes")?;
    for node in nodes {
        let own = instances.iter().find(|i| node["id"] == i.id.as_str()).context("a node of nobody")?;
        let sound = node["isPrimary"] == own.primary()
            && node["observedRole"] == if own.primary() { "master" } else { "slave" }
            && node["shardIndex"] == own.shard
            && node["port"] == 6379
            && node["busPort"] == 16_379
            && Some(own.endpoint.as_str())
                == node["privateIpV4"].as_str().map(|ip| format!("{ip}:6379")).as_deref();
        ensure!(sound, "node {node} is {own:?}");
    }
    let told: BTreeSet<String> =
        nodes.iter().filter_map(|n| n["nodeId"].as_str().map(str::to_owned)).collect();
    ensure!(nodes.len() == 6 && told == *node_ids, "the node ids are {told:?}, the engines say {node_ids:?}");
    Ok(())
}

/// Whoever is asked, however often: the same, besides the age of the reports.
fn status_is_stable(cluster: &Cluster<'_>) -> Result<()> {
    let without_ages = || -> Result<Value> {
        let mut status = cluster.status()?;
        for message in ["antiAffinityMessage", "primarySpreadMessage"] {
            status[message] = Value::Null;
        }
        Ok(status)
    };
    let first = without_ages()?;
    for _ in 0..50 {
        let again = without_ages()?;
        ensure!(again == first, "the status changed from {first:#} to {again:#}");
    }
    Ok(())
}

fn protected(cluster: &Cluster<'_>) -> Result<()> {
    let mut manifest = cluster.manifest.clone();
    let ten = Duration::from_secs(10);
    manifest["metadata"]["deleteProtection"] = true.into();
    cluster.api.apply("valkey", &manifest, ten)?;
    let refused = cluster.api.delete(&format!("/api/v1/valkey/{}", cluster.id))?;
    ensure!(
        refused.status == 422 && refused.body["errorCode"] == "ResourceIsDeleteProtected",
        "a protected cluster's delete was answered with {refused:?}"
    );
    cluster.whole().map_err(|wrong| anyhow::anyhow!("after a refused delete: {wrong}"))?;
    cluster.api.apply("valkey", &cluster.manifest, ten)?;
    Ok(())
}

/// Waits until a world's hosts hold nothing that was not there before.
pub fn nothing_stays(world: &World, before: &Inventory) -> Result<()> {
    let look = || match Inventory::of(world) {
        Ok(now) => match now.beyond(before) {
            none if none.is_empty() => Ok(()),
            left => Err(left),
        },
        Err(error) => Err(vec![format!("{error:#}")]),
    };
    let ((), took) = wait_until("nothing being left on any host", Duration::from_secs(30), look)?;
    measured("sweep after delete", took);
    Ok(())
}

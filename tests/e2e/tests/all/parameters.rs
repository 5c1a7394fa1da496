//! Parameter sets of a running cluster, under a client that writes: every change reaches every member, and nothing that the client was
//! promised is lost.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use shardplane_e2e::{Cluster, Shape, id, measured, on_stage};
use shardplane_harness::{WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{nothing_lost, writer},
};

/// A set as a client sends it.
fn set(cluster: &Cluster<'_>, id: &str, parameters: &Value) -> Value {
    let folder = cluster.manifest["metadata"]["folderId"].clone();
    let metadata = json!({"id": id, "name": format!("tuning-{}", &id[id.len() - 6..]), "folderId": folder});
    json!({"metadata": metadata, "spec": {"parameters": parameters}})
}

fn put(cluster: &Cluster<'_>, id: &str, parameters: &Value) -> Result<()> {
    cluster.api.apply("valkey-parameters-set", &set(cluster, id, parameters), SOON)?;
    Ok(())
}

fn condition(cluster: &Cluster<'_>) -> Result<(String, String)> {
    let status = cluster.status()?;
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let one = all.iter().find(|c| c["type"] == "ParametersInSync").context("no ParametersInSync")?;
    let text = |member: &str| one[member].as_str().unwrap_or_default().to_owned();
    Ok((text("status"), text("message")))
}

/// Waits until every engine itself says so, and the product agrees.
fn in_force(cluster: &Cluster<'_>, wanted: &[(&str, &str)]) -> Result<()> {
    let mut client = cluster.client(&[])?;
    let ((), took) = wait_until(&format!("{wanted:?} on all members"), 2 * REPAIR, || {
        let members = cluster.instances().map_err(|error| format!("{error:#}"))?;
        for member in members {
            for (name, value) in wanted {
                let found: Result<Vec<String>> =
                    client.ask(&member.endpoint, redis::cmd("CONFIG").arg("GET").arg(*name));
                let found = found.map_err(|error| format!("{error:#}"))?;
                if found.get(1).map(String::as_str) != Some(*value) {
                    return Err(format!("{} has {found:?}", member.endpoint));
                }
            }
        }
        match condition(cluster) {
            Ok((status, _)) if status == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    measured(format!("rollout of {wanted:?}"), took);
    Ok(())
}

#[test]
fn val_11_parameters_reach_every_member_under_a_writer() {
    on_stage(WorldOptions::named("parameters"), |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        let (first, second) = (id(), id());
        put(&cluster, &first, &json!({"maxmemory-policy": "allkeys-lru"}))?;
        let writer = writer(&cluster, "parameters", &[])?;
        writer.progresses(100, SOON)?;

        // Attached: a change in flight until every member has it.
        cluster.manifest["spec"]["parametersSetId"] = first.as_str().into();
        let took = cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
        measured("attaching a set with a live directive", took);
        in_force(&cluster, &[("maxmemory-policy", "allkeys-lru"), ("io-threads", "1")])?;

        // Edited, with a directive that takes restarts: replicas restart, and primaries when another has taken over.
        put(&cluster, &first, &json!({"maxmemory-policy": "allkeys-lfu", "io-threads": "2"}))?;
        in_force(&cluster, &[("maxmemory-policy", "allkeys-lfu"), ("io-threads", "2")])?;
        cluster.wait_whole(SOON)?;
        cluster.wait_agreed(SOON)?;
        writer.progresses(50, SOON)?;

        // Refused by the engine: one member is touched, and its text is shown.
        put(
            &cluster,
            &first,
            &json!({"maxmemory-policy": "allkeys-lfu", "io-threads": "2", "activedefrag": "yes"}),
        )?;
        let shown = || match condition(&cluster) {
            Ok((status, text))
                if status == "False" && text.contains("activedefrag: Active defragmentation") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        };
        wait_until("the engine's refusal in the status", SOON, shown)?;
        let failed = ("rollout".to_owned(), "failed".to_owned());
        let halted = || match cluster.operations() {
            Ok(operations) if operations.contains(&failed) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the rollout halting", SOON, halted)?;

        // Another set, then none: what no set holds has its default again.
        put(&cluster, &second, &json!({"hz": "20", "io-threads": "2"}))?;
        cluster.manifest["spec"]["parametersSetId"] = second.as_str().into();
        cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
        in_force(&cluster, &[("maxmemory-policy", "noeviction"), ("hz", "20"), ("io-threads", "2")])?;
        let refused = cluster.api.submit_delete("valkey-parameters-set", &second);
        let text = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(text.contains("is still used by Valkey"), "the delete of an attached set: {text:?}");
        cluster.manifest["spec"]["parametersSetId"] = Value::Null;
        cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
        in_force(&cluster, &[("maxmemory-policy", "noeviction"), ("hz", "10"), ("io-threads", "1")])?;
        for unused in [&first, &second] {
            let request = cluster.api.submit_delete("valkey-parameters-set", unused)?;
            cluster.api.settle("valkey-parameters-set", &request, SOON)?;
        }
        cluster.wait_whole(SOON)?;
        cluster.wait_agreed(SOON)?;
        nothing_lost(&cluster, writer)
    });
}

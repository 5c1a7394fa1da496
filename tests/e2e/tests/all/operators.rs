//! A day of an operator with two clusters, by the real `kc` and under clients that write: what a plan said comes out, a replica counts
//! when it is in sync, one edit of a set reaches all that hang on it, and no engine ever names a node by nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use shardplane_e2e::{Cluster, Kc, Shape, id, measured, names::named_by, on_stage};
use shardplane_harness::{ValkeyClient, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{nothing_lost, writer},
};

#[test]
fn val_11_val_13_an_operator_plans_grows_and_tunes_two_clusters_by_kc() {
    let options = WorldOptions { hosts: 3, coordinators: 1, ..WorldOptions::named("operators") };
    on_stage(options, |world| {
        let kc = Kc::of(world)?;
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let mut beside = cluster.neighbour(&Shape::of(1, 1))?;
        let (lru, lfu) = (id(), id());
        set(&kc, &cluster, &lru, &json!({"maxmemory-policy": "allkeys-lru"}))?;
        set(&kc, &cluster, &lfu, &json!({"maxmemory-policy": "allkeys-lfu"}))?;
        attach(&kc, &mut cluster, &lru)?;
        attach(&kc, &mut beside, &lfu)?;
        cluster.wait_agreed(SOON)?;
        let writers = (writer(&cluster, "grows", &[])?, writer(&beside, "beside", &[])?);

        grows(&kc, &mut cluster, &lfu)?;
        for cluster in [&cluster, &beside] {
            cluster.wait_agreed(SOON)?;
            every_member_names_all(cluster)?;
        }
        set_reaches_both(&kc, [&cluster, &beside], &lfu)?;
        for cluster in [&cluster, &beside] {
            cluster.wait_whole(SOON)?;
            cluster.wait_agreed(SOON)?;
            every_member_names_all(cluster)?;
        }
        nothing_lost(&cluster, writers.0)?;
        nothing_lost(&beside, writers.1)
    });
}

fn name<'c>(cluster: &'c Cluster<'_>) -> &'c str {
    cluster.manifest["metadata"]["name"].as_str().unwrap_or_default()
}

/// A parameter set as an operator writes it.
fn written(cluster: &Cluster<'_>, id: &str, parameters: &Value) -> String {
    let name = format!("tuning-{}", &id[id.len() - 6..]);
    let metadata = json!({"id": id, "name": name, "folderId": cluster.manifest["metadata"]["folderId"]});
    json!({"kind": "valkey-parameters-set", "metadata": metadata, "spec": {"parameters": parameters}})
        .to_string()
}

fn set(kc: &Kc, cluster: &Cluster<'_>, id: &str, parameters: &Value) -> Result<()> {
    kc.says(&["apply", "-f", "-"], &written(cluster, id, parameters)).map(drop)
}

fn attach(kc: &Kc, cluster: &mut Cluster<'_>, set: &str) -> Result<()> {
    cluster.manifest["spec"]["parametersSetId"] = set.into();
    kc.says(&["apply", "-f", "-", "-w"], &cluster.manifest.to_string()).map(drop)
}

/// Instances and memory that all hosts together have promised.
fn promised(kc: &Kc) -> Result<(u64, u64)> {
    let shown = kc.shows(&["get", "capacity"], "")?;
    let items = shown["items"].as_array().into_iter().flatten();
    let all = items.into_iter().find(|item| item["zone"] == "(all)").context("no line of all hosts")?;
    let number = |of: &Value| of.as_u64().with_context(|| format!("{shown}"));
    Ok((number(&all["instances"])?, number(&all["promised"]["memoryMib"])?))
}

/// A replica more for each shard, and another set, in one change.
fn grows(kc: &Kc, cluster: &mut Cluster<'_>, set: &str) -> Result<()> {
    let (before, had) = (promised(kc)?, cluster.instances()?);
    cluster.manifest["spec"]["replicasPerShard"] = 2.into();
    cluster.manifest["spec"]["parametersSetId"] = set.into();
    let wanted = cluster.manifest.to_string();
    let plan = kc.shows(&["plan", "-f", "-"], &wanted)?;
    let plan = &plan["clusters"][0];
    let planned = plan["instances"].as_array().context("a plan without instances")?;
    let (new, stays): (Vec<&Value>, Vec<&Value>) = planned.iter().partition(|i| i["change"] == "new");
    ensure!(plan["antiAffinityOk"] == true && new.len() == 3 && stays.len() == 6, "the plan is {plan}");
    ensure!(new.iter().all(|i| i["role"] == "replica"), "the plan is {plan}");
    ensure!(stays.iter().all(|i| i["change"] == "stays" && i["parameters"] == "live"), "the plan is {plan}");
    ensure!(cluster.instances()? == had && promised(kc)? == before, "a plan changed something");
    let places = |index: &Value, host: &Value| (index.as_i64(), host.as_str().map(str::to_owned));
    let said: BTreeSet<_> = new.iter().map(|i| places(&i["shardIndex"], &i["host"])).collect();

    kc.says(&["apply", "-f", "-"], &wanted)?;
    let grow = wait_until("the operation", SOON, || {
        cluster.operation("grow").map_err(|error| format!("{error:#}"))
    })?
    .0;
    let operation = grow["id"].as_str().context("an operation without id")?;
    let watch = kc.begin(&["get", "operation", operation, "-w"])?;
    let mut waits = kc.begin(&["wait", "valkey", name(cluster), "--for", "stable", "--timeout", "2m"])?;
    let (mut client, start, mut counts) = (cluster.client(&[])?, Instant::now(), BTreeSet::new());
    let well = loop {
        counts.insert(counted(cluster, &mut client)?);
        for member in cluster.instances()? {
            // One that is being made does not answer yet; what it answers has to be right.
            match named_by(&mut client, &member.endpoint) {
                Ok(named) => named.check(&member.endpoint)?,
                Err(_) if !had.contains(&member) => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(well) = waits.ended()? {
            break well;
        }
    };
    measured("replicas 1 to 2 of three shards with another set", start.elapsed());
    println!("replicas that the status listed, and of these in sync: {counts:?}");
    ensure!(well, "kc wait says {}", waits.said()?);
    ensure!(counted(cluster, &mut client)? == (6, 6), "kc wait ended at {counts:?}");
    cluster.wait_whole(Duration::from_secs(10))?;
    let shown = || match watch.said() {
        Ok(text) if text.contains("succeeded") => Ok(text),
        other => Err(format!("{other:?}")),
    };
    let (text, _) = wait_until("the watch showing the end", SOON, shown)?;
    ensure!(text.contains("running") && text.matches("PHASE").count() == 1, "the watch showed {text}");
    println!("{text}");

    let hosts = cluster.api.items("instances", &cluster.id)?;
    let is_new = |i: &&Value| !had.iter().any(|old| i["id"] == old.id.as_str());
    let added: Vec<&Value> = hosts.iter().filter(is_new).collect();
    let came: BTreeSet<_> = added.iter().map(|i| places(&i["shardIndex"], &i["hostName"])).collect();
    ensure!(came == said, "planned {said:?}, came {came:?}");
    ensure!(cluster.status()?["antiAffinityOk"] == plan["antiAffinityOk"], "{}", cluster.status()?);
    let after = promised(kc)?;
    ensure!(
        (after.0, after.1 / after.0) == (before.0 + 3, before.1 / before.0),
        "{before:?}, then {after:?}"
    );
    for member in cluster.instances()? {
        config(&mut client, &member.endpoint, "maxmemory-policy", "allkeys-lfu")?;
    }
    let events = kc.says(&["events", "--for", &format!("cluster/{}", name(cluster))], "")?;
    let at = |words: &[&str]| events.lines().position(|line| words.iter().all(|word| line.contains(word)));
    let stable =
        events.lines().count() - events.lines().rev().position(|l| l.contains("Stable")).unwrap_or_default();
    for instance in added {
        let placed = at(&["Placed", "replicas are added", instance["id"].as_str().unwrap_or("?")]);
        ensure!(placed.is_some_and(|line| line < stable), "{instance} has no place in {events}");
    }
    Ok(())
}

fn config(client: &mut ValkeyClient, endpoint: &str, directive: &str, wanted: &str) -> Result<()> {
    let found: Vec<String> = client.ask(endpoint, redis::cmd("CONFIG").arg("GET").arg(directive))?;
    ensure!(found.get(1).map(String::as_str) == Some(wanted), "{endpoint} has {found:?}, not {wanted}");
    Ok(())
}

/// How many replicas the status lists, and how many of these their primaries call in sync. All that are wanted, when the status says that
/// the change is done.
fn counted(cluster: &Cluster<'_>, client: &mut ValkeyClient) -> Result<(usize, usize)> {
    let status = cluster.status()?;
    let (mut listed, mut in_sync, mut late) = (0, 0, Vec::new());
    for shard in status["shards"].as_array().into_iter().flatten() {
        let Some(primary) = shard["primaryEndpoint"].as_str() else { continue };
        let info: String = client.ask(primary, redis::cmd("INFO").arg("replication"))?;
        for replica in shard["replicaEndpoints"].as_array().into_iter().flatten() {
            let endpoint = replica.as_str().unwrap_or_default();
            let (ip, port) = endpoint.rsplit_once(':').with_context(|| format!("{replica}"))?;
            listed += 1;
            if info.contains(&format!("ip={ip},port={port},state=online")) {
                in_sync += 1;
            } else {
                late.push(format!("{primary} about {endpoint}: {info}"));
            }
        }
    }
    let done = status["state"] == "stable";
    ensure!(
        !done || (listed == 6 && late.is_empty()),
        "stable with {listed} replicas, not in sync: {late:?}"
    );
    Ok((listed, in_sync))
}

/// Every member names every member by its address, knows an owner of each slot, and lets no replica go to another shard. A replica that
/// was restarted is left out of `CLUSTER SLOTS` until gossip has told its offset; nothing is ever named by nothing.
fn every_member_names_all(cluster: &Cluster<'_>) -> Result<()> {
    let mut client = cluster.client(&[])?;
    let members = cluster.instances()?;
    let address = |endpoint: &str| endpoint.split(':').next().unwrap_or_default().to_owned();
    // Once in SLOTS, and as address and as endpoint in SHARDS.
    let mut all: Vec<String> = members.iter().map(|i| address(&i.endpoint)).collect();
    all.extend([all.clone(), all.clone()].concat());
    all.sort_unstable();
    for one in &members {
        let mut unsound = Vec::new();
        let complete = || {
            let mut named = named_by(&mut client, &one.endpoint).map_err(|error| format!("{error:#}"))?;
            unsound.extend(named.check(&one.endpoint).err());
            named.endpoints.sort_unstable();
            if named.slots == 16_384 && named.endpoints == all {
                Ok(())
            } else {
                Err(format!("{:?}", named.endpoints))
            }
        };
        let ((), took) = wait_until(&format!("{} naming all members", one.endpoint), SOON, complete)?;
        if let Some(error) = unsound.pop() {
            return Err(error);
        }
        ensure!(took < Duration::from_secs(5), "{} names all after {took:?}", one.endpoint);
        config(&mut client, &one.endpoint, "cluster-allow-replica-migration", "no")?;
    }
    Ok(())
}

/// What was seen of a member: in which look it last ran as before and whether it led then, and in which look it first ran anew.
#[derive(Debug, Default)]
struct Restart {
    run: String,
    led_at_first: bool,
    last: (usize, bool),
    anew: Option<usize>,
}

/// Which process an engine is, and whether it leads.
fn engine(client: &mut ValkeyClient, endpoint: &str) -> Option<(String, bool)> {
    let info: String = client.ask(endpoint, redis::cmd("INFO").arg("server").arg("replication")).ok()?;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    Some((run.trim().to_owned(), info.contains("role:master")))
}

/// One edit of a set with a directive that takes restarts.
fn set_reaches_both(kc: &Kc, clusters: [&Cluster<'_>; 2], id: &str) -> Result<()> {
    let edit = json!({"maxmemory-policy": "allkeys-lfu", "io-threads": "2"});
    let plan = kc.shows(&["plan", "-f", "-"], &written(clusters[0], id, &edit))?;
    let planned: Vec<&Value> = plan["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|c| c["instances"].as_array())
        .flatten()
        .collect();
    ensure!(
        planned.len() == 11 && planned.iter().all(|i| i["parameters"] == "restart"),
        "the plan is {plan}"
    );
    let start = Instant::now();
    let mut looks = Vec::new();
    for cluster in clusters {
        let mut client = cluster.client(&[])?;
        let mut seen = BTreeMap::new();
        for member in cluster.instances()? {
            let (run, leads) = engine(&mut client, &member.endpoint).context("an engine does not answer")?;
            let restart = Restart { run, led_at_first: leads, last: (0, leads), anew: None };
            seen.insert(member.endpoint.clone(), (member.shard, restart));
        }
        looks.push((cluster, client, seen));
    }
    set(kc, clusters[0], id, &edit)?;
    let mut look = 0;
    let all_anew = || {
        look += 1;
        for (_, client, seen) in &mut looks {
            for (endpoint, (_, restart)) in seen {
                match engine(client, endpoint) {
                    Some((run, leads)) if run == restart.run => restart.last = (look, leads),
                    Some(_) => restart.anew = restart.anew.or(Some(look)),
                    None => {}
                }
            }
        }
        let old = |(_, _, seen): &(_, _, BTreeMap<String, (i64, Restart)>)| {
            seen.values().filter(|(_, r)| r.anew.is_none()).count()
        };
        match looks.iter().map(old).sum::<usize>() {
            0 => Ok(()),
            left => Err(format!("{left} members run as before")),
        }
    };
    wait_until("all members running anew", 2 * REPAIR, all_anew)?;
    for (cluster, _, seen) in &looks {
        in_order(seen)?;
        kc.says(
            &["wait", "valkey", name(cluster), "--for", "condition=ParametersInSync", "--timeout", "1m"],
            "",
        )?;
    }
    measured("one edit with restarts reached two clusters of 9 and 2 members", start.elapsed());
    for (cluster, client, seen) in &mut looks {
        for (endpoint, (_, restart)) in seen {
            config(client, endpoint, "io-threads", "2")?;
            let (run, _) = engine(client, endpoint).context("an engine does not answer")?;
            ensure!(run != restart.run, "{endpoint} of {} runs as before", cluster.id);
        }
    }
    Ok(())
}

/// One member at a time, replicas before those that led at first, and nobody ends while it leads.
fn in_order(seen: &BTreeMap<String, (i64, Restart)>) -> Result<()> {
    let mut order: Vec<(&String, i64, &Restart)> =
        seen.iter().map(|(e, (shard, r))| (e, *shard, r)).collect();
    order.sort_by_key(|(_, _, restart)| restart.anew);
    for (endpoint, shard, restart) in &order {
        println!("{endpoint} of shard {shard}: {restart:?}");
        ensure!(!restart.last.1, "{endpoint} was restarted while it led: {restart:?}");
    }
    for pair in order.windows(2) {
        let ((first, _, before), (second, _, after)) = (pair[0], pair[1]);
        ensure!(
            before.anew.is_some_and(|anew| anew <= after.last.0),
            "{second} ended before {first} was back"
        );
        ensure!(
            !before.led_at_first || after.led_at_first,
            "{first} led at first, and went before the replica {second}"
        );
    }
    Ok(())
}

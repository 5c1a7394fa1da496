//! Days of an operator with hosts, by the real `kc` and under a client that writes: one is closed, one dies and is forgotten, what piles
//! up elsewhere is spread again when there is room, and one is drained past what blocks it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Instance, Kc, Shape, measured, on_stage};
use shardplane_harness::{Api, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{nothing_lost, writer},
};

/// The host that is closed first, and drained at last.
const DRAINED: u32 = 3;

#[test]
fn omi_9_omi_10_sch_3_hosts_are_closed_lost_forgotten_and_drained_by_kc() {
    let options =
        WorldOptions { hosts: 3, coordinators: 1, lost_after_s: 8, ..WorldOptions::named("operators-hosts") };
    on_stage(options, |world| {
        let kc = Kc::of(world)?;
        let said = kc.says(&["cordon", "host-3", "--reason", "new disks"], "")?;
        ensure!(said.contains("host/host-3 cordoned"), "{said}");
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        ensure!(cluster.instances()?.iter().all(|i| i.host != DRAINED), "something came to a closed host");
        ensure!(state(&cluster.api, DRAINED)? == ("Ready".to_owned(), true), "host-3 is not closed");

        // Of two hosts, one has at most one of three primaries: the others outvote its loss.
        let leading = |host| {
            cluster.instances().map(|all| all.iter().filter(|i| i.primary() && i.host == host).count())
        };
        let (doomed, stays) = if leading(1)? <= 1 { (1, 2) } else { (2, 1) };
        let writer = writer(&cluster, "hosts", &[doomed, DRAINED])?;
        writer.progresses(100, SOON)?;
        let dead = format!("host-{doomed}");
        let plan = kc.shows(&["plan", "drain", &dead], "")?;
        let moves = plan["moves"].as_array().context("a plan without moves")?;
        let beside = format!("host-{stays}");
        let names_it =
            |m: &Value| m["toHost"] == "" && m["blocker"].as_str().is_some_and(|why| why.contains(&beside));
        ensure!(moves.len() == 3 && moves.iter().all(names_it), "the plan is {plan}");
        let plan = kc.shows(&["plan", "loss", &dead], "")?;
        let moves = plan["moves"].as_array().context("a plan without moves")?;
        let beside_others = moves.len() == 3 && moves.iter().all(|m| m["toHost"] == beside.as_str());
        ensure!(beside_others && plan["clusters"][0]["antiAffinityOk"] == false, "the plan is {plan}");
        let refused = kc.refused(&["delete", "host", &dead], "")?;
        ensure!(refused.contains(&dead) && refused.contains("not lost"), "{refused}");

        world.kill_host(doomed)?;
        let lost = || match state(&cluster.api, doomed) {
            Ok((state, _)) if state == "Lost" => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the loss of the host", REPAIR, lost)?;
        kc.says(&["delete", "host", &dead], "")?;
        piled_up(&cluster, stays, REPAIR)?;
        let forgotten = || match state(&cluster.api, doomed) {
            Err(_) => Ok(()),
            Ok(state) => Err(state),
        };
        wait_until("the dead host being forgotten", SOON, forgotten)?;
        ensure!(!kc.says(&["get", "host"], "")?.contains(&dead), "{dead} is still listed");
        ensure!(cluster.all_instances()?.len() == 6, "{:?}", cluster.all_instances()?);

        let said = kc.says(&["uncordon", "host-3"], "")?;
        ensure!(said.contains("host/host-3 uncordoned"), "{said}");
        spread(&cluster, "a host opened")?;
        let neighbour = only_there(&kc, &cluster, &beside)?;
        let pinned = neighbour.instances()?;
        drain(&kc, &cluster, &neighbour, &beside)?;
        let free = world.add_host()?;
        rest_moves(&kc, &cluster, &neighbour)?;
        ensure!(cluster.instances()?.iter().any(|i| i.host == free), "nothing moved to host-{free}");
        ensure!(neighbour.instances()? == pinned, "what was blocked was moved");

        kc.says(&["drain", "host-3", "--force"], "")?;
        let empty = || match kc.says(&["drain", "host-3"], "") {
            Ok(text) if text.contains("nothing is left there") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        let ((), took) = wait_until("the host being empty", REPAIR, empty)?;
        measured("forced drain of the only copy of a shard", took);
        ensure!(kc.says(&["get", "host"], "")?.contains("Ready,Drained"), "host-3 is not drained");
        ensure!(cluster.api.items("instances", "")?.iter().all(|i| i["hostName"] != "host-3"), "not empty");
        neighbour.wait_whole(SOON)?;
        spread(&cluster, "a host drained")?;
        cluster.wait_agreed(SOON)?;
        nothing_lost(&cluster, writer)?;
        let events = kc.says(&["events", "--for", "host/host-3"], "")?;
        for reason in ["HostCordoned", "HostUncordoned", "HostDraining", "HostDrained"] {
            ensure!(events.contains(reason), "no {reason} in {events}");
        }
        Ok(())
    });
}

/// STATE of a host and whether it is closed.
fn state(api: &Api, index: u32) -> Result<(String, bool)> {
    let (hosts, name) = (api.items("hosts", "")?, format!("host-{index}"));
    let host = hosts.iter().find(|host| host["name"] == name.as_str()).context("no such host")?;
    Ok((host["state"].as_str().unwrap_or_default().to_owned(), !host["cordon"].is_null()))
}

/// Waits until all is on one host, every shard whole, and the status says which groups, instances and host that is.
fn piled_up(cluster: &Cluster<'_>, host: u32, deadline: std::time::Duration) -> Result<()> {
    let there = || {
        let all = cluster.instances().map_err(|error| format!("{error:#}"))?;
        let running = |i: &Instance| i.host == host && i.machine == "running";
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        let copies = status["shards"].as_array().into_iter().flatten();
        let copies =
            copies.filter(|s| s["replicaEndpoints"].as_array().is_some_and(|r| r.len() == 1)).count();
        if all.len() == 6 && all.iter().all(running) && copies == 3 && status["antiAffinityOk"] == false {
            Ok((all, status))
        } else {
            Err(format!("{all:?}, {status}"))
        }
    };
    let ((all, status), took) = wait_until("everything on the host that is left", deadline, there)?;
    measured("host dead and given up: its instances are made beside the others", took);
    let message = status["antiAffinityMessage"].as_str().unwrap_or_default();
    println!("it says: {message}");
    let host = format!("host-{host}");
    let names = all.iter().flat_map(|i| [i.id.as_str(), i.shard_id.as_str()]).chain([host.as_str()]);
    for name in names {
        ensure!(message.contains(name), "no {name} in: {message}");
    }
    Ok(())
}

/// Waits until no host has two members of a shard, by where they are and by what the status says, and all is whole.
fn spread(cluster: &Cluster<'_>, what: &str) -> Result<()> {
    let apart = || {
        let all = cluster.instances().map_err(|error| format!("{error:#}"))?;
        let places: BTreeSet<(i64, u32)> = all.iter().map(|i| (i.shard, i.host)).collect();
        let status = cluster.status().map_err(|error| format!("{error:#}"))?;
        if all.len() == 6 && places.len() == 6 && status["antiAffinityOk"] == true {
            Ok(())
        } else {
            Err(status["antiAffinityMessage"].to_string())
        }
    };
    let ((), took) = wait_until(what, REPAIR, apart)?;
    measured(format!("{what}: members of each shard are apart"), took);
    Ok(())
}

/// A shard without replicas on the host that is drained next.
fn only_there<'w>(kc: &Kc, cluster: &Cluster<'w>, closed: &str) -> Result<Cluster<'w>> {
    kc.says(&["cordon", closed], "")?;
    let neighbour = cluster.neighbour(&Shape::of(1, 0))?;
    kc.says(&["uncordon", closed], "")?;
    ensure!(neighbour.instances()?.iter().all(|i| i.host == DRAINED), "{:?}", neighbour.instances()?);
    Ok(neighbour)
}

/// The lines of a drain by instance.
fn lines(kc: &Kc) -> Result<Vec<String>> {
    Ok(kc.says(&["drain", "host-3"], "")?.lines().skip(2).map(str::to_owned).collect())
}

/// Nobody has a place but the host that has the other members: each is named with why it stays.
fn drain(kc: &Kc, cluster: &Cluster<'_>, neighbour: &Cluster<'_>, beside: &str) -> Result<()> {
    kc.says(&["drain", "host-3", "--reason", "new disks"], "")?;
    let (own, other) = (cluster.instances()?, neighbour.instances()?);
    let blocked = || {
        let lines = lines(kc).map_err(|error| vec![format!("{error:#}")])?;
        let told = |i: &Instance, why: &str| {
            lines.iter().any(|line| line.contains(&i.id) && line.contains("blocked") && line.contains(why))
        };
        let own = own.iter().filter(|i| i.host == DRAINED).filter(|i| told(i, beside)).count();
        if own == 3 && lines.len() == 4 && other.iter().all(|i| told(i, "no other copy")) {
            Ok(())
        } else {
            Err(lines)
        }
    };
    wait_until("the blockers of the drain", SOON, blocked)?;
    ensure!(cluster.instances()? == own, "something moved: {:?}", cluster.instances()?);
    Ok(())
}

/// With a place, all move but the one that has no other copy, which stays named.
fn rest_moves(kc: &Kc, cluster: &Cluster<'_>, neighbour: &Cluster<'_>) -> Result<()> {
    let only = neighbour.instances()?.into_iter().next().context("the neighbour has no instance")?;
    let one_left = || match lines(kc) {
        Ok(lines) if lines.len() == 1 && lines[0].contains(&only.id) && lines[0].contains("blocked") => {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    };
    let ((), took) = wait_until("the rest having moved", REPAIR, one_left)?;
    measured("host added: a drain that was blocked moved three instances", took);
    let left = cluster.all_instances()?;
    ensure!(left.iter().all(|i| i.host != DRAINED), "{left:?}");
    Ok(())
}

//! The story of the whole: a coordinator, two hosts with the real agent, and a cluster whose primary and replica are real virtual
//! machines; what dies of it and how it comes back.
//!
//! In: `/host/images` and the programs beside. Out: Ok, or what was not as it should be; figures on the console. Called by `main`.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Instance, Shape, process};
use shardplane_harness::{ValkeyClient, World, WorldOptions, wait_until};

use crate::iops::vmm_of;

/// An emulated machine on a busy computer; nothing here is slow by itself.
const PATIENCE: Duration = Duration::from_secs(900);
/// Memory of the offer in MiB, and what the agent adds for a VMM and its kernel's tables.
const MEMORY_MIB: u64 = 1024 + 128 + 1024 / 64;

/// All of it.
pub fn tell() -> Result<()> {
    let more =
        ["--vmm", "cloud-hypervisor", "--image-dir", "/host/images", "--disk-gib", "20", "--lease", "300s"];
    let world = World::up(&WorldOptions {
        hosts: 2,
        coordinators: 1,
        lost_after_s: 900,
        more: more.map(str::to_owned).to_vec(),
        ..WorldOptions::named("stack")
    })?;
    let (cluster, request) = Cluster::submit(&world, &Shape::of(1, 1))?;
    let told = story(&world, &cluster, &request);
    if told.is_err() {
        println!("the cluster's status: {:#}", cluster.status().unwrap_or_default());
        show(&world);
    }
    told
}

fn story(world: &World, cluster: &Cluster<'_>, request: &str) -> Result<()> {
    let took = cluster.api.settle("valkey", request, PATIENCE)?;
    cluster.wait_whole(PATIENCE)?;
    println!("measured: two machines asked for and replicating: {:.1} s", took.as_secs_f64());
    timelines(world)?;
    let (primary, replica) = cluster.pair(0)?;
    ensure!(primary.host != replica.host, "both are on host {}", primary.host);
    let mut client = cluster.client(&[])?;
    eventually("PONG over the subnet", || answers(&mut client, &primary, "PING", &[], "PONG"))?;
    println!("nested: PONG over the subnet");
    replicates(&mut client, &primary, &replica, "first")?;
    // Its connections would keep the network of a host alive that is to lose its power.
    drop(client);
    limits(&primary)?;
    agent_dies(world, cluster, &primary)?;
    vmm_dies(cluster, &replica)?;
    power_fails(world, cluster)
}

/// What is written at the primary is read at the replica.
fn replicates(client: &mut ValkeyClient, primary: &Instance, replica: &Instance, key: &str) -> Result<()> {
    eventually("a write", || answers(client, primary, "SET", &[key, "kept"], "OK"))?;
    eventually("the replica's words", || answers(client, replica, "READONLY", &[], "OK"))?;
    eventually("the write at the replica", || answers(client, replica, "GET", &[key], "kept"))?;
    println!("nested: the two replicate: {key}");
    Ok(())
}

/// The offer's share of the processor and its memory hold the VMM's own process.
fn limits(instance: &Instance) -> Result<()> {
    let pid = vmm_of(&instance.id)?;
    let group = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).context("it is in no cgroup v2")?;
    let group = Path::new("/sys/fs/cgroup").join(group);
    let value = |file: &str| {
        fs::read_to_string(group.join(file)).with_context(|| format!("read {file} of {group:?}"))
    };
    ensure!(group.ends_with(&instance.id), "the VMM is in {group:?}");
    ensure!(value("cpu.max")?.trim() == "100000 100000", "cpu.max is {}", value("cpu.max")?);
    ensure!(
        value("memory.max")?.trim() == (MEMORY_MIB << 20).to_string(),
        "memory.max is {}",
        value("memory.max")?
    );
    let held = value("memory.current")?;
    println!("nested: the VMM is held by cpu.max and memory.max of its own group");
    println!(
        "measured: memory of a VMM with its guest: {} MiB",
        held.trim().parse::<u64>().unwrap_or_default() >> 20
    );
    Ok(())
}

/// The machine goes on without its agent, and the next agent takes it over as it is.
fn agent_dies(world: &World, cluster: &Cluster<'_>, primary: &Instance) -> Result<()> {
    let before = vmm_of(&primary.id)?;
    world.kill_agent(primary.host)?;
    let mut client = cluster.client(&[])?;
    eventually("a write without an agent", || {
        answers(&mut client, primary, "SET", &["second", "kept"], "OK")
    })?;
    world.start_agent(primary.host)?;
    let log = world.run_dir().join(format!("h{}/log", primary.host));
    let adopted = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find(|line| line.contains("adopted a machine") && line.contains(&primary.id));
        line.map(str::to_owned).ok_or("nothing about it in the agent's log")
    };
    wait_until("the machine being adopted", PATIENCE, adopted)?;
    // The new agent hears from the guest and is heard by the coordinator.
    cluster.wait_whole(PATIENCE)?;
    ensure!(vmm_of(&primary.id)? == before, "the VMM is another one");
    println!("nested: an agent was killed, the next one adopted its machine");
    Ok(())
}

/// A VMM that is killed is noticed, and its machine is booted again over the same volume.
fn vmm_dies(cluster: &Cluster<'_>, replica: &Instance) -> Result<()> {
    let before = vmm_of(&replica.id)?;
    process::murder(before)?;
    let began = Instant::now();
    wait_until("another VMM", PATIENCE, || match vmm_of(&replica.id) {
        Ok(pid) if pid != before => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let noticed = began.elapsed();
    cluster.wait_whole(PATIENCE)?;
    let (primary, replica) = cluster.pair(0)?;
    replicates(&mut cluster.client(&[])?, &primary, &replica, "third")?;
    println!(
        "measured: a VMM killed: its machine starts again after {:.1} s, the cluster is whole after {:.1} s",
        noticed.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    println!("nested: a VMM was killed, its machine was repaired");
    Ok(())
}

/// The host of the primary loses its power and gets it back: the same machines with the same data.
fn power_fails(world: &World, cluster: &Cluster<'_>) -> Result<()> {
    let before = identities(cluster)?;
    let (primary, _) = cluster.pair(0)?;
    world.kill_host(primary.host)?;
    ensure!(vmm_of(&primary.id).is_err(), "a VMM outlives its host");
    let began = Instant::now();
    world.start_host(primary.host)?;
    wait_until("a VMM after the power's return", PATIENCE, || {
        vmm_of(&primary.id).map_err(|error| error.to_string())
    })?;
    cluster.wait_whole(PATIENCE)?;
    println!("measured: whole again after a host's power: {:.1} s", began.elapsed().as_secs_f64());
    ensure!(identities(cluster)? == before, "{before:?} became {:?}", identities(cluster)?);
    let (primary, replica) = cluster.pair(0)?;
    let mut client = cluster.client(&[])?;
    for key in ["first", "second", "third"] {
        eventually("a key from before", || answers(&mut client, &primary, "GET", &[key], "kept"))?;
    }
    replicates(&mut client, &primary, &replica, "fourth")?;
    println!("nested: a host lost its power and came back with the same machines and all keys");
    Ok(())
}

/// Instance, host, address and the engine's own id of each member.
fn identities(cluster: &Cluster<'_>) -> Result<Vec<(String, u32, String, String)>> {
    let mut client = cluster.client(&[])?;
    let mut all = Vec::new();
    for one in cluster.instances()? {
        let id = || {
            client
                .ask::<String>(&one.endpoint, redis::cmd("CLUSTER").arg("MYID"))
                .map_err(|error| format!("{error:#}"))
        };
        let (id, _) = wait_until("an engine's id", PATIENCE, id)?;
        all.push((one.id, one.host, one.endpoint, id));
    }
    all.sort();
    Ok(all)
}

fn answers(
    client: &mut ValkeyClient,
    node: &Instance,
    command: &str,
    arguments: &[&str],
    expected: &str,
) -> Result<(), String> {
    let answer = client.ask::<String>(&node.endpoint, redis::cmd(command).arg(arguments));
    match answer {
        Ok(answer) if answer == expected => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn eventually(what: &str, look: impl FnMut() -> Result<(), String>) -> Result<()> {
    wait_until(what, PATIENCE, look).map(drop)
}

/// Where the time of the first boots went, by the agents' logs and the guests' consoles.
fn timelines(world: &World) -> Result<()> {
    let mut told = 0;
    for host in world.hosts()? {
        let dir = world.run_dir().join(format!("h{}", host.index));
        let mut texts = vec![fs::read_to_string(dir.join("log")).context("read an agent's log")?];
        for machine in fs::read_dir(dir.join("run/machines")).context("list the machines")?.flatten() {
            texts.extend(fs::read_to_string(machine.path().join("console.log")));
        }
        for line in texts.iter().flat_map(|text| text.lines()) {
            let part = ["the VMM has booted: ", "boot, since the kernel's start: "]
                .iter()
                .find_map(|mark| Some(format!("{mark}{}", line.split_once(mark)?.1)));
            if let Some(part) = part {
                println!("measured: host {}: {part}", host.index);
                told += 1;
            }
        }
    }
    // Two lines of each machine.
    ensure!(told >= 4, "only {told} lines tell about the boots");
    Ok(())
}

/// The ends of all logs and consoles.
fn show(world: &World) {
    for host in world.hosts().unwrap_or_default() {
        let dir = world.run_dir().join(format!("h{}", host.index));
        let machines = fs::read_dir(dir.join("run/machines")).into_iter().flatten().flatten();
        let files = machines.map(|machine| machine.path().join("console.log")).chain([dir.join("log")]);
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            println!("--- the end of {}", file.display());
            lines.iter().skip(lines.len().saturating_sub(30)).for_each(|line| println!("{line}"));
        }
    }
}

//! A single shard is cut in two: its primary lives on one side, its replica and the coordinators on the other. In: a client on each side
//! that writes throughout. Out: nobody takes writes of the old primary any more when the replica leads, and of all that was
//! acknowledged only what the old primary alone had, after the cut and within its lease, is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::json;
use shardplane_e2e::{Cluster, Instance, Shape, engine, measured, on_stage};
use shardplane_harness::{Cut, Stand, ValkeyClient, World, WorldOptions, Writer, wait_until};

use crate::{
    SOON,
    story::{PROVED, host_id, leads, nothing_lost, order, stepped_down, taken_over, writer},
};

const LEASE: Duration = Duration::from_secs(8);
/// A primary believes in a copy for 10 s after its last word; then reports, the agent's look once a second, and the change of the filter.
const BELIEF: Duration = Duration::from_secs(14);
/// Between two writes.
const PACE: Duration = Duration::from_millis(5);

/// A client that takes the primary's word alone for an acknowledgement.
struct Credulous {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(u64, Instant)>>,
}

impl Credulous {
    fn start(mut client: ValkeyClient) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut acknowledged = Vec::new();
            for number in 0u64.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("alone:{number}");
                if client.query::<()>(redis::cmd("SET").arg(&key).arg(number)).is_ok() {
                    acknowledged.push((number, Instant::now()));
                }
                thread::sleep(PACE);
            }
            acknowledged
        });
        Self { stop, thread }
    }

    /// What was acknowledged to it, and when.
    fn stop(self) -> Result<Vec<(u64, Instant)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the writer panicked"))
    }
}

/// A client of `cluster` in the machine of another cluster on that host: what it says goes through both ports, and through no wire.
fn on_the_same_host(world: &World, cluster: &Cluster<'_>, neighbour: &Instance) -> Result<ValkeyClient> {
    let netns = world.machine_netns(neighbour.host, &neighbour.id);
    let nodes: Vec<String> = cluster.instances()?.into_iter().map(|i| i.endpoint).collect();
    let password = cluster.manifest["spec"]["rootPassword"].as_str().unwrap_or_default();
    ValkeyClient::new(
        Arc::new(move || Ok(Stand { netns: netns.clone(), nodes: nodes.clone(), doors: BTreeMap::new() })),
        password,
    )
}

/// An instance of another cluster on this host. It has no replica, so no lease cuts its port.
fn neighbour_on(world: &World, cluster: &Cluster<'_>, host: u32) -> Result<Instance> {
    let mut others = Vec::new();
    for other in world.hosts()?.iter().filter(|other| other.index != host) {
        others.push(host_id(&cluster.api, other.index)?);
    }
    for other in &others {
        order(&cluster.api, other, "cordon", &json!({"reason": "the neighbour goes elsewhere"}))?;
    }
    let neighbour = cluster.neighbour(&Shape::of(1, 0))?;
    for other in &others {
        order(&cluster.api, other, "uncordon", &json!({}))?;
    }
    let instance = neighbour.instances()?.into_iter().next().context("the neighbour has no instance")?;
    ensure!(instance.host == host, "the neighbour is on host {}, not {host}", instance.host);
    Ok(instance)
}

/// What of these keys is not there.
fn missing(cluster: &Cluster<'_>, acknowledged: &[(u64, Instant)]) -> Result<Vec<Instant>> {
    let mut client = cluster.client(&[])?;
    let mut missing = Vec::new();
    for (number, at) in acknowledged {
        match client.get(&format!("alone:{number}"))? {
            Some(value) if value == number.to_string() => {}
            Some(value) => return Err(anyhow!("alone:{number} is {value:?}")),
            None => missing.push(*at),
        }
    }
    Ok(missing)
}

#[test]
fn a_single_shard_is_parted_from_its_primary_and_only_what_that_took_within_its_lease_is_lost() {
    parted("parted", true);
}

/// Nobody cuts the old primary's port: its guest holds the writes itself.
#[test]
fn a_parted_primary_whose_agent_is_dead_takes_no_writes_beside_its_heir() {
    parted("unattended", false);
}

fn parted(name: &str, attended: bool) {
    // Silent hosts are not lost within this test: the old primary is to come back.
    let more = ["--lease".to_owned(), format!("{}s", LEASE.as_secs())].to_vec();
    let options =
        WorldOptions { hosts: 2, coordinators: 1, lost_after_s: 600, more, ..WorldOptions::named(name) };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(1, 1))?;
        let (old, heir) = cluster.pair(0)?;
        let before = cluster.wait_agreed(SOON)?;
        let neighbour = neighbour_on(world, &cluster, old.host)?;
        let outside = writer(&cluster, "outside", &[old.host])?;
        let inside = Writer::start(on_the_same_host(world, &cluster, &neighbour)?, "inside")?;
        outside.progresses(100, SOON)?;
        inside.progresses(100, SOON)?;
        let mut client = cluster.client(&[old.host])?;
        let mut neighbour_client = on_the_same_host(world, &cluster, &neighbour)?;

        let parted = Instant::now();
        world.partition_host(old.host, Cut::All)?;
        if !attended {
            world.kill_agent(old.host)?;
        }
        let credulous = Credulous::start(on_the_same_host(world, &cluster, &neighbour)?);
        // The engine runs on, and its machine cannot be reached from beside it.
        let cut = || match engine::role(&mut neighbour_client, &old.endpoint) {
            Err(error) => Ok(format!("{error:#}")),
            Ok(role) => Err(role),
        };
        if attended {
            let (_, took) = wait_until("the old primary's port being cut", LEASE + BELIEF, cut)?;
            measured(
                "primary of a single shard parted from its replica and the coordinator: cut off after",
                took,
            );
            ensure!(
                took + Duration::from_secs(3) > LEASE,
                "it was cut off after {took:?}, before its lease was over"
            );
        }
        leads(&mut client, &heir, PROVED)?;
        let led = Instant::now();
        measured("primary of a single shard parted: its replica leads", parted.elapsed());
        // Nothing confirms a write as long as the old primary is away; it is taken all the same.
        let set = || client.query::<()>(redis::cmd("SET").arg("led").arg("by the heir"));
        wait_until("the heir taking a write", SOON, set)?;
        let answers = engine::role(&mut neighbour_client, &old.endpoint).is_ok();
        ensure!(
            answers != attended,
            "the old primary's port is open: {answers}; its agent lives: {attended}"
        );
        taken_over(&cluster)?;

        world.heal_host(old.host)?;
        if !attended {
            world.start_agent(old.host)?;
        }
        let healed = Instant::now();
        measured("partition healed: whole again", cluster.wait_whole(SOON)?);
        stepped_down(&cluster, &old)?;
        ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
        ensure!(cluster.pair(0)?.1.id == old.id, "the old primary did not come back as the replica");
        inside.progresses(100, SOON)?;
        ensure!(client.get("led")?.as_deref() == Some("by the heir"), "what the heir took is lost");

        let acknowledged = credulous.stop()?;
        let last = acknowledged.iter().map(|(_, at)| *at).filter(|at| *at < healed).max();
        let last = last.context("the old primary took nothing after the cut")?;
        measured("last write that the old primary took after the cut", last - parted);
        ensure!(
            last < led && last - parted < LEASE + BELIEF,
            "it took one {:?} after the cut",
            last - parted
        );
        let lost = missing(&cluster, &acknowledged)?;
        println!(
            "{} writes were acknowledged by one primary alone, {} of them are lost",
            acknowledged.len(),
            lost.len()
        );
        let late = lost.iter().filter(|at| **at > last).count();
        ensure!(late == 0, "{late} writes are lost that were acknowledged after the lease had ended");
        nothing_lost(&cluster, inside)?;
        nothing_lost(&cluster, outside)
    });
}

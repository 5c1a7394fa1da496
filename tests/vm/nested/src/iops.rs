//! The story of a volume's IOPS: a real agent gives a real machine the limit of its offer, and a guest that does nothing but read and
//! write cannot get past it, nor is held below it.
//!
//! In: `/host/load`, images whose `/init` is `disk-load`; the offer that `tests/all/host.rs` adds. Out: Ok, or what was not as it should
//! be; figures on the console. Called by `main`.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::ensure;
use shardplane_e2e::{Cluster, Shape, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::counters::operations;

/// Of the offer `load-100`: few enough for an emulated machine on a busy computer.
const OFFER: f64 = 100.0;
/// How far a measured rate may be from it.
const TOLERANCE: f64 = 0.1;
/// Long enough for the budget of one second that a limiter may have saved.
const WINDOW: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(600);

/// All of it.
pub fn tell() -> anyhow::Result<()> {
    let more = ["--vmm", "cloud-hypervisor", "--image-dir", "/host/load", "--disk-gib", "20"];
    let world = World::up(&WorldOptions {
        hosts: 1,
        coordinators: 1,
        lost_after_s: 600,
        more: more.map(str::to_owned).to_vec(),
        ..WorldOptions::named("iops")
    })?;
    let shape = Shape { volume_offer: "load-100".to_owned(), ..Shape::of(1, 0) };
    let (cluster, _) = Cluster::submit(&world, &shape)?;
    let placed = || match cluster.instances() {
        Ok(instances) => instances.into_iter().next().ok_or_else(|| "it has no instance".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    };
    let (instance, _) = wait_until("the cluster being placed", PATIENCE, placed)?;
    let console = world.run_dir().join(format!("h1/run/machines/{}/console.log", instance.id));
    let said = || -> Result<u64, String> {
        let text = fs::read_to_string(&console).map_err(|error| error.to_string())?;
        let last = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("load: ")?.strip_suffix(" done")?.parse().ok());
        last.ok_or(text)
    };
    wait_until("the load's first words", PATIENCE, said)?;
    let vmm = vmm_of(&instance.id)?;
    let deadline = Instant::now() + PATIENCE;
    // What a limiter gives in the beginning, and what a busy computer holds back, is not its rate.
    thread::sleep(WINDOW);
    loop {
        // From before the first look to after the last: a look that is late makes the rate smaller, never greater.
        let began = Instant::now();
        let before = operations(vmm)?;
        thread::sleep(WINDOW);
        let done = operations(vmm)?.saturating_sub(before);
        let rate = rate(done, began.elapsed());
        println!("measured: a volume of {OFFER} IOPS did {rate:.1} a second by its VMM's counters");
        ensure!(rate <= OFFER * (1.0 + TOLERANCE), "{rate:.1} operations a second passed");
        if rate >= OFFER * (1.0 - TOLERANCE) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the guest never came within 10 % of its offer");
    }
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The process that is an instance's machine.
pub fn vmm_of(instance: &str) -> anyhow::Result<i32> {
    let of_it =
        |pid: &i32| process::machine_of(*pid).is_some_and(|mark| mark.split('/').nth(1) == Some(instance));
    let pids: Vec<i32> = process::all()?.into_iter().filter(of_it).collect();
    match pids.as_slice() {
        [pid] => Ok(*pid),
        several => anyhow::bail!("instance {instance} has {} processes: {several:?}", several.len()),
    }
}

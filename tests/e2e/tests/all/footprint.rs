//! What the programs take, with 6 and with 30 instances. A figure for the report, with a limit that a leak would break.

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Shape, on_stage, process};
use shardplane_harness::{World, WorldOptions};

/// MiB of a program.
const MOST: f64 = 128.0;

#[test]
fn programs_stay_small_with_thirty_instances() {
    on_stage(WorldOptions::named("size"), |world| {
        let (_first, _) = Cluster::create(world, &Shape::of(3, 1))?;
        sizes(world, 6)?;
        let more: Vec<_> = (0..4).map(|_| Cluster::submit(world, &Shape::of(3, 1))).collect::<Result<_>>()?;
        for (cluster, request) in &more {
            cluster.api.settle("valkey", request, crate::REPAIR)?;
        }
        for (cluster, _) in &more {
            cluster.wait_whole(crate::SOON)?;
        }
        sizes(world, 30)
    });
}

fn sizes(world: &World, instances: u32) -> Result<()> {
    for (kind, members) in [("coordinator", world.coordinators()?), ("agent", world.hosts()?)] {
        let mut sizes = Vec::new();
        for member in members {
            sizes.push(process::rss_mib(member.pid.context("a program does not run")?)?);
        }
        let words: Vec<String> = sizes.iter().map(|mib| format!("{mib:.1}")).collect();
        println!("measured: RSS of each {kind} with {instances} instances: {} MiB", words.join(", "));
        ensure!(sizes.iter().all(|mib| *mib < MOST), "a {kind} takes more than {MOST} MiB");
    }
    Ok(())
}

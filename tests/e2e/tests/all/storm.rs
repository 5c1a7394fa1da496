//! Faults of all kinds on top of each other, in an order that differs from run to run. One host is struck at a time, so each shard
//! keeps a copy that is not: afterwards everything is whole again and no acknowledged write is lost.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use shardplane_e2e::{Cluster, Shape, id, measured, on_stage, process};
use shardplane_harness::{Cut, World, WorldOptions};

use crate::{REPAIR, SOON};

const LENGTH: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
enum Fault {
    Engine,
    Guest,
    Agent,
    Reboot,
    Cut(Cut),
    Leader,
}

const FAULTS: [Fault; 8] = [
    Fault::Engine,
    Fault::Guest,
    Fault::Agent,
    Fault::Reboot,
    Fault::Cut(Cut::Coordinators),
    Fault::Cut(Cut::Peers),
    Fault::Cut(Cut::All),
    Fault::Leader,
];

/// From the bits of a new ULID.
fn dice(sides: usize) -> usize {
    id().bytes().rev().take(8).fold(0_usize, |sum, byte| sum * 31 + usize::from(byte)) % sides
}

#[test]
fn a_storm_of_faults_is_survived() {
    let options = WorldOptions { lost_after_s: 20, ..WorldOptions::named("storm") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let mut writers = Vec::new();
        for host in [1, 2] {
            writers.push(crate::story::writer(&cluster, &format!("storm-{host}"), &[host])?);
        }
        let start = Instant::now();
        while start.elapsed() < LENGTH {
            // The one host of this gust: each fault of it, agents and coordinators besides.
            let host = u32::try_from(dice(world.hosts()?.len()))? + 1;
            for _ in 0..1 + dice(3) {
                let fault = FAULTS[dice(FAULTS.len())];
                println!("{:.1} s: {fault:?} on host {host}", start.elapsed().as_secs_f64());
                strike(world, &cluster, fault, host)?;
            }
            cluster.wait_whole(REPAIR)?;
            cluster.wait_agreed(REPAIR)?;
        }
        let calm = Instant::now();
        cluster.wait_whole(REPAIR)?;
        measured("storm over: whole again", calm.elapsed());
        for writer in writers {
            let written = writer.stop()?;
            println!("{} acknowledged writes", written.acknowledged.len());
            written.verify(&mut cluster.client(&[])?, SOON)?;
        }
        Ok(())
    });
}

fn strike(world: &World, cluster: &Cluster<'_>, fault: Fault, host: u32) -> Result<()> {
    let own = || -> Result<_> {
        let mut own = cluster.instances()?;
        own.retain(|instance| instance.host == host);
        Ok(own)
    };
    match fault {
        Fault::Engine | Fault::Guest => {
            let find = if matches!(fault, Fault::Engine) { process::engine_of } else { process::init_of };
            // One that is dead already needs no second blow.
            for pid in own()?.iter().filter_map(|instance| find(&instance.id).ok()) {
                process::murder(pid)?;
            }
        }
        Fault::Agent => {
            world.kill_agent(host)?;
            world.start_agent(host)?;
        }
        Fault::Reboot => {
            world.kill_host(host)?;
            world.start_host(host)?;
        }
        Fault::Cut(from) => {
            world.partition_host(host, from)?;
            std::thread::sleep(Duration::from_secs(u64::try_from(dice(12))?));
            world.heal_host(host)?;
        }
        Fault::Leader => {
            if let Some(leader) = world.leader()? {
                world.kill_coordinator(leader)?;
                world.start_coordinator(leader).context("the leader does not start again")?;
            }
        }
    }
    Ok(())
}

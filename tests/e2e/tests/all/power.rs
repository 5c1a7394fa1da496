//! A whole site loses its power and comes back in any order: clusters are there without hands, with their data.

use std::{collections::BTreeSet, time::Instant};

use anyhow::ensure;
use shardplane_e2e::{Cluster, Shape, id, measured, on_stage};
use shardplane_harness::WorldOptions;

use crate::{REPAIR, SOON, story::writer};

/// All machines stop and start. Instances keep their addresses for good in this product, so what nodes remember of each other stays true;
/// each is given its own by its supervisor before it starts.
#[test]
fn host_16_sch_10_val_4_a_site_that_lost_its_power_comes_back_without_hands() {
    on_stage(WorldOptions { lost_after_s: 10, ..WorldOptions::named("power") }, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let before = cluster.wait_agreed(SOON)?;
        let instances = cluster.instances()?;
        let writer = writer(&cluster, "power", &[])?;
        writer.progresses(300, SOON)?;
        let written = writer.stop()?;
        // The engine syncs its log once a second; what is older survives a power loss of everything at once.
        std::thread::sleep(std::time::Duration::from_secs(2));
        for member in world.coordinators()? {
            world.kill_coordinator(member.index)?;
        }
        for host in world.hosts()? {
            world.kill_host(host.index)?;
        }
        let mut order: Vec<(String, bool, u32)> = Vec::new();
        order.extend(world.coordinators()?.iter().map(|m| (id(), true, m.index)));
        order.extend(world.hosts()?.iter().map(|m| (id(), false, m.index)));
        order.sort();
        println!(
            "power comes back in the order {:?}",
            order.iter().map(|(_, c, i)| (if *c { "c" } else { "h" }, i)).collect::<Vec<_>>()
        );
        let start = Instant::now();
        for (_, coordinator, index) in order {
            if coordinator { world.start_coordinator(index)? } else { world.start_host(index)? }
        }
        cluster.wait_whole(REPAIR)?;
        measured("power back: whole again", start.elapsed());
        let ids: BTreeSet<String> = instances.into_iter().map(|i| i.id).collect();
        let now: BTreeSet<String> = cluster.instances()?.into_iter().map(|i| i.id).collect();
        ensure!(now == ids, "instances were replaced: {ids:?} became {now:?}");
        ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed");
        written.verify(&mut cluster.client(&[])?, SOON)
    });
}

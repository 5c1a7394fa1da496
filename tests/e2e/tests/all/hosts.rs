//! A host dies under a client that writes: failover, repair elsewhere, the old node forgotten by all, and a return that changes
//! nothing. A host that is back in time keeps everything.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Instance, Shape, engine, measured, on_stage, process};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    story::{failover, nothing_lost, reborn, writer},
};

/// The engine refuses to hear of a forgotten node for so long; gossip could bring it back after that.
const BAN: Duration = Duration::from_secs(60);

#[test]
fn val_5_a_lost_host_is_replaced_forgotten_and_never_serves_again() {
    let options = WorldOptions { lost_after_s: 8, ..WorldOptions::named("host") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let (primary, replica) = cluster.pair(0)?;
        let before = cluster.wait_agreed(SOON)?;
        let doomed: Vec<Instance> =
            cluster.instances()?.into_iter().filter(|i| i.host == primary.host).collect();
        let old_nodes: BTreeSet<String> =
            doomed.iter().filter_map(|i| before.get(&i.endpoint).cloned()).collect();
        ensure!(old_nodes.len() == doomed.len(), "{doomed:?} are not all in {before:?}");

        let writer = writer(&cluster, "host", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let mut client = cluster.client(&[primary.host])?;
        let start = Instant::now();
        world.kill_host(primary.host)?;
        failover(&cluster, &mut client, &replica, "host killed")?;
        wait_until("the lost host's instances being replaced", REPAIR, || match cluster.instances() {
            Ok(now) if now.len() == 6 && now.iter().all(|i| i.host != primary.host) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        measured("host killed: replacement decided", start.elapsed());
        cluster.wait_agreed(REPAIR)?;
        measured("host killed: repaired", start.elapsed());
        forgotten(&cluster, &old_nodes)?;
        let forgotten_at = Instant::now();

        returns(world, &cluster, &doomed, primary.host)?;
        // Until the ban is over on every node, and a little more for gossip.
        while forgotten_at.elapsed() < BAN + Duration::from_secs(10) {
            forgotten(&cluster, &old_nodes)?;
            wait_for_a_second();
        }
        cluster.wait_whole(SOON)?;
        nothing_lost(&cluster, writer)
    });
}

/// Nothing to wait for: that something does not happen is watched once a second.
fn wait_for_a_second() {
    std::thread::sleep(Duration::from_secs(1));
}

fn forgotten(cluster: &Cluster<'_>, old: &BTreeSet<String>) -> Result<()> {
    let mut client = cluster.client(&[])?;
    for instance in cluster.instances()? {
        let table = engine::nodes(&mut client, &instance.endpoint)?;
        let ghost = table.iter().find(|node| old.contains(&node.id));
        ensure!(ghost.is_none(), "{} still knows {ghost:?}", instance.endpoint);
    }
    Ok(())
}

/// The host is back with volumes of the past. Its old instances never run again, and it is used like any other.
fn returns(world: &World, cluster: &Cluster<'_>, old: &[Instance], host: u32) -> Result<()> {
    let volumes = shardplane_e2e::lib_dir(world).join(format!("h{host}/volumes"));
    for instance in old {
        ensure!(volumes.join(&instance.id).exists(), "the dead host lost the volume of {}", instance.id);
    }
    world.start_host(host)?;
    let gone = || {
        for instance in old {
            let serving = process::inits_of(&instance.id).map_err(|error| format!("{error:#}"))?;
            assert!(serving.is_empty(), "the stale instance {} runs on its returned host", instance.id);
        }
        match old.iter().find(|instance| volumes.join(&instance.id).exists()) {
            Some(left) => Err(format!("the volume of {} is still there", left.id)),
            None => Ok(()),
        }
    };
    let ((), took) = wait_until("the stale instances of the returned host being removed", SOON, gone)?;
    measured("host returned: stale instances removed", took);
    let unlisted = || match cluster.all_instances() {
        Ok(known) if !old.iter().any(|old| known.iter().any(|i| i.id == old.id)) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("the stale instances leaving the list", SOON, unlisted)?;
    Ok(())
}

#[test]
fn host_2_a_host_that_reboots_in_time_keeps_records_identity_and_volumes() {
    let options = WorldOptions { lost_after_s: 60, ..WorldOptions::named("reboot") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let before = cluster.wait_agreed(SOON)?;
        let instances = cluster.instances()?;
        let (primary, _) = cluster.pair(1)?;
        let writer = writer(&cluster, "reboot", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let host = world.hosts()?.into_iter().find(|h| h.index == primary.host).context("no such host")?;
        let init = process::init_of(&primary.id)?;
        world.kill_host(primary.host)?;
        ensure!(process::inits_of(&primary.id)?.is_empty(), "a machine outlived its host {}", host.netns);
        world.start_host(primary.host)?;
        reborn(&cluster, &primary, process::init_of, init, "host rebooted")?;
        ensure!(cluster.wait_agreed(SOON)? == before, "a node id changed in a reboot");
        let key = |i: &Instance| (i.id.clone(), i.host, i.endpoint.clone());
        let now: Vec<_> = cluster.instances()?.iter().map(key).collect();
        ensure!(now == instances.iter().map(key).collect::<Vec<_>>(), "instances changed: {now:?}");
        nothing_lost(&cluster, writer)
    });
}

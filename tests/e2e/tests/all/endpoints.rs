//! What clients are sent to while members come, go, fail and are replaced: always an address, by every member and at every moment.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{
    Cluster, Instance, Shape,
    names::{Seen, read_until},
    on_stage, process,
};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    reshard::settled,
    story::{failover, nothing_lost, reborn, writer},
};

#[test]
fn val_13_no_member_names_another_by_nothing_while_members_come_go_and_fail() {
    // Four primaries on hosts of their own, and one host to die.
    let options =
        WorldOptions { hosts: 5, coordinators: 1, lost_after_s: 8, ..WorldOptions::named("endpoints") };
    on_stage(options, |world| {
        let (cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        let doomed = cluster.pair(0)?.0.host;
        let (watched, end) = (cluster.clone(), AtomicBool::new(false));
        let seen = thread::scope(|scope| {
            let reader = scope.spawn(|| read_until(&watched, &end, &[doomed]));
            let acted = act(world, cluster, doomed);
            end.store(true, Ordering::Relaxed);
            let seen = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
            acted.map(|()| seen)
        })?;
        let Seen { answers, silences, unsound } = seen;
        println!("{answers} answers were looked at, {silences} times a member did not answer");
        ensure!(unsound.is_empty(), "{} unsound answers: {:?}", unsound.len(), unsound.first());
        ensure!(answers > 100 && silences > 0, "the reader saw too little: {answers}, {silences}");
        Ok(())
    });
}

/// A shard comes, an engine dies, a host dies for good, a shard goes.
fn act(world: &World, mut cluster: Cluster<'_>, doomed: u32) -> Result<()> {
    let writer = writer(&cluster, "endpoints", &[doomed])?;
    let added = cluster.add_shard();
    cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
    settled(&cluster)?;

    let leads = cluster.instances()?.into_iter().find(|i| i.primary() && i.host != doomed);
    let leads = leads.context("all primaries are on one host")?;
    let engine = process::engine_of(&leads.id)?;
    process::murder(engine)?;
    reborn(&cluster, &leads, process::engine_of, engine, "engine killed")?;

    let there = |i: &Instance| i.host == doomed;
    let own: Vec<Instance> = cluster.instances()?.into_iter().filter(there).collect();
    let primary = own.iter().find(|i| i.primary());
    world.kill_host(doomed)?;
    if let Some(primary) = primary {
        let mut client = cluster.client(&[doomed])?;
        failover(&cluster, &mut client, &cluster.pair(primary.shard)?.1, "host killed")?;
    }
    wait_until("the lost host's instances being replaced", REPAIR, || match cluster.instances() {
        Ok(now) if now.len() == 8 && !now.iter().any(there) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    settled(&cluster)?;

    let index = cluster.instances()?.iter().find(|i| i.shard_id == added).map(|i| i.shard);
    cluster.remove_shard(usize::try_from(index.context("the shard that came is not there")?)?);
    cluster.api.apply("valkey", &cluster.manifest, 2 * REPAIR)?;
    settled(&cluster)?;
    nothing_lost(&cluster, writer)
}

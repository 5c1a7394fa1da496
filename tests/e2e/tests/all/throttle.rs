//! The limit on moving slots, with real engines: an operator's limit in keys a second is kept, and once it is lifted the same move goes
//! many times faster.

use std::{
    fs::OpenOptions,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_e2e::{Cluster, Shape, measured, on_stage, slots};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    reshard::{conserved, settled},
    story::writer,
};

/// Keys of three shards; a quarter to a third of them have to move.
const KEYS: u64 = 60_000;
/// Keys a second.
const LIMIT: u64 = 50;
/// Keys that are moved under the limit before it is lifted.
const SLOWLY: u64 = 15 * LIMIT;

#[test]
fn slots_move_as_fast_as_the_operator_allows() {
    let options = WorldOptions { coordinators: 1, ..WorldOptions::named("throttle") };
    on_stage(options, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", KEYS)?;
        let writer = writer(&cluster, "throttle", &[])?;
        limited(world, &format!("[slot_moves]\nkeys_per_second = {LIMIT}\n"))?;

        cluster.add_shard();
        let start = Instant::now();
        let request = cluster.api.submit("valkey", &cluster.manifest)?;
        let mut most = Ok(());
        let slowly = || {
            let (keys, passed) = (moved(&cluster).unwrap_or(0), start.elapsed());
            // Since before the first key could move: what is counted late counts for the limit all the same.
            let allowed = LIMIT * (passed.as_secs() + 2);
            if keys > allowed {
                most = Err(format!("{keys} keys moved in {passed:?}, {allowed} are allowed"));
            }
            if keys >= SLOWLY || most.is_err() { Ok(keys) } else { Err(keys) }
        };
        let (slow, _) = wait_until("keys moving slowly", 3 * REPAIR, slowly)?;
        most.map_err(anyhow::Error::msg)?;
        measured(format!("{slow} keys moved with a limit of {LIMIT} keys a second"), start.elapsed());

        limited(world, "[slot_moves]\nkeys_per_second = 0\n")?;
        // The task that runs keeps its limit to its end: 256 slots with some 900 keys.
        let start = Instant::now();
        cluster.api.settle("valkey", &request, 3 * REPAIR)?;
        let (all, took) = (moved(&cluster)?, start.elapsed());
        measured(format!("{} keys moved without a limit", all - slow), took);
        let pace = (all - slow) as f64 / took.as_secs_f64();
        println!("measured: {pace:.0} keys a second without a limit, {LIMIT} with one");
        ensure!(pace > 2.0 * LIMIT as f64, "without a limit only {pace:.0} keys a second moved");
        settled(&cluster)?;
        conserved(&cluster, writer, "throttle", &[("old", KEYS)])
    });
}

/// Keys that the newest move of slots has moved so far.
fn moved(cluster: &Cluster<'_>) -> Result<u64> {
    let operation = cluster.operation("reshard")?;
    let keys = |operation: &Value| operation["counts"]["keys"].as_u64();
    keys(&operation).with_context(|| format!("no keys are counted in {operation}"))
}

/// The coordinator starts anew with another configuration, as an operator would have it.
fn limited(world: &World, section: &str) -> Result<()> {
    let path = world.run_dir().join("c1/coordinator.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let kept = text.split("[slot_moves]").next().unwrap_or_default();
    let mut file = OpenOptions::new().write(true).truncate(true).open(&path)?;
    file.write_all(format!("{kept}\n{section}").as_bytes())?;
    world.kill_coordinator(1)?;
    world.start_coordinator(1)?;
    wait_until("a leader", Duration::from_secs(30), || match world.leader() {
        Ok(Some(leader)) => Ok(leader),
        other => Err(format!("{other:?}")),
    })?;
    Ok(())
}

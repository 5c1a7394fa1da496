//! Replicas are added to a shard that had none, under a client that writes.

use std::time::Duration;

use anyhow::ensure;
use shardplane_e2e::{Cluster, Shape, measured, on_stage};
use shardplane_harness::WorldOptions;

use crate::{SOON, story::nothing_lost};

#[test]
fn val_15_a_shard_without_replicas_gets_one_and_another() {
    let options = WorldOptions { hosts: 3, coordinators: 1, ..WorldOptions::named("growth") };
    on_stage(options, |world| {
        let (mut cluster, _) = Cluster::create(world, &Shape::of(1, 0))?;
        let mut client = cluster.client(&[])?;
        for n in 0..1000 {
            client.query::<()>(redis::cmd("SET").arg(format!("old:{n}")).arg(n))?;
        }
        for replicas in [1, 2] {
            cluster.manifest["spec"]["replicasPerShard"] = replicas.into();
            let took = cluster.api.apply("valkey", &cluster.manifest, SOON)?;
            measured(format!("replicas {} to {replicas}", replicas - 1), took);
            cluster.wait_whole(Duration::from_secs(10))?;
            cluster.wait_agreed(SOON)?;
        }
        let mut hosts: Vec<u32> = cluster.instances()?.into_iter().map(|i| i.host).collect();
        hosts.sort_unstable();
        ensure!(hosts == [1, 2, 3], "the members are on {hosts:?}");
        // The new replicas have what was there before them: the data is on them, not only on the primary.
        for replica in cluster.instances()?.iter().filter(|i| !i.primary()) {
            let keys: u64 = client.ask(&replica.endpoint, &redis::cmd("DBSIZE"))?;
            ensure!(keys >= 1000, "{} has {keys} keys", replica.endpoint);
        }
        let writer = crate::story::writer(&cluster, "growth", &[])?;
        nothing_lost(&cluster, writer)
    });
}

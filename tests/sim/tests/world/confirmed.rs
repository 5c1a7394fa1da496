//! A write that a replica confirmed (`WAIT 1`) outlives its primary, and whoever undoes one is seen.

use shardplane_proto::ids::{InstanceId, ResourceId};
use shardplane_sim::{node::Node, rng::Rng, watch::Watch, world::World};

/// Three shards with two replicas each, and clients that write.
fn written() -> (World, ResourceId) {
    let mut world = World::new(23);
    world.add_hosts(4, 8);
    world.run(2);
    let id = world.create(0, 3, 2);
    world.settles(60);
    world.watch = Some(Watch::new(Rng::new(5)));
    world.run(20);
    (world, id)
}

/// Who leads the first shard.
fn leads(world: &World, id: ResourceId) -> Option<InstanceId> {
    let first = |node: &&&Node| {
        node.up && node.primary.is_none() && node.owns(node.id).iter().any(|(start, _)| *start == 0)
    };
    world.nodes_of(id).iter().find(first).map(|node| node.instance)
}

/// Its replicas.
fn follows(world: &World, id: ResourceId) -> Vec<InstanceId> {
    let nodes = world.nodes_of(id);
    let primary = leads(world, id).unwrap();
    let primary = nodes.iter().find(|node| node.instance == primary).unwrap();
    let follows = nodes.iter().filter(|node| node.primary == Some(primary.id));
    follows.map(|node| node.instance).collect()
}

fn lag(world: &mut World, replica: InstanceId, by: u64) {
    world.mesh.nodes.values_mut().find(|node| node.instance == replica).unwrap().lag = by;
}

#[test]
fn what_a_replica_confirmed_outlives_the_primary() {
    let (mut world, id) = written();
    let (primary, replicas) = (leads(&world, id).unwrap(), follows(&world, id));
    lag(&mut world, replicas[0], 5_000);
    world.run(60);
    world.fail(primary);
    world.until(60, "another leads", |w| leads(w, id).is_some_and(|now| now != primary));
    assert_eq!(leads(&world, id), Some(replicas[1]), "the one that has read most leads");
    let told = world.watch.as_ref().unwrap().clients.confirmed.count;
    assert!(told > 100, "only {told} writes were confirmed");
}

#[test]
#[should_panic(expected = "was confirmed by a replica (WAIT 1)")]
fn a_confirmed_write_that_a_lagging_replica_undoes_is_seen() {
    let (mut world, id) = written();
    let replicas = follows(&world, id);
    lag(&mut world, replicas[0], 5_000);
    world.run(60);
    world.take_over(replicas[0]);
    world.run(5);
}

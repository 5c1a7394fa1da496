//! Plans of changes: what `rehearse` says before is what the planner does afterwards.

use std::collections::BTreeSet;

use shardplane_model::{
    engine::Role,
    plan::{Fate, Reach, Rehearsal, rehearse},
    resource::{Outcome, User},
    state::{OperationKind, Sealed},
    time::Timestamp,
    validate,
};
use shardplane_proto::{
    ids::{HostId, InstanceId, RequestId, ResourceId},
    v1,
};

use shardplane_sim::world::{World, cluster};

fn ready(hosts: usize) -> World {
    let mut world = World::new(17);
    world.add_hosts(hosts, 8);
    world.run(2);
    world
}

fn asks(world: &World, cluster: &v1::Valkey) -> Rehearsal {
    asks_for(world, &v1::Resource { body: Some(v1::resource::Body::Valkey(cluster.clone())) })
}

fn asks_for(world: &World, resource: &v1::Resource) -> Rehearsal {
    let submission = validate::put(&world.leader.state, resource, &mut || 1).unwrap();
    let sealed = submission.secret.clone().map(|secret| Sealed(secret.into_bytes()));
    let by = User { id: "u".to_owned(), name: "tester".to_owned() };
    let put = submission.into_put(RequestId::from_u128(1), by, sealed);
    rehearse(&world.leader.state, &world.leader.observed, Timestamp(world.now), &put).unwrap()
}

/// Instances of a cluster that are wanted, with their hosts.
fn wanted(world: &World, id: ResourceId) -> BTreeSet<(InstanceId, HostId)> {
    let state = &world.leader.state;
    state.instances_of(id.into()).filter(|i| i.wanted()).map(|i| (i.id, i.host)).collect()
}

/// The change is planned, nothing has changed, and then the change comes out as planned.
fn comes_out_as_planned(world: &mut World, id: ResourceId, shards: usize, replicas: i32) -> Rehearsal {
    let resource = cluster(id, World::SUBNET, shards, replicas);
    // Everybody has said what came of the change before.
    world.run(5);
    let before = world.leader.state.clone();
    let rehearsal = asks(world, &resource);
    assert!(before == world.leader.state);
    let planned = &rehearsal.clusters[0];
    assert!(planned.waits.is_empty(), "{planned:#?}");
    let old = wanted(world, id);
    world.put_cluster(resource).unwrap();
    world.settles(900);
    world.assert_whole(id);
    let now = wanted(world, id);
    let with = |fate: Fate| planned.instances.iter().filter(move |i| i.fate == fate);
    let goes: BTreeSet<InstanceId> = with(Fate::Goes).map(|i| i.instance).collect();
    let went: BTreeSet<InstanceId> = old.difference(&now).map(|(id, _)| *id).collect();
    assert_eq!(goes, went, "{planned:#?}");
    let mut new: Vec<HostId> = with(Fate::New).map(|i| i.host).collect();
    let mut came: Vec<HostId> = now.difference(&old).map(|(_, host)| *host).collect();
    new.sort();
    came.sort();
    assert_eq!(new, came, "{planned:#?}");
    let status = world.status(id);
    assert_eq!(planned.outlook.anti_affinity_ok, status.anti_affinity_ok, "{planned:#?}");
    assert_eq!(planned.outlook.primary_spread_ok, status.primary_spread_ok, "{planned:#?}");
    rehearsal
}

#[test]
fn a_create_and_replicas_more_and_fewer_come_out_as_planned() {
    let mut world = ready(5);
    let id = ResourceId::from_u128(99 << 100);
    let made = comes_out_as_planned(&mut world, id, 3, 1);
    let primaries = made.clusters[0].instances.iter().filter(|i| i.role == Role::Primary).count();
    assert_eq!((made.clusters[0].instances.len(), primaries), (6, 3));
    let more = comes_out_as_planned(&mut world, id, 3, 2);
    assert_eq!(more.clusters[0].instances.iter().filter(|i| i.fate == Fate::New).count(), 3);
    let fewer = comes_out_as_planned(&mut world, id, 3, 1);
    assert_eq!(fewer.clusters[0].instances.iter().filter(|i| i.fate == Fate::Goes).count(), 3);
    assert!(fewer.clusters[0].instances.iter().all(|i| i.fate != Fate::Goes || i.role == Role::Replica));
}

#[test]
fn what_is_so_already_changes_nothing_and_what_does_not_fit_waits() {
    let mut world = ready(2);
    let id = world.create(0, 1, 1);
    world.settles(60);
    assert!(!asks(&world, &cluster(id, World::SUBNET, 1, 1)).changes);
    let crowded = asks(&world, &cluster(id, World::SUBNET, 1, 2));
    let outlook = &crowded.clusters[0].outlook;
    assert!(
        crowded.changes && (outlook.anti_affinity_ok || outlook.anti_affinity_message.contains("share host"))
    );
    for host in 0..2 {
        world.cordon(host, None);
    }
    let closed = asks(&world, &cluster(id, World::SUBNET, 1, 2));
    let waits = &closed.clusters[0].waits;
    assert!(waits.iter().any(|why| why.starts_with("no place: needs room for 1 instance, ")), "{waits:?}");
    let resource = &world.leader.state.resources[&id];
    assert_eq!(resource.change.outcome, Outcome::Done);
}

#[test]
fn a_plan_says_how_changed_parameters_reach_each_member() {
    let mut world = ready(5);
    let (id, set) = (ResourceId::from_u128(98 << 100), ResourceId::from_u128(97 << 100));
    let parameters = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        v1::Resource {
            body: Some(v1::resource::Body::ValkeyParametersSet(v1::ValkeyParametersSet {
                metadata: Some(v1::Metadata {
                    id: set.to_string(),
                    name: "set".to_owned(),
                    ..v1::Metadata::default()
                }),
                spec: Some(v1::ParametersSpec { parameters: pairs.collect() }),
                ..v1::ValkeyParametersSet::default()
            })),
        }
    };
    world.put(&parameters(&[("hz", "10")])).unwrap();
    let mut wanted = cluster(id, World::SUBNET, 3, 1);
    wanted.spec.as_mut().unwrap().parameters_set_id = Some(set.to_string());
    world.put_cluster(wanted).unwrap();
    world.settles(120);
    let reaches = |world: &World, pairs: &[(&str, &str)]| {
        let planned = asks_for(world, &parameters(pairs)).clusters.remove(0);
        (planned.instances.iter().map(|i| i.parameters).collect::<Vec<_>>(), planned.pauses)
    };
    let (live, pauses) = reaches(&world, &[("hz", "20")]);
    assert!(live.len() == 6 && live.iter().all(|reach| *reach == Reach::Live), "{live:?}");
    assert!(pauses.is_empty(), "{pauses:?}");
    let (restart, pauses) = reaches(&world, &[("io-threads", "2")]);
    assert!(restart.iter().all(|reach| *reach == Reach::Restart), "{restart:?}");
    assert!(pauses.len() == 1 && pauses[0].what.starts_with("each of 3 primaries hands over"), "{pauses:?}");
}

#[test]
fn a_shard_more_and_a_shard_less_come_out_as_planned() {
    let mut world = ready(5);
    let id = world.create(0, 3, 1);
    world.settles(60);
    let travelling =
        |rehearsal: &Rehearsal| rehearsal.clusters[0].travels.iter().map(|travel| travel.slots).sum::<u32>();
    let goal = |world: &World| {
        let mut moves = world.leader.state.operations.values().filter(|o| o.kind == OperationKind::Reshard);
        moves.next_back().and_then(|operation| operation.goal.as_ref()).map(|goal| goal.amount)
    };
    let more = comes_out_as_planned(&mut world, id, 4, 1);
    assert!(travelling(&more) >= 4096 && travelling(&more) <= 5462, "{more:#?}");
    assert_eq!(goal(&world), Some(travelling(&more).into()));
    assert!(more.clusters[0].pauses.iter().any(|pause| pause.what.contains("slots move")));
    let new: Vec<_> = more.clusters[0].instances.iter().filter(|i| i.fate == Fate::New).collect();
    assert!(new.len() == 2 && new.iter().any(|i| i.role == Role::Primary), "{new:?}");
    let less = comes_out_as_planned(&mut world, id, 3, 1);
    assert_eq!(goal(&world), Some(travelling(&less).into()));
    let goes: Vec<_> = less.clusters[0].instances.iter().filter(|i| i.fate == Fate::Goes).collect();
    assert!(goes.len() == 2 && goes.iter().all(|i| i.index.is_none()), "{goes:?}");
}

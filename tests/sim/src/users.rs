//! What people ask for, sensible or not. In: chance. Out: requests at the border, as the API would take them; a refusal is an answer like
//! any other. What is accepted is what the world is held to in the end.

use std::collections::BTreeMap;

use shardplane_model::{
    command::{Command, DrainMode},
    resource::Outcome,
    state::{OperationState, Presence},
};
use shardplane_proto::{
    ids::ResourceId,
    v1::{self, resource::Body},
};

use super::world::{World, cluster, metadata, user};

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ask {
    Create,
    Delete,
    MoreReplicas,
    FewerReplicas,
    MoreShards,
    FewerShards,
    SwapSet,
    EditSet,
    Cordon,
    Drain,
    DrainByForce,
    Uncordon,
    ForgetHost,
    Cancel,
    PutAgain,
    NewHost,
}

impl Ask {
    /// Those that come up more often stand here more than once.
    pub const ALL: [Ask; 22] = [
        Ask::Create,
        Ask::Create,
        Ask::Delete,
        Ask::MoreReplicas,
        Ask::MoreReplicas,
        Ask::FewerReplicas,
        Ask::FewerReplicas,
        Ask::MoreShards,
        Ask::MoreShards,
        Ask::FewerShards,
        Ask::FewerShards,
        Ask::SwapSet,
        Ask::EditSet,
        Ask::Cordon,
        Ask::Drain,
        Ask::Drain,
        Ask::DrainByForce,
        Ask::Uncordon,
        Ask::Uncordon,
        Ask::ForgetHost,
        Ask::Cancel,
        Ask::PutAgain,
    ];
}

/// Clusters at the same time.
const MOST_CLUSTERS: usize = 3;
/// Shards of a cluster.
const MOST_SHARDS: usize = 6;
/// Hosts.
const MOST_HOSTS: usize = 9;

/// Requests so far: made, and accepted.
#[derive(Debug, Default)]
pub struct Users {
    pub counts: BTreeMap<Ask, (u64, u64)>,
    made: u128,
}

pub const SETS: [ResourceId; 2] = [ResourceId::from_u128(3 << 100), ResourceId::from_u128(4 << 100)];

/// A parameter set in one of a few versions.
fn set(id: ResourceId, version: u64) -> v1::Resource {
    let parameters = [
        ("hz".to_owned(), (10 + version).to_string()),
        ("maxclients".to_owned(), (1_000 + version).to_string()),
    ];
    let set = v1::ValkeyParametersSet {
        metadata: metadata(id, "tuning"),
        spec: Some(v1::ParametersSpec { parameters: parameters.into() }),
        ..v1::ValkeyParametersSet::default()
    };
    v1::Resource { body: Some(Body::ValkeyParametersSet(set)) }
}

impl Users {
    /// The sets exist from the beginning.
    pub fn begin(&mut self, world: &mut World) {
        for id in SETS {
            world.put(&set(id, 0)).unwrap();
        }
    }

    fn some_cluster(&self, world: &mut World) -> Option<ResourceId> {
        let state = &world.leader.state;
        let there: Vec<ResourceId> = state
            .clusters
            .keys()
            .map(|id| ResourceId::from(*id))
            .filter(|id| !state.resources[id].deleting())
            .collect();
        let at = usize::try_from(world.rng.below(there.len() as u64)).unwrap();
        there.get(at).copied()
    }

    /// The spec of a cluster with a change, put again.
    fn modify(&self, world: &mut World, change: impl FnOnce(&mut v1::ValkeySpec, u128)) -> bool {
        let Some(id) = self.some_cluster(world) else { return false };
        let resource = &world.leader.state.resources[&id];
        let Some(shardplane_model::engine::ClusterSpec::Valkey(spec)) = resource.cluster_spec() else {
            return false;
        };
        let mut spec = spec.to_message();
        spec.root_password = Some("secret".to_owned());
        change(&mut spec, id.as_u128() + 100 + u128::from(world.leader.index));
        let valkey =
            v1::Valkey { metadata: metadata(id, "cache"), spec: Some(spec), ..v1::Valkey::default() };
        world.put_cluster(valkey).is_ok()
    }

    /// Somebody asks for this now. Answers whether it was accepted.
    pub fn ask(&mut self, world: &mut World, ask: Ask) -> bool {
        let accepted = self.asks(world, ask);
        let count = self.counts.entry(ask).or_default();
        (count.0, count.1) = (count.0 + 1, count.1 + u64::from(accepted));
        world.leader.trace.line(world.now, format!("user {ask:?} accepted {accepted}"));
        accepted
    }

    fn asks(&mut self, world: &mut World, ask: Ask) -> bool {
        let host = usize::try_from(world.rng.below(world.hosts.len() as u64)).unwrap();
        let id = world.hosts[host].id;
        let known = world.leader.state.hosts.contains_key(&id);
        match ask {
            Ask::Create if world.leader.state.clusters.len() >= MOST_CLUSTERS => false,
            Ask::Create => {
                self.made += 1;
                let id = ResourceId::from_u128((16 << 100) + (self.made << 32));
                let shards = [1, 3, 3, 4][usize::try_from(world.rng.below(4)).unwrap()];
                let replicas = i32::try_from(world.rng.below(3)).unwrap();
                world.put_cluster(cluster(id, World::SUBNET, shards, replicas)).is_ok()
            }
            Ask::Delete => {
                let enough = world.leader.state.clusters.len() > 1;
                self.some_cluster(world).filter(|_| enough).is_some_and(|id| world.delete(id).is_ok())
            }
            Ask::MoreReplicas => self.modify(world, |spec, _| {
                spec.replicas_per_shard = spec.replicas_per_shard.map(|n| (n + 1).min(2));
            }),
            Ask::FewerReplicas => self.modify(world, |spec, _| {
                spec.replicas_per_shard = spec.replicas_per_shard.map(|n| (n - 1).max(0));
            }),
            Ask::MoreShards => self.modify(world, |spec, id| {
                if spec.shards.len() < MOST_SHARDS {
                    let id = ResourceId::from_u128(id).to_string();
                    let subnet = World::SUBNET.to_string();
                    spec.shards.push(v1::ValkeyShardSpec { id, vpc_subnet_id: subnet });
                }
            }),
            Ask::FewerShards => {
                let at = usize::try_from(world.rng.below(MOST_SHARDS as u64)).unwrap();
                self.modify(world, |spec, _| {
                    spec.shards.remove(at % spec.shards.len());
                })
            }
            Ask::SwapSet => {
                let set = [None, Some(SETS[0]), Some(SETS[1])][usize::try_from(world.rng.below(3)).unwrap()];
                self.modify(world, |spec, _| spec.parameters_set_id = set.map(|id| id.to_string()))
            }
            Ask::EditSet => {
                let id = SETS[usize::try_from(world.rng.below(2)).unwrap()];
                let version = world.rng.below(50);
                world.put(&set(id, version)).is_ok()
            }
            Ask::Cordon if known && world.leader.state.hosts[&id].drain().is_none() => {
                let seconds = 20 + world.rng.below(100);
                world.cordon(host, Some(seconds));
                true
            }
            Ask::Drain if known => {
                world.drain(host, DrainMode::KeepSpread);
                true
            }
            Ask::DrainByForce if known => {
                world.drain(host, DrainMode::Force);
                true
            }
            Ask::Uncordon if known => {
                world.uncordon(host);
                true
            }
            Ask::Cordon | Ask::Drain | Ask::DrainByForce | Ask::Uncordon => false,
            Ask::ForgetHost => {
                // Only of a host that has nothing left is it true that it never returns.
                let gone = |h: &&super::host::SimHost| !h.up && h.machines.is_empty();
                let lost = |id| matches!(world.leader.state.hosts.get(&id), Some(h) if h.presence != Presence::Present);
                let host = world.hosts.iter().filter(gone).map(|h| h.id).find(|id| lost(*id));
                host.is_some_and(|host| {
                    world.leader.apply(world.now, vec![Command::ForgetHost(host)]).remove(0).is_ok()
                })
            }
            Ask::Cancel => {
                let mut running = world
                    .leader
                    .state
                    .operations
                    .values()
                    .filter(|o| world.leader.state.uncancellable(o).is_none());
                let operation = running.next().map(|operation| operation.id);
                operation.is_some_and(|operation| {
                    let cancel = Command::CancelOperation { operation, by: user() };
                    world.leader.apply(world.now, vec![cancel]).remove(0).is_ok()
                })
            }
            Ask::PutAgain => self.modify(world, |_, _| {}),
            Ask::NewHost if world.hosts.len() >= MOST_HOSTS => false,
            Ask::NewHost => {
                world.add_host("new", 8);
                true
            }
        }
    }

    /// What has halted is cancelled, as its text says, and changes that failed are asked for again: what the spec says is what the world is
    /// held to.
    pub fn put_failed_again(&mut self, world: &mut World) {
        let halted = world.leader.state.operations.values();
        let halted = halted.filter(|o| o.state == OperationState::Running && o.halted.is_some());
        let halted: Vec<_> =
            halted.map(|o| Command::CancelOperation { operation: o.id, by: user() }).collect();
        if !halted.is_empty() {
            world.leader.trace.line(world.now, format!("user cancels what has halted: {halted:?}"));
            for answer in world.leader.apply(world.now, halted) {
                answer.unwrap();
            }
        }
        let failed: Vec<ResourceId> = world
            .leader
            .state
            .resources
            .values()
            .filter(|r| r.cluster_spec().is_some() && matches!(r.change.outcome, Outcome::Failed { .. }))
            .map(|resource| resource.id)
            .collect();
        for id in failed {
            let Some(shardplane_model::engine::ClusterSpec::Valkey(spec)) =
                world.leader.state.resources[&id].cluster_spec()
            else {
                continue;
            };
            let mut spec = spec.to_message();
            spec.root_password = Some("secret".to_owned());
            let valkey =
                v1::Valkey { metadata: metadata(id, "cache"), spec: Some(spec), ..v1::Valkey::default() };
            let accepted = world.put_cluster(valkey).is_ok();
            world.leader.trace.line(world.now, format!("user puts failed {id} again: {accepted}"));
        }
    }
}

//! Who looks at the world after every step: clients that write, rules that must hold, the trace. In: the world. Out: a panic that names
//! the broken rule, or nothing.

use shardplane_model::command::Command;
use shardplane_proto::ids::{ClusterId, ResourceId};

use super::{
    clients::Clients,
    node::NodeId,
    rng::Rng,
    safety::{self, Safety},
    truth,
    world::World,
};

/// Writes to each cluster in one step.
const WRITES: usize = 2;

#[derive(Debug)]
pub struct Watch {
    pub clients: Clients,
    pub safety: Safety,
    rng: Rng,
    decided: usize,
}

impl Watch {
    pub fn new(rng: Rng) -> Self {
        Self { clients: Clients::default(), safety: Safety::default(), rng, decided: 0 }
    }

    pub fn step(&mut self, world: &mut World) {
        let promotions = std::mem::take(&mut world.mesh.promotions);
        for promotion in &promotions {
            let line =
                format!("{:x} is primary after {:x}: {:?}", promotion.node, promotion.from, promotion.cause);
            world.leader.trace.line(world.now, line);
        }
        let mut clusters = Vec::<(ClusterId, Vec<NodeId>)>::new();
        {
            let mut members = truth::members(&world.leader.state, &world.mesh);
            // Of one that is deleted nothing is promised any more.
            members.retain(|cluster, _| {
                let resource = world.leader.state.resources.get(&ResourceId::from(*cluster));
                resource.is_some_and(|resource| !resource.deleting())
            });
            let wanted = |id| world.leader.state.instances.get(&id).is_some_and(|instance| instance.wanted());
            let now = world.leader.stamp(world.now);
            let heard = |id| {
                let host = world.leader.state.instances.get(&id).filter(|i| i.wanted()).map(|i| i.host);
                host.is_some_and(|host| world.leader.observed.hears(host, now))
            };
            self.clients.check(&members, &world.mesh, &promotions, &wanted, &heard, world.now);
            for (cluster, members) in &members {
                let formed = world.leader.state.clusters.get(cluster).is_some_and(|cluster| cluster.formed);
                if formed {
                    clusters.push((*cluster, members.iter().map(|(_, node)| node.id).collect()));
                }
            }
        }
        self.clients.forget(|cluster| world.leader.state.clusters.contains_key(&cluster));
        for (cluster, nodes) in &clusters {
            for _ in 0..WRITES {
                self.clients.write(*cluster, nodes, &mut world.mesh, world.now, &mut self.rng);
            }
        }
        self.safety.check(world, &promotions);
        for (at, decision) in &world.leader.decided[self.decided..] {
            self.safety.no_fence_flaps(decision, *at);
            safety::decision(world, &Command::Decide(decision.clone()));
        }
        self.decided = world.leader.decided.len();
        if world.now.is_multiple_of(60_000) {
            let offsets: u64 = world.mesh.nodes.values().fold(0, |sum, node| sum.wrapping_add(node.offset));
            let digest =
                [world.leader.index, offsets, self.clients.counts.acknowledged, world.rng.clone().draw()];
            digest.iter().for_each(|number| world.leader.trace.mix(&number.to_le_bytes()));
        }
    }
}

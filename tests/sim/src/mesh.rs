//! All simulated nodes together. In: who reaches whom. Out: the next state of every node: gossip, replication, elections.

use std::collections::BTreeMap;

use super::{
    node::{NODE_TIMEOUT, Node, NodeId},
    rng::Rng,
};

#[derive(Debug, Clone, Default)]
pub struct Mesh {
    pub nodes: BTreeMap<NodeId, Node>,
    /// Engines say no to every task.
    pub refuses: bool,
    /// Directives with a value that engines refuse, with their text.
    pub refuses_directives: BTreeMap<(String, String), String>,
    /// Every change of a shard's primary since somebody last looked.
    pub promotions: Vec<Promotion>,
}

/// Why a node became a primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The majority voted for it after its primary failed.
    Vote,
    /// CLUSTER FAILOVER, without loss.
    Order,
    /// CLUSTER FAILOVER TAKEOVER, without a vote.
    Takeover,
    /// A test did it.
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    pub node: NodeId,
    pub from: NodeId,
    pub cause: Cause,
}

impl Mesh {
    pub fn step(&mut self, reach: &dyn Fn(usize, usize) -> bool, now: u64, rng: &mut Rng) {
        let before = self.nodes.clone();
        let mut introductions = Vec::new();
        for node in self.nodes.values_mut().filter(|node| node.frozen) {
            node.rejoins_at = now + NODE_TIMEOUT;
        }
        for node in self.nodes.values_mut().filter(|node| node.up && !node.frozen) {
            introductions.extend(node.hear(&before, reach, now).into_iter().map(|to| (to, node.id)));
            node.judge(&before, reach, now);
            node.replicate(&before, reach, now, 500 + rng.below(2_000));
        }
        for (to, from) in introductions {
            if let (Some(node), Some(stranger)) = (self.nodes.get_mut(&to), before.get(&from)) {
                node.know(stranger, now);
            }
        }
        for node in self.nodes.values_mut().filter(|node| node.asks_at.is_some() && !node.stands(now)) {
            node.asks_at = None;
        }
        let candidates: Vec<NodeId> = self.nodes.values().filter(|n| n.stands(now)).map(|n| n.id).collect();
        for candidate in candidates {
            self.stand(candidate, reach, now, rng);
        }
    }

    /// A replica that is behind others waits for them before it asks for votes.
    fn stand(&mut self, id: NodeId, reach: &dyn Fn(usize, usize) -> bool, now: u64, rng: &mut Rng) {
        let node = &self.nodes[&id];
        let ahead = |other: &&Node| {
            other.primary == node.primary && other.offset > node.offset && node.reaches(other, reach)
        };
        let rank = self.nodes.values().filter(ahead).count() as u64;
        match node.asks_at {
            None => {
                let at = now + 500 + rng.below(500) + rank * 1_000;
                self.nodes.get_mut(&id).unwrap().asks_at = Some(at);
            }
            Some(at) if now < at => {}
            Some(_) => {
                self.nodes.get_mut(&id).unwrap().asks_at = None;
                self.elect(id, reach, now, rng);
            }
        }
    }

    pub fn voters_for(
        &self,
        candidate: &Node,
        primary: NodeId,
        reach: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<NodeId> {
        let votes = |id: &NodeId| {
            self.nodes.get(id).is_some_and(|n| {
                n.is_slot_master()
                    && candidate.reaches(n, reach)
                    && n.peers.contains_key(&candidate.id)
                    && (n.id == primary || n.peers.contains_key(&primary))
            })
        };
        candidate.voters().into_iter().filter(votes).collect()
    }

    fn elect(&mut self, id: NodeId, reach: &dyn Fn(usize, usize) -> bool, now: u64, rng: &mut Rng) {
        let candidate = self.nodes[&id].clone();
        let Some(primary) = candidate.primary else { return };
        let agrees = |voter: &NodeId| {
            let voter = &self.nodes[voter];
            // Its word is for one epoch once, and not for slots that somebody owns by a newer one.
            let stale = candidate.owns(primary).into_iter().any(|(start, end)| {
                let known = voter.slots.within(start, end);
                known.into_iter().any(|(_, _, owner)| {
                    owner.is_some_and(|owner| voter.epoch_of(owner) > candidate.epoch_of(primary))
                })
            });
            !stale
                && voter.current_epoch <= candidate.current_epoch
                && voter.peers.get(&primary).is_some_and(|peer| peer.fail)
                && voter.voted_at.get(&primary).is_none_or(|at| now - at > NODE_TIMEOUT * 2)
        };
        let votes: Vec<NodeId> =
            self.voters_for(&candidate, primary, reach).into_iter().filter(agrees).collect();
        self.vote(&votes, &candidate, primary, now);
        if votes.len() >= candidate.majority() {
            self.promote(id, primary, Cause::Vote);
        } else {
            self.nodes.get_mut(&id).unwrap().next_try = now + NODE_TIMEOUT * 2 + rng.below(1_000);
        }
    }

    /// These have given their word for an epoch, and give it nobody else.
    pub fn vote(&mut self, voters: &[NodeId], candidate: &Node, primary: NodeId, now: u64) {
        for voter in voters {
            let voter = self.nodes.get_mut(voter).unwrap();
            voter.voted_at.insert(primary, now);
            voter.current_epoch = voter.current_epoch.max(candidate.current_epoch + 1);
        }
    }

    /// A node becomes the primary of its shard with all that its primary owned.
    pub fn promote(&mut self, id: NodeId, from: NodeId, cause: Cause) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.current_epoch += 1;
        node.epoch = node.current_epoch;
        node.primary = None;
        node.link_up = false;
        node.slots.hand(from, Some(id));
        self.promotions.push(Promotion { node: id, from, cause });
    }
}

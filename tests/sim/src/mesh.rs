//! All simulated nodes together. In: who reaches whom. Out: the next state of every node; tasks performed as the messages in
//! `valkey.proto` promise.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_proto::v1::{self, valkey_task::Step};

use super::{
    node::{BAN, NODE_TIMEOUT, Node, NodeId, is_bus, number},
    rng::Rng,
};

#[derive(Debug, Clone, Default)]
pub struct Mesh {
    pub nodes: BTreeMap<NodeId, Node>,
    /// Engines say no to every task.
    pub refuses: bool,
}

impl Mesh {
    pub fn step(&mut self, reach: &dyn Fn(usize, usize) -> bool, now: u64, rng: &mut Rng) {
        let before = self.nodes.clone();
        let mut introductions = Vec::new();
        for node in self.nodes.values_mut().filter(|node| node.up) {
            introductions.extend(node.hear(&before, reach, now).into_iter().map(|to| (to, node.id)));
            node.judge(&before, reach, now);
            node.replicate(&before, reach, now, 500 + rng.below(2_000));
        }
        for (to, from) in introductions {
            if let (Some(node), Some(stranger)) = (self.nodes.get_mut(&to), before.get(&from)) {
                node.know(stranger, now);
            }
        }
        let candidates: Vec<NodeId> = self.nodes.values().filter(|n| n.stands(now)).map(|n| n.id).collect();
        for candidate in candidates {
            self.elect(candidate, reach, now, rng);
        }
    }

    fn voters_for(
        &self,
        candidate: &Node,
        primary: NodeId,
        reach: &dyn Fn(usize, usize) -> bool,
    ) -> Vec<NodeId> {
        let votes = |id: &NodeId| {
            self.nodes.get(id).is_some_and(|n| {
                n.up && n.is_slot_master()
                    && reach(n.host, candidate.host)
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
            voter.peers.get(&primary).is_some_and(|peer| peer.fail)
                && voter.voted_at.get(&primary).is_none_or(|at| now - at > NODE_TIMEOUT * 2)
        };
        let votes: Vec<NodeId> =
            self.voters_for(&candidate, primary, reach).into_iter().filter(agrees).collect();
        for voter in &votes {
            self.nodes.get_mut(voter).unwrap().voted_at.insert(primary, now);
        }
        if votes.len() >= candidate.majority() {
            self.take_over(id, primary);
        } else {
            self.nodes.get_mut(&id).unwrap().next_try = now + NODE_TIMEOUT * 2 + rng.below(1_000);
        }
    }

    pub fn take_over(&mut self, id: NodeId, from: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.current_epoch += 1;
        node.epoch = node.current_epoch;
        node.primary = None;
        node.link_up = false;
        node.slots.values_mut().filter(|(_, owner)| *owner == from).for_each(|slot| slot.1 = id);
    }

    /// Performs a task on a node whose engine answers.
    pub fn perform(
        &mut self,
        id: NodeId,
        payload: &[u8],
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Result<(), String> {
        if self.refuses {
            return Err("ERR refused".to_owned());
        }
        let task = v1::ValkeyTask::decode(payload).map_err(|e| e.to_string())?;
        let node = self.nodes.get_mut(&id).ok_or("no such node")?;
        match task.step.ok_or("an empty task")? {
            Step::AssignSlots(v1::valkey_task::AssignSlots { start, end, config_epoch }) => {
                if node.slots.get(&start) == Some(&(end, id)) && node.primary.is_none() {
                    return Ok(());
                }
                if node.primary.is_some() {
                    return Err("a replica owns no slots".to_owned());
                }
                if node.slots.iter().any(|(s, (e, _))| *s <= end && start <= *e) {
                    return Err(format!("ERR Slot {start} is already busy"));
                }
                if node.epoch == 0 && node.peers.is_empty() {
                    node.epoch = config_epoch;
                    node.current_epoch = node.current_epoch.max(config_epoch);
                }
                node.slots.insert(start, (end, id));
                node.has_data = true;
                Ok(())
            }
            Step::Meet(v1::valkey_task::Meet { peers }) => {
                for peer in peers {
                    assert!(is_bus(&peer), "{peer:?}");
                    node.meets(peer.ip.parse().map_err(|_| format!("ERR Invalid address {}", peer.ip))?, now);
                }
                Ok(())
            }
            Step::Replicate(v1::valkey_task::Replicate { primary_node_id }) => {
                let primary = number(&primary_node_id).ok_or("ERR Unknown node")?;
                if node.primary == Some(primary) {
                    return Ok(());
                }
                if node.is_slot_master() {
                    return Err(
                        "ERR To set a master the node must be empty and without assigned slots".to_owned()
                    );
                }
                match node.peers.get(&primary) {
                    None => Err(format!("ERR Unknown node {primary_node_id}")),
                    Some(peer) if peer.primary.is_some() => {
                        Err("ERR I can only replicate a master".to_owned())
                    }
                    Some(_) => {
                        node.follow(primary, now);
                        Ok(())
                    }
                }
            }
            Step::Forget(v1::valkey_task::Forget { node_id }) => {
                let gone = number(&node_id).ok_or("ERR Unknown node")?;
                if gone == id || node.primary == Some(gone) {
                    return Err("ERR Can't forget my master!".to_owned());
                }
                if node.peers.remove(&gone).is_some() {
                    node.slots.retain(|_, (_, owner)| *owner != gone);
                    node.banned.insert(gone, now + BAN);
                }
                Ok(())
            }
            Step::Failover(v1::valkey_task::Failover {}) => {
                let Some(primary) = node.primary else { return Ok(()) };
                if !node.link_up {
                    return Err("the link to the primary is not up".to_owned());
                }
                let candidate = node.clone();
                if self.voters_for(&candidate, primary, reach).len() < candidate.majority() {
                    return Err("the failover was not voted for in time".to_owned());
                }
                let offset = self.nodes[&primary].offset;
                self.take_over(id, primary);
                self.nodes.get_mut(&id).unwrap().offset = offset;
                Ok(())
            }
            Step::MoveSlots(_) | Step::CloseSlots(_) | Step::Takeover(_) | Step::StandDown(_) => {
                Err("ERR unknown task".to_owned())
            }
        }
    }
}

//! Tasks on simulated engines, as `valkey.proto` promises them: each performed twice is as good as once. In: a task's payload and how
//! far it is. Out: its end, or nothing while it goes on.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_model::command::Ended;
use shardplane_proto::{
    ids::TaskId,
    v1::{self, valkey_task::Step},
};

use super::{
    mesh::{Cause, Mesh},
    node::{BAN, NODE_TIMEOUT, NodeId, is_bus, number},
};

/// A replica that is further behind does not catch up while its primary waits for it.
const CATCHES_UP: u64 = 1 << 20;

/// A task under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub task: TaskId,
    pub began: u64,
    pub counts: BTreeMap<String, u64>,
    pub notes: Vec<String>,
}

impl Job {
    pub fn new(task: TaskId, now: u64) -> Self {
        Self { task, began: now, counts: BTreeMap::new(), notes: Vec::new() }
    }

    pub fn count(&mut self, what: &str, amount: u64) {
        *self.counts.entry(what.to_owned()).or_default() += amount;
    }

    pub fn ended(&self, result: Result<(), String>) -> Ended {
        Ended { error: result.err(), counts: self.counts.clone(), notes: self.notes.clone() }
    }
}

/// How a step of a task ended; nothing while it goes on.
pub type Progress = Option<Result<(), String>>;

impl Mesh {
    /// Performs a task on a node whose engine answers, as far as it comes in one step.
    pub fn perform(
        &mut self,
        id: NodeId,
        job: &mut Job,
        payload: &[u8],
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Progress {
        if self.refuses {
            return Some(Err("ERR refused".to_owned()));
        }
        let Ok(v1::ValkeyTask { step: Some(step) }) = v1::ValkeyTask::decode(payload) else {
            return Some(Err("not a task of this engine".to_owned()));
        };
        match step {
            Step::MoveSlots(task) => self.move_slots(id, job, &task, reach, now),
            Step::CloseSlots(task) => self.close_slots(id, job, &task, reach, now),
            other @ (Step::AssignSlots(_)
            | Step::Meet(_)
            | Step::Replicate(_)
            | Step::Forget(_)
            | Step::Failover(_)
            | Step::Takeover(_)
            | Step::StandDown(_)) => Some(self.at_once(id, other, reach, now)),
        }
    }

    fn at_once(
        &mut self,
        id: NodeId,
        step: Step,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Result<(), String> {
        let node = self.nodes.get_mut(&id).ok_or("no such node")?;
        match step {
            Step::AssignSlots(v1::valkey_task::AssignSlots { start, end, config_epoch }) => {
                if node.primary.is_some() {
                    return Err("a replica owns no slots".to_owned());
                }
                if node.slots.within(start, end) == [(start, end, Some(id))] {
                    return Ok(());
                }
                if node.slots.within(start, end) != [(start, end, None)] {
                    return Err(format!("ERR Slot {start} is already busy"));
                }
                if node.epoch == 0 && node.peers.is_empty() {
                    node.epoch = config_epoch;
                    node.current_epoch = node.current_epoch.max(config_epoch);
                }
                node.slots.set(start, end, id);
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
                if node.is_slot_master() || (node.primary.is_none() && node.keys.count(0, u32::MAX) > 0) {
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
                    node.slots.hand(gone, None);
                    node.banned.insert(gone, now + BAN);
                }
                Ok(())
            }
            Step::Failover(v1::valkey_task::Failover {}) => self.failover(id, reach, now),
            Step::Takeover(v1::valkey_task::Takeover {}) => match node.primary {
                None if node.is_slot_master() => Ok(()),
                None => Err("ERR You should send CLUSTER FAILOVER to a replica".to_owned()),
                Some(primary) => {
                    self.promote(id, primary, Cause::Takeover);
                    Ok(())
                }
            },
            Step::StandDown(v1::valkey_task::StandDown { on }) => {
                if on && node.primary.is_none() {
                    return Err("it is a primary".to_owned());
                }
                node.stands_down = on;
                Ok(())
            }
            Step::MoveSlots(_) | Step::CloseSlots(_) => Err("takes more than a moment".to_owned()),
        }
    }

    /// The primary waits, the replica reads the rest, the others vote.
    fn failover(&mut self, id: NodeId, reach: &dyn Fn(usize, usize) -> bool, now: u64) -> Result<(), String> {
        let candidate = self.nodes[&id].clone();
        let Some(primary) = candidate.primary else { return Ok(()) };
        if !candidate.link_up {
            return Err("the link to the primary is not up".to_owned());
        }
        if candidate.lag > CATCHES_UP {
            return Err("it did not catch up in time".to_owned());
        }
        let voters = self.voters_for(&candidate, primary, reach);
        if voters.len() < candidate.majority() {
            return Err("the failover was not voted for in time".to_owned());
        }
        self.vote(&voters, &candidate, primary, now);
        let old = self.nodes.get_mut(&primary).ok_or("the primary is gone")?;
        old.paused_until = now + NODE_TIMEOUT * 2;
        let (offset, keys, has_data) = (old.offset, old.keys.clone(), old.has_data);
        let node = self.nodes.get_mut(&id).unwrap();
        (node.offset, node.has_data) = (offset, has_data);
        node.keys.copy(&keys);
        self.promote(id, primary, Cause::Order);
        Ok(())
    }
}

//! Slots on the move. In: MoveSlots and CloseSlots. Out: marks, keys and owners, a little each step: a process that dies in between
//! leaves what the real engine would leave.

use shardplane_proto::v1::{
    self,
    valkey_task::{CloseSlot, CloseSlots, MoveSlots},
};

use super::{
    keys::within,
    mesh::Mesh,
    node::{Node, NodeId, number},
    perform::{Job, Progress},
};

/// How long MoveSlots goes on before it ends at the next whole slot.
const BUDGET: u64 = 8_000;
/// Slots without keys that are moved in one step.
const EMPTY_A_STEP: u32 = 32;

fn first_key(node: &Node, slot: u32) -> Option<usize> {
    within(slot, slot).find(|key| node.keys.values[*key] > 0)
}

fn write(node: &mut Node, key: usize, value: u64) {
    node.offset += 1;
    node.keys.set(key, value, node.offset);
}

/// SETSLOT NODE on the one that gets it.
fn take(target: &mut Node, slot: u32) {
    target.bump();
    target.slots.set(slot, slot, target.id);
    target.importing.remove(&slot);
    target.unclaimed.clear(slot, slot);
    target.has_data = true;
}

/// SETSLOT NODE on the one that gave it.
fn give(source: &mut Node, slot: u32, target: NodeId, now: u64) {
    source.slots.set(slot, slot, target);
    source.lose(slot, slot);
    if !source.slots.has(source.id) {
        source.has_data = false;
        if source.directives.changes_shard() {
            source.follow(target, now);
        }
    }
}

impl Mesh {
    /// A primary carries out SETSLOT when its replicas have it.
    fn tell_replicas(&mut self, primary: NodeId, slot: u32, owner: NodeId) {
        let followers = self.nodes.values_mut().filter(|n| n.up && n.link_up && n.primary == Some(primary));
        for replica in followers {
            replica.slots.set(slot, slot, owner);
            replica.importing.remove(&slot);
            replica.migrating.remove(&slot);
        }
    }

    pub fn move_slots(
        &mut self,
        id: NodeId,
        job: &mut Job,
        task: &MoveSlots,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Progress {
        let mut source = self.nodes.remove(&id)?;
        let progress = self.move_some(&mut source, job, task, reach, now);
        if progress.is_some() {
            source.moving = None;
        }
        self.nodes.insert(id, source);
        progress
    }

    fn move_some(
        &mut self,
        source: &mut Node,
        job: &mut Job,
        task: &MoveSlots,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Progress {
        let Some(to) = number(&task.target_node_id) else {
            return Some(Err(format!("ERR Unknown node {}", task.target_node_id)));
        };
        if source.primary.is_some() {
            return Some(Err("this node is a replica, it moves no slots".to_owned()));
        }
        let mut empty = 0;
        for slot in task.start..=task.end {
            match source.slots.owner(slot) {
                Some(owner) if owner == to => {
                    source.migrating.remove(&slot);
                    continue;
                }
                Some(owner) if owner == source.id => {}
                Some(_) | None => return Some(Err(format!("slot {slot} is owned by neither"))),
            }
            let between = source.migrating.contains_key(&slot);
            if now - job.began >= BUDGET && !between {
                return Some(Ok(()));
            }
            if empty >= EMPTY_A_STEP {
                return None;
            }
            let known = source.peers.get(&to).is_some_and(|peer| peer.primary.is_none());
            let target = self.nodes.get_mut(&to).filter(|target| known && source.reaches(target, reach));
            let Some(target) = target else {
                return Some(Err(format!("the target {} cannot be reached", task.target_node_id)));
            };
            if target.primary.is_some() || target.disk_full {
                return Some(Err("MISCONF or READONLY on the target".to_owned()));
            }
            source.moving = Some(v1::ValkeySlotMove {
                slot,
                slots_done: u32::try_from(job.counts.get("slots").copied().unwrap_or(0)).unwrap(),
                keys_done: job.counts.get("keys").copied().unwrap_or(0),
                keys_left: source.keys.count(slot, slot),
                large_key: None,
                task_id: job.task.to_string(),
            });
            if target.slots.owner(slot) != Some(to) {
                target.importing.insert(slot, source.id);
                source.migrating.insert(slot, to);
                if let Some(key) = first_key(source, slot) {
                    write(target, key, source.keys.values[key]);
                    write(source, key, 0);
                    job.count("keys", 1);
                    return None;
                }
                take(target, slot);
                self.tell_replicas(to, slot, to);
                job.count("slots", 1);
                // Now and then a step ends between the two nodes.
                if (u64::from(slot) + now / 250).is_multiple_of(97) {
                    return None;
                }
            }
            give(source, slot, to, now);
            self.tell_replicas(source.id, slot, to);
            empty += 1;
            if source.primary.is_some() {
                return Some(Ok(()));
            }
        }
        Some(Ok(()))
    }

    pub fn close_slots(
        &mut self,
        id: NodeId,
        job: &mut Job,
        task: &CloseSlots,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Progress {
        let mut node = self.nodes.remove(&id)?;
        let mut result = Some(Ok(()));
        for close in &task.slots {
            match self.close(&mut node, job, close, reach, now) {
                Some(Ok(())) => {}
                other @ (None | Some(Err(_))) => {
                    result = other;
                    break;
                }
            }
        }
        self.nodes.insert(id, node);
        result
    }

    fn close(
        &mut self,
        node: &mut Node,
        job: &mut Job,
        task: &CloseSlot,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Progress {
        let slot = task.slot;
        let owner = node.slots.owner(slot);
        if !node.migrating.contains_key(&slot) && !node.importing.contains_key(&slot) {
            return Some(Ok(()));
        }
        if node.primary.is_some() {
            return Some(Err("this node is a replica, it closes no slots".to_owned()));
        }
        if owner == Some(node.id) {
            node.importing.remove(&slot);
            if !node.migrating.contains_key(&slot) {
                return Some(Ok(()));
            }
            let Some(to) = number(&task.peer_node_id) else {
                node.migrating.remove(&slot);
                return Some(Ok(()));
            };
            let Some(target) = self.nodes.get_mut(&to).filter(|target| node.reaches(target, reach)) else {
                return Some(Err(format!("the target {} cannot be reached", task.peer_node_id)));
            };
            if target.slots.owner(slot) == Some(to) {
                give(node, slot, to, now);
                return Some(Ok(()));
            }
            // What is at the target comes back, key by key.
            if let Some(key) = first_key(target, slot) {
                if node.keys.values[key] == 0 {
                    write(node, key, target.keys.values[key]);
                }
                write(target, key, 0);
                job.count("keys", 1);
                return None;
            }
            target.importing.remove(&slot);
            node.migrating.remove(&slot);
            return Some(Ok(()));
        }
        node.migrating.remove(&slot);
        if !node.importing.contains_key(&slot) {
            return Some(Ok(()));
        }
        let owner =
            owner.and_then(|owner| self.nodes.get_mut(&owner)).filter(|owner| node.reaches(owner, reach));
        let Some(owner) = owner else {
            return Some(Err(format!("the owner of slot {slot} cannot be reached")));
        };
        if owner.migrating.get(&slot) == Some(&node.id) {
            return Some(Err(format!("slot {slot} is migrating: its owner closes it")));
        }
        if let Some(key) = first_key(node, slot) {
            if owner.keys.values[key] == 0 {
                write(owner, key, node.keys.values[key]);
            }
            write(node, key, 0);
            job.count("keys", 1);
            return None;
        }
        node.importing.remove(&slot);
        Some(Ok(()))
    }
}

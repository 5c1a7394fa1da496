//! What a node learns from the others. In: their state as of the last step. Out: its own view. Rules of the real engine that matter
//! to a coordinator are kept: claims by config epoch, slots that their owner gave away, marks that follow a failover, handshakes, the
//! ban after CLUSTER FORGET, demotion of a master that lost its slots, suspicion and failure by majority.

use std::collections::BTreeMap;

use super::{
    keys::within,
    node::{Handshake, NODE_TIMEOUT, Node, NodeId, Peer},
};

impl Node {
    /// What a master says of itself: the claim with the higher epoch wins, or one of a slot that its owner no longer claims; who lost
    /// all slots to a node of its own shard follows that one.
    fn hear_claims(&mut self, of: &Node, now: u64) {
        if of.primary.is_some() {
            return;
        }
        let mine = self.is_slot_master();
        let leader = self.primary.filter(|id| self.slots.has(*id));
        let claimed = of.owns(of.id);
        for (start, end) in self.owns(of.id) {
            let given_away = claimed.iter().any(|(from, to)| *from <= start && end <= *to);
            if !given_away {
                for (from, to, owner) in of.slots.within(start, end) {
                    if owner != Some(of.id) {
                        self.unclaimed.set(from, to, of.id);
                    }
                }
            }
        }
        for (start, end) in claimed {
            for (from, to, owner) in self.slots.within(start, end) {
                self.hear_claim(of, (from, to), owner);
            }
        }
        let may = of.shard == self.shard || self.directives.changes_shard();
        let robbed = mine && !self.is_slot_master();
        let leader_robbed = leader.is_some_and(|id| id != of.id && !self.slots.has(id));
        if (robbed || leader_robbed) && may && self.slots.has(of.id) {
            self.follow(of.id, now);
        } else if robbed {
            self.has_data = false;
        }
    }

    fn hear_claim(&mut self, of: &Node, (start, end): (u32, u32), owner: Option<NodeId>) {
        let parts = match owner {
            None => vec![(start, end)],
            Some(owner) if owner == of.id => {
                self.unclaimed.clear(start, end);
                return;
            }
            Some(owner) if self.epoch_of(owner) < of.epoch => vec![(start, end)],
            Some(owner) => {
                let given = self.unclaimed.within(start, end);
                given.into_iter().filter(|(_, _, by)| *by == Some(owner)).map(|(a, b, _)| (a, b)).collect()
            }
        };
        for (start, end) in parts {
            self.slots.set(start, end, of.id);
            self.unclaimed.clear(start, end);
            if owner == Some(self.id) {
                self.lose(start, end);
            }
        }
    }

    /// What the other knows of slots that this node claims: the engine tells a master whose claim is old who owns them by now.
    fn hear_update(&mut self, of: &Node, now: u64) {
        if !self.is_slot_master() {
            return;
        }
        for (start, end) in self.owns(self.id) {
            for (from, to, owner) in of.slots.within(start, end) {
                let Some(owner) = owner.filter(|owner| *owner != self.id && *owner != of.id) else {
                    continue;
                };
                let newer = of.peers.get(&owner).map_or(0, |peer| peer.epoch);
                let Some(peer) = self.peers.get_mut(&owner).filter(|_| newer > self.epoch) else { continue };
                (peer.epoch, peer.primary) = (peer.epoch.max(newer), None);
                let shard = peer.shard;
                self.slots.set(from, to, owner);
                if self.is_slot_master() {
                    self.lose(from, to);
                } else if shard == self.shard || self.directives.changes_shard() {
                    self.follow(owner, now);
                    return;
                } else {
                    self.lose(from, to);
                    self.has_data = false;
                    return;
                }
            }
        }
    }

    /// Slots went to another: keys that were left in them are deleted, and they are not migrating any more.
    pub fn lose(&mut self, start: u32, end: u32) {
        self.migrating.retain(|slot, _| !(start..=end).contains(slot));
        for key in within(start, end).filter(|key| self.keys.values[*key] > 0).collect::<Vec<_>>() {
            self.offset += 1;
            self.keys.set(key, 0, self.offset);
        }
    }

    /// A mark names the node that leads the other shard.
    fn renew_marks(&mut self) {
        let heir = |id: &NodeId| {
            let next = self.peers.get(id)?.primary?;
            let same = self.peers.get(&next)?.shard == self.peers.get(id)?.shard;
            same.then_some(next)
        };
        let renew = |marks: &BTreeMap<u32, NodeId>| -> BTreeMap<u32, NodeId> {
            marks.iter().map(|(slot, id)| (*slot, heir(id).unwrap_or(*id))).collect()
        };
        if !self.migrating.is_empty() || !self.importing.is_empty() {
            (self.migrating, self.importing) = (renew(&self.migrating), renew(&self.importing));
        }
    }

    fn hear_gossip(&mut self, of: &Node, now: u64) {
        for (id, peer) in &of.peers {
            let known =
                *id == self.id || self.peers.contains_key(id) || self.handshakes.contains_key(&peer.ip);
            let banned = self.banned.get(id).is_some_and(|until| now < *until);
            if !known && !banned && !peer.fail {
                self.handshakes.insert(peer.ip, Handshake { until: now + NODE_TIMEOUT, meet: false });
            }
        }
    }

    /// Hears all peers that can be reached. Answers whom it introduced itself to.
    pub fn hear(
        &mut self,
        others: &BTreeMap<NodeId, Node>,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
    ) -> Vec<NodeId> {
        let mut met = Vec::new();
        for (ip, handshake) in std::mem::take(&mut self.handshakes) {
            let there = others.values().find(|node| node.ip == ip && self.reaches(node, reach));
            match there {
                // It answers itself at the address of its predecessor.
                Some(node) if node.id == self.id => {}
                Some(node) => {
                    self.know(node, now);
                    if handshake.meet {
                        met.push(node.id);
                    }
                }
                None if now < handshake.until => {
                    self.handshakes.insert(ip, handshake);
                }
                None => {}
            }
        }
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(node) = others.get(&id).filter(|node| self.reaches(node, reach)) else {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.connected = false;
                }
                continue;
            };
            self.know(node, now);
            self.hear_claims(node, now);
            self.hear_update(node, now);
            if node.peers.contains_key(&self.id) {
                self.hear_gossip(node, now);
            }
            self.current_epoch = self.current_epoch.max(node.current_epoch).max(node.epoch);
            if self.is_slot_master() && node.is_slot_master() && node.epoch == self.epoch && self.id < node.id
            {
                self.current_epoch += 1;
                self.epoch = self.current_epoch;
            }
        }
        self.renew_marks();
        met
    }

    pub fn know(&mut self, node: &Node, now: u64) {
        let peer = Peer {
            ip: node.ip,
            heard: now,
            primary: node.primary,
            shard: node.shard,
            epoch: node.epoch,
            fail: false,
            connected: true,
        };
        self.peers.insert(node.id, peer);
    }

    /// Marks as failed whom a majority of masters suspects.
    pub fn judge(&mut self, others: &BTreeMap<NodeId, Node>, reach: &dyn Fn(usize, usize) -> bool, now: u64) {
        let suspected: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.fail && peer.suspected(now))
            .map(|(id, _)| *id)
            .collect();
        if suspected.is_empty() {
            return;
        }
        let (voters, majority) = (self.voters(), self.majority());
        for id in suspected {
            let agree = |voter: &&NodeId| {
                **voter == self.id
                    || others.get(voter).is_some_and(|n| {
                        self.reaches(n, reach) && n.suspects(id, now) && n.peers.contains_key(&id)
                    })
            };
            if voters.iter().filter(agree).count() >= majority
                && let Some(peer) = self.peers.get_mut(&id)
            {
                peer.fail = true;
            }
        }
    }
}

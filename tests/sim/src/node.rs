//! One simulated Valkey node: its own view of the cluster, as pure data. In: the other nodes' state as of the last step. Out: its
//! next state and what it would report. Rules of the real engine that matter to a coordinator are kept: claims by config
//! epoch, handshakes, gossip, the ban after CLUSTER FORGET, replica validity, demotion of a master that lost its slots.

use std::{collections::BTreeMap, net::Ipv4Addr};

use shardplane_model::engine::valkey::{BUS_PORT, PORT, SLOTS};
use shardplane_proto::{ids::InstanceId, v1};

pub type NodeId = u64;

/// Milliseconds without an answer after which a peer is suspected.
pub const NODE_TIMEOUT: u64 = 5_000;
/// How long a forgotten node is not learned again through gossip.
pub const BAN: u64 = 60_000;
/// A replica that lost its link longer ago than that does not stand for election.
const VALIDITY: u64 = 60_000;

pub fn text(id: NodeId) -> String {
    format!("{id:040x}")
}

pub fn number(text: &str) -> Option<NodeId> {
    NodeId::from_str_radix(text.trim_start_matches('0'), 16).ok()
}

#[derive(Debug, Clone)]
pub struct Peer {
    pub ip: Ipv4Addr,
    pub heard: u64,
    pub primary: Option<NodeId>,
    pub epoch: u64,
    pub fail: bool,
    pub connected: bool,
}

impl Peer {
    pub fn suspected(&self, now: u64) -> bool {
        self.fail || now.saturating_sub(self.heard) > NODE_TIMEOUT
    }
}

#[derive(Debug, Clone)]
pub struct Handshake {
    pub until: u64,
    pub meet: bool,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub id: NodeId,
    pub instance: InstanceId,
    pub host: usize,
    pub ip: Ipv4Addr,
    pub up: bool,
    /// Whom it follows; none for a master.
    pub primary: Option<NodeId>,
    /// First slot of a range to its last one and its owner, as this node sees it.
    pub slots: BTreeMap<u32, (u32, NodeId)>,
    pub epoch: u64,
    pub current_epoch: u64,
    pub peers: BTreeMap<NodeId, Peer>,
    pub handshakes: BTreeMap<Ipv4Addr, Handshake>,
    pub banned: BTreeMap<NodeId, u64>,
    pub link_up: bool,
    /// Whether its data is a copy of its shard's, however old.
    pub has_data: bool,
    pub sync_until: Option<u64>,
    pub down_since: u64,
    pub offset: u64,
    /// How far it stays behind its primary's stream.
    pub lag: u64,
    pub voted_at: BTreeMap<NodeId, u64>,
    pub next_try: u64,
}

impl Node {
    pub fn new(id: NodeId, instance: InstanceId, host: usize, ip: Ipv4Addr) -> Self {
        Self {
            id,
            instance,
            host,
            ip,
            up: false,
            primary: None,
            slots: BTreeMap::new(),
            epoch: 0,
            current_epoch: 0,
            peers: BTreeMap::new(),
            handshakes: BTreeMap::new(),
            banned: BTreeMap::new(),
            link_up: false,
            has_data: false,
            sync_until: None,
            down_since: 0,
            offset: 0,
            lag: 0,
            voted_at: BTreeMap::new(),
            next_try: 0,
        }
    }

    pub fn owns(&self, id: NodeId) -> Vec<(u32, u32)> {
        self.slots
            .iter()
            .filter(|(_, (_, owner))| *owner == id)
            .map(|(start, (end, _))| (*start, *end))
            .collect()
    }

    pub fn is_slot_master(&self) -> bool {
        self.primary.is_none() && self.slots.values().any(|(_, owner)| *owner == self.id)
    }

    /// The masters that vote, as this node sees them.
    pub fn voters(&self) -> Vec<NodeId> {
        let mut owners: Vec<NodeId> = self.slots.values().map(|(_, owner)| *owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    pub fn majority(&self) -> usize {
        self.voters().len() / 2 + 1
    }

    fn suspects(&self, id: NodeId, now: u64) -> bool {
        id != self.id && self.peers.get(&id).is_none_or(|peer| peer.suspected(now))
    }

    pub fn state_ok(&self, now: u64) -> bool {
        let covered: u32 = self.slots.iter().map(|(start, (end, _))| end - start + 1).sum();
        let failed = |id: &NodeId| *id != self.id && self.peers.get(id).is_none_or(|peer| peer.fail);
        let voters = self.voters();
        let reachable = voters.iter().filter(|id| !self.suspects(**id, now)).count();
        covered == SLOTS && !voters.iter().any(failed) && reachable >= self.majority()
    }

    pub fn follow(&mut self, primary: NodeId, now: u64) {
        if self.primary != Some(primary) {
            self.primary = Some(primary);
            self.link_up = false;
            self.sync_until = None;
            self.down_since = now;
        }
    }

    fn epoch_of(&self, id: NodeId) -> u64 {
        if id == self.id { self.epoch } else { self.peers.get(&id).map_or(0, |peer| peer.epoch) }
    }

    /// What a master says of itself: the claim with the higher epoch wins; who lost all slots follows the winner.
    fn hear_claims(&mut self, of: &Node, now: u64) {
        if of.primary.is_some() {
            return;
        }
        let mine = self.is_slot_master();
        let leader = self.primary.filter(|id| !self.owns(*id).is_empty());
        for (start, end) in of.owns(of.id) {
            match self.slots.get(&start) {
                Some((_, owner)) if *owner == of.id => {}
                Some((_, owner)) if self.epoch_of(*owner) >= of.epoch => {}
                Some(_) | None => {
                    self.slots.insert(start, (end, of.id));
                }
            }
        }
        let robbed = mine && !self.is_slot_master();
        let leader_robbed = leader.is_some_and(|id| id != of.id && self.owns(id).is_empty());
        if robbed || leader_robbed {
            self.follow(of.id, now);
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
        let home = self.host;
        let reachable = |node: &&Node| node.up && reach(home, node.host);
        for (ip, handshake) in std::mem::take(&mut self.handshakes) {
            let there = others.values().filter(reachable).find(|node| node.ip == ip);
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
            let Some(node) = others.get(&id).filter(|n| n.up && reach(self.host, n.host)) else {
                if let Some(peer) = self.peers.get_mut(&id) {
                    peer.connected = false;
                }
                continue;
            };
            self.know(node, now);
            self.hear_claims(node, now);
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
        met
    }

    pub fn know(&mut self, node: &Node, now: u64) {
        let peer = Peer {
            ip: node.ip,
            heard: now,
            primary: node.primary,
            epoch: node.epoch,
            fail: false,
            connected: true,
        };
        self.peers.insert(node.id, peer);
    }

    /// Marks as failed whom a majority of masters suspects.
    pub fn judge(&mut self, others: &BTreeMap<NodeId, Node>, reach: &dyn Fn(usize, usize) -> bool, now: u64) {
        let (voters, majority) = (self.voters(), self.majority());
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.suspects(id, now) || self.peers[&id].fail {
                continue;
            }
            let agree = |voter: &&NodeId| {
                **voter == self.id
                    || others.get(voter).is_some_and(|n| {
                        n.up && reach(self.host, n.host) && n.suspects(id, now) && n.peers.contains_key(&id)
                    })
            };
            if voters.iter().filter(agree).count() >= majority
                && let Some(peer) = self.peers.get_mut(&id)
            {
                peer.fail = true;
            }
        }
    }

    /// Whether it would stand for election now.
    pub fn stands(&self, now: u64) -> bool {
        let Some(primary) = self.primary else { return false };
        self.up
            && now >= self.next_try
            && self.has_data
            && !self.owns(primary).is_empty()
            && self.peers.get(&primary).is_some_and(|peer| peer.fail)
            && (self.link_up || now - self.down_since < VALIDITY)
    }

    /// Copies from its primary.
    pub fn replicate(
        &mut self,
        others: &BTreeMap<NodeId, Node>,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
        takes: u64,
    ) {
        let Some(primary) = self.primary else {
            self.link_up = false;
            if self.is_slot_master() && self.state_ok(now) {
                self.offset += 100;
            }
            return;
        };
        if let Some(next) =
            self.peers.get(&primary).and_then(|peer| peer.primary).filter(|next| *next != self.id)
            && self.peers.contains_key(&next)
        {
            self.follow(next, now);
            return;
        }
        let source = others.get(&primary).filter(|n| n.up && reach(self.host, n.host) && n.primary.is_none());
        match (source, self.link_up, self.sync_until) {
            (Some(source), true, _) => self.offset = source.offset.saturating_sub(self.lag),
            (Some(source), false, Some(until)) if now >= until => {
                (self.link_up, self.sync_until, self.has_data, self.offset) =
                    (true, None, true, source.offset.saturating_sub(self.lag));
            }
            (Some(_), false, Some(_)) => {}
            (Some(_), false, None) => {
                self.sync_until = Some(now + takes);
            }
            (None, was_up, _) => {
                if was_up {
                    self.down_since = now;
                }
                (self.link_up, self.sync_until) = (false, None);
            }
        }
    }

    pub fn report(&self, now: u64) -> v1::ValkeyReport {
        let peer = |(id, peer): (&NodeId, &Peer)| {
            let mut flags = vec![if peer.primary.is_some() { "slave" } else { "master" }.to_owned()];
            if peer.fail {
                flags.push("fail".to_owned());
            } else if peer.suspected(now) {
                flags.push("fail?".to_owned());
            }
            v1::ValkeyPeer {
                node_id: text(*id),
                ip: peer.ip.to_string(),
                port: PORT,
                flags,
                primary_node_id: peer.primary.map(text).unwrap_or_default(),
                connected: peer.connected,
                config_epoch: peer.epoch,
            }
        };
        let handshake = |ip: &Ipv4Addr| v1::ValkeyPeer {
            node_id: text(u64::from(u32::from(*ip)) | 1 << 63),
            ip: ip.to_string(),
            port: PORT,
            flags: vec!["handshake".to_owned()],
            ..v1::ValkeyPeer::default()
        };
        let epoch = self.primary.map_or(self.epoch, |primary| self.epoch_of(primary));
        v1::ValkeyReport {
            node_id: text(self.id),
            role: if self.primary.is_some() { "slave" } else { "master" }.to_owned(),
            primary_node_id: self.primary.map(text).unwrap_or_default(),
            link_up: self.link_up,
            offset: self.offset,
            slots: if self.primary.is_none() {
                self.owns(self.id).into_iter().map(|(start, end)| v1::ValkeySlots { start, end }).collect()
            } else {
                Vec::new()
            },
            cluster_state: if self.state_ok(now) { "ok" } else { "fail" }.to_owned(),
            slots_assigned: self.slots.iter().map(|(start, (end, _))| end - start + 1).sum(),
            known_nodes: u32::try_from(self.peers.len() + 1).unwrap(),
            config_epoch: epoch,
            peers: self.peers.iter().map(peer).chain(self.handshakes.keys().map(handshake)).collect(),
            version: "8.1.1".to_owned(),
            ..v1::ValkeyReport::default()
        }
    }

    /// Address as the engine's task message gives it. While a handshake with it goes on, the engine drops the request and says OK.
    pub fn meets(&mut self, ip: Ipv4Addr, now: u64) {
        if ip != self.ip {
            let meeting = Handshake { until: now + NODE_TIMEOUT, meet: true };
            self.handshakes.entry(ip).or_insert(meeting);
        }
    }
}

/// The port of the bus is never looked at here; the message has to name the engine's own.
pub fn is_bus(address: &v1::ValkeyAddress) -> bool {
    address.port == PORT && address.bus_port == BUS_PORT
}

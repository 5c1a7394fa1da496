//! One simulated Valkey node: its own view of the cluster, as pure data. In: the other nodes' state as of the last step (`gossip`,
//! `replication`), tasks (`perform`, `moves`), writes of clients. Out: its next state and what it would report (`report`).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use shardplane_model::engine::valkey::{BUS_PORT, PORT, SLOTS};
use shardplane_proto::{ids::InstanceId, v1};

use super::{
    keys::Keys,
    settings::{Directives, Shared},
    slot_table::SlotTable,
};

pub type NodeId = u64;

/// Milliseconds without an answer after which a peer is suspected.
pub const NODE_TIMEOUT: u64 = 5_000;
/// How long a forgotten node is not learned again through gossip.
pub const BAN: u64 = 60_000;
/// A replica that lost its link, or heard nothing on it, longer ago than that does not stand for election.
const VALIDITY: u64 = 60_000;

/// Silence after which a replica gives its link up when nothing tells it that the connection ended.
pub const REPL_TIMEOUT: u64 = 60_000;

/// How long a primary that starts takes no writes.
const WRITABLE_DELAY: u64 = 2_000;

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
    pub shard: NodeId,
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
    /// Its process runs and answers.
    pub up: bool,
    /// Its host stands still.
    pub frozen: bool,
    /// Its port is cut: nobody reaches it and it reaches nobody.
    pub cut: bool,
    /// Its supervisor holds its writes: the lease is over, and its agent says nothing.
    pub held: bool,
    /// When it was started last.
    pub started: u64,
    /// Whom it follows; none for a master.
    pub primary: Option<NodeId>,
    /// The id that it shares with the other members of its shard.
    pub shard: NodeId,
    pub slots: SlotTable,
    /// Slots whose owner, as this node sees it, no longer claims them.
    pub unclaimed: SlotTable,
    pub migrating: BTreeMap<u32, NodeId>,
    pub importing: BTreeMap<u32, NodeId>,
    pub epoch: u64,
    pub current_epoch: u64,
    pub peers: BTreeMap<NodeId, Peer>,
    pub handshakes: BTreeMap<Ipv4Addr, Handshake>,
    pub banned: BTreeMap<NodeId, u64>,
    pub link_up: bool,
    /// When it heard its primary last, and on which host that was; it means something while the link is up.
    pub followed: (u64, usize),
    /// Whether its data is a copy of its shard's, however old.
    pub has_data: bool,
    pub sync_until: Option<u64>,
    pub down_since: u64,
    pub offset: u64,
    /// How far it stays behind its primary's stream.
    pub lag: u64,
    pub keys: Keys,
    pub voted_at: BTreeMap<NodeId, u64>,
    pub next_try: u64,
    /// When it asks for votes: those that are behind let others go first.
    pub asks_at: Option<u64>,
    /// As of the last step, by its own view.
    pub serves: bool,
    /// A primary that was in the minority takes no writes until it has had the time to hear of a successor.
    pub rejoins_at: u64,
    /// Writes wait: a replica takes over in order.
    pub paused_until: u64,
    /// It stands in no election; on its disk.
    pub stands_down: bool,
    /// The number of the last fence that it started after; on its disk.
    pub fences: u64,
    pub directives: Shared<Directives>,
    /// While a task of it moves slots.
    pub moving: Option<v1::ValkeySlotMove>,
    /// Writes are refused: the disk is full.
    pub disk_full: bool,
    /// How often its machine died.
    pub crashes: u64,
    /// The replicas that follow it closely, as it sees them.
    pub copies: BTreeSet<NodeId>,
}

impl Node {
    pub fn new(id: NodeId, instance: InstanceId, host: usize, ip: Ipv4Addr) -> Self {
        Self {
            id,
            instance,
            host,
            ip,
            up: false,
            frozen: false,
            cut: false,
            held: false,
            started: 0,
            primary: None,
            shard: id,
            slots: SlotTable::default(),
            unclaimed: SlotTable::default(),
            migrating: BTreeMap::new(),
            importing: BTreeMap::new(),
            epoch: 0,
            current_epoch: 0,
            peers: BTreeMap::new(),
            handshakes: BTreeMap::new(),
            banned: BTreeMap::new(),
            link_up: false,
            followed: (0, host),
            has_data: false,
            sync_until: None,
            down_since: 0,
            offset: 0,
            lag: 0,
            keys: Keys::default(),
            voted_at: BTreeMap::new(),
            next_try: 0,
            asks_at: None,
            serves: false,
            rejoins_at: 0,
            paused_until: 0,
            stands_down: false,
            fences: 0,
            directives: Shared::default(),
            moving: None,
            disk_full: false,
            crashes: 0,
            copies: BTreeSet::new(),
        }
    }

    pub fn owns(&self, id: NodeId) -> Vec<(u32, u32)> {
        self.slots.of(id)
    }

    pub fn is_slot_master(&self) -> bool {
        self.primary.is_none() && self.slots.has(self.id)
    }

    /// The masters that vote, as this node sees them.
    pub fn voters(&self) -> Vec<NodeId> {
        self.slots.owners()
    }

    pub fn majority(&self) -> usize {
        self.voters().len() / 2 + 1
    }

    /// Whether a connection between the two works.
    pub fn reaches(&self, other: &Node, reach: &dyn Fn(usize, usize) -> bool) -> bool {
        let there = |node: &Node| node.up && !node.cut && !node.frozen;
        there(other) && !self.cut && reach(self.host, other.host) && reach(other.host, self.host)
    }

    pub fn suspects(&self, id: NodeId, now: u64) -> bool {
        id != self.id && self.peers.get(&id).is_none_or(|peer| peer.suspected(now))
    }

    pub fn state_ok(&self, now: u64) -> bool {
        // A primary that starts gives the others the time to tell it what it missed.
        if self.primary.is_none() && now.saturating_sub(self.started) < WRITABLE_DELAY {
            return false;
        }
        let failed = |id: &NodeId| *id != self.id && self.peers.get(id).is_none_or(|peer| peer.fail);
        let voters = self.voters();
        let reachable = voters.iter().filter(|id| !self.suspects(**id, now)).count();
        self.slots.covered() == SLOTS && !voters.iter().any(failed) && reachable >= self.majority()
    }

    pub fn follow(&mut self, primary: NodeId, now: u64) {
        if self.primary != Some(primary) {
            self.primary = Some(primary);
            self.shard = self.peers.get(&primary).map_or(self.shard, |peer| peer.shard);
            self.link_up = false;
            self.sync_until = None;
            self.down_since = now;
            self.copies.clear();
            self.paused_until = 0;
        }
    }

    /// Its supervisor makes a replica of it before it starts: it was succeeded while it was down.
    pub fn yields(&mut self, heir: NodeId, ip: Ipv4Addr, now: u64) {
        let shard = self.shard;
        let known = self.peers.entry(heir).or_insert_with(|| Peer {
            ip,
            heard: now,
            primary: None,
            shard,
            epoch: 0,
            fail: false,
            connected: false,
        });
        (known.primary, known.shard, known.fail) = (None, shard, false);
        (self.slots, self.unclaimed) = (SlotTable::default(), SlotTable::default());
        (self.migrating, self.importing) = (BTreeMap::new(), BTreeMap::new());
        self.follow(heir, now);
    }

    /// A config epoch above all that it knows, without a vote.
    pub fn bump(&mut self) {
        let highest = self.peers.values().map(|peer| peer.epoch).max().unwrap_or(0).max(self.current_epoch);
        if self.epoch == 0 || self.epoch < highest || self.peers.values().any(|peer| peer.epoch == self.epoch)
        {
            self.current_epoch = highest + 1;
            self.epoch = self.current_epoch;
        }
    }

    pub fn epoch_of(&self, id: NodeId) -> u64 {
        if id == self.id { self.epoch } else { self.peers.get(&id).map_or(0, |peer| peer.epoch) }
    }

    /// Whether it would stand for election now.
    pub fn stands(&self, now: u64) -> bool {
        let Some(primary) = self.primary else { return false };
        let heard = if self.link_up { self.followed.0 } else { self.down_since };
        self.up
            && !self.frozen
            && now >= self.next_try
            && self.has_data
            && !self.stands_down
            && self.slots.has(primary)
            && self.peers.get(&primary).is_some_and(|peer| peer.fail)
            && now - heard < VALIDITY
    }

    /// A client's write arrives here. Answers whether it was acknowledged, or whom the client shall ask.
    pub fn write(&mut self, key: usize, value: u64, asking: bool, now: u64) -> Answer {
        let slot = super::keys::slot_of(key);
        if !self.up || self.cut || self.frozen {
            return Answer::Silent;
        }
        if self.held {
            return Answer::Silent;
        }
        let owner = self.slots.owner(slot);
        if asking && self.primary.is_none() && self.importing.contains_key(&slot) {
            return self.accept(key, value);
        }
        if owner != Some(self.id) || self.primary.is_some() {
            return owner.map_or(Answer::Refused, Answer::Moved);
        }
        if !self.state_ok(now) || now < self.paused_until.max(self.rejoins_at) {
            return Answer::Refused;
        }
        match self.migrating.get(&slot) {
            Some(target) if self.keys.values[key] == 0 => Answer::Ask(*target),
            Some(_) | None => self.accept(key, value),
        }
    }

    fn accept(&mut self, key: usize, value: u64) -> Answer {
        if self.disk_full {
            return Answer::Refused;
        }
        self.offset += 1;
        self.keys.set(key, value, self.offset);
        if self.directives.synced_always() {
            self.keys.sync();
        }
        Answer::Acknowledged
    }

    /// The machine ends without warning: what was not synced to its disk is lost.
    pub fn crash(&mut self) {
        if self.up {
            self.crashes += 1;
            self.keys.crash();
            self.end();
        }
    }

    /// The engine's process ends; what it wrote is still in the machine's cache, unless it writes nothing.
    pub fn end(&mut self) {
        (self.up, self.link_up, self.sync_until, self.moving) = (false, false, None, None);
        self.copies.clear();
        // With an append-only file an engine starts without a place in anybody's stream.
        (self.offset, self.keys.stream) = (0, Arc::default());
        if self.directives.persistent() {
            self.keys.sync();
        } else {
            self.keys.erase();
        }
    }

    /// What the engine does at its start with keys of slots that are another's: it takes them for imported.
    pub fn verify_keys(&mut self) {
        if self.primary.is_some() {
            return;
        }
        for key in (0..super::keys::KEYS).filter(|key| self.keys.values[*key] > 0) {
            let slot = super::keys::slot_of(key);
            match self.slots.owner(slot) {
                Some(owner) if owner != self.id => {
                    self.importing.entry(slot).or_insert(owner);
                }
                Some(_) | None => {}
            }
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

/// What a client hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Acknowledged,
    Moved(NodeId),
    Ask(NodeId),
    /// CLUSTERDOWN, MISCONF or LOADING.
    Refused,
    /// No connection.
    Silent,
}

/// The port of the bus is never looked at here; the message has to name the engine's own.
pub fn is_bus(address: &v1::ValkeyAddress) -> bool {
    address.port == PORT && address.bus_port == BUS_PORT
}

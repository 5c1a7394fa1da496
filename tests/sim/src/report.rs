//! What a node says of itself. In: the node. Out: the engine's report as the supervisor would send it.

use std::net::Ipv4Addr;

use shardplane_model::engine::valkey::PORT;
use shardplane_proto::v1::{self, valkey_open_slot::Direction};

use super::node::{Node, NodeId, Peer, text};

impl Node {
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
        let refused = |(name, error): (&String, &String)| v1::ValkeyRefusal {
            name: name.clone(),
            error: error.clone(),
        };
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
            slots_assigned: self.slots.covered(),
            known_nodes: u32::try_from(self.peers.len() + 1).unwrap(),
            config_epoch: epoch,
            peers: self.peers.iter().map(peer).chain(self.handshakes.keys().map(handshake)).collect(),
            version: "8.1.1".to_owned(),
            used_memory_bytes: 1 << 20,
            keys: self.keys.count(0, u32::MAX),
            unapplied_directives: self.directives.unapplied(),
            good_replicas: u32::try_from(self.copies.len()).unwrap(),
            open_slots: self.open_slots(),
            slot_move: self.moving.clone(),
            refused_directives: self.directives.refused.iter().map(refused).collect(),
            stands_down: self.stands_down,
        }
    }

    fn open_slots(&self) -> Vec<v1::ValkeyOpenSlot> {
        let migrating = self.migrating.iter().map(|(slot, to)| (*slot, Direction::MigratingTo(text(*to))));
        let importing = self.importing.iter().map(|(slot, of)| (*slot, Direction::ImportingFrom(text(*of))));
        let open = |(slot, direction)| v1::ValkeyOpenSlot { slot, direction: Some(direction) };
        migrating.chain(importing).map(open).collect()
    }

    /// How many members hold a live copy of its data, as it sees it; 0 for one that takes no writes.
    pub fn live_copies(&self) -> u32 {
        if self.is_slot_master() { u32::try_from(self.copies.len()).unwrap() } else { 0 }
    }
}

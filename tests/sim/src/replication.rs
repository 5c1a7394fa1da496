//! How a node copies its primary. In: the primary's state as of the last step. Out: link, offset, keys and marks of the replica. One
//! step late is the natural lag; a link that broke is a full copy. It breaks when the other side says so: a host that lost its power, stands
//! still or is parted says nothing, and a replica notices that late.

use std::collections::BTreeMap;

use super::node::{NODE_TIMEOUT, Node, NodeId, REPL_TIMEOUT};

/// How far behind a replica may be to count as a live copy.
const CLOSE: u64 = 10_000;

impl Node {
    /// Copies from its primary.
    pub fn replicate(
        &mut self,
        others: &BTreeMap<NodeId, Node>,
        reach: &dyn Fn(usize, usize) -> bool,
        now: u64,
        takes: u64,
    ) {
        if now.is_multiple_of(1_000) {
            self.keys.sync();
        }
        let Some(primary) = self.primary else {
            self.lead(others, reach, now);
            return;
        };
        if let Some(next) =
            self.peers.get(&primary).and_then(|peer| peer.primary).filter(|next| *next != self.id)
            && self.peers.contains_key(&next)
        {
            self.follow(next, now);
            return;
        }
        let source = others.get(&primary).filter(|n| self.reaches(n, reach) && n.primary.is_none());
        if self.link_up && self.link_ends(others.get(&primary), reach, now) {
            (self.link_up, self.sync_until, self.down_since) = (false, None, now);
        }
        match (source, self.link_up, self.sync_until) {
            (Some(source), true, _) => {
                self.followed = (now, source.host);
                let to = source.offset.saturating_sub(self.lag);
                self.keys.follow(&source.keys, self.offset, to);
                self.offset = to;
                // It followed one that had nothing yet.
                self.has_data |= source.has_data;
                self.copy_marks(source);
            }
            (Some(source), false, Some(until)) if now >= until => {
                (self.link_up, self.sync_until, self.has_data) = (true, None, source.has_data);
                self.followed = (now, source.host);
                self.offset = source.offset.saturating_sub(self.lag);
                self.keys.copy(&source.keys);
                self.copy_marks(source);
            }
            (Some(_), false, Some(_)) => {}
            (Some(_), false, None) => self.sync_until = Some(now + takes),
            (None, true, _) => {}
            (None, false, _) => self.sync_until = None,
        }
    }

    /// Whether the link to this primary ends: its silence lasts for too long, or its host, which can be reached, says that the process
    /// is gone, is another by now, or leads no more.
    fn link_ends(&self, primary: Option<&Node>, reach: &dyn Fn(usize, usize) -> bool, now: u64) -> bool {
        let (heard, host) = self.followed;
        let answers = !self.cut
            && reach(self.host, host)
            && reach(host, self.host)
            && primary.is_none_or(|node| !node.cut && !node.frozen);
        let same = |node: &Node| node.up && node.primary.is_none() && node.started < heard;
        now.saturating_sub(heard) > REPL_TIMEOUT || (answers && !primary.is_some_and(same))
    }

    fn copy_marks(&mut self, source: &Node) {
        if self.migrating != source.migrating || self.importing != source.importing {
            (self.migrating, self.importing) = (source.migrating.clone(), source.importing.clone());
        }
    }

    fn lead(&mut self, others: &BTreeMap<NodeId, Node>, reach: &dyn Fn(usize, usize) -> bool, now: u64) {
        self.link_up = false;
        let close = |node: &&Node| {
            node.primary == Some(self.id)
                && node.link_up
                && self.reaches(node, reach)
                && self.offset.saturating_sub(node.offset) <= CLOSE
        };
        self.copies = others.values().filter(close).map(|node| node.id).collect();
        let ok = self.state_ok(now);
        let served = std::mem::replace(&mut self.serves, ok);
        if self.serves && self.is_slot_master() {
            self.offset += 100;
        }
        if served && !self.serves {
            self.rejoins_at = u64::MAX;
        } else if self.serves && self.rejoins_at == u64::MAX {
            self.rejoins_at = now + NODE_TIMEOUT;
        }
    }
}

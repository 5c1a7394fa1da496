//! The keys of a simulated node: a counter each, in slots that follow from their number. In: writes, a primary's stream. Out: what a
//! client would read. A write is acknowledged by a primary at once and reaches replicas and disk later, as in the real engine.

use std::{collections::VecDeque, sync::Arc};

/// Keys of each cluster.
pub const KEYS: usize = 64;
/// Changes that a primary keeps for its replicas.
const STREAM: usize = 512;

pub type Key = usize;

/// Two keys share a slot, so that a slot can be half moved.
pub fn slot_of(key: Key) -> u32 {
    let pair = u32::try_from(key / 2).unwrap();
    pair * 512 + (pair * 149) % 512
}

/// Keys of the slots `start..=end`.
pub fn within(start: u32, end: u32) -> impl Iterator<Item = Key> {
    (0..KEYS).filter(move |key| (start..=end).contains(&slot_of(*key)))
}

/// The value of each key; 0 is none.
pub type Values = Arc<[u64; KEYS]>;

/// One change in a primary's stream: where the stream ends with it, which key, its new value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub at: u64,
    pub key: Key,
    pub value: u64,
}

#[derive(Debug, Clone)]
pub struct Keys {
    pub values: Values,
    /// As of the last sync of the append-only file.
    pub disk: Values,
    pub stream: Arc<VecDeque<Change>>,
}

impl Default for Keys {
    fn default() -> Self {
        let none = Arc::new([0; KEYS]);
        Self { values: none.clone(), disk: none, stream: Arc::default() }
    }
}

impl Keys {
    pub fn set(&mut self, key: Key, value: u64, at: u64) {
        Arc::make_mut(&mut self.values)[key] = value;
        let stream = Arc::make_mut(&mut self.stream);
        stream.push_back(Change { at, key, value });
        if stream.len() > STREAM {
            stream.pop_front();
        }
    }

    /// Everything is a copy of `source`.
    pub fn copy(&mut self, source: &Keys) {
        self.values = source.values.clone();
        self.stream = Arc::default();
    }

    /// Changes of the source's stream from behind `after` up to `to`.
    pub fn follow(&mut self, source: &Keys, after: u64, to: u64) {
        let from = source.stream.partition_point(|change| change.at <= after);
        if source.stream.len() > from {
            for change in source.stream.range(from..).take_while(|change| change.at <= to) {
                Arc::make_mut(&mut self.values)[change.key] = change.value;
            }
        }
    }

    pub fn sync(&mut self) {
        self.disk = self.values.clone();
    }

    /// Its machine died: what was not synced is lost.
    pub fn crash(&mut self) {
        self.values = self.disk.clone();
        self.stream = Arc::default();
    }

    pub fn erase(&mut self) {
        *self = Self::default();
    }

    /// How many keys it holds of the slots `start..=end`.
    pub fn count(&self, start: u32, end: u32) -> u64 {
        within(start, end).filter(|key| self.values[*key] > 0).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_follows_the_stream_and_a_crash_loses_what_is_not_synced() {
        let (mut primary, mut replica) = (Keys::default(), Keys::default());
        primary.set(1, 10, 100);
        primary.sync();
        primary.set(1, 11, 200);
        primary.set(2, 5, 300);
        replica.follow(&primary, 0, 200);
        assert_eq!((replica.values[1], replica.values[2]), (11, 0));
        replica.follow(&primary, 200, 300);
        assert_eq!(replica.values[2], 5);
        primary.crash();
        assert_eq!((primary.values[1], primary.values[2]), (10, 0));
        assert!((0..KEYS).all(|key| slot_of(key) < 16_384));
        assert_eq!(within(0, 16_383).count(), KEYS);
    }
}

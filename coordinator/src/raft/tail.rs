//! The newest entries of the log in memory, so that applying them and sending them to followers reads no disk. In: entries
//! that are on disk. Out: the same entries. Owned by the log.

use std::{collections::VecDeque, ops::Range};

use super::types::LogEntry;

const MAX_BYTES: usize = 16 << 20;

/// A run of entries without holes that ends at the log's end; bounded in number and bytes.
#[derive(Debug)]
pub(crate) struct Tail {
    entries: VecDeque<(LogEntry, usize)>,
    bytes: usize,
    max_entries: usize,
}

impl Tail {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, max_entries }
    }

    fn first(&self) -> Option<u64> {
        self.entries.front().map(|(entry, _)| entry.log_id.index)
    }

    fn next(&self) -> Option<u64> {
        self.entries.back().map(|(entry, _)| entry.log_id.index + 1)
    }

    /// Adds an entry that was written with `bytes` bytes. One that does not follow the last replaces everything.
    pub(crate) fn push(&mut self, entry: LogEntry, bytes: usize) {
        if self.next().is_some_and(|next| next != entry.log_id.index) {
            self.clear();
        }
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
        while self.entries.len() > self.max_entries || self.bytes > MAX_BYTES {
            let Some((_, bytes)) = self.entries.pop_front() else { break };
            self.bytes -= bytes;
        }
    }

    /// Forgets entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        while self.entries.back().is_some_and(|(entry, _)| entry.log_id.index >= index) {
            if let Some((_, bytes)) = self.entries.pop_back() {
                self.bytes -= bytes;
            }
        }
    }

    /// Forgets entries up to `index`.
    pub(crate) fn purge(&mut self, index: u64) {
        while self.entries.front().is_some_and(|(entry, _)| entry.log_id.index <= index) {
            if let Some((_, bytes)) = self.entries.pop_front() {
                self.bytes -= bytes;
            }
        }
    }

    /// The entries of `range`, cut to about `max_bytes` but never to none; nothing when some of them are not in memory.
    pub(crate) fn read(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<LogEntry>> {
        let (first, next) = (self.first()?, self.next()?);
        if range.start < first || range.end > next || range.is_empty() {
            return None;
        }
        let skip = usize::try_from(range.start - first).ok()?;
        let take = usize::try_from(range.end - range.start).ok()?;
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (entry, size) in self.entries.iter().skip(skip).take(take) {
            if !entries.is_empty() && bytes + size > max_bytes {
                break;
            }
            bytes += size;
            entries.push(entry.clone());
        }
        Some(entries)
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

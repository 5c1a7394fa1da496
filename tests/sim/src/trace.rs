//! What happened, in order. In: lines. Out: the last of them for whoever reads a failure, all of them printed on demand, and a hash over
//! all that says whether two histories are the same.

use std::collections::VecDeque;

/// Lines kept.
const KEPT: usize = 80;
/// Bytes of a line.
const LONGEST: usize = 260;

#[derive(Debug, Default)]
pub struct Trace {
    pub prints: bool,
    pub lines: VecDeque<String>,
    hash: u64,
}

impl Trace {
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds to the hash alone.
    pub fn mix(&mut self, bytes: &[u8]) {
        // FNV-1a.
        for byte in bytes {
            self.hash = (self.hash ^ 0xcbf2_9ce4_8422_2325 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn line(&mut self, now: u64, mut line: String) {
        line.truncate((0..=LONGEST.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0));
        self.mix(line.as_bytes());
        self.mix(&now.to_le_bytes());
        let line = format!("{:>9.2} {line}", seconds(now));
        if self.prints {
            println!("{line}");
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// Since the world began.
#[allow(clippy::cast_precision_loss)]
fn seconds(now: u64) -> f64 {
    now.saturating_sub(super::world::BEGIN) as f64 / 1_000.0
}

//! A clock that goes too fast or too slow. In: the world's time. Out: what its owner reads.

/// A clock; the default one is right.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    since: u64,
    shown: u64,
    permille: u64,
}

impl Clock {
    pub fn right() -> Self {
        Self { since: 0, shown: 0, permille: 1_000 }
    }

    pub fn at(&self, now: u64) -> u64 {
        self.shown + now.saturating_sub(self.since) * self.permille / 1_000
    }

    /// From now on it goes at another rate; 1000 is right.
    pub fn goes(&mut self, now: u64, permille: u64) {
        *self = Self { since: now, shown: self.at(now), permille };
    }

    /// Somebody sets it.
    pub fn jumps(&mut self, now: u64, ahead: u64) {
        *self = Self { since: now, shown: self.at(now) + ahead, ..*self };
    }
}

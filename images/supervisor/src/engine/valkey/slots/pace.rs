//! How fast keys go: a limit in keys a second, and rests that leave clients their turn.
//!
//! In: how long each MIGRATE took. Out: how long to rest before the next, and how many keys it may have. Pure; called by `transfer`.

use std::time::Duration;

use super::batch::MOST_KEYS;

/// Both nodes stand still during a MIGRATE, so this is about what it adds to a client's answer.
const AIM: Duration = Duration::from_millis(1);
const FEWEST_KEYS: usize = 8;
/// Of the time a MIGRATE took, clients get so much for themselves afterwards.
const REST: f32 = 0.5;
/// A shorter rest is put off until enough have come together: a timer of a millisecond would make each of them two.
const SHORTEST_REST: Duration = Duration::from_millis(2);
/// After one that took very long, clients have waited enough, and so has the move.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The pace of one task.
#[derive(Debug)]
pub struct Pace {
    keys_per_second: u32,
    keys: usize,
    owed: Duration,
}

impl Pace {
    /// 0: no limit in keys.
    pub fn new(keys_per_second: u32) -> Self {
        Self { keys_per_second, keys: 32, owed: Duration::ZERO }
    }

    /// How many keys the next batch may have.
    pub fn keys(&self) -> usize {
        // A tenth of a second's worth at most, so that a low limit is no burst a second.
        let tenth = usize::try_from(self.keys_per_second / 10).unwrap_or(MOST_KEYS).max(1);
        if self.keys_per_second == 0 { self.keys } else { self.keys.min(tenth) }
    }

    /// How many keys may be listed for the next batches: a second's worth at most.
    pub fn listed(&self) -> usize {
        match usize::try_from(self.keys_per_second) {
            Ok(0) | Err(_) => MOST_KEYS,
            Ok(limit) => limit.min(MOST_KEYS),
        }
    }

    /// How long to rest after so many keys took so long.
    pub fn rest(&mut self, keys: usize, took: Duration) -> Duration {
        if took > AIM {
            self.keys = (self.keys / 2).max(FEWEST_KEYS);
        } else if keys >= self.keys && took < AIM / 2 {
            self.keys = (self.keys + 8).min(MOST_KEYS);
        }
        let share = took.mul_f32(REST).min(LONGEST_REST);
        let rest = match self.keys_per_second {
            0 => share,
            limit => {
                let keys = u32::try_from(keys).unwrap_or(u32::MAX);
                share.max((Duration::from_secs(1).saturating_mul(keys) / limit).saturating_sub(took))
            }
        };
        self.owed += rest;
        if self.owed < SHORTEST_REST { Duration::ZERO } else { std::mem::take(&mut self.owed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn batches_shrink_when_they_take_long_and_grow_again() {
        let mut pace = Pace::new(0);
        let first = pace.keys();
        assert_eq!(pace.rest(first, 10 * MS), 5 * MS);
        assert_eq!(pace.keys(), first / 2);
        for _ in 0..10 {
            pace.rest(pace.keys(), 10 * MS);
        }
        assert_eq!(pace.keys(), FEWEST_KEYS);
        for _ in 0..20 {
            pace.rest(pace.keys(), MS / 4);
        }
        assert_eq!(pace.keys(), MOST_KEYS);
        pace.rest(1, MS / 4);
        assert_eq!(pace.keys(), MOST_KEYS);
        assert!((LONGEST_REST..LONGEST_REST + SHORTEST_REST).contains(&pace.rest(1, 1000 * MS * 60)));
    }

    #[test]
    fn short_rests_come_together() {
        let mut pace = Pace::new(0);
        let rests: Vec<Duration> = (0..9).map(|_| pace.rest(1, MS)).collect();
        assert_eq!(rests.iter().sum::<Duration>(), 4 * MS);
        assert!(rests.iter().all(|rest| rest.is_zero() || *rest == SHORTEST_REST), "{rests:?}");
    }

    #[test]
    fn a_limit_in_keys_holds_over_a_second() {
        for limit in [1, 50, 1000, 100_000] {
            let mut pace = Pace::new(limit);
            let (mut time, mut keys) = (Duration::ZERO, 0);
            while time < Duration::from_secs(5) {
                let batch = pace.keys();
                time += MS / 4 + pace.rest(batch, MS / 4);
                keys += batch;
            }
            let per_second = keys as f32 / time.as_secs_f32();
            assert!(per_second <= limit as f32 * 1.01, "{limit}: {per_second}");
            assert!(limit == 100_000 || per_second > limit as f32 * 0.9, "{limit}: {per_second}");
        }
    }
}

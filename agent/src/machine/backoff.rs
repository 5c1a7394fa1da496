//! How long to wait before a machine is started again.
//!
//! In: deaths and failures. Out: the moment of the next attempt. One an owner.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// A machine that ran this long is taken for sound.
const SOUND_AFTER: Duration = Duration::from_secs(60);

/// Doubling delays.
#[derive(Debug)]
pub struct Backoff {
    delay: Duration,
    next: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { delay: FIRST, next: None }
    }
}

impl Backoff {
    /// It died, or could not be started, after having run for `ran`. Returns the delay before the next attempt.
    pub fn failed(&mut self, now: Instant, ran: Duration) -> Duration {
        if ran >= SOUND_AFTER {
            self.delay = FIRST;
        }
        let delay = self.delay;
        self.next = Some(now + delay);
        self.delay = (delay * 2).min(LONGEST);
        delay
    }

    /// The moment to wait for; `None` when it may be started at once.
    pub fn wait_until(&self, now: Instant) -> Option<Instant> {
        self.next.filter(|next| *next > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_thirty_seconds_and_start_anew_after_a_minute() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.wait_until(now), None);
        let delays: Vec<_> = (0..8).map(|_| backoff.failed(now, Duration::ZERO).as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff.failed(now, Duration::from_secs(59)), LONGEST);
        assert_eq!(backoff.wait_until(now), Some(now + LONGEST));
        assert_eq!(backoff.wait_until(now + LONGEST), None);
        assert_eq!(backoff.failed(now, SOUND_AFTER), FIRST);
    }
}

//! The leader's clock. In: the wall clock, once, and the runtime's monotonic clock. Out: stamps for log entries and a moment to make
//! ids from. Called by the proposer and by whoever asks the planner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use shardplane_model::command::Timestamp;
use tokio::time::Instant;

/// The wall clock at start plus what has passed since: somebody who sets the wall clock does not move it.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Arc<(Duration, Instant)>,
    /// Milliseconds it was set forward.
    ahead: Arc<AtomicU64>,
}

impl Clock {
    /// A clock that shows the wall clock's time now. A wall clock before 1970 counts as 1970.
    pub fn start() -> Self {
        Self::showing(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// A clock that shows this time since the Unix epoch now.
    pub fn showing(wall: Duration) -> Self {
        Self { start: Arc::new((wall, Instant::now())), ahead: Arc::default() }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now(&self) -> Timestamp {
        let (wall, started) = *self.start;
        let since = wall + started.elapsed();
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Timestamp(millis.saturating_add(self.ahead.load(Ordering::Relaxed)))
    }

    /// Sets the clock forward so that it shows at least `moment`: a new leader goes on where the log's stamps stand, also when
    /// its own wall clock is behind those of earlier leaders. True when it had to: spans that were measured across it are too long.
    pub fn reach(&self, moment: Timestamp) -> bool {
        let behind = moment.since(self.now()).0;
        self.ahead.fetch_add(behind, Ordering::Relaxed);
        behind > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_set_forward_and_never_back() {
        let clock = Clock::start();
        let later = Timestamp(clock.now().0 + 7_200_000);
        assert!(clock.reach(later));
        assert!(clock.now() >= later);
        assert!(!clock.reach(Timestamp(0)));
        assert!(clock.now() >= later);
    }

    #[test]
    fn it_never_goes_back_and_is_about_now() {
        let clock = Clock::start();
        let first = clock.now();
        let second = clock.clone().now();
        assert!(second >= first);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        assert!(wall.abs_diff(u128::from(second.0)) < 5_000);
    }
}

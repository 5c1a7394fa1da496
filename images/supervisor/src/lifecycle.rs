//! The life of the engine as states, and the decisions about it that need no engine: restart pauses, holds, messages.
//!
//! In: times and what happened. Out: the next state. Pure; called by `run`.

use std::time::Duration;

use shardplane_proto::v1::EngineState;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// An engine that was up for so long starts its pauses over.
const STEADY: Duration = Duration::from_secs(60);

/// Where the engine's life stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No config yet.
    Waiting,
    /// The start is held back until then.
    Holding {
        /// When it is over.
        until: Instant,
        /// For people.
        why: String,
    },
    /// The process lives and has not answered yet.
    Starting,
    /// The process lives and has answered.
    Running,
    /// It ended or could not start; next attempt then.
    Pausing {
        /// When it is over.
        until: Instant,
        /// For people.
        why: String,
    },
    /// Asked to end; killed then.
    Stopping {
        /// When it is killed.
        kill_at: Instant,
    },
    /// Ended as asked.
    Stopped,
}

impl Phase {
    /// The state as the host knows it.
    pub fn state(&self) -> EngineState {
        match self {
            Self::Waiting => EngineState::Waiting,
            Self::Holding { .. } => EngineState::Holding,
            Self::Starting => EngineState::Starting,
            // Until it is gone an engine that was asked to end still serves.
            Self::Running | Self::Stopping { .. } => EngineState::Running,
            Self::Pausing { .. } => EngineState::Failed,
            Self::Stopped => EngineState::Stopped,
        }
    }

    /// When time alone ends this state.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Holding { until, .. } | Self::Pausing { until, .. } => Some(*until),
            Self::Stopping { kill_at } => Some(*kill_at),
            Self::Waiting | Self::Starting | Self::Running | Self::Stopped => None,
        }
    }
}

/// Pauses between starts: doubling, and starting over after a steady run.
#[derive(Debug, Default)]
pub struct Pauses {
    failures: u32,
}

impl Pauses {
    /// The pause after an engine that was up for `uptime` (zero when it did not start at all).
    pub fn after(&mut self, uptime: Duration) -> Duration {
        if uptime >= STEADY {
            self.failures = 0;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

/// Until when a start is held. The hold counts from the last moment the engine could have spoken: its end, or the boot.
pub fn hold_until(hold: Option<Duration>, last_alive: Instant, now: Instant) -> Option<Instant> {
    hold.map(|hold| last_alive + hold).filter(|until| *until > now)
}

/// Deadline of an orderly stop when the host or a signal names none.
pub const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// When a stop becomes a kill: a second request can only shorten the first.
pub fn kill_at(phase: &Phase, asked: Duration, now: Instant) -> Instant {
    match phase {
        Phase::Stopping { kill_at } => (*kill_at).min(now + asked),
        Phase::Waiting
        | Phase::Holding { .. }
        | Phase::Starting
        | Phase::Running
        | Phase::Pausing { .. }
        | Phase::Stopped => now + asked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_ten_seconds_and_start_over_after_a_minute() {
        let mut pauses = Pauses::default();
        let taken: Vec<u128> = (0..8).map(|_| pauses.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(taken, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(pauses.after(Duration::from_secs(59)).as_millis(), 10_000);
        assert_eq!(pauses.after(STEADY).as_millis(), 200);
        assert_eq!(pauses.after(Duration::from_secs(1)).as_millis(), 400);
    }

    #[test]
    fn a_hold_counts_from_the_last_sign_of_life() {
        let died = Instant::now();
        let hold = Some(Duration::from_secs(15));
        assert_eq!(
            hold_until(hold, died, died + Duration::from_secs(1)),
            Some(died + Duration::from_secs(15))
        );
        assert_eq!(hold_until(hold, died, died + Duration::from_secs(15)), None);
        assert_eq!(hold_until(None, died, died), None);
    }

    #[test]
    fn a_second_stop_only_shortens() {
        let now = Instant::now();
        let phase = Phase::Stopping { kill_at: now + Duration::from_secs(5) };
        assert_eq!(kill_at(&phase, Duration::from_secs(9), now), now + Duration::from_secs(5));
        assert_eq!(kill_at(&phase, Duration::from_secs(1), now), now + Duration::from_secs(1));
        assert_eq!(kill_at(&Phase::Running, Duration::from_secs(9), now), now + Duration::from_secs(9));
    }
}

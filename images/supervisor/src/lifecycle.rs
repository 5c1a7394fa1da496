//! The life of the engine as states, and the decisions about it that need no engine: restart pauses, holds, messages.
//!
//! In: times and what happened. Out: the next state. Pure; called by `run`.

use std::time::Duration;

use shardplane_proto::v1::EngineState;
use tokio::time::Instant;

use crate::engine::Hold;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// An engine that was up for so long starts its pauses over.
const STEADY: Duration = Duration::from_secs(60);

/// Where the engine's life stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No config yet.
    Waiting,
    /// The start is held back.
    Holding {
        /// When it is over; None: when a newer config lifts it.
        until: Option<Instant>,
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
    /// Asked to end so that it starts anew. When it has not ended by then, it goes on as it is.
    Restarting {
        /// When it is given up.
        until: Instant,
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
            Self::Running | Self::Restarting { .. } | Self::Stopping { .. } => EngineState::Running,
            Self::Pausing { .. } => EngineState::Failed,
            Self::Stopped => EngineState::Stopped,
        }
    }

    /// When time alone ends this state.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Holding { until, .. } => *until,
            Self::Pausing { until, .. } | Self::Restarting { until } => Some(*until),
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

/// The phase of a start that is held; None when the hold is over. It counts from the last moment the engine could have
/// spoken: its end, or the boot.
pub fn holding(hold: Hold, last_alive: Instant, now: Instant) -> Option<Phase> {
    let until = hold.length.map(|length| last_alive + length);
    let over = until.is_some_and(|until| until <= now);
    (!over).then(|| Phase::Holding { until, why: hold.why.to_owned() })
}

/// An engine that was silent for so long hangs.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// Some when a running engine hangs: for how long it was silent, in tens of seconds, so that the host is not told anew every
/// second.
pub fn hung_for(phase: &Phase, answered: Instant, now: Instant) -> Option<Duration> {
    let silent = now.saturating_duration_since(answered);
    let tens = Duration::from_secs(silent.as_secs() / 10 * 10);
    match phase {
        Phase::Running if silent >= HUNG_AFTER => Some(tens),
        Phase::Running
        | Phase::Waiting
        | Phase::Holding { .. }
        | Phase::Starting
        | Phase::Pausing { .. }
        | Phase::Restarting { .. }
        | Phase::Stopping { .. }
        | Phase::Stopped => None,
    }
}

/// Deadline of an orderly stop when the host or a signal names none.
pub const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// An engine that was asked to end for a restart goes on as it is when it has not by then: nothing may be lost for a restart.
pub const RESTART_DEADLINE: Duration = Duration::from_secs(30);
/// After its answer to that, it is gone at once or not at all.
pub const RESTART_ENDS: Duration = Duration::from_secs(5);

/// When a stop becomes a kill: a second request can only shorten the first.
pub fn kill_at(phase: &Phase, asked: Duration, now: Instant) -> Instant {
    match phase {
        Phase::Stopping { kill_at } => (*kill_at).min(now + asked),
        Phase::Waiting
        | Phase::Holding { .. }
        | Phase::Starting
        | Phase::Running
        | Phase::Pausing { .. }
        | Phase::Restarting { .. }
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
        let length = Duration::from_secs(15);
        let hold = Hold { length: Some(length), why: "older" };
        let held = holding(hold.clone(), died, died + Duration::from_secs(1)).unwrap();
        assert_eq!(held.deadline(), Some(died + length));
        assert_eq!(holding(hold, died, died + length), None);
    }

    #[test]
    fn a_hold_without_an_end_has_no_deadline() {
        let died = Instant::now();
        let hold = Hold { length: None, why: "empty" };
        let held = holding(hold, died, died + Duration::from_secs(1_000_000)).unwrap();
        assert_eq!((held.state(), held.deadline()), (EngineState::Holding, None));
    }

    #[test]
    fn only_a_running_engine_hangs_and_after_ten_seconds() {
        let answered = Instant::now();
        let after =
            |phase: &Phase, seconds| hung_for(phase, answered, answered + Duration::from_secs(seconds));
        assert_eq!(after(&Phase::Running, 9), None);
        assert_eq!(after(&Phase::Running, 10), Some(Duration::from_secs(10)));
        assert_eq!(after(&Phase::Running, 29), Some(Duration::from_secs(20)));
        assert_eq!(after(&Phase::Starting, 99), None, "it may load for long");
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

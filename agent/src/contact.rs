//! When the coordinator was last heard, and whether that is recent enough to start a machine.
//!
//! In: every message of a session. Out: [`StartRule`], which the reconciler and the machine owners ask. A machine that
//! runs is never touched because of it.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What is known about the coordinator at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// When its last message came, in this life of the agent.
    pub last: Option<Instant>,
    /// How long without contact until it may have given this host's instances to others.
    pub lost_after: Option<Duration>,
}

/// Why no machine may be started now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartRule {
    /// No spec has come since the agent started.
    #[error("not started: the coordinator has not confirmed it since the agent started")]
    Unconfirmed,
    /// The coordinator may already run this instance elsewhere.
    #[error("not started: the coordinator was not heard for {} s, and after {} s it may run this elsewhere", silent.as_secs(), lost_after.as_secs())]
    Silent {
        /// Time since its last message.
        silent: Duration,
        /// From its welcome.
        lost_after: Duration,
    },
}

/// May a machine be started, given that a spec wants it?
///
/// # Errors
/// The reason why not.
pub fn may_start(confirmed: bool, heard: Heard, now: Instant) -> Result<(), StartRule> {
    let (true, Some(last), Some(lost_after)) = (confirmed, heard.last, heard.lost_after) else {
        return Err(StartRule::Unconfirmed);
    };
    let silent = now.saturating_duration_since(last);
    if silent < lost_after { Ok(()) } else { Err(StartRule::Silent { silent, lost_after }) }
}

/// The agent's one [`Heard`], written by the session, read by all.
#[derive(Debug, Default)]
pub struct Contact(Mutex<Heard>);

impl Contact {
    /// A message came.
    pub fn heard(&self, now: Instant) {
        self.edit(|heard| heard.last = Some(now));
    }

    /// A welcome came.
    pub fn welcomed(&self, now: Instant, lost_after: Duration) {
        self.edit(|heard| *heard = Heard { last: Some(now), lost_after: Some(lost_after) });
    }

    /// As it is now.
    pub fn now(&self) -> Heard {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn edit(&self, edit: impl FnOnce(&mut Heard)) {
        edit(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_starts_unless_confirmed_and_recently_heard() {
        let lost_after = Duration::from_secs(20);
        let start = Instant::now();
        let heard = Heard { last: Some(start), lost_after: Some(lost_after) };
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(may_start(true, heard, after(19)), Ok(()));
        assert_eq!(may_start(false, heard, after(0)), Err(StartRule::Unconfirmed));
        assert_eq!(may_start(true, Heard::default(), after(0)), Err(StartRule::Unconfirmed));
        let silent = Duration::from_secs(20);
        assert_eq!(may_start(true, heard, after(20)), Err(StartRule::Silent { silent, lost_after }));
        let unwelcomed = Heard { last: Some(start), lost_after: None };
        assert_eq!(may_start(true, unwelcomed, after(0)), Err(StartRule::Unconfirmed));
    }
}

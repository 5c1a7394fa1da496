//! When the coordinator was last heard, and whether what it said is recent enough to start a machine.
//!
//! In: every message of a session, and word of accepted specs. Out: [`StartRule`], which the reconciler and the machine owners
//! ask. A machine that runs is never touched because of it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::boot_time::BootTime;

/// What is known about the coordinator at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// When its last message came, in this life of the agent.
    pub last: Option<BootTime>,
    /// How long without contact until it may have given this host's instances to others.
    pub lost_after: Option<Duration>,
    /// Number of the session: how often the agent was welcomed.
    pub session: u64,
    /// A spec of this session was accepted, and everybody was told what it says. What an earlier session wanted may have
    /// been given to another host since.
    pub confirmed: bool,
    /// From when leases count: the moment this host sent what the coordinator last answered with a quorum behind it.
    pub granted: Option<BootTime>,
}

/// Why no machine may be started now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartRule {
    /// No spec has come in this session.
    #[error("not started: the coordinator has not confirmed it since the agent's session opened")]
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
pub fn may_start(heard: Heard, now: BootTime) -> Result<(), StartRule> {
    let (true, Some(last), Some(lost_after)) = (heard.confirmed, heard.last, heard.lost_after) else {
        return Err(StartRule::Unconfirmed);
    };
    let silent = now.saturating_duration_since(last);
    if silent < lost_after { Ok(()) } else { Err(StartRule::Silent { silent, lost_after }) }
}

/// The agent's one [`Heard`], written by the session and the reconciler, read by all.
#[derive(Debug, Default)]
pub struct Contact(Mutex<Heard>);

impl Contact {
    /// A message came. False when it came too late: the contact was lost before, and the message may have waited since
    /// then for an agent that stood still. Only a new session makes it good again.
    #[must_use]
    pub fn heard(&self, now: BootTime) -> bool {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = matches!((heard.last, heard.lost_after), (Some(last), Some(lost_after))
            if now.saturating_duration_since(last) >= lost_after);
        if !lost {
            heard.last = Some(now);
        }
        !lost
    }

    /// A welcome came: a new session, in which nothing is confirmed yet.
    pub fn welcomed(&self, now: BootTime, lost_after: Duration) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = heard.session + 1;
        // The log has heard of this session before the welcome was sent.
        let granted = heard.granted.max(Some(now));
        *heard = Heard { last: Some(now), lost_after: Some(lost_after), session, confirmed: false, granted };
    }

    /// What this host sent at `sent` was answered.
    pub fn granted(&self, sent: BootTime) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.granted = heard.granted.max(Some(sent));
    }

    /// A spec of this session is in force. Nothing happens when there has been another welcome since.
    pub fn confirm(&self, session: u64) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.confirmed |= heard.session == session;
    }

    /// As it is now.
    pub fn now(&self) -> Heard {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST_AFTER: Duration = Duration::from_secs(20);

    fn after(start: BootTime, seconds: u64) -> BootTime {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn nothing_starts_unless_confirmed_and_recently_heard() {
        let start = BootTime::now();
        let heard = Heard {
            last: Some(start),
            lost_after: Some(LOST_AFTER),
            session: 1,
            confirmed: true,
            granted: None,
        };
        assert_eq!(may_start(heard, after(start, 19)), Ok(()));
        let unconfirmed = Heard { confirmed: false, ..heard };
        assert_eq!(may_start(unconfirmed, start), Err(StartRule::Unconfirmed));
        assert_eq!(may_start(Heard::default(), start), Err(StartRule::Unconfirmed));
        let silent = StartRule::Silent { silent: LOST_AFTER, lost_after: LOST_AFTER };
        assert_eq!(may_start(heard, after(start, 20)), Err(silent));
        let unwelcomed = Heard { lost_after: None, ..heard };
        assert_eq!(may_start(unwelcomed, start), Err(StartRule::Unconfirmed));
    }

    #[test]
    fn each_session_confirms_anew_and_only_for_itself() {
        let (contact, now) = (Contact::default(), BootTime::now());
        contact.confirm(1);
        contact.welcomed(now, LOST_AFTER);
        assert_eq!(may_start(contact.now(), now), Err(StartRule::Unconfirmed));
        contact.confirm(contact.now().session);
        assert_eq!(may_start(contact.now(), now), Ok(()));
        let before = contact.now().session;
        contact.welcomed(now, LOST_AFTER);
        assert_eq!(may_start(contact.now(), now), Err(StartRule::Unconfirmed));
        contact.confirm(before);
        assert_eq!(
            may_start(contact.now(), now),
            Err(StartRule::Unconfirmed),
            "a spec that came before the welcome"
        );
    }

    /// As after a suspension: a heartbeat sent before it is read after it.
    #[test]
    fn a_late_message_does_not_bring_a_lost_contact_back() {
        let (contact, start) = (Contact::default(), BootTime::now());
        contact.welcomed(start, LOST_AFTER);
        contact.confirm(1);
        assert!(contact.heard(after(start, 19)));
        assert!(contact.heard(after(start, 38)));
        assert!(!contact.heard(after(start, 58)));
        let now = after(start, 58);
        assert_eq!(
            may_start(contact.now(), now),
            Err(StartRule::Silent { silent: LOST_AFTER, lost_after: LOST_AFTER })
        );
        contact.welcomed(now, LOST_AFTER);
        contact.confirm(2);
        assert_eq!(may_start(contact.now(), now), Ok(()));
    }
}

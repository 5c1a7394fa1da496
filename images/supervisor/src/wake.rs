//! Standing still: the machine was suspended, or frozen with all that runs in it.
//!
//! In: looks at clocks that go on meanwhile. Out: whether the engine's writes are to be held. Pure but for the clock; the supervisor looks
//! at every event and at least every [`LOOK_EVERY`].
//!
//! A guest that stood still may have been replaced: its lease ended, and nobody was there to cut its port. The agent of a host that slept
//! notices as late as its next look; so the first who notices holds the writes, until the agent has confirmed that the lease is in force or
//! that the port is cut. What clients had sent before the engine hears of the hold is taken: that is the time until this process gets its
//! turn, at most a look, and one round of the engine's loop.
//!
//! A host that sleeps, and a VMM that takes a pause out of a machine's time (cloud-hypervisor 54 does not), stop the guest's clocks as well:
//! there the host's own clock tells. It is a wall clock, so a host that sets it forward by more than a second makes its guests hold writes until the agent's next answer.

use std::time::Duration;

use crate::{boot_time::boot_time, vm::clock::HostClock};

/// How often the clock is looked at when nothing else happens. A frozen process finds its timers overdue and looks at once; after a
/// suspension of the machine timers go on where they stood.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Shorter ones are within what the coordinator waits beyond the end of a lease.
const LONG: Duration = Duration::from_secs(1);

/// What others had sent while the guest stood still is read when it wakes, and the engine counts them as present for another 10 s.
const COPIES_SETTLE: Duration = Duration::from_secs(12);

/// After what a question was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// So many wakes.
    pub wakes: u64,
    /// Everybody who was heard of since counts, and nobody else.
    pub settled: bool,
}

/// What is known of standing still.
#[derive(Debug, Default)]
pub struct Wakes {
    woke: Duration,
    /// The clock of the host, where there is one apart from the guest's.
    host: Option<HostClock>,
    looked: Option<Duration>,
    host_looked: Option<Duration>,
    count: u64,
    confirmed: u64,
}

impl Wakes {
    /// Of a guest that looks at this clock of its host too.
    pub fn by(host: Option<HostClock>) -> Self {
        Self { host, ..Self::default() }
    }

    /// Looks at the clocks. Some, with how long it was, when the guest stood still until now.
    pub fn look(&mut self) -> Option<Duration> {
        let host = self.host.as_ref().and_then(HostClock::now);
        self.look_at(boot_time(), host)
    }

    fn look_at(&mut self, now: Duration, host: Option<Duration>) -> Option<Duration> {
        let gap = |now: Duration, looked: &mut Option<Duration>| {
            now.saturating_sub(looked.replace(now).unwrap_or(now))
        };
        let own = gap(now, &mut self.looked);
        let of_host = host.map_or(Duration::ZERO, |host| gap(host, &mut self.host_looked));
        let gap = own.max(of_host);
        (gap > LONG).then(|| {
            self.count += 1;
            self.woke = now;
            gap
        })
    }

    /// What a question that is asked now comes after.
    pub fn asked(&self) -> Asked {
        let now = self.looked.unwrap_or_default();
        Asked { wakes: self.count, settled: now.saturating_sub(self.woke) > COPIES_SETTLE }
    }

    /// The wake from which writes are held, when the newest answer comes after it; else 0.
    pub fn held(&self, answered: Asked) -> u64 {
        if self.holds() && answered.wakes == self.count { self.count } else { 0 }
    }

    /// Whether writes are held.
    pub fn holds(&self) -> bool {
        self.confirmed < self.count
    }

    /// For people.
    pub fn text(&self) -> &'static str {
        if self.holds() {
            "stood still; takes no writes until its host confirms that nobody else was promoted"
        } else {
            ""
        }
    }

    /// The host's word about everything until this wake. True when it ends the hold.
    pub fn confirm(&mut self, wake: u64) -> bool {
        let held = self.holds();
        self.confirmed = self.confirmed.max(wake.min(self.count));
        held && !self.holds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_holds_until_the_newest_wake_is_confirmed() {
        let mut wakes = Wakes::default();
        let at = Duration::from_millis;
        assert_eq!((wakes.look_at(at(5_000), None), wakes.holds()), (None, false), "the first look");
        assert_eq!((wakes.look_at(at(6_000), None), wakes.holds()), (None, false), "a busy machine");
        assert_eq!((wakes.look_at(at(7_001), None), wakes.holds()), (Some(at(1_001)), true));
        assert_eq!(wakes.look_at(at(60_000), None), Some(at(52_999)));
        assert!(
            !wakes.confirm(1) && wakes.holds(),
            "the word about an earlier wake says nothing of this one"
        );
        assert!(!wakes.confirm(0) && wakes.holds());
        assert!(wakes.confirm(2) && !wakes.holds());
        assert!(!wakes.confirm(9) && !wakes.confirm(2), "nothing was held");
        assert!(
            wakes.look_at(at(70_000), None).is_some() && wakes.holds(),
            "a word ahead of its time does not count"
        );
    }

    #[test]
    fn an_answer_counts_from_after_the_wake_and_its_copies_when_old_words_have_faded() {
        let mut wakes = Wakes::default();
        let at = Duration::from_millis;
        let mut asked_at = |time| {
            wakes.look_at(at(time), None);
            (wakes.asked(), wakes.held(wakes.asked()))
        };
        let before = asked_at(50_000).0;
        assert_eq!(asked_at(60_000), (Asked { wakes: 1, settled: false }, 1));
        let looks = (0..60).map(|look| asked_at(60_200 + look * 200));
        assert!(looks.into_iter().all(|(asked, _)| !asked.settled), "12 s");
        assert_eq!(asked_at(72_200), (Asked { wakes: 1, settled: true }, 1));
        assert_eq!(wakes.held(before), 0, "what was asked before the wake says nothing");
    }

    #[test]
    fn a_guest_whose_clocks_stood_with_it_sees_it_by_its_host() {
        let mut wakes = Wakes::default();
        let at = Duration::from_millis;
        assert_eq!(wakes.look_at(at(5_000), Some(at(90_000_000))), None, "the first look");
        assert_eq!(wakes.look_at(at(5_050), Some(at(90_000_050))), None);
        assert_eq!(wakes.look_at(at(5_100), None), None, "a reading that failed");
        assert_eq!(wakes.look_at(at(5_150), Some(at(90_007_050))), Some(at(7_000)));
        assert!(wakes.holds());
        assert_eq!(wakes.look_at(at(5_200), Some(at(80_000_000))), None, "a host whose clock was set back");
    }
}

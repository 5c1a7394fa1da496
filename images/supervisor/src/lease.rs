//! Until when this guest may take writes although its host says nothing more.
//!
//! In: what the agent grants in answer to reports, looks at the clock, how many copies the engine has. Out: whether the engine's writes are
//! to be held. Pure; the supervisor looks at every event and at least every [`crate::wake::LOOK_EVERY`].
//!
//! The agent cuts the port of a machine whose lease is over. One that is dead cuts nothing: on a host that is parted from the coordinator,
//! the old primary would go on taking writes beside its successor. What is over stays so until the agent grants anew: copies that are seen
//! again say nothing about those that were promoted.

use std::time::Duration;

use shardplane_proto::v1::GuestLease;

/// What the engine says about who else has its data.
#[derive(Debug, Clone, Copy)]
pub struct Copies {
    /// Other members that hold a live copy.
    pub live: u32,
    /// It follows another member and takes no writes.
    pub read_only: bool,
}

#[derive(Debug, Clone, Copy)]
struct Granted {
    until: Duration,
    copies_needed: u32,
}

/// What is known of the lease; a guest that was never granted one needs none.
#[derive(Debug, Default)]
pub struct Lease {
    granted: Option<Granted>,
    over: bool,
}

impl Lease {
    /// The host's word. True when it ends a hold; `now` is the time since the boot.
    pub fn grant(&mut self, lease: &GuestLease, now: Duration) -> bool {
        let until = Duration::from_millis(lease.answers_boot_ms.saturating_add(lease.remaining_ms));
        self.granted = Some(Granted { until, copies_needed: lease.copies_needed });
        let valid = lease.copies_needed == 0 || now < until;
        let ends = self.over && valid;
        self.over &= !valid;
        ends
    }

    /// Looks at the clock and at the copies of an engine that answers. True when the lease is over since this look.
    pub fn look(&mut self, now: Duration, copies: Option<Copies>) -> bool {
        let Some(granted) = self.granted.filter(|_| !self.over) else { return false };
        let safe = copies.is_some_and(|copies| copies.read_only || copies.live >= granted.copies_needed);
        self.over = granted.copies_needed > 0 && now >= granted.until && !safe;
        self.over
    }

    /// Whether writes are held.
    pub fn holds(&self) -> bool {
        self.over
    }

    /// For people.
    pub fn text(&self) -> &'static str {
        if self.over {
            "its lease is over without a word of its host's agent, and not all its copies follow; takes no writes until the agent grants it anew"
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(answers_boot_ms: u64, remaining_ms: u64, copies_needed: u32) -> GuestLease {
        GuestLease { answers_boot_ms, remaining_ms, copies_needed }
    }

    fn copies(live: u32, read_only: bool) -> Option<Copies> {
        Some(Copies { live, read_only })
    }

    #[test]
    fn a_lease_that_is_over_holds_writes_until_it_is_granted_anew() {
        let at = Duration::from_millis;
        let mut known = Lease::default();
        assert!(!known.look(at(99_000), copies(0, false)), "it was never granted one");
        assert!(!known.grant(&lease(1_000, 30_000, 1), at(1_001)));
        assert!(!known.look(at(30_999), copies(0, false)) && !known.holds());
        assert!(!known.look(at(31_000), copies(1, false)), "all copies follow");
        assert!(!known.look(at(31_050), copies(0, true)), "it follows itself");
        assert!(known.look(at(31_100), copies(0, false)) && known.holds());
        assert!(!known.look(at(31_150), copies(1, false)) && known.holds(), "said once, and it stays");
        assert!(
            !known.grant(&lease(1_500, 29_500, 1), at(31_200)) && known.holds(),
            "a word that is too old"
        );
        assert!(known.grant(&lease(32_000, 30_000, 1), at(32_001)) && !known.holds());
        assert!(known.look(at(62_000), None), "an engine that says nothing may take writes");
        assert!(known.grant(&lease(70_000, 0, 0), at(70_001)), "it needs none any more");
        assert!(!known.look(at(170_000), copies(0, false)));
    }
}

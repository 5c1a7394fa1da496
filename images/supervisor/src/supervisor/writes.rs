//! The engine's writes after the guest stood still, or when its lease is over.
//!
//! In: looks at the clock, the host's word. Out: an engine that lets nobody write until the host has confirmed that it may. Called by `run`,
//! by the end of a job, and by the parent's tick, which holds the writes for longer and those of an engine that was started since.

use std::time::Duration;

use shardplane_proto::v1::GuestLease;

use super::{
    InForce, Supervisor,
    jobs::{Job, in_time},
};
use crate::{boot_time::boot_time, engine::EngineError, lease::Copies};

/// A hold ends by itself after that, should this process be gone.
const HOLD: Duration = Duration::from_secs(10);
/// The engine answers at once or not at all; the next tick asks again.
const DEADLINE: Duration = Duration::from_secs(2);

/// What the engine was told, one thing at a time: a hold must not overtake a release.
#[derive(Debug, Default)]
pub struct Gate {
    busy: bool,
    /// It may hold writes.
    held: bool,
}

impl Gate {
    /// Whatever was told is over, be it that it broke off.
    pub(super) fn idle(&mut self) {
        self.busy = false;
    }
}

impl Supervisor {
    /// Looks whether the guest stood still.
    pub fn look(&mut self) {
        if let Some(gap) = self.wakes.look() {
            tracing::warn!(
                "stood still for {:.1} s: writes are held until the host confirms",
                gap.as_secs_f32()
            );
            self.tell_writes();
            self.ask();
        }
        let copies = self
            .latest
            .as_ref()
            .map(|report| Copies { live: report.live_copies, read_only: report.read_only });
        if self.lease.look(boot_time(), copies) {
            tracing::warn!("{}", self.lease.text());
            self.tell_writes();
        }
    }

    /// What the host grants.
    pub fn granted(&mut self, lease: &GuestLease) {
        if self.lease.grant(lease, boot_time()) {
            tracing::info!("the host has granted its lease anew: writes are taken again");
            self.tell_writes();
        }
    }

    fn holds_writes(&self) -> bool {
        self.wakes.holds() || self.lease.holds()
    }

    /// Tells the engine to hold writes while the host's word is missing, and to take them when it has come.
    pub(super) fn tell_writes(&mut self) {
        let hold = self.holds_writes();
        let Some(InForce { engine, .. }) = &self.in_force else { return };
        if self.gate.busy || self.process.is_none() || !(hold || self.gate.held) {
            return;
        }
        let engine = engine.clone();
        (self.gate.busy, self.gate.held) = (true, true);
        self.jobs.spawn(async move {
            let told = if hold { engine.hold_writes(HOLD) } else { engine.release_writes() };
            Job::Told(hold, in_time(DEADLINE, told).await)
        });
    }

    /// The engine was told, or not.
    pub(super) fn told(&mut self, hold: bool, result: Result<(), EngineError>) {
        self.gate.idle();
        match result {
            Ok(()) => {
                self.gate.held = hold;
                if hold != self.holds_writes() {
                    self.tell_writes();
                }
            }
            // The next tick tries again.
            Err(error) => tracing::warn!(hold, "cannot hold or release writes: {error}"),
        }
    }

    /// The host's word about everything until this wake.
    pub fn confirmed(&mut self, wake: u64) {
        if self.wakes.confirm(wake) {
            tracing::info!("the host has confirmed it");
            self.tell_writes();
        }
    }

    /// For the report: the wake from which writes are held, once the engine has answered since.
    pub(super) fn held_wake(&self) -> u64 {
        if self.latest.is_some() { self.wakes.held(self.answered_after) } else { 0 }
    }
}

//! What the leader has heard from hosts since it leads: never in the log, gone with the leader. In: session reports, put in by the
//! leader. Out: read by the planner and the views, always with its age.

use std::collections::BTreeMap;

use shardplane_proto::{
    ids::{ClusterId, Generation, HostId, InstanceId},
    v1,
};

use crate::{
    engine::{Report, UnderWay},
    time::{Millis, Timestamp},
};

/// A report older than this no longer tells how things are.
pub const FRESH: Millis = Millis::seconds(6);

/// Everything heard.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Since when this leader listens: silence before that is nobody's fault.
    pub since: Timestamp,
    /// By host.
    pub hosts: BTreeMap<HostId, HostReport>,
    /// By instance.
    pub members: BTreeMap<InstanceId, MemberReport>,
    /// What the last plan waits for, by cluster, for people.
    pub waiting: BTreeMap<ClusterId, Vec<String>>,
}

/// What was heard from a host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostReport {
    /// Whether a session is open.
    pub connected: bool,
    /// When it was last heard.
    pub at: Timestamp,
    /// Newest desired state it has accepted.
    pub accepted: Generation,
    /// Whether it has sent its full report in this session.
    pub complete: bool,
    /// Why it could not carry out everything, for people.
    pub problems: Vec<String>,
    /// When it was last told something from which its leases go on.
    pub granted: Timestamp,
}

/// What was heard about an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberReport {
    /// Who said it.
    pub host: HostId,
    /// When.
    pub at: Timestamp,
    /// The machine.
    pub machine: v1::MachineState,
    /// About the machine, for people.
    pub message: String,
    /// The engine's process.
    pub engine_state: v1::EngineState,
    /// About the engine's process, for people.
    pub engine_message: String,
    /// The engine's own report, while it answers.
    pub engine: Option<Report>,
    /// Generation of the guest config in force.
    pub config_generation: u64,
    /// The restart generation under which the running engine was started.
    pub restart_generation: u64,
    /// Since when its machine or its engine is reported as failed, without a break, as far as this leader heard.
    pub failed_since: Option<Timestamp>,
    /// Since when its engine does not answer, likewise.
    pub silent_since: Option<Timestamp>,
    /// Since when it follows another member and does not hear it, likewise.
    pub detached_since: Option<Timestamp>,
    /// How far the last step was of which it told that; the log knows more when that step has ended.
    pub under_way: Option<UnderWay>,
    /// Its port is cut and its machine proved absent, on a spec that wants it so.
    pub fenced: bool,
    /// Its port is cut.
    pub port_cut: bool,
}

/// What may last from one report of a member to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lasting {
    at: Timestamp,
    failed: Option<Timestamp>,
    silent: Option<Timestamp>,
    detached: Option<Timestamp>,
    under_way: Option<UnderWay>,
}

impl MemberReport {
    /// Whether the machine or the engine says that it cannot run.
    pub fn failed(&self) -> bool {
        self.machine == v1::MachineState::Failed || self.engine_state == v1::EngineState::Failed
    }

    /// Heard at `at`: what lasts, lasts since it was first heard without a break. `before` is what was heard of it last.
    pub fn heard(mut self, before: Option<Lasting>, at: Timestamp) -> Self {
        let before = before.unwrap_or_default();
        // Nobody knows what it was meanwhile; for what others are promoted upon that matters.
        let unbroken = at.since(before.at) <= FRESH;
        let detached = self.engine.as_ref().is_some_and(Report::detached);
        self.at = at;
        self.failed_since = self.failed().then(|| before.failed.unwrap_or(at));
        self.silent_since = self.engine.is_none().then(|| before.silent.unwrap_or(at));
        // A step that is over is not told of any more, and its outcome comes by another way.
        self.under_way = self.engine.as_ref().and_then(Report::under_way).or(before.under_way);
        self.detached_since = detached.then(|| before.detached.filter(|_| unbroken).unwrap_or(at));
        self
    }

    /// What lasts of it, for the next report.
    pub fn lasting(&self) -> Lasting {
        Lasting {
            at: self.at,
            failed: self.failed_since,
            silent: self.silent_since,
            detached: self.detached_since,
            under_way: self.under_way.clone(),
        }
    }
}

impl Observed {
    /// Whether what `host` says is recent and its session open.
    pub fn hears(&self, host: HostId, now: Timestamp) -> bool {
        self.hosts.get(&host).is_some_and(|report| report.connected && now.since(report.at) <= FRESH)
    }

    /// The latest moment from which a lease on `host` may have been prolonged. An earlier leader prolonged none after this one began to
    /// listen: hosts count from what a quorum confirmed to their leader, and that cannot be later than the election of the next.
    pub fn last_granted(&self, host: HostId) -> Timestamp {
        self.hosts.get(&host).map_or(self.since, |report| report.granted.max(self.since))
    }

    /// When `host` was last heard; the start of this leader's listening when it never was.
    pub fn last_heard(&self, host: HostId) -> Timestamp {
        self.hosts.get(&host).map_or(self.since, |report| report.at.max(self.since))
    }
}

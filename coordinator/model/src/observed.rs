//! What the leader has heard from hosts since it leads: never in the log, gone with the leader. In: session reports, put in by the
//! leader. Out: read by the planner and the views, always with its age.

use std::collections::BTreeMap;

use shardplane_proto::{
    ids::{ClusterId, Generation, HostId, InstanceId},
    v1,
};

use crate::{
    engine::Report,
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
}

impl MemberReport {
    /// Whether the machine or the engine says that it cannot run.
    pub fn failed(&self) -> bool {
        self.machine == v1::MachineState::Failed || self.engine_state == v1::EngineState::Failed
    }
}

impl Observed {
    /// Whether what `host` says is recent and its session open.
    pub fn hears(&self, host: HostId, now: Timestamp) -> bool {
        self.hosts.get(&host).is_some_and(|report| report.connected && now.since(report.at) <= FRESH)
    }

    /// When `host` was last heard; the start of this leader's listening when it never was.
    pub fn last_heard(&self, host: HostId) -> Timestamp {
        self.hosts.get(&host).map_or(self.since, |report| report.at.max(self.since))
    }
}

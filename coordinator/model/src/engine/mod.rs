//! The engine room of the model: what differs between engines, behind one match. In: a spec, the members of a cluster and what
//! they report. Out: groups, needs, the next steps and what users see, as data that planner and views understand. Adding an
//! engine is a variant here and a folder beside `valkey`.

pub mod valkey;

use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{GroupId, InstanceId, ResourceId},
    v1,
};

use crate::{
    observed::MemberReport,
    refusal::Violation,
    resource::{Kind, Resource},
    state::{Cluster, Host, Instance, Presence, Settings, State},
    time::Timestamp,
};

/// The engines there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EngineKind {
    /// Sharded Valkey.
    Valkey,
}

impl EngineKind {
    /// Every engine.
    pub const ALL: [EngineKind; 1] = [EngineKind::Valkey];

    /// The engine's name in images and host specs.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey",
        }
    }

    /// Path segment of its clusters.
    pub fn cluster_path(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey",
        }
    }

    /// `kind` of its clusters.
    pub fn cluster_kind(self) -> &'static str {
        match self {
            EngineKind::Valkey => "Valkey",
        }
    }

    /// Path segment of its parameter sets.
    pub fn parameters_path(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey-parameters-set",
        }
    }

    /// `kind` of its parameter sets.
    pub fn parameters_kind(self) -> &'static str {
        match self {
            EngineKind::Valkey => "ValkeyParametersSet",
        }
    }

    /// Rules for the content of a parameter set, with paths below `spec.parameters`.
    pub fn check_parameters(self, parameters: &std::collections::BTreeMap<String, String>) -> Vec<Violation> {
        match self {
            EngineKind::Valkey => valkey::parameters::check(parameters),
        }
    }

    /// What a guest's report says, in the engine's terms. None when it is not a report of this engine.
    pub fn read_report(self, bytes: &[u8]) -> Option<Report> {
        match self {
            EngineKind::Valkey => valkey::facts::read(bytes).map(Report::Valkey),
        }
    }
}

/// The spec of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterSpec {
    /// Sharded Valkey.
    Valkey(valkey::spec::ValkeySpec),
}

/// A group as a spec wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Made by the client.
    pub id: GroupId,
    /// Where its members live.
    pub subnet: ResourceId,
    /// Primary and replicas together.
    pub members: u32,
}

/// What every instance of a cluster needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Compute offer.
    pub vm_offer: String,
    /// Disk offer.
    pub volume_offer: String,
    /// GiB.
    pub volume_gib: u32,
    /// Engine version of the image.
    pub version: String,
}

impl ClusterSpec {
    /// Its engine.
    pub fn engine(&self) -> EngineKind {
        match self {
            ClusterSpec::Valkey(_) => EngineKind::Valkey,
        }
    }

    /// Its groups in order.
    pub fn groups(&self) -> Vec<GroupSpec> {
        match self {
            ClusterSpec::Valkey(spec) => spec.groups(),
        }
    }

    /// What each instance needs.
    pub fn needs(&self) -> Needs {
        match self {
            ClusterSpec::Valkey(spec) => spec.needs(),
        }
    }

    /// The resources it names, with path and type.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        match self {
            ClusterSpec::Valkey(spec) => spec.references(),
        }
    }

    /// Its sealed password.
    pub fn secret(&self) -> &crate::state::Sealed {
        match self {
            ClusterSpec::Valkey(spec) => &spec.root_password,
        }
    }

    /// The same spec with this sealed password.
    pub fn with_secret(self, sealed: crate::state::Sealed) -> Self {
        match self {
            ClusterSpec::Valkey(spec) => {
                ClusterSpec::Valkey(valkey::spec::ValkeySpec { root_password: sealed, ..spec })
            }
        }
    }

    /// Rules that need more than the message: offers, and what the installation can do.
    pub fn check_create(&self, settings: &Settings) -> Vec<Violation> {
        match self {
            ClusterSpec::Valkey(spec) => valkey::check::create(spec, settings),
        }
    }

    /// Rules of a change from `self` to `new`.
    pub fn check_modify(&self, new: &ClusterSpec) -> Vec<Violation> {
        match (self, new) {
            (ClusterSpec::Valkey(old), ClusterSpec::Valkey(new)) => valkey::check::modify(old, new),
        }
    }
}

/// What a guest last reported about its engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// From a Valkey node.
    Valkey(v1::ValkeyReport),
}

impl Report {
    /// The part of it that decisions rest on and that the log keeps.
    pub fn fact(&self) -> Fact {
        match self {
            Report::Valkey(report) => Fact::Valkey(valkey::facts::fact(report)),
        }
    }
}

/// The part of a report that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// From a Valkey node.
    Valkey(valkey::facts::ValkeyFact),
}

impl Fact {
    /// Whether the engine calls itself a primary.
    pub fn claims_primary(&self) -> bool {
        match self {
            Fact::Valkey(fact) => fact.claims_primary(),
        }
    }
}

/// What an instance does in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Takes the writes.
    Primary,
    /// Follows.
    Replica,
    /// Nothing known, or not part of the cluster yet.
    Unknown,
}

/// One member of a cluster with all that is known of it.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// What the log says.
    pub instance: &'a Instance,
    /// Position of its group in the spec; none for a group that is no longer in the spec.
    pub group_index: Option<usize>,
    /// Its host, if the log knows it.
    pub host: Option<&'a Host>,
    /// What its host reported since this leader listens.
    pub report: Option<&'a MemberReport>,
    /// Whether that report is recent and its host connected.
    pub fresh: bool,
}

impl Member<'_> {
    /// The engine's report, when it is recent.
    pub fn engine(&self) -> Option<&Report> {
        self.report.filter(|_| self.fresh).and_then(|report| report.engine.as_ref())
    }

    /// The newest fact with its time: from a report or else from the log.
    pub fn fact(&self) -> Option<(Timestamp, Fact)> {
        match self.report.and_then(|r| r.engine.as_ref().map(|engine| (r.at, engine.fact()))) {
            Some(reported) => Some(reported),
            None => self.instance.fact.clone(),
        }
    }
}

/// A cluster with all that is known of it; built by [`crate::plan::cluster_view`].
#[derive(Debug, Clone)]
pub struct ClusterView<'a> {
    /// Its resource.
    pub resource: &'a Resource,
    /// Its spec.
    pub spec: &'a ClusterSpec,
    /// What the state remembers of it.
    pub cluster: &'a Cluster,
    /// Its groups.
    pub groups: Vec<GroupSpec>,
    /// Its members in order of group, first primary first, then by id; retiring ones included.
    pub members: Vec<Member<'a>>,
    /// The time to judge ages by.
    pub now: Timestamp,
    /// This leader has just begun to listen: logged facts still stand for reports that had no time to come.
    pub gathering: bool,
}

impl ClusterView<'_> {
    /// Members that shall run.
    pub fn wanted(&self) -> impl Iterator<Item = &Member<'_>> {
        self.members.iter().filter(|member| member.instance.wanted())
    }
}

/// One engine step that may start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Who performs it.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// The engine's own message.
    pub payload: Vec<u8>,
}

/// What an engine wants next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Next {
    /// Steps that may start now, all at once.
    pub steps: Vec<Step>,
    /// What it waits for and why; not empty when it is not whole and there are no steps.
    pub waiting: Vec<String>,
    /// Every wanted member takes its part, as far as recent reports tell.
    pub whole: bool,
}

/// What the other members say about one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerVerdict {
    /// They see it working, or some of them do.
    Alive,
    /// Nobody who can be heard sees it working, and the cluster has dealt with its loss.
    Failed,
    /// Too few can be heard to tell, or its group still waits for a new primary.
    Unknown,
}

/// What the engine makes of a cluster.
impl ClusterView<'_> {
    /// Which role each member has, by observation.
    pub fn roles(&self) -> Vec<(InstanceId, Role)> {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::roles(self),
        }
    }

    /// The next steps towards a whole cluster.
    pub fn next(&self) -> Next {
        match self.spec {
            ClusterSpec::Valkey(spec) => valkey::tasks::next(self, spec),
        }
    }

    /// What the other members say about this one.
    pub fn peers_about(&self, instance: InstanceId) -> PeerVerdict {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::peers_about(self, instance),
        }
    }

    /// Whether this replica holds everything its primary has acknowledged to it, so that it may take over or count.
    pub fn in_sync(&self, instance: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::in_sync(self, instance),
        }
    }

    /// Whether every group has a primary and the engine itself says that the cluster serves.
    pub fn serves(&self) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::serves(self),
        }
    }

    /// Whether `heir` has everything that `old` has, so that `old` may go without loss.
    pub fn holds_all_of(&self, heir: InstanceId, old: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::holds_all_of(self, heir, old),
        }
    }

    /// The step that makes this in-sync replica the primary of its group without loss.
    pub fn switchover(&self, to: InstanceId) -> Step {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::tasks::switchover(to),
        }
    }

    /// What the guest of this instance is configured with. `secret` is the password in clear.
    pub fn guest_config(&self, state: &State, instance: &Instance, secret: &str) -> Vec<u8> {
        let primary_elsewhere = self.members.iter().any(|other| {
            other.instance.id != instance.id
                && other.instance.group == instance.group
                && other.instance.wanted()
                && other.host.is_some_and(|host| host.presence == Presence::Present)
                && self.roles().contains(&(other.instance.id, Role::Primary))
        });
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                valkey::config::render(state, spec, instance, secret, primary_elsewhere)
            }
        }
    }
}

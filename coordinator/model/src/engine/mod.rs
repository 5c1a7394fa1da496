//! The engine room of the model: what differs between engines, behind one match on each question. In: specs and what members report.
//! Out: groups, needs, facts; with [`ClusterView`] roles and next steps: data that planner and views understand. Adding an engine is
//! a variant here, an arm in each match of this folder, and a folder beside `valkey`.

pub mod valkey;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{GroupId, InstanceId, ResourceId, TaskId},
    v1,
};

use crate::{
    refusal::Violation,
    resource::Kind,
    state::{Sealed, Settings},
};

pub use view::{ClusterView, Headless, Heir, Member, Next, PeerVerdict, Role, Step};

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

    /// Whether a member that performs this task may be, or may become, its group's primary by it, whatever it said before.
    pub fn raises(self, payload: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::tasks::raises(payload),
        }
    }

    /// Rules for the content of a parameter set, with paths below `spec.parameters`. Without a version, the newest counts.
    pub fn check_parameters(
        self,
        parameters: &BTreeMap<String, String>,
        version: Option<&str>,
    ) -> Vec<Violation> {
        match self {
            EngineKind::Valkey => valkey::parameters::check(parameters, version),
        }
    }

    /// Whether members have to restart to go from one set of parameters to the other.
    pub fn needs_restart(self, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> bool {
        match self {
            EngineKind::Valkey => valkey::parameters::needs_restart(old, new),
        }
    }

    /// Whether a step moves data between groups or tidies up after that.
    pub fn is_move(self, payload: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::moves::is_slot_task(payload),
        }
    }

    /// Whether two steps of one cluster must not be asked for at the same time.
    pub fn exclude_each_other(self, one: &[u8], other: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::moves::exclude_each_other(one, other),
        }
    }

    /// Whether a group of a cluster that has served owns nothing, by these facts of the cluster's members.
    pub fn owns_nothing<'f>(
        self,
        group: GroupId,
        facts: impl Iterator<Item = (GroupId, InstanceId, &'f Fact)>,
    ) -> bool {
        match self {
            EngineKind::Valkey => {
                let facts = facts.map(|(group, instance, Fact::Valkey(fact))| (group, instance, fact));
                valkey::ownership::owns_nothing(group, facts)
            }
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

    /// The parameter set it names.
    pub fn parameters_set(&self) -> Option<ResourceId> {
        match self {
            ClusterSpec::Valkey(spec) => spec.parameters_set,
        }
    }

    /// The same spec with this parameter set, or with none.
    pub fn with_parameters_set(self, set: Option<ResourceId>) -> Self {
        match self {
            ClusterSpec::Valkey(spec) => {
                ClusterSpec::Valkey(valkey::spec::ValkeySpec { parameters_set: set, ..spec })
            }
        }
    }

    /// Its sealed password.
    pub fn secret(&self) -> &Sealed {
        match self {
            ClusterSpec::Valkey(spec) => &spec.root_password,
        }
    }

    /// The same spec with this sealed password.
    pub fn with_secret(self, sealed: Sealed) -> Self {
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

/// Where the groups of a cluster shall have their data; the log keeps it while data moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// The slots of a Valkey cluster.
    Valkey(valkey::layout::SlotLayout),
}

impl Layout {
    /// What is wrong with it for this spec.
    ///
    /// # Errors
    /// The rule that is broken, for people.
    pub fn check(&self, spec: &ClusterSpec) -> Result<(), String> {
        match (self, spec) {
            (Layout::Valkey(layout), ClusterSpec::Valkey(spec)) => {
                let shards: Vec<GroupId> = spec.shards.iter().map(|shard| shard.id).collect();
                layout.check(&shards)
            }
        }
    }
}

/// What a group has of its cluster's data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// How many of the engine's parts.
    pub slots: u32,
    /// How many keys.
    pub keys: u64,
    /// About so much memory; a new member copies it. 0 too when its owner says nothing.
    pub bytes: u64,
}

/// Data that would go from one group to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Travel {
    /// Who owns it.
    pub from: GroupId,
    /// Who shall.
    pub to: GroupId,
    /// How many of the engine's parts.
    pub slots: u32,
    /// About so many keys.
    pub keys: u64,
    /// About so much memory.
    pub bytes: u64,
}

/// What a guest last reported about its engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// From a Valkey node.
    Valkey(v1::ValkeyReport),
}

/// How far a step is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    /// The step.
    pub task: TaskId,
    /// What it has done so far, by the names that its outcome counts with.
    pub counts: BTreeMap<String, u64>,
}

/// What a running engine says about its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// Names that do not have the wanted value.
    pub unapplied: Vec<String>,
    /// Names that the engine refused, with its text.
    pub refused: Vec<(String, String)>,
}

impl Report {
    /// What the step under way has done so far.
    pub fn under_way(&self) -> Option<UnderWay> {
        match self {
            Report::Valkey(report) => valkey::facts::under_way(report),
        }
    }

    /// Whether the parameters of its config are in force.
    pub fn parameters(&self) -> InForce {
        match self {
            Report::Valkey(report) => InForce {
                unapplied: report.unapplied_directives.clone(),
                refused: report
                    .refused_directives
                    .iter()
                    .map(|refusal| (refusal.name.clone(), refusal.error.clone()))
                    .collect(),
            },
        }
    }

    /// The part of it that decisions rest on and that the log keeps.
    pub fn fact(&self) -> Fact {
        match self {
            Report::Valkey(report) => Fact::Valkey(valkey::facts::fact(report)),
        }
    }

    /// Whether it follows another member and does not hear it.
    pub fn detached(&self) -> bool {
        match self {
            Report::Valkey(report) => report.role == "slave" && !report.link_up,
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
    /// Whether this claim of primacy is newer than the other.
    pub fn outranks(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => self.claims_primary() && mine.epoch > theirs.epoch,
        }
    }

    /// Whether the engine says that it follows the other one.
    pub fn follows(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => {
                mine.role == "slave" && mine.primary_node_id == theirs.node_id
            }
        }
    }

    /// Whether this may be a copy of what the other one has: it follows it, and is not blank where the other is not.
    pub fn copies(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => {
                self.follows(other) && (!mine.blank || theirs.blank)
            }
        }
    }

    /// Whether the engine calls itself a primary.
    pub fn claims_primary(&self) -> bool {
        match self {
            Fact::Valkey(fact) => fact.claims_primary(),
        }
    }

    /// Whether the engine follows another and may become a primary by the engine's own vote.
    pub fn stands(&self) -> bool {
        match self {
            Fact::Valkey(fact) => fact.stands(),
        }
    }
}

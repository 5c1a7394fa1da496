//! The engine room of the model: what differs between engines, behind one match on each question. In: specs and what members report.
//! Out: groups, needs, facts; with [`ClusterView`] roles and next steps: data that planner and views understand. Adding an engine is
//! a variant here, an arm in each match of this folder, and a folder beside `valkey`.

pub mod conditions;
pub mod offers;
pub mod postgres;
mod silence;
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
    state::{Footprint, Sealed, Settings},
};

pub use postgres::role::RoleSpec;
use silence::silence;
pub use view::{ClusterView, Headless, Heir, Member, Next, PeerVerdict, Role, Secrets, Step};

/// The engines there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EngineKind {
    /// Sharded Valkey.
    Valkey,
    /// PostgreSQL with Patroni, an etcd quorum and Citus.
    Postgres,
}

impl EngineKind {
    /// Every engine.
    pub const ALL: [EngineKind; 2] = [EngineKind::Valkey, EngineKind::Postgres];

    /// The engine's name in images and host specs.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey",
            EngineKind::Postgres => "postgres",
        }
    }

    /// Path segment of its clusters.
    pub fn cluster_path(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey",
            EngineKind::Postgres => "postgresql",
        }
    }

    /// `kind` of its clusters.
    pub fn cluster_kind(self) -> &'static str {
        match self {
            EngineKind::Valkey => "Valkey",
            EngineKind::Postgres => "PostgreSql",
        }
    }

    /// Path segment of its parameter sets.
    pub fn parameters_path(self) -> &'static str {
        match self {
            EngineKind::Valkey => "valkey-parameters-set",
            EngineKind::Postgres => "postgresql-parameters-set",
        }
    }

    /// `kind` of its parameter sets.
    pub fn parameters_kind(self) -> &'static str {
        match self {
            EngineKind::Valkey => "ValkeyParametersSet",
            EngineKind::Postgres => "PostgreSqlParametersSet",
        }
    }

    /// Path segment of its login roles, where they are resources.
    pub fn role_path(self) -> Option<&'static str> {
        match self {
            EngineKind::Valkey => None,
            EngineKind::Postgres => Some("postgresql-role"),
        }
    }

    /// `kind` of its login roles.
    pub fn role_kind(self) -> Option<&'static str> {
        match self {
            EngineKind::Valkey => None,
            EngineKind::Postgres => Some("PostgreSqlRole"),
        }
    }

    /// Whether a member that performs this task may be, or may become, its group's primary by it, whatever it said before.
    pub fn raises(self, payload: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::tasks::raises(payload),
            EngineKind::Postgres => postgres::tasks::raises(payload),
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
            EngineKind::Postgres => postgres::parameters::check(parameters),
        }
    }

    /// Whether an image of this version runs what a spec with that version wants.
    pub fn runs(self, image: &str, wanted: &str) -> bool {
        match self {
            EngineKind::Valkey => image == wanted,
            EngineKind::Postgres => image.split('.').next() == Some(wanted),
        }
    }

    /// Whether the engine itself sees to it that whoever was replaced takes no more writes, so that no lease of ours is needed.
    pub fn has_its_own_lease(self) -> bool {
        match self {
            EngineKind::Valkey => false,
            EngineKind::Postgres => true,
        }
    }

    /// What is said when a cluster serves for the first time.
    pub fn serves_text(self) -> &'static str {
        match self {
            EngineKind::Valkey => "every shard serves its slots",
            EngineKind::Postgres => "every shard group has a leader that takes writes",
        }
    }

    /// Whether its guests are told who the other members are, so that each change of the members is a change of their config.
    pub fn tells_members(self) -> bool {
        match self {
            EngineKind::Valkey => false,
            EngineKind::Postgres => true,
        }
    }

    /// Whether all members get changed parameters at once, the engine itself bringing them to each; otherwise one after another.
    pub fn shares_parameters(self) -> bool {
        match self {
            EngineKind::Valkey => false,
            EngineKind::Postgres => true,
        }
    }

    /// Whether members have to restart to go from one set of parameters to the other.
    pub fn needs_restart(self, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> bool {
        match self {
            EngineKind::Valkey => valkey::parameters::needs_restart(old, new),
            // Patroni keeps them in the DCS: all members are told at once, and a step finishes what waits for a restart.
            EngineKind::Postgres => false,
        }
    }

    /// Whether a step moves data between groups or tidies up after that.
    pub fn is_move(self, payload: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::moves::is_slot_task(payload),
            EngineKind::Postgres => false,
        }
    }

    /// Whether two steps of one cluster must not be asked for at the same time.
    pub fn exclude_each_other(self, one: &[u8], other: &[u8]) -> bool {
        match self {
            EngineKind::Valkey => valkey::moves::exclude_each_other(one, other),
            EngineKind::Postgres => postgres::tasks::exclude_each_other(one, other),
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
                let facts =
                    facts.filter_map(|(group, instance, fact)| Some((group, instance, fact.valkey()?)));
                valkey::ownership::owns_nothing(group, facts)
            }
            // Which rows are where is for the metadata of a cluster to say, not for its members.
            EngineKind::Postgres => false,
        }
    }

    /// What a guest's report says, in the engine's terms. None when it is not a report of this engine.
    pub fn read_report(self, bytes: &[u8]) -> Option<Report> {
        match self {
            EngineKind::Valkey => valkey::facts::read(bytes).map(|report| Report::Valkey(Box::new(report))),
            EngineKind::Postgres => postgres::facts::read(bytes).map(Report::Postgres),
        }
    }
}

/// The spec of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterSpec {
    /// Sharded Valkey.
    Valkey(valkey::spec::ValkeySpec),
    /// PostgreSQL.
    Postgres(Box<postgres::spec::PostgresSpec>),
}

/// What the members of a group are for; rules of placement are by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// They hold data: a primary and its replicas.
    #[default]
    Data,
    /// They vote for others and hold no data of users: two on one host are never accepted.
    Quorum,
}

impl Class {
    fn is_data(&self) -> bool {
        *self == Class::Data
    }
}

/// A group as a spec wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// Made by the client.
    pub id: GroupId,
    /// Where its members live.
    pub subnet: ResourceId,
    /// Primary and replicas together, or voters.
    pub members: u32,
    /// What they are for.
    #[serde(default, skip_serializing_if = "Class::is_data")]
    pub class: Class,
}

/// What an instance of a cluster needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needs {
    /// What its user chose.
    Offers {
        /// Compute offer.
        vm: String,
        /// Disk offer.
        volume: String,
        /// GiB.
        volume_gib: u32,
    },
    /// What the platform provides on its own account.
    Fixed {
        /// From its host.
        footprint: Footprint,
        /// Virtual processors.
        vcpus: u32,
        /// Percent of each.
        vcpu_share: u32,
    },
}

impl ClusterSpec {
    /// Its engine.
    pub fn engine(&self) -> EngineKind {
        match self {
            ClusterSpec::Valkey(_) => EngineKind::Valkey,
            ClusterSpec::Postgres(_) => EngineKind::Postgres,
        }
    }

    /// Its groups in order.
    pub fn groups(&self) -> Vec<GroupSpec> {
        match self {
            ClusterSpec::Valkey(spec) => spec.groups(),
            ClusterSpec::Postgres(spec) => spec.groups(),
        }
    }

    /// What each instance of a class needs.
    pub fn needs(&self, class: Class) -> Needs {
        match self {
            ClusterSpec::Valkey(spec) => spec.needs(),
            ClusterSpec::Postgres(spec) => spec.needs(class),
        }
    }

    /// The engine's version that it wants.
    pub fn version(&self) -> &str {
        match self {
            ClusterSpec::Valkey(spec) => &spec.version,
            ClusterSpec::Postgres(spec) => &spec.version,
        }
    }

    /// The same spec with what a user may leave out: what `before` has, else the platform's defaults, else made with `ids`.
    pub fn complete(
        self,
        before: Option<&ClusterSpec>,
        settings: &Settings,
        ids: &mut dyn FnMut() -> u128,
    ) -> Self {
        match self {
            ClusterSpec::Valkey(spec) => ClusterSpec::Valkey(spec),
            ClusterSpec::Postgres(spec) => {
                let before = match before {
                    Some(ClusterSpec::Postgres(before)) => Some(before.as_ref()),
                    Some(ClusterSpec::Valkey(_)) | None => None,
                };
                ClusterSpec::Postgres(Box::new(spec.complete(before, settings, ids)))
            }
        }
    }

    /// Whether its secret is a password that its user chose; otherwise the platform makes one that nobody is shown.
    pub fn secret_is_users(&self) -> bool {
        match self {
            ClusterSpec::Valkey(_) => true,
            ClusterSpec::Postgres(_) => false,
        }
    }

    /// The resources it names, with path and type.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        match self {
            ClusterSpec::Valkey(spec) => spec.references(),
            ClusterSpec::Postgres(spec) => spec.references(),
        }
    }

    /// The parameter set it names.
    pub fn parameters_set(&self) -> Option<ResourceId> {
        match self {
            ClusterSpec::Valkey(spec) => spec.parameters_set,
            ClusterSpec::Postgres(spec) => spec.parameters_set,
        }
    }

    /// The same spec with this parameter set, or with none.
    pub fn with_parameters_set(self, set: Option<ResourceId>) -> Self {
        match self {
            ClusterSpec::Valkey(spec) => {
                ClusterSpec::Valkey(valkey::spec::ValkeySpec { parameters_set: set, ..spec })
            }
            ClusterSpec::Postgres(spec) => {
                ClusterSpec::Postgres(Box::new(postgres::spec::PostgresSpec { parameters_set: set, ..*spec }))
            }
        }
    }

    /// Its sealed secret.
    pub fn secret(&self) -> &Sealed {
        match self {
            ClusterSpec::Valkey(spec) => &spec.root_password,
            ClusterSpec::Postgres(spec) => &spec.secret,
        }
    }

    /// The same spec with this sealed secret.
    pub fn with_secret(self, sealed: Sealed) -> Self {
        match self {
            ClusterSpec::Valkey(spec) => {
                ClusterSpec::Valkey(valkey::spec::ValkeySpec { root_password: sealed, ..spec })
            }
            ClusterSpec::Postgres(spec) => {
                ClusterSpec::Postgres(Box::new(postgres::spec::PostgresSpec { secret: sealed, ..*spec }))
            }
        }
    }

    /// Rules that need more than the message: offers, and what the installation can do.
    pub fn check_create(&self, settings: &Settings) -> Vec<Violation> {
        match self {
            ClusterSpec::Valkey(spec) => valkey::check::create(spec, settings),
            ClusterSpec::Postgres(spec) => postgres::check::create(spec, settings),
        }
    }

    /// Rules of a change from `self` to `new`.
    pub fn check_modify(&self, new: &ClusterSpec) -> Vec<Violation> {
        match (self, new) {
            (ClusterSpec::Valkey(old), ClusterSpec::Valkey(new)) => valkey::check::modify(old, new),
            (ClusterSpec::Postgres(old), ClusterSpec::Postgres(new)) => postgres::check::modify(old, new),
            // A resource keeps its type; that is refused before anybody comes here.
            (ClusterSpec::Valkey(_), ClusterSpec::Postgres(_))
            | (ClusterSpec::Postgres(_), ClusterSpec::Valkey(_)) => Vec::new(),
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
            (Layout::Valkey(_), ClusterSpec::Postgres(_)) => Err("slots belong to another engine".to_owned()),
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
    Valkey(Box<v1::ValkeyReport>),
    /// From a member of a PostgreSQL cluster.
    Postgres(postgres::facts::Report),
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
            Report::Postgres(_) => None,
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
            Report::Postgres(report) => report.parameters(),
        }
    }

    /// The part of it that decisions rest on and that the log keeps.
    pub fn fact(&self) -> Fact {
        match self {
            Report::Valkey(report) => Fact::Valkey(valkey::facts::fact(report)),
            Report::Postgres(report) => Fact::Postgres(report.fact()),
        }
    }

    /// Whether it follows another member and does not hear it.
    pub fn detached(&self) -> bool {
        match self {
            Report::Valkey(report) => report.role == "slave" && !report.link_up,
            // Patroni sees to it, and nobody is promoted upon this.
            Report::Postgres(_) => false,
        }
    }
}

/// The part of a report that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// From a Valkey node.
    Valkey(valkey::facts::ValkeyFact),
    /// From a member of a PostgreSQL cluster.
    Postgres(postgres::facts::PostgresFact),
}

impl Fact {
    /// The fact of a Valkey node.
    pub fn valkey(&self) -> Option<&valkey::facts::ValkeyFact> {
        match self {
            Fact::Valkey(fact) => Some(fact),
            Fact::Postgres(_) => None,
        }
    }

    /// The fact of a member of a PostgreSQL cluster.
    pub fn postgres(&self) -> Option<&postgres::facts::PostgresFact> {
        match self {
            Fact::Postgres(fact) => Some(fact),
            Fact::Valkey(_) => None,
        }
    }

    /// Whether this claim of primacy is newer than the other.
    pub fn outranks(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => self.claims_primary() && mine.epoch > theirs.epoch,
            (Fact::Postgres(mine), Fact::Postgres(theirs)) => mine.outranks(theirs),
            (Fact::Valkey(_), Fact::Postgres(_)) | (Fact::Postgres(_), Fact::Valkey(_)) => false,
        }
    }

    /// Whether the engine says that it follows the other one.
    pub fn follows(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => {
                mine.role == "slave" && mine.primary_node_id == theirs.node_id
            }
            (Fact::Postgres(mine), Fact::Postgres(theirs)) => mine.follows(theirs),
            (Fact::Valkey(_), Fact::Postgres(_)) | (Fact::Postgres(_), Fact::Valkey(_)) => false,
        }
    }

    /// Whether this may be a copy of what the other one has: it follows it, and is not blank where the other is not.
    pub fn copies(&self, other: &Fact) -> bool {
        match (self, other) {
            (Fact::Valkey(mine), Fact::Valkey(theirs)) => {
                self.follows(other) && (!mine.blank || theirs.blank)
            }
            (Fact::Postgres(_), Fact::Postgres(_)) => self.follows(other),
            (Fact::Valkey(_), Fact::Postgres(_)) | (Fact::Postgres(_), Fact::Valkey(_)) => false,
        }
    }

    /// Whether the engine calls itself a primary.
    pub fn claims_primary(&self) -> bool {
        match self {
            Fact::Valkey(fact) => fact.claims_primary(),
            Fact::Postgres(fact) => fact.claims_primary(),
        }
    }

    /// Whether the engine follows another and may become a primary by the engine's own vote.
    pub fn stands(&self) -> bool {
        match self {
            Fact::Valkey(fact) => fact.stands(),
            // A member that ends in order takes itself out of the race, and one that does not holds a copy that commits wait for.
            Fact::Postgres(_) => false,
        }
    }
}

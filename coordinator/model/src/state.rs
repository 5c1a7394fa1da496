//! The replicated state: everything the members of the coordinator agree on. In: changed by [`crate::apply`] alone. Out: read by
//! the planner, the host specs and the API. Persistent maps, so that a clone for a reader or a snapshot is cheap.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{
    ClusterId, Generation, GroupId, HostId, InstanceId, OperationId, RequestId, ResourceId, TaskId, TokenId,
};

use crate::{
    engine::{EngineKind, Fact},
    resource::{ChangeKind, Kind, Outcome, Resource},
    time::{Millis, Timestamp},
};

/// The replicated state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The newest stamp of the log; never goes back.
    pub now: Timestamp,
    /// Offers and timings.
    pub settings: Settings,
    /// Public resources of all types.
    pub resources: OrdMap<ResourceId, Resource>,
    /// What became of change requests; the newest [`State::REQUESTS_KEPT`].
    pub requests: OrdMap<RequestId, Request>,
    /// What a cluster resource needs to remember besides its spec.
    pub clusters: OrdMap<ClusterId, Cluster>,
    /// Members of groups.
    pub instances: OrdMap<InstanceId, Instance>,
    /// Hosts that ever had a session.
    pub hosts: OrdMap<HostId, Host>,
    /// VXLAN network identifiers of subnets.
    pub vnis: OrdMap<ResourceId, u32>,
    /// By subnet: addresses that were released and when; they rest for [`State::ADDRESS_RESTS`].
    pub resting: OrdMap<ResourceId, BTreeMap<Ipv4Addr, Timestamp>>,
    /// Chains of tasks.
    pub operations: OrdMap<OperationId, Operation>,
    /// Engine steps.
    pub tasks: OrdMap<TaskId, Task>,
    /// API tokens, hashed.
    pub tokens: OrdMap<TokenId, Token>,
    /// What happened, newest [`State::EVENTS_KEPT`].
    pub events: OrdMap<u64, Event>,
    /// Number of the next event.
    pub next_event: u64,
    /// Next free VNI, counted from [`State::FIRST_VNI`].
    pub vnis_used: u32,
}

impl State {
    /// How long a released address is not given out again: longer than the engine's own ban of a forgotten member (60 s), so
    /// that nobody still speaks to the old owner there.
    pub const ADDRESS_RESTS: Millis = Millis::seconds(120);
    /// Change requests kept for polling.
    pub const REQUESTS_KEPT: usize = 20_000;
    /// Events kept.
    pub const EVENTS_KEPT: usize = 2_000;
    /// Ended operations kept.
    pub const OPERATIONS_KEPT: usize = 1_000;
    /// Ended tasks kept of one step of one instance.
    pub const TRIES_KEPT: usize = 8;
    /// The first VNI given to a subnet; lower ones are left to the datacenter.
    pub const FIRST_VNI: u32 = 4_096;

    /// The resource of this type and id.
    pub fn resource(&self, kind: Kind, id: ResourceId) -> Option<&Resource> {
        self.resources.get(&id).filter(|resource| resource.kind() == kind)
    }

    /// Instances of a cluster, by id.
    pub fn instances_of(&self, cluster: ClusterId) -> impl Iterator<Item = &Instance> {
        let ids = self.clusters.get(&cluster).map(|c| c.instances.clone()).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.instances.get(&id))
    }

    /// Tasks of a cluster that are asked for and not ended.
    pub fn running_tasks(&self, cluster: ClusterId) -> impl Iterator<Item = &Task> {
        self.tasks_of(cluster).filter(|task| task.state == TaskState::Running)
    }

    /// All tasks kept of a cluster, oldest first.
    pub fn tasks_of(&self, cluster: ClusterId) -> impl Iterator<Item = &Task> {
        let ids = self.clusters.get(&cluster).map(|cluster| cluster.tasks.as_slice()).unwrap_or_default();
        ids.iter().filter_map(|id| self.tasks.get(id))
    }

    /// What is promised on a host to all instances that are not proved gone.
    pub fn promised(&self, host: HostId) -> Footprint {
        self.instances
            .values()
            .filter(|i| i.host == host)
            .fold(Footprint::default(), |sum, i| sum.plus(i.footprint))
    }
}

/// Offers and timings of the installation, from the coordinator's configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Compute offers by id.
    pub vm_offers: BTreeMap<String, VmOffer>,
    /// Disk offers by id.
    pub volume_offers: BTreeMap<String, VolumeOffer>,
    /// Without contact for that long, a host is declared lost.
    pub lost_after: Millis,
}

/// A compute offer, for example `g3-1c1-100`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmOffer {
    /// Hardware generation.
    pub generation: u32,
    /// Virtual processors.
    pub vcpus: u32,
    /// MiB.
    pub memory_mib: u64,
    /// Percent of each vCPU that is promised.
    pub vcpu_share: u32,
    /// Per instance.
    pub price_hour: f64,
}

/// A disk offer, for example `gp3-750`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeOffer {
    /// I/O operations a second.
    pub iops: u32,
    /// Largest volume, GiB.
    pub max_size_gib: u32,
    /// Per GiB.
    pub price_gib_hour: f64,
}

/// What became of a change request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The resource it changes.
    pub resource: ResourceId,
    /// The resource's type; polling is by type.
    pub kind: Kind,
    /// What it asks for.
    pub change: ChangeKind,
    /// When it was accepted.
    pub at: Timestamp,
    /// How it stands.
    pub outcome: Outcome,
}

/// What a cluster needs to remember besides its resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its engine.
    pub engine: EngineKind,
    /// Its instances, retiring ones included, in the order they were made.
    pub instances: Vec<InstanceId>,
    /// Its tasks that are kept, oldest first.
    pub tasks: Vec<TaskId>,
    /// Whether the cluster served once; from then on it is repaired, not formed.
    pub formed: bool,
    /// Log index of the last change of what guests are configured with.
    pub config_generation: Generation,
    /// Why the last switchover or move was made and when; the rebalancer's budget.
    pub last_move: Option<Timestamp>,
}

/// What an instance takes from its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Hundredths of a core.
    pub vcpu_percent: u64,
    /// MiB.
    pub memory_mib: u64,
    /// GiB.
    pub disk_gib: u64,
    /// I/O operations a second.
    pub iops: u64,
}

impl Footprint {
    /// Both together.
    pub fn plus(self, other: Footprint) -> Footprint {
        Footprint {
            vcpu_percent: self.vcpu_percent.saturating_add(other.vcpu_percent),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
            disk_gib: self.disk_gib.saturating_add(other.disk_gib),
            iops: self.iops.saturating_add(other.iops),
        }
    }

    /// What is short when `self` has to fit into `capacity`, by name; empty when it fits.
    pub fn exceeds(self, capacity: Footprint) -> Vec<&'static str> {
        [
            ("vCPU", self.vcpu_percent > capacity.vcpu_percent),
            ("memory", self.memory_mib > capacity.memory_mib),
            ("disk", self.disk_gib > capacity.disk_gib),
            ("IOPS", self.iops > capacity.iops),
        ]
        .into_iter()
        .filter_map(|(name, short)| short.then_some(name))
        .collect()
    }
}

/// What is wanted of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// It shall run.
    Wanted,
    /// It shall go; it stays here until its host has proved it gone.
    Retiring {
        /// Why, for people.
        cause: String,
    },
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Made by the leader before it proposed the placement.
    pub id: InstanceId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its group.
    pub group: GroupId,
    /// Where it runs.
    pub host: HostId,
    /// Its subnet.
    pub subnet: ResourceId,
    /// The subnet's VPC.
    pub vpc: ResourceId,
    /// Its address.
    pub ipv4: Ipv4Addr,
    /// Its MAC.
    pub mac: String,
    /// What it takes from the host.
    pub footprint: Footprint,
    /// Virtual processors of its machine.
    pub vcpus: u32,
    /// Percent of each vCPU.
    pub vcpu_share: u32,
    /// sha256 of the image it boots.
    pub image_digest: String,
    /// Whether it is the one that starts the group as primary when the cluster forms.
    pub first_primary: bool,
    /// What is wanted of it.
    pub intent: Intent,
    /// The instance it takes the place of, while that one is not retired yet.
    pub replaces: Option<InstanceId>,
    /// When it was placed.
    pub created: Timestamp,
    /// The last logged facts about its engine, with their time.
    pub fact: Option<(Timestamp, Fact)>,
}

impl Instance {
    /// Whether it shall run.
    pub fn wanted(&self) -> bool {
        self.intent == Intent::Wanted
    }
}

/// What the log says about a host's presence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// It has, or had until lately, a session.
    Present,
    /// Declared lost.
    Lost {
        /// When.
        since: Timestamp,
    },
}

/// A condition of a host, as its agent reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCondition {
    /// For example `LimitsEnforced`.
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// For people.
    pub message: String,
}

/// An image on a host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Image {
    /// Engine name of the image.
    pub engine: String,
    /// Engine version.
    pub version: String,
    /// sha256, hex.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// What a host says about itself when it opens a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// For people.
    pub name: String,
    /// Empty when unknown.
    pub rack: String,
    /// Empty when unknown.
    pub zone: String,
    /// Address of the VXLAN underlay.
    pub underlay: Ipv4Addr,
    /// What it has to give.
    pub capacity: Footprint,
    /// Sorted.
    pub images: Vec<Image>,
    /// `namespace` or `cloud-hypervisor`.
    pub vmm: String,
    /// Version of its agent.
    pub agent_version: String,
    /// Changes with every boot of the host.
    pub boot_id: String,
    /// What is not as it should be.
    pub conditions: Vec<HostCondition>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Made once by its agent.
    pub id: HostId,
    /// What it said last.
    pub facts: HostFacts,
    /// What the log says about its presence.
    pub presence: Presence,
    /// Log index of the last change of its desired state.
    pub generation: Generation,
    /// When it was first seen.
    pub created: Timestamp,
}

/// Why an operation exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// A cluster is made.
    Create,
    /// A member is replaced whose host was lost.
    Repair,
    /// A member is moved for the sake of spread.
    Move,
    /// The primary of a group changes on our order.
    Switchover,
    /// Replicas are added.
    Grow,
    /// A cluster is deleted.
    Delete,
}

/// How an operation stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationState {
    /// Not ended.
    Running,
    /// Reached what it was for.
    Succeeded,
    /// Given up, or made pointless by something else.
    Failed {
        /// Why.
        error: String,
    },
}

/// A chain of tasks with one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Made by the leader.
    pub id: OperationId,
    /// Why it exists.
    pub kind: OperationKind,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Why it exists, for people.
    pub cause: String,
    /// When it began.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How it stands.
    pub state: OperationState,
    /// Its tasks in order.
    pub tasks: Vec<TaskId>,
}

/// How a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// Asked for.
    Running,
    /// The engine did it.
    Succeeded,
    /// The engine said no.
    Failed {
        /// The engine's text.
        error: String,
    },
    /// No longer needed: what it was for came about, or became impossible, without it.
    Superseded,
}

/// One engine step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Made by the leader.
    pub id: TaskId,
    /// The operation it belongs to.
    pub operation: OperationId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Who performs it.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// The engine's own message, hex in JSON.
    #[serde(with = "hex::serde")]
    pub payload: Vec<u8>,
    /// How it stands.
    pub state: TaskState,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// Read resources.
    Read,
    /// Create, change and delete resources.
    Write,
    /// See passwords in reads.
    SecretsRead,
    /// Hosts, instances, operations, events, tokens.
    Operator,
    /// Open a host session.
    Host,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 5] = [Scope::Read, Scope::Write, Scope::SecretsRead, Scope::Operator, Scope::Host];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::SecretsRead => "secrets:read",
            Scope::Operator => "operator",
            Scope::Host => "host",
        }
    }
}

/// An API token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its public part.
    pub id: TokenId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// sha256 of the whole token, hex.
    pub hash: String,
    /// When it was made.
    pub created: Timestamp,
}

/// How loud an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Severity {
    /// Worth knowing.
    Normal,
    /// Worth waking somebody, or close to it.
    Warning,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// How loud.
    pub severity: Severity,
    /// One word, for filters.
    pub reason: String,
    /// Kind and id, for example `host/01h…`.
    pub subject: String,
    /// For people.
    pub message: String,
}

/// A secret, sealed with a key that is not in the state. Its debug output shows nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(#[serde(with = "hex::serde")] pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed")
    }
}

//! The replicated state: everything the members of the coordinator agree on. In: changed by [`crate::apply`] alone. Out: read by
//! the planner, the host specs and the API. Persistent maps, so that a clone for a reader or a snapshot is cheap.

mod cluster;
mod cordon;
mod fence;
mod host;
mod moved;
mod operation;
mod parameters;
mod roles;
mod settings;
mod token;

use std::{collections::BTreeMap, net::Ipv4Addr};

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{
    ClusterId, Generation, GroupId, HostId, InstanceId, OperationId, RequestId, ResourceId, TaskId, TokenId,
};

use crate::{
    resource::{ChangeKind, Kind, Outcome, Resource},
    time::{Millis, Timestamp},
};

pub use self::{
    cluster::{Cluster, Instance, Intent},
    cordon::{Cordon, Drain},
    fence::{Fence, lease_ends_after},
    host::{Footprint, Host, HostCondition, HostFacts, Image, Presence},
    moved::{Aim, Moved},
    operation::{Goal, Operation, OperationKind, OperationState, Task, TaskState},
    parameters::{Halted, Parameters, Rolling, Rollout},
    roles::{Dropped, Roles},
    settings::{Settings, SlotMoves, VmOffer, VolumeOffer},
    token::{Scope, Sealed, Token},
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
    /// The longest lease that was ever configured: a host that was not heard since may still go by it.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub longest_lease: Millis,
    /// Log index of the last change of what hosts there are and what is free on them, moves not counted.
    #[serde(default, skip_serializing_if = "first")]
    pub disturbed: Generation,
}

/// Whether nothing was counted yet.
fn first(generation: &Generation) -> bool {
    *generation == Generation::default()
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

    /// The newest cause for which a member of the cluster may be moved.
    pub fn cause_to_move(&self, cluster: ClusterId) -> Generation {
        self.clusters.get(&cluster).map_or(self.disturbed, |cluster| cluster.disturbed.max(self.disturbed))
    }

    /// Instances of a cluster, by id.
    pub fn instances_of(&self, cluster: ClusterId) -> impl Iterator<Item = &Instance> {
        let ids = self.clusters.get(&cluster).map(|c| c.instances.clone()).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.instances.get(&id))
    }

    /// Whether a group of a cluster that has served owns nothing, as far as the log knows: nothing is lost with its members.
    pub fn owns_nothing(&self, cluster: ClusterId, group: GroupId) -> bool {
        let facts = || self.instances_of(cluster).filter_map(|i| Some((i.group, i.id, &i.fact.as_ref()?.1)));
        self.clusters
            .get(&cluster)
            .is_some_and(|cluster| cluster.formed && cluster.engine.owns_nothing(group, facts()))
    }

    /// The member of a cluster that was told its parameters last and has not shown them; none when it is leaving.
    pub fn rolling(&self, cluster: ClusterId) -> Option<Rolling> {
        let rolling = self.clusters.get(&cluster)?.rollout.rolling?;
        self.instances.get(&rolling.instance).filter(|instance| instance.wanted()).map(|_| rolling)
    }

    /// Clusters whose spec names this parameter set.
    pub fn attached_to(&self, set: ResourceId) -> Vec<ClusterId> {
        let names = |id: &&ClusterId| {
            let resource = self.resources.get(&ResourceId::from(**id));
            resource.and_then(|resource| resource.cluster_spec()?.parameters_set()) == Some(set)
        };
        self.clusters.keys().filter(names).copied().collect()
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

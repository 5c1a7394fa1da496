//! Clusters and their instances: what exists besides what users wrote. In: made by placement, changed by facts. Out: read by the
//! planner, the host specs and the views.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{ClusterId, Generation, GroupId, HostId, InstanceId, ResourceId, TaskId};

use super::{Fence, Footprint, Moved, Parameters, Roles, Rollout};
use crate::{
    engine::{ClusterSpec, EngineKind, Fact, GroupSpec, Layout},
    time::{Millis, Timestamp},
};

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
    /// When the last switchover or move began; the rebalancer rests after it.
    pub last_move: Option<Timestamp>,
    /// Hosts that could not run one of its members, and when; the newest [`Cluster::BAD_HOSTS_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bad_hosts: Vec<(HostId, Timestamp)>,
    /// Log index of the last change of its spec, its members or its primaries that no move made.
    #[serde(default, skip_serializing_if = "super::first")]
    pub disturbed: Generation,
    /// Its parameters and how far they are.
    #[serde(default, skip_serializing_if = "Rollout::never_was")]
    pub rollout: Rollout,
    /// Groups that the spec no longer has and that may own data still: their members are wanted until they own nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<GroupSpec>,
    /// The spec before its groups were changed; none when that change is carried out or taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resized_from: Option<ClusterSpec>,
    /// Where the data of the groups shall be, while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Its login roles, where they are resources of their own.
    #[serde(default, skip_serializing_if = "Roles::never_were")]
    pub roles: Roles,
}

impl Cluster {
    /// More are not remembered.
    pub const BAD_HOSTS_KEPT: usize = 8;
    /// That long a host that could not run a member is passed over, as long as there is another.
    pub const BAD_HOST_RESTS: Millis = Millis::seconds(3600);

    /// The groups whose members are wanted: those of the spec, then those that leave.
    pub fn groups(&self, spec: &ClusterSpec) -> Vec<GroupSpec> {
        spec.groups().into_iter().chain(self.leaving.iter().cloned()).collect()
    }

    /// The spec before the change, when the change that is not carried out yet wants more members than that.
    pub fn grows_from(&self, spec: &ClusterSpec) -> Option<&ClusterSpec> {
        let members =
            |spec: &ClusterSpec| spec.groups().iter().map(|group| u64::from(group.members)).sum::<u64>();
        self.resized_from.as_ref().filter(|before| members(before) < members(spec))
    }

    /// Whether the host could not run one of its members lately.
    pub fn passes_over(&self, host: HostId, now: Timestamp) -> bool {
        self.bad_hosts.iter().any(|(bad, at)| *bad == host && now.since(*at) < Self::BAD_HOST_RESTS)
    }

    /// Remembers a host that could not run one of its members.
    pub fn note_bad_host(&mut self, host: HostId, now: Timestamp) {
        self.bad_hosts.retain(|(bad, _)| *bad != host);
        self.bad_hosts.push((host, now));
        let surplus = self.bad_hosts.len().saturating_sub(Self::BAD_HOSTS_KEPT);
        self.bad_hosts.drain(..surplus);
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
    /// Set when it was made for the sake of spread: it is moved once for one cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// The parameters it is configured with.
    #[serde(default, skip_serializing_if = "Parameters::never_set")]
    pub parameters: Parameters,
    /// Log index of the last change of what its guest alone is configured with.
    #[serde(default, skip_serializing_if = "super::first")]
    pub config_generation: Generation,
    /// Log index of the last change for which its engine has to start anew.
    #[serde(default, skip_serializing_if = "super::first")]
    pub restart_generation: Generation,
    /// Set while it must not serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Who led its group when it might serve again, after it had been fenced as its primary, and the log index of that; until something
    /// new is heard of its engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded_by: Option<(InstanceId, Generation)>,
}

impl Instance {
    /// The cause of one that goes because fewer replicas are wanted; the request for fewer is carried out when it is gone.
    pub const FEWER_WANTED: &'static str = "the cluster shall have fewer replicas";

    /// The cause of one that goes because its group was taken out of the spec and owns nothing any more.
    pub const GROUP_REMOVED: &'static str = "its shard was taken away and owns nothing any more";

    /// Whether it goes because the spec wants less; the request is carried out when it is gone.
    pub fn surplus(&self) -> bool {
        match &self.intent {
            Intent::Wanted => false,
            Intent::Retiring { cause } => cause == Self::FEWER_WANTED || cause == Self::GROUP_REMOVED,
        }
    }

    /// Whether it shall run.
    pub fn wanted(&self) -> bool {
        self.intent == Intent::Wanted
    }
}

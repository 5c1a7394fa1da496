//! Hosts: what they said about themselves and what the log says about their presence. In: their hello, and the planner's verdict.
//! Out: read by placement, the host specs and the operator's views.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{Generation, HostId};

use super::{Cordon, Drain};
use crate::time::Timestamp;

/// What an instance takes from its host, or what a host has to give.
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

    /// What is left of `self` without `other`; 0 where `other` is more.
    pub fn minus(self, other: Footprint) -> Footprint {
        Footprint {
            vcpu_percent: self.vcpu_percent.saturating_sub(other.vcpu_percent),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
            disk_gib: self.disk_gib.saturating_sub(other.disk_gib),
            iops: self.iops.saturating_sub(other.iops),
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

impl HostFacts {
    /// Whether what can be placed on the host, or how far it is from others, differs.
    pub fn holds_other_than(&self, other: &HostFacts) -> bool {
        let place = |facts: &HostFacts| {
            (facts.capacity, facts.images.clone(), facts.rack.clone(), facts.zone.clone())
        };
        place(self) != place(other)
    }
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
    /// Set while it gets no new instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<Cordon>,
    /// An operator said that it never returns, while it held a primary whose shard has replicas: it is forgotten when one of them has
    /// taken over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

impl Host {
    /// Whether instances may be placed on it, as far as the log knows.
    pub fn schedulable(&self) -> bool {
        self.presence == Presence::Present && self.cordon.is_none()
    }

    /// How its instances are moved away, when they are.
    pub fn drain(&self) -> Option<&Drain> {
        self.cordon.as_ref().and_then(|cordon| cordon.drain.as_ref())
    }
}

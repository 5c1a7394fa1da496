//! What exists on this host of ours.
//!
//! In: nothing; these are the words. Out: [`NetworkInventory`], which `read` fills from the kernel and `diff` compares.
//! Tests count leaks with it, the agent makes metrics of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::{Ipv4Prefix, Mac},
    name::{self, Namespace},
};

/// What exists of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkInventory {
    /// Namespaces of VPCs.
    pub vpcs: BTreeMap<ResourceId, VpcInventory>,
    /// Namespaces of namespace machines, with their `eth0`.
    pub machines: BTreeMap<InstanceId, Option<LinkInventory>>,
    /// Files named like our namespaces that are none: the agent died between two steps of making or removing one.
    pub debris: BTreeSet<Namespace>,
}

/// One namespace of a VPC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VpcInventory {
    /// Whether the subnets reach each other and IPv6 is off.
    pub sysctls_set: bool,
    /// Names of our nftables tables; the name carries the digest of the content.
    pub filters: BTreeSet<String>,
    /// All interfaces except `lo`, foreign ones included, by name.
    pub links: BTreeMap<String, LinkInventory>,
}

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkInventory {
    /// Its number in its namespace.
    pub index: u32,
    /// What it is.
    pub kind: LinkKind,
    /// The alias, which carries the id of the owner.
    pub alias: Option<String>,
    /// Its own Ethernet address.
    pub mac: Mac,
    /// Bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Name of the bridge it is a port of.
    pub bridge: Option<String>,
    /// Its flags as a port of a bridge; default while it is none.
    pub flags: PortFlags,
    /// IPv4 addresses.
    pub addresses: BTreeSet<Ipv4Prefix>,
    /// MACs that its bridge sends out of this port, and whether the entry is a static one.
    pub stations: BTreeMap<Mac, Station>,
    /// VXLAN devices: where frames for a MAC are sent.
    pub tunnels: BTreeMap<Mac, BTreeSet<Ipv4Addr>>,
    /// Permanent neighbour entries.
    pub neighbours: BTreeMap<Ipv4Addr, Mac>,
}

/// Entry of a bridge's forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Station {
    /// Set by us: does not age, does not move.
    Static,
    /// Learnt, or made an address of the host itself by somebody.
    Other,
}

/// What an interface is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// A bridge.
    Bridge {
        /// Off for ours: no querier lives in a subnet, so snooping would only lose groups.
        multicast_snooping: bool,
    },
    /// A VXLAN device.
    Vxlan(Vxlan),
    /// One end of a veth pair.
    Veth {
        /// Number of the other end in its namespace.
        peer: u32,
    },
    /// A tap.
    Tap(TapFlags),
    /// Something else, as the kernel names it; empty for hardware.
    Other(String),
}

/// What a VXLAN device was made with; a device that differs is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: u32,
    /// Source address of the tunnel.
    pub local: Option<Ipv4Addr>,
    /// UDP port.
    pub port: u16,
    /// Whether it learns from the frames that arrive: never for ours.
    pub learning: bool,
}

/// What a tap was made with; one that differs is made anew (a VMM that was promised other flags refuses it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapFlags {
    /// It stays when nobody has it open.
    pub persistent: bool,
    /// Frames carry the header that virtio wants.
    pub vnet_header: bool,
    /// More than one queue: never for ours, as a VMM must be told the same.
    pub multi_queue: bool,
    /// User id that may attach besides who may configure the network; without one everybody in the namespace may.
    pub owner: Option<u32>,
}

impl TapFlags {
    /// Those of ours. Root's, so that a VMM, which runs in the same namespace as nobody in particular, attaches to none.
    pub const OURS: Self = Self { persistent: true, vnet_header: true, multi_queue: false, owner: Some(0) };
}

/// Flags of a bridge port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFlags {
    /// The bridge learns MACs from it.
    pub learning: bool,
    /// Unknown unicast is sent to it.
    pub unicast_flood: bool,
    /// Multicast is sent to it.
    pub multicast_flood: bool,
    /// Broadcast is sent to it.
    pub broadcast_flood: bool,
    /// ARP requests for what is behind it are answered by the bridge.
    pub neigh_suppress: bool,
}

impl Default for PortFlags {
    /// What the kernel gives a new port.
    fn default() -> Self {
        Self {
            learning: true,
            unicast_flood: true,
            multicast_flood: true,
            broadcast_flood: true,
            neigh_suppress: false,
        }
    }
}

impl NetworkInventory {
    /// Number of interfaces of ours in all VPC namespaces.
    pub fn links(&self) -> usize {
        let links = self.vpcs.values().flat_map(|vpc| &vpc.links);
        links.filter(|(name, link)| name::is_ours(name, link.alias.as_deref())).count()
    }

    /// Whether nothing of ours exists.
    pub fn is_empty(&self) -> bool {
        self.vpcs.is_empty() && self.machines.is_empty() && self.debris.is_empty()
    }
}

//! The steps that lead from what is there to what is wanted.
//!
//! In: nothing; these are the words. Out: [`Step`], which `diff` decides and `run` does, and its text for people. Each
//! step leaves a state from which a new `diff` goes on: the agent may be killed after any of them.

use std::{fmt, net::Ipv4Addr};

use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::{Ipv4Prefix, Mac},
    inventory::PortFlags,
    name::Namespace,
};

/// One change of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove a file that is named like a namespace but is none.
    RemoveDebris(Namespace),
    /// Make a network namespace and keep it as a file.
    MakeNamespace(Namespace),
    /// Let go of a network namespace; the kernel frees it with its last process.
    DropNamespace(Namespace),
    /// Route between the subnets, no IPv6.
    SetSysctls(ResourceId),
    /// Replace the nftables tables of a VPC in one transaction.
    SetFilter {
        /// The VPC.
        vpc: ResourceId,
        /// For `nft -f -`.
        script: String,
    },
    /// Remove an interface; one that is gone already counts as removed.
    DeleteLink {
        /// Where.
        at: Namespace,
        /// Its name.
        name: String,
    },
    /// Make a bridge.
    AddBridge {
        /// Where.
        vpc: ResourceId,
        /// Its name.
        name: String,
        /// MAC of the gateway.
        mac: Mac,
        /// Bytes.
        mtu: u32,
    },
    /// Make a VXLAN device whose tunnel starts in the host's namespace.
    AddVxlan {
        /// Where.
        vpc: ResourceId,
        /// Its name.
        name: String,
        /// Network identifier.
        vni: u32,
        /// Source address of the tunnel.
        local: Ipv4Addr,
        /// Bytes.
        mtu: u32,
    },
    /// Make a port whose far end is `eth0` of a machine.
    AddVeth {
        /// Where.
        vpc: ResourceId,
        /// Its name.
        name: String,
        /// Whose namespace gets the far end.
        instance: InstanceId,
        /// MAC of the far end.
        mac: Mac,
        /// Bytes.
        mtu: u32,
    },
    /// Make a persistent tap.
    AddTap {
        /// Where.
        vpc: ResourceId,
        /// Its name.
        name: String,
        /// Whose it is.
        instance: InstanceId,
    },
    /// Change an interface.
    SetLink {
        /// Where.
        at: Namespace,
        /// Its name.
        name: String,
        /// What to change.
        change: LinkChange,
    },
    /// Change one entry of a table that belongs to an interface.
    SetEntry {
        /// Where.
        vpc: ResourceId,
        /// The interface.
        link: String,
        /// The entry.
        entry: Entry,
        /// Whether it shall be there.
        present: bool,
    },
}

/// A change of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkChange {
    /// Carry this alias.
    Alias(String),
    /// Have this Ethernet address.
    Mac(Mac),
    /// Have this MTU, in bytes.
    Mtu(u32),
    /// Be a port of this bridge.
    Bridge(String),
    /// Have these flags as a port.
    Flags(PortFlags),
    /// Send groups to all ports without asking who is in them.
    NoSnooping,
    /// Be up.
    Up,
    /// Be down: nothing passes.
    Down,
}

/// An entry of a table that belongs to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// An IPv4 address.
    Address(Ipv4Prefix),
    /// A static entry of the bridge: this MAC is behind this port.
    Station(Mac),
    /// An entry of the VXLAN device: this MAC is on that host.
    Tunnel(Mac, Ipv4Addr),
    /// A permanent neighbour.
    Neighbour(Ipv4Addr, Mac),
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vpc(vpc) => write!(f, "VPC {vpc}"),
            Self::Machine(instance) => write!(f, "machine {instance}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveDebris(at) => write!(f, "remove the unfinished namespace file of {at}"),
            Self::MakeNamespace(at) => write!(f, "make the network namespace of {at}"),
            Self::DropNamespace(at) => write!(f, "remove the network namespace of {at}"),
            Self::SetSysctls(vpc) => write!(f, "set forwarding on and IPv6 off in VPC {vpc}"),
            Self::SetFilter { vpc, .. } => write!(f, "replace the packet filter of VPC {vpc}"),
            Self::DeleteLink { at, name } => write!(f, "remove interface {name} of {at}"),
            Self::AddBridge { vpc, name, .. } => write!(f, "make bridge {name} in VPC {vpc}"),
            Self::AddVxlan { vpc, name, vni, .. } => {
                write!(f, "make VXLAN device {name} with VNI {vni} in VPC {vpc}")
            }
            Self::AddVeth { vpc, name, instance, .. } => {
                write!(f, "make port {name} of machine {instance} in VPC {vpc}")
            }
            Self::AddTap { vpc, name, instance } => {
                write!(f, "make tap {name} of machine {instance} in VPC {vpc}")
            }
            Self::SetLink { at, name, change } => write!(f, "set {change} on {name} of {at}"),
            Self::SetEntry { vpc, link, entry, present } => {
                write!(f, "{} {entry} on {link} of VPC {vpc}", if *present { "set" } else { "remove" })
            }
        }
    }
}

impl fmt::Display for LinkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alias(alias) => write!(f, "alias {alias}"),
            Self::Mac(mac) => write!(f, "MAC {mac}"),
            Self::Mtu(mtu) => write!(f, "MTU {mtu}"),
            Self::Bridge(bridge) => write!(f, "bridge {bridge}"),
            Self::Flags(_) => f.write_str("port flags"),
            Self::NoSnooping => f.write_str("multicast snooping off"),
            Self::Up => f.write_str("state up"),
            Self::Down => f.write_str("state down"),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "address {address}"),
            Self::Station(mac) => write!(f, "station {mac}"),
            Self::Tunnel(mac, host) => write!(f, "tunnel of {mac} to {host}"),
            Self::Neighbour(ipv4, mac) => write!(f, "neighbour {ipv4} at {mac}"),
        }
    }
}

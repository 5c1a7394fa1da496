//! What the network of this host shall look like, and the rules it must keep to be carried out at all.
//!
//! In: parsed values (see `parse`). Out: [`WantedNetwork`], and from [`WantedNetwork::check`] the first contradiction
//! in it. `diff` compares it with what is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::{Ipv4Prefix, Mac},
    name,
};

/// Everything that shall exist on this host; what is not in it is swept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedNetwork {
    /// One network namespace each.
    pub vpcs: Vec<WantedVpc>,
}

/// One VPC: its subnets reach each other through their gateways, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedVpc {
    /// Id of the Vpc resource.
    pub vpc: ResourceId,
    /// One bridge and one VXLAN device each.
    pub subnets: Vec<WantedSubnet>,
}

/// One subnet of a VPC, as far as this host has to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedSubnet {
    /// Id of the VpcSubnet resource.
    pub subnet: ResourceId,
    /// VXLAN network identifier, 1 to 16777215, unique in the whole installation.
    pub vni: u32,
    /// The network of the subnet.
    pub cidr: Ipv4Prefix,
    /// Address of the bridge; the same on every host.
    pub gateway: Ipv4Addr,
    /// Machines on this host.
    pub ports: Vec<WantedPort>,
    /// Machines on other hosts.
    pub remotes: Vec<WantedRemote>,
}

/// The port of one machine on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPort {
    /// Whose port it is.
    pub instance: InstanceId,
    /// The only source MAC the port may use.
    pub mac: Mac,
    /// The only source IPv4 address the port may use.
    pub ipv4: Ipv4Addr,
    /// What the machine attaches to.
    pub kind: PortKind,
    /// It is there and passes nothing, in either direction.
    pub cut: bool,
}

/// What a machine attaches to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortKind {
    /// A veth pair whose far end is `eth0` in the machine's own network namespace: namespace machines.
    Veth,
    /// A persistent tap: virtual machines. Only the agent may attach to it, and hands what it attached to the VMM.
    Tap,
}

/// A machine on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRemote {
    /// Its MAC.
    pub mac: Mac,
    /// Its address in the subnet.
    pub ipv4: Ipv4Addr,
    /// The host it is on.
    pub underlay_ipv4: Ipv4Addr,
}

/// A contradiction in the wanted state; nothing is changed on the host then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WantedError {
    /// Two entries with one id.
    #[error("{what} {id} is listed twice")]
    Twice {
        /// vpc, subnet or instance.
        what: &'static str,
        /// The id.
        id: String,
    },
    /// Two ids whose interface names are the same.
    #[error("{first} and {second} would both get the interface name {name}: one of them needs another id")]
    NameCollision {
        /// The name.
        name: String,
        /// The id that came first.
        first: String,
        /// The id that came later.
        second: String,
    },
    /// A VNI that is out of range or used twice.
    #[error("VNI {vni} of subnet {subnet} {why}")]
    Vni {
        /// The VNI.
        vni: u32,
        /// The subnet.
        subnet: ResourceId,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An address of a subnet that cannot be.
    #[error("subnet {subnet}: {address} {why}")]
    Address {
        /// The subnet.
        subnet: ResourceId,
        /// MAC or IPv4 address.
        address: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl WantedNetwork {
    /// Finds the first contradiction.
    pub fn check(&self) -> Result<(), WantedError> {
        let mut vpcs = BTreeSet::new();
        let mut subnets = BTreeSet::new();
        let mut instances = BTreeSet::new();
        let mut vnis = BTreeSet::new();
        for vpc in &self.vpcs {
            once(&mut vpcs, vpc.vpc, "vpc")?;
            let mut names = BTreeMap::new();
            for subnet in &vpc.subnets {
                once(&mut subnets, subnet.subnet, "subnet")?;
                if !(1..=0xff_ffff).contains(&subnet.vni) {
                    let why = "is not from 1 to 16777215";
                    return Err(WantedError::Vni { vni: subnet.vni, subnet: subnet.subnet, why });
                }
                if !vnis.insert(subnet.vni) {
                    let why = "is used by another subnet on this host";
                    return Err(WantedError::Vni { vni: subnet.vni, subnet: subnet.subnet, why });
                }
                claim(&mut names, name::bridge(subnet.subnet), subnet.subnet.to_string())?;
                claim(&mut names, name::vxlan(subnet.subnet), subnet.subnet.to_string())?;
                for port in &subnet.ports {
                    once(&mut instances, port.instance, "instance")?;
                    claim(&mut names, name::port(port.instance), port.instance.to_string())?;
                }
                subnet.check_addresses()?;
            }
        }
        Ok(())
    }
}

impl WantedSubnet {
    /// MAC of the gateway: the same on every host, so that a machine may move without relearning it.
    pub fn gateway_mac(&self) -> Mac {
        let [_, a, b, c] = self.vni.to_be_bytes();
        Mac([0x0a, 0x53, 0x50, a, b, c])
    }

    fn check_addresses(&self) -> Result<(), WantedError> {
        let refuse = |address: String, why| Err(WantedError::Address { subnet: self.subnet, address, why });
        let local = self.ports.iter().map(|port| (port.mac, port.ipv4));
        let remote = self.remotes.iter().map(|remote| (remote.mac, remote.ipv4));
        let mut macs = BTreeSet::from([self.gateway_mac()]);
        let mut ips = BTreeSet::from([self.gateway]);
        if !self.cidr.contains(self.gateway) {
            return refuse(self.gateway.to_string(), "is the gateway but not in the subnet's network");
        }
        for (mac, ipv4) in local.chain(remote) {
            if !mac.is_unicast() {
                return refuse(mac.to_string(), "cannot be a machine's MAC");
            }
            if !self.cidr.contains(ipv4) {
                return refuse(ipv4.to_string(), "is not in the subnet's network");
            }
            if !macs.insert(mac) {
                return refuse(mac.to_string(), "is used twice");
            }
            if !ips.insert(ipv4) {
                return refuse(ipv4.to_string(), "is used twice");
            }
        }
        Ok(())
    }
}

fn once<T: Ord + ToString>(seen: &mut BTreeSet<T>, id: T, what: &'static str) -> Result<(), WantedError> {
    let text = id.to_string();
    if seen.insert(id) { Ok(()) } else { Err(WantedError::Twice { what, id: text }) }
}

fn claim(names: &mut BTreeMap<String, String>, name: String, owner: String) -> Result<(), WantedError> {
    match names.get(&name) {
        None => {
            names.insert(name, owner);
            Ok(())
        }
        Some(first) => Err(WantedError::NameCollision { name, first: first.clone(), second: owner }),
    }
}

#[cfg(test)]
mod tests {
    use super::{PortKind::Veth, *};

    fn port(id: u128, mac: u8, ip: u8) -> WantedPort {
        let instance = InstanceId::from_u128(id);
        WantedPort {
            instance,
            mac: Mac([2, 0, 0, 0, 0, mac]),
            ipv4: Ipv4Addr::new(10, 20, 0, ip),
            kind: Veth,
            cut: false,
        }
    }

    fn check(change: impl FnOnce(&mut WantedSubnet)) -> Option<String> {
        let gateway = Ipv4Addr::new(10, 20, 0, 1);
        let mut subnet = WantedSubnet {
            subnet: ResourceId::from_u128(2),
            vni: 7,
            cidr: Ipv4Prefix { address: Ipv4Addr::new(10, 20, 0, 0), length: 24 },
            gateway,
            ports: vec![port(1, 1, 11), port(2, 2, 12)],
            remotes: vec![WantedRemote {
                mac: Mac([2; 6]),
                ipv4: Ipv4Addr::new(10, 20, 0, 13),
                underlay_ipv4: gateway,
            }],
        };
        change(&mut subnet);
        let vpc = WantedVpc { vpc: ResourceId::from_u128(1), subnets: vec![subnet] };
        WantedNetwork { vpcs: vec![vpc] }.check().err().map(|error| error.to_string())
    }

    #[test]
    fn contradictions_are_found() {
        let contains = |found: Option<String>, text: &str| {
            assert!(found.as_ref().is_some_and(|found| found.contains(text)), "{found:?} should say {text}");
        };
        assert_eq!(check(|_| {}), None);
        contains(check(|s| s.vni = 0), "VNI 0");
        contains(check(|s| s.vni = 1 << 24), "VNI 16777216");
        contains(check(|s| s.gateway = Ipv4Addr::new(10, 21, 0, 1)), "not in the subnet's network");
        contains(check(|s| s.ports[0].ipv4 = Ipv4Addr::new(10, 21, 0, 1)), "not in the subnet's network");
        contains(check(|s| s.ports[0].ipv4 = s.gateway), "used twice");
        contains(check(|s| s.ports[0].mac = s.remotes[0].mac), "used twice");
        contains(check(|s| s.ports[0].mac = s.gateway_mac()), "used twice");
        contains(check(|s| s.remotes[0].mac = Mac([1; 6])), "cannot be a machine's MAC");
        contains(check(|s| s.ports[0].instance = s.ports[1].instance), "listed twice");
        contains(check(|s| s.ports[0].instance = InstanceId::from_u128(2 | 1 << 90)), "spp000000000002");
    }
}

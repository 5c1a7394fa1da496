//! Wanted networks for the tests: a VPC with one subnet and machines spread over the hosts of a lab.
//!
//! In: a network and where its machines are. Out: what each host is to be told.

use std::net::Ipv4Addr;

use shardplane_agent::network::{
    Ipv4Prefix, Mac, PortKind, WantedNetwork, WantedPort, WantedRemote, WantedSubnet, WantedVpc,
};
use shardplane_proto::ids::{InstanceId, ResourceId};

/// A VPC with one subnet, 10.20.0.0/24 unless changed.
#[derive(Clone)]
pub struct Vpc {
    /// Id of the VPC.
    pub vpc: ResourceId,
    /// Id of the subnet.
    pub subnet: ResourceId,
    /// VXLAN network identifier.
    pub vni: u32,
    /// The third number of the subnet's addresses.
    pub third: u8,
    /// What the machines attach to.
    pub kind: PortKind,
    /// The machines.
    pub machines: Vec<Machine>,
}

/// A machine and the host it is on.
#[derive(Clone)]
pub struct Machine {
    /// Its id.
    pub instance: InstanceId,
    /// Its MAC.
    pub mac: Mac,
    /// Its address.
    pub ipv4: Ipv4Addr,
    /// Its port is cut.
    pub cut: bool,
    /// Number of its host in the lab, from 0.
    pub host: usize,
}

impl Vpc {
    /// A VPC with one machine on each of these hosts, the first with the address 10.20.0.11.
    pub fn new(vni: u32, hosts: &[usize]) -> Self {
        let id = || ResourceId::from_u128(rand::random());
        let mut vpc =
            Self { vpc: id(), subnet: id(), vni, third: 0, kind: PortKind::Veth, machines: Vec::new() };
        hosts.iter().for_each(|host| vpc.add(*host));
        vpc
    }

    /// Another subnet of the same VPC, with one machine on each of these hosts.
    pub fn another_subnet(&self, vni: u32, third: u8, hosts: &[usize]) -> Self {
        let mut other = Self { vpc: self.vpc, third, ..Self::new(vni, &[]) };
        hosts.iter().for_each(|host| other.add(*host));
        other
    }

    /// Adds a machine on this host.
    pub fn add(&mut self, host: usize) {
        let number = 11 + self.machines.len() as u8;
        let [_, a, b, c] = self.vni.to_be_bytes();
        self.machines.push(Machine {
            instance: InstanceId::from_u128(rand::random()),
            mac: Mac([2, a, b, c, 0, number]),
            ipv4: Ipv4Addr::new(10, 20, self.third, number),
            cut: false,
            host,
        });
    }

    /// What this host is to be told about the VPC.
    pub fn on(&self, host: usize) -> WantedVpc {
        WantedVpc { vpc: self.vpc, subnets: vec![self.subnet_on(host)] }
    }

    /// What this host is to be told about the subnet.
    pub fn subnet_on(&self, host: usize) -> WantedSubnet {
        let (here, there): (Vec<&Machine>, Vec<&Machine>) =
            self.machines.iter().partition(|machine| machine.host == host);
        let port = |m: &&Machine| WantedPort {
            instance: m.instance,
            mac: m.mac,
            ipv4: m.ipv4,
            kind: self.kind,
            cut: m.cut,
        };
        let remote = |m: &&Machine| WantedRemote {
            mac: m.mac,
            ipv4: m.ipv4,
            underlay_ipv4: Ipv4Addr::new(172, 31, 0, m.host as u8 + 1),
        };
        WantedSubnet {
            subnet: self.subnet,
            vni: self.vni,
            cidr: Ipv4Prefix { address: Ipv4Addr::new(10, 20, self.third, 0), length: 24 },
            gateway: Ipv4Addr::new(10, 20, self.third, 1),
            ports: here.iter().map(port).collect(),
            remotes: there.iter().map(remote).collect(),
        }
    }
}

/// What this host is to be told about these VPCs of one subnet each.
pub fn network(host: usize, vpcs: &[&Vpc]) -> WantedNetwork {
    WantedNetwork { vpcs: vpcs.iter().map(|vpc| vpc.on(host)).collect() }
}

/// The network of the agent that is killed: two machines here and one elsewhere, the same in every process.
pub fn doomed() -> Vpc {
    let mut vpc = Vpc::new(500, &[0, 0, 1]);
    (vpc.vpc, vpc.subnet) = (ResourceId::from_u128(1), ResourceId::from_u128(2));
    for (number, machine) in (1..).zip(&mut vpc.machines) {
        machine.instance = InstanceId::from_u128(number);
    }
    vpc
}

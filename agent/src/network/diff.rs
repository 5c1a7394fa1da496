//! Decides which steps lead from what is there to what is wanted.
//!
//! In: [`WantedNetwork`] (checked), [`NetworkInventory`] and the facts of the host. Out: [`Plan`]. Pure; called by
//! `Network::ensure`, which has the steps done by `run`. Removals come first, of all VPCs, because a VNI or an instance may
//! have moved from one VPC to another.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::Mac,
    filter::Filter,
    inventory::{LinkInventory, LinkKind, NetworkInventory, TapFlags, VpcInventory, Vxlan},
    links::{self, EntriesOf},
    name::{self, Namespace},
    step::{LinkChange, Step},
    wanted::{PortKind, WantedNetwork, WantedPort, WantedSubnet, WantedVpc},
};

/// What the host adds to the wanted state.
#[derive(Debug, Clone, Copy)]
pub struct HostFacts {
    /// Source address of the tunnels.
    pub underlay_ipv4: Ipv4Addr,
    /// MTU of the machines, in bytes.
    pub mtu: u32,
}

/// UDP port of VXLAN, as assigned.
pub(super) const VXLAN_PORT: u16 = 4789;

/// An interface of somebody else that has the name of one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTaken {
    /// The name.
    pub name: String,
    /// What its alias says.
    pub alias: String,
}

/// Steps that depend on each other: after a failure the rest of the group is of no use, the other groups are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What they are about.
    pub of: Namespace,
    /// The steps in order, or why there can be none.
    pub steps: Result<Vec<Step>, NameTaken>,
}

/// All steps, in the order in which they are to be done.
pub type Plan = Vec<Group>;

/// The steps that make `have` into `wanted`; none when it is so already.
pub fn diff(wanted: &WantedNetwork, have: &NetworkInventory, host: HostFacts) -> Plan {
    let mut plan = Plan::new();
    let mut push = |of, steps: Result<Vec<Step>, NameTaken>| {
        if !matches!(&steps, Ok(steps) if steps.is_empty()) {
            plan.push(Group { of, steps });
        }
    };
    for of in &have.debris {
        push(*of, Ok(vec![Step::RemoveDebris(*of)]));
    }
    let mut left = have.clone();
    // First of all, each for itself: what is cut must not wait for anything else.
    for (vpc, name) in to_cut(wanted, have) {
        let at = Namespace::Vpc(vpc);
        push(at, Ok(vec![Step::SetLink { at, name: name.clone(), change: LinkChange::Down }]));
        if let Some(link) = left.vpcs.get_mut(&vpc).and_then(|vpc| vpc.links.get_mut(&name)) {
            link.up = false;
        }
    }
    let wanted_vpcs: BTreeMap<ResourceId, &WantedVpc> =
        wanted.vpcs.iter().map(|vpc| (vpc.vpc, vpc)).collect();
    for (id, vpc) in &have.vpcs {
        let at = Namespace::Vpc(*id);
        let doomed = match wanted_vpcs.get(id) {
            Some(wanted) => doomed_links(wanted, vpc, have, host),
            None => vpc
                .links
                .iter()
                .filter(|(name, link)| is_ours(name, link))
                .map(|(name, _)| name.clone())
                .collect(),
        };
        let mut steps: Vec<_> =
            doomed.iter().map(|name| Step::DeleteLink { at, name: name.clone() }).collect();
        if wanted_vpcs.contains_key(id) {
            if let Some(vpc) = left.vpcs.get_mut(id) {
                forget_links(vpc, &doomed);
            }
        } else {
            steps.push(Step::DropNamespace(at));
            left.vpcs.remove(id);
        }
        push(at, Ok(steps));
    }
    let wanted_machines: BTreeSet<InstanceId> = wanted
        .vpcs
        .iter()
        .flat_map(|vpc| &vpc.subnets)
        .flat_map(|subnet| &subnet.ports)
        .filter(|port| port.kind == PortKind::Veth)
        .map(|port| port.instance)
        .collect();
    for id in have.machines.keys().filter(|id| !wanted_machines.contains(id)) {
        let of = Namespace::Machine(*id);
        push(of, Ok(vec![Step::DropNamespace(of)]));
    }
    for vpc in &wanted.vpcs {
        push(Namespace::Vpc(vpc.vpc), build(vpc, &left, host));
    }
    plan
}

/// Ports that are up and shall be cut.
fn to_cut(wanted: &WantedNetwork, have: &NetworkInventory) -> Vec<(ResourceId, String)> {
    let ports = wanted.vpcs.iter().flat_map(|vpc| {
        let ports = vpc.subnets.iter().flat_map(|subnet| &subnet.ports);
        ports.filter(|port| port.cut).map(|port| (vpc.vpc, name::port(port.instance)))
    });
    let up = |(vpc, name): &(ResourceId, String)| {
        let link = have.vpcs.get(vpc).and_then(|vpc| vpc.links.get(name));
        link.is_some_and(|link| link.up && is_ours(name, link))
    };
    ports.filter(up).collect()
}

fn is_ours(name: &str, link: &LinkInventory) -> bool {
    name::is_ours(name, link.alias.as_deref())
}

/// Our interfaces that are not wanted or cannot be made right as they are.
fn doomed_links(
    wanted: &WantedVpc,
    have: &VpcInventory,
    all: &NetworkInventory,
    host: HostFacts,
) -> BTreeSet<String> {
    let mut keep = BTreeSet::new();
    for subnet in &wanted.subnets {
        let bridge = name::bridge(subnet.subnet);
        if matches!(have.links.get(&bridge), Some(LinkInventory { kind: LinkKind::Bridge { .. }, .. })) {
            keep.insert(bridge);
        }
        let vxlan = name::vxlan(subnet.subnet);
        if have.links.get(&vxlan).is_some_and(|link| link.kind == LinkKind::Vxlan(vxlan_of(subnet, host))) {
            keep.insert(vxlan);
        }
        for port in &subnet.ports {
            let near = name::port(port.instance);
            let far = all.machines.get(&port.instance).and_then(Option::as_ref);
            let sound = |link: &LinkInventory| match port.kind {
                PortKind::Veth => far.is_some_and(|far| {
                    link.kind == (LinkKind::Veth { peer: far.index })
                        && far.kind == (LinkKind::Veth { peer: link.index })
                }),
                PortKind::Tap => link.kind == LinkKind::Tap(TapFlags::OURS),
            };
            if have.links.get(&near).is_some_and(sound) {
                keep.insert(near);
            }
        }
    }
    let ours = have.links.iter().filter(|(name, link)| is_ours(name, link) && !keep.contains(*name));
    ours.map(|(name, _)| name.clone()).collect()
}

/// What the removal of these interfaces leaves.
fn forget_links(vpc: &mut VpcInventory, doomed: &BTreeSet<String>) {
    vpc.links.retain(|name, _| !doomed.contains(name));
    for link in vpc.links.values_mut() {
        if link.bridge.as_ref().is_some_and(|bridge| doomed.contains(bridge)) {
            links::leave_bridge(link);
        }
    }
}

fn vxlan_of(subnet: &WantedSubnet, host: HostFacts) -> Vxlan {
    Vxlan { vni: subnet.vni, local: Some(host.underlay_ipv4), port: VXLAN_PORT, learning: false }
}

/// The steps that make and correct what one VPC needs.
fn build(wanted: &WantedVpc, have: &NetworkInventory, host: HostFacts) -> Result<Vec<Step>, NameTaken> {
    let vpc = wanted.vpc;
    let mut steps = Vec::new();
    let nothing = VpcInventory::default();
    let there = have.vpcs.get(&vpc).unwrap_or_else(|| {
        steps.push(Step::MakeNamespace(Namespace::Vpc(vpc)));
        &nothing
    });
    if !there.sysctls_set {
        steps.push(Step::SetSysctls(vpc));
    }
    // Before any port: a port is never up without its filter.
    if let Some(script) = Filter::of(wanted).script(&there.filters) {
        steps.push(Step::SetFilter { vpc, script });
    }
    for subnet in &wanted.subnets {
        build_subnet(&mut steps, vpc, subnet, there, host)?;
        for port in &subnet.ports {
            build_port(&mut steps, vpc, subnet, port, there, have, host)?;
        }
    }
    Ok(steps)
}

fn existing<'a>(there: &'a VpcInventory, name: &str) -> Result<Option<&'a LinkInventory>, NameTaken> {
    match there.links.get(name) {
        Some(link) if !is_ours(name, link) => {
            Err(NameTaken { name: name.to_owned(), alias: link.alias.clone().unwrap_or_default() })
        }
        found => Ok(found),
    }
}

fn build_subnet(
    steps: &mut Vec<Step>,
    vpc: ResourceId,
    subnet: &WantedSubnet,
    there: &VpcInventory,
    host: HostFacts,
) -> Result<(), NameTaken> {
    let (bridge, vxlan) = (name::bridge(subnet.subnet), name::vxlan(subnet.subnet));
    let mac = subnet.gateway_mac();
    let link = existing(there, &bridge)?.cloned().unwrap_or_else(|| {
        steps.push(Step::AddBridge { vpc, name: bridge.clone(), mac, mtu: host.mtu });
        links::fresh(LinkKind::Bridge { multicast_snooping: false }, mac, host.mtu)
    });
    let want = links::bridge(subnet, host.mtu);
    links::correct(steps, Namespace::Vpc(vpc), &bridge, &link, &want);
    links::correct_entries(steps, vpc, &bridge, &link, &EntriesOf::bridge(subnet));

    let link = existing(there, &vxlan)?.cloned().unwrap_or_else(|| {
        let (vni, local, mtu) = (subnet.vni, host.underlay_ipv4, host.mtu);
        steps.push(Step::AddVxlan { vpc, name: vxlan.clone(), vni, local, mtu });
        links::fresh(LinkKind::Vxlan(vxlan_of(subnet, host)), mac, host.mtu)
    });
    let want = links::vxlan(subnet, &bridge, host.mtu);
    let link = links::correct(steps, Namespace::Vpc(vpc), &vxlan, &link, &want);
    links::correct_entries(steps, vpc, &vxlan, &link, &EntriesOf::vxlan(subnet));
    Ok(())
}

fn build_port(
    steps: &mut Vec<Step>,
    vpc: ResourceId,
    subnet: &WantedSubnet,
    port: &WantedPort,
    there: &VpcInventory,
    have: &NetworkInventory,
    host: HostFacts,
) -> Result<(), NameTaken> {
    let name = name::port(port.instance);
    let at = Namespace::Machine(port.instance);
    let link = match existing(there, &name)? {
        Some(link) => {
            match (port.kind, have.machines.get(&port.instance)) {
                (PortKind::Veth, Some(Some(far))) => {
                    links::correct(steps, at, "eth0", far, &links::far_end(port, host.mtu));
                }
                (PortKind::Veth, Some(None) | None) | (PortKind::Tap, _) => {}
            }
            link.clone()
        }
        None => match port.kind {
            PortKind::Veth => {
                match have.machines.get(&port.instance) {
                    None => steps.push(Step::MakeNamespace(at)),
                    // Not the far end of a port of ours, or of one that is removed above.
                    Some(Some(_)) => steps.push(Step::DeleteLink { at, name: "eth0".to_owned() }),
                    Some(None) => {}
                }
                let (instance, mac, mtu) = (port.instance, port.mac, host.mtu);
                steps.push(Step::AddVeth { vpc, name: name.clone(), instance, mac, mtu });
                links::fresh(LinkKind::Veth { peer: 0 }, port.mac, host.mtu)
            }
            PortKind::Tap => {
                steps.push(Step::AddTap { vpc, name: name.clone(), instance: port.instance });
                // The kernel gives it a MAC of its own, which must not be the machine's, and the usual MTU.
                links::fresh(LinkKind::Tap(TapFlags::OURS), Mac([0; 6]), 0)
            }
        },
    };
    let want = links::near_end(port, &name::bridge(subnet.subnet), host.mtu);
    // Without the far end's own MAC: that of the near end is nobody's business.
    let link = links::correct(steps, Namespace::Vpc(vpc), &name, &link, &want);
    links::correct_entries(steps, vpc, &name, &link, &EntriesOf::port(port));
    Ok(())
}

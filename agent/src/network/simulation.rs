//! A kernel of maps: what each step does to an inventory. Tests of `diff` only.
//!
//! In: an inventory and steps. Out: the inventory after them. With it `diff` is checked on thousands of networks, and on
//! an agent that is killed after every single step.

use proptest::prelude::*;
use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::{Ipv4Prefix, Mac},
    diff::{HostFacts, Plan, VXLAN_PORT, diff},
    filter::TABLE_PREFIX,
    inventory::{LinkInventory, LinkKind, NetworkInventory, Station, TapFlags, VpcInventory, Vxlan},
    links,
    name::Namespace,
    step::{Entry, LinkChange, Step},
    wanted::{PortKind, WantedNetwork, WantedPort, WantedRemote, WantedSubnet, WantedVpc},
};

const HOST: HostFacts = HostFacts { underlay_ipv4: std::net::Ipv4Addr::new(172, 31, 0, 1), mtu: 1450 };

/// Does one step; panics where the kernel would refuse it.
fn apply(have: &mut NetworkInventory, step: &Step, number: u32) {
    match step {
        Step::RemoveDebris(namespace) => assert!(have.debris.remove(namespace)),
        Step::MakeNamespace(namespace) => {
            assert!(!have.debris.contains(namespace), "the file exists");
            match namespace {
                Namespace::Vpc(vpc) => assert_eq!(have.vpcs.insert(*vpc, VpcInventory::default()), None),
                Namespace::Machine(instance) => assert_eq!(have.machines.insert(*instance, None), None),
            }
        }
        Step::DropNamespace(Namespace::Vpc(vpc)) => assert!(have.vpcs.remove(vpc).is_some()),
        Step::DropNamespace(Namespace::Machine(instance)) => {
            assert!(have.machines.remove(instance).is_some())
        }
        Step::SetSysctls(vpc) => have.vpcs.get_mut(vpc).unwrap().sysctls_set = true,
        Step::SetFilter { vpc, script } => {
            let filters = &mut have.vpcs.get_mut(vpc).unwrap().filters;
            for line in script.lines() {
                if let Some(name) = line.strip_prefix("delete table bridge ") {
                    assert!(filters.remove(name));
                } else if let Some(name) = line.strip_prefix("table bridge ") {
                    filters.insert(name.trim_end_matches(" {").to_owned());
                }
            }
        }
        Step::DeleteLink { at: Namespace::Vpc(vpc), name } => delete(have, *vpc, name),
        Step::DeleteLink { at: Namespace::Machine(instance), .. } => {
            *have.machines.get_mut(instance).unwrap() = None
        }
        Step::AddBridge { vpc, name, mac, mtu } => {
            add(
                have,
                *vpc,
                name,
                links::fresh(LinkKind::Bridge { multicast_snooping: false }, *mac, *mtu),
                number,
            );
        }
        Step::AddVxlan { vpc, name, vni, local, mtu } => {
            let taken = have
                .vpcs
                .values()
                .flat_map(|vpc| vpc.links.values())
                .any(|link| matches!(&link.kind, LinkKind::Vxlan(other) if other.vni == *vni));
            assert!(!taken, "VNI {vni} is in use on this host");
            let kind = Vxlan { vni: *vni, local: Some(*local), port: VXLAN_PORT, learning: false };
            add(have, *vpc, name, links::fresh(LinkKind::Vxlan(kind), Mac([2; 6]), *mtu), number);
        }
        Step::AddVeth { vpc, name, instance, mac, mtu } => {
            let mut far = links::fresh(LinkKind::Veth { peer: number }, *mac, *mtu);
            far.index = number + 1;
            let eth0 = have.machines.get_mut(instance).unwrap();
            assert_eq!(*eth0, None, "eth0 exists");
            *eth0 = Some(far);
            add(
                have,
                *vpc,
                name,
                links::fresh(LinkKind::Veth { peer: number + 1 }, Mac([4; 6]), *mtu),
                number,
            );
        }
        Step::AddTap { vpc, name, .. } => {
            add(have, *vpc, name, links::fresh(LinkKind::Tap(TapFlags::OURS), Mac([6; 6]), 1500), number);
        }
        Step::SetLink { at, name, change } => {
            let link = match at {
                Namespace::Vpc(vpc) => have.vpcs.get_mut(vpc).unwrap().links.get_mut(name),
                Namespace::Machine(instance) => have.machines.get_mut(instance).unwrap().as_mut(),
            };
            change_link(link.unwrap(), change);
        }
        Step::SetEntry { vpc, link, entry, present } => {
            let links = &mut have.vpcs.get_mut(vpc).unwrap().links;
            let bridge = links[link].bridge.clone();
            if let Entry::Station(mac) = entry
                && *present
            {
                // One bridge has a MAC once.
                let others = links.values_mut().filter(|other| other.bridge == bridge);
                others.for_each(|other| {
                    other.stations.remove(mac);
                });
            }
            set_entry(links.get_mut(link).unwrap(), *entry, *present);
        }
    }
}

fn add(have: &mut NetworkInventory, vpc: ResourceId, name: &str, mut link: LinkInventory, index: u32) {
    link.index = index;
    assert_eq!(have.vpcs.get_mut(&vpc).unwrap().links.insert(name.to_owned(), link), None);
}

fn delete(have: &mut NetworkInventory, vpc: ResourceId, name: &str) {
    let links = &mut have.vpcs.get_mut(&vpc).unwrap().links;
    let Some(gone) = links.remove(name) else { return };
    for link in links.values_mut().filter(|link| link.bridge.as_deref() == Some(name)) {
        links::leave_bridge(link);
    }
    for eth0 in have.machines.values_mut() {
        if eth0.as_ref().is_some_and(|eth0| eth0.kind == LinkKind::Veth { peer: gone.index }) {
            *eth0 = None;
        }
    }
}

fn change_link(link: &mut LinkInventory, change: &LinkChange) {
    match change {
        LinkChange::Alias(alias) => link.alias = Some(alias.clone()),
        LinkChange::Mac(mac) => link.mac = *mac,
        LinkChange::Mtu(mtu) => link.mtu = *mtu,
        LinkChange::Bridge(bridge) => {
            links::leave_bridge(link);
            link.bridge = Some(bridge.clone());
        }
        LinkChange::Flags(flags) => {
            assert!(link.bridge.is_some());
            link.flags = *flags;
        }
        LinkChange::NoSnooping => link.kind = LinkKind::Bridge { multicast_snooping: false },
        LinkChange::Up => link.up = true,
        LinkChange::Down => link.up = false,
    }
}

fn set_entry(link: &mut LinkInventory, entry: Entry, present: bool) {
    match entry {
        Entry::Address(prefix) if present => drop(link.addresses.insert(prefix)),
        Entry::Address(prefix) => drop(link.addresses.remove(&prefix)),
        Entry::Station(mac) if present => drop(link.stations.insert(mac, Station::Static)),
        Entry::Station(mac) => drop(link.stations.remove(&mac)),
        Entry::Tunnel(mac, host) if present => drop(link.tunnels.entry(mac).or_default().insert(host)),
        Entry::Tunnel(mac, host) => {
            let hosts = link.tunnels.get_mut(&mac).unwrap();
            hosts.remove(&host);
            if hosts.is_empty() {
                link.tunnels.remove(&mac);
            }
        }
        Entry::Neighbour(ipv4, mac) if present => drop(link.neighbours.insert(ipv4, mac)),
        Entry::Neighbour(ipv4, _) => drop(link.neighbours.remove(&ipv4)),
    }
}

fn steps(plan: &Plan) -> Vec<Step> {
    plan.iter().flat_map(|group| group.steps.clone().unwrap()).collect()
}

fn carry_out(have: &mut NetworkInventory, steps: &[Step], number: &mut u32) {
    for step in steps {
        *number += 2;
        apply(have, step, *number);
    }
}

fn bring(have: &mut NetworkInventory, wanted: &WantedNetwork, number: &mut u32) {
    let steps = steps(&diff(wanted, have, HOST));
    carry_out(have, &steps, number);
}

/// A network drawn from few ids, so that two of them have much in common: machines move between subnets and VPCs,
/// from this host to others, and change their addresses.
fn network() -> impl Strategy<Value = WantedNetwork> {
    let machine = (0..4_u8, any::<bool>(), 0..3_u8, 0..8_u8, any::<bool>());
    let machines = proptest::collection::vec(proptest::option::of(machine), 6);
    (machines, proptest::collection::vec(any::<bool>(), 4), any::<bool>()).prop_map(
        |(machines, there, swapped)| {
            let mut subnets: Vec<WantedSubnet> = (0..4_u8).map(|number| subnet(number, swapped)).collect();
            for (id, machine) in (1_u8..).zip(machines) {
                let Some((at, local, shift, host, is_tap)) = machine else { continue };
                let mac = Mac([2, 0, 0, 0, 0, id + shift]);
                let ipv4 = std::net::Ipv4Addr::new(10, 20, at, 10 + id + shift);
                let subnet = &mut subnets[usize::from(at)];
                let taken = subnet
                    .ports
                    .iter()
                    .map(|p| p.mac)
                    .chain(subnet.remotes.iter().map(|r| r.mac))
                    .any(|m| m == mac);
                if taken {
                    continue;
                }
                if local {
                    let instance = InstanceId::from_u128(u128::from(id));
                    subnet.ports.push(WantedPort {
                        instance,
                        mac,
                        ipv4,
                        kind: if is_tap { PortKind::Tap } else { PortKind::Veth },
                        cut: host % 4 == 3,
                    });
                } else {
                    let underlay_ipv4 = std::net::Ipv4Addr::new(172, 31, 0, 2 + host);
                    subnet.remotes.push(WantedRemote { mac, ipv4, underlay_ipv4 });
                }
            }
            let mut vpcs: Vec<WantedVpc> = Vec::new();
            for (number, subnet) in subnets.into_iter().enumerate() {
                let vpc = ResourceId::from_u128(100 + number as u128 / 2);
                if there[number] {
                    match vpcs.iter_mut().find(|other| other.vpc == vpc) {
                        Some(found) => found.subnets.push(subnet),
                        None => vpcs.push(WantedVpc { vpc, subnets: vec![subnet] }),
                    }
                }
            }
            WantedNetwork { vpcs }
        },
    )
}

fn subnet(number: u8, swapped: bool) -> WantedSubnet {
    WantedSubnet {
        subnet: ResourceId::from_u128(200 + u128::from(number)),
        vni: 1 + u32::from(if swapped { 3 - number } else { number }),
        cidr: Ipv4Prefix { address: std::net::Ipv4Addr::new(10, 20, number, 0), length: 24 },
        gateway: std::net::Ipv4Addr::new(10, 20, number, 1),
        ports: Vec::new(),
        remotes: Vec::new(),
    }
}

proptest! {
    #[test]
    fn any_network_leads_to_any_other_also_when_the_agent_is_killed_on_the_way(
        old in network(), new in network(), killed_after in 0_usize..200, debris in any::<bool>(),
    ) {
        prop_assert_eq!(old.check(), Ok(()));
        prop_assert_eq!(new.check(), Ok(()));
        let (mut have, mut number) = (NetworkInventory::default(), 0);
        bring(&mut have, &old, &mut number);
        prop_assert_eq!(diff(&old, &have, HOST), Plan::new());

        let on_the_way = steps(&diff(&new, &have, HOST));
        carry_out(&mut have, &on_the_way[..killed_after.min(on_the_way.len())], &mut number);
        if debris {
            have.debris.insert(Namespace::Machine(InstanceId::from_u128(99)));
        }
        bring(&mut have, &new, &mut number);
        prop_assert_eq!(diff(&new, &have, HOST), Plan::new());
        for link in have.vpcs.values().flat_map(|vpc| vpc.links.values()) {
            prop_assert!(matches!(&link.kind, LinkKind::Tap(flags) if *flags == TapFlags::OURS)
                || !matches!(link.kind, LinkKind::Tap(_)));
            prop_assert_eq!(link.mtu, HOST.mtu);
        }
        for vpc in have.vpcs.values() {
            prop_assert!(vpc.filters.len() == 1 && vpc.filters.iter().all(|name| name.starts_with(TABLE_PREFIX)));
        }

        bring(&mut have, &WantedNetwork::default(), &mut number);
        prop_assert!(have.is_empty());
    }

    #[test]
    fn a_port_is_never_up_before_the_filter_that_names_it(old in network(), new in network()) {
        let (mut have, mut number) = (NetworkInventory::default(), 0);
        bring(&mut have, &old, &mut number);
        for group in diff(&new, &have, HOST) {
            // A port that becomes one of another kind is still the one that the filter in force names.
            let in_force = matches!(group.of, Namespace::Vpc(vpc)
                if have.vpcs.get(&vpc).is_some_and(|vpc| !vpc.filters.is_empty()));
            let steps = group.steps.unwrap();
            let filter = steps.iter().position(|step| matches!(step, Step::SetFilter { .. }));
            let port = steps
                .iter()
                .position(|step| matches!(step, Step::AddVeth { .. } | Step::AddTap { .. }));
            if let Some(port) = port {
                prop_assert!(filter.map_or(in_force, |filter| filter < port), "{:?}", steps);
            }
        }
    }
}

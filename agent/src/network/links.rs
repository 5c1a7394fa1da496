//! How one interface shall look, and the steps that correct one that does not.
//!
//! In: a wanted subnet or port and what is there of it. Out: steps. Pure; called by `diff`.
//!
//! ARP crosses no tunnel: every machine of the subnet is a permanent neighbour of the bridge, and the tunnel's port has
//! `neigh_suppress`, so the bridge itself answers requests for machines on other hosts. Nothing is flooded into a
//! tunnel: the cost of a broadcast would grow with the subnet, and a machine could multiply its own traffic by it. The
//! bridge does not learn: where each MAC is stands in the spec, and a frame cannot change it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use shardplane_proto::ids::ResourceId;

use super::{
    addr::{Ipv4Prefix, Mac},
    inventory::{LinkInventory, LinkKind, PortFlags, Station},
    name::{self, Namespace},
    step::{Entry, LinkChange, Step},
    wanted::{WantedPort, WantedSubnet},
};

/// What an interface shall have; `None` is left as it is.
pub(super) struct WantedLink {
    alias: Option<String>,
    mac: Option<Mac>,
    mtu: u32,
    /// `None`: its own business.
    up: Option<bool>,
    port_of: Option<(String, PortFlags)>,
}

/// The bridge of a subnet.
pub(super) fn bridge(subnet: &WantedSubnet, mtu: u32) -> WantedLink {
    let alias = Some(name::alias(subnet.subnet));
    WantedLink { alias, mac: Some(subnet.gateway_mac()), mtu, up: Some(true), port_of: None }
}

/// The VXLAN device of a subnet.
pub(super) fn vxlan(subnet: &WantedSubnet, bridge: &str, mtu: u32) -> WantedLink {
    let flags = PortFlags {
        learning: false,
        unicast_flood: false,
        multicast_flood: false,
        broadcast_flood: false,
        neigh_suppress: true,
    };
    let alias = Some(name::alias(subnet.subnet));
    WantedLink { alias, mac: None, mtu, up: Some(true), port_of: Some((bridge.to_owned(), flags)) }
}

/// The bridge's end of a port; of a virtual machine the tap itself, which its VMM neither sets up nor gives an MTU.
pub(super) fn near_end(port: &WantedPort, bridge: &str, mtu: u32) -> WantedLink {
    let flags = PortFlags {
        learning: false,
        unicast_flood: false,
        multicast_flood: true,
        broadcast_flood: true,
        neigh_suppress: false,
    };
    let alias = Some(name::alias(port.instance));
    WantedLink { alias, mac: None, mtu, up: Some(!port.cut), port_of: Some((bridge.to_owned(), flags)) }
}

/// The machine's end of a port. The machine itself sets it up.
pub(super) fn far_end(port: &WantedPort, mtu: u32) -> WantedLink {
    WantedLink { alias: None, mac: Some(port.mac), mtu, up: None, port_of: None }
}

/// An interface that has just been made.
pub(super) fn fresh(kind: LinkKind, mac: Mac, mtu: u32) -> LinkInventory {
    LinkInventory {
        index: 0,
        kind,
        alias: None,
        mac,
        mtu,
        up: false,
        bridge: None,
        flags: PortFlags::default(),
        addresses: BTreeSet::new(),
        stations: BTreeMap::new(),
        tunnels: BTreeMap::new(),
        neighbours: BTreeMap::new(),
    }
}

/// What a port is left with when its bridge goes.
pub(super) fn leave_bridge(link: &mut LinkInventory) {
    link.bridge = None;
    link.flags = PortFlags::default();
    link.stations.clear();
}

/// Corrects an interface; answers what it then is, as far as its entries depend on it.
pub(super) fn correct(
    steps: &mut Vec<Step>,
    at: Namespace,
    name: &str,
    have: &LinkInventory,
    want: &WantedLink,
) -> LinkInventory {
    let mut then = have.clone();
    let mut set = |change| steps.push(Step::SetLink { at, name: name.to_owned(), change });
    if let Some(alias) = want.alias.as_ref().filter(|alias| Some(*alias) != have.alias.as_ref()) {
        set(LinkChange::Alias(alias.clone()));
    }
    if let Some(mac) = want.mac.filter(|mac| *mac != have.mac) {
        set(LinkChange::Mac(mac));
    }
    if want.mtu != have.mtu {
        set(LinkChange::Mtu(want.mtu));
    }
    if matches!(have.kind, LinkKind::Bridge { multicast_snooping: true }) {
        set(LinkChange::NoSnooping);
    }
    if let Some((bridge, flags)) = &want.port_of {
        if have.bridge.as_ref() != Some(bridge) {
            leave_bridge(&mut then);
            set(LinkChange::Bridge(bridge.clone()));
        }
        if then.flags != *flags {
            set(LinkChange::Flags(*flags));
        }
    }
    // Last: nothing passes before everything else is right.
    match want.up {
        Some(true) if !have.up => set(LinkChange::Up),
        Some(false) if have.up => set(LinkChange::Down),
        Some(_) | None => {}
    }
    then
}

/// Which entries an interface shall have.
#[derive(Default)]
pub(super) struct EntriesOf {
    addresses: Option<BTreeSet<Ipv4Prefix>>,
    neighbours: Option<BTreeMap<Ipv4Addr, Mac>>,
    stations: BTreeSet<Mac>,
    tunnels: BTreeMap<Mac, Ipv4Addr>,
}

impl EntriesOf {
    /// Of the bridge: the gateway, and every machine as a neighbour.
    pub fn bridge(subnet: &WantedSubnet) -> Self {
        let gateway = Ipv4Prefix { address: subnet.gateway, length: subnet.cidr.length };
        let local = subnet.ports.iter().map(|port| (port.ipv4, port.mac));
        let remote = subnet.remotes.iter().map(|remote| (remote.ipv4, remote.mac));
        let neighbours = Some(local.chain(remote).collect());
        Self { addresses: Some(BTreeSet::from([gateway])), neighbours, ..Self::default() }
    }

    /// Of the VXLAN device: the machines on other hosts.
    pub fn vxlan(subnet: &WantedSubnet) -> Self {
        let tunnels = subnet.remotes.iter().map(|remote| (remote.mac, remote.underlay_ipv4)).collect();
        let stations = subnet.remotes.iter().map(|remote| remote.mac).collect();
        Self { tunnels, stations, ..Self::default() }
    }

    /// Of a port: its machine.
    pub fn port(port: &WantedPort) -> Self {
        Self { stations: BTreeSet::from([port.mac]), ..Self::default() }
    }
}

/// Corrects the entries of an interface.
pub(super) fn correct_entries(
    steps: &mut Vec<Step>,
    vpc: ResourceId,
    link: &str,
    have: &LinkInventory,
    want: &EntriesOf,
) {
    let mut set = |entry, present| {
        steps.push(Step::SetEntry { vpc, link: link.to_owned(), entry, present });
    };
    if let Some(wanted) = &want.addresses {
        have.addresses.difference(wanted).for_each(|old| set(Entry::Address(*old), false));
        wanted.difference(&have.addresses).for_each(|new| set(Entry::Address(*new), true));
    }
    if let Some(wanted) = &want.neighbours {
        for (ipv4, mac) in have.neighbours.iter().filter(|(ipv4, _)| !wanted.contains_key(ipv4)) {
            set(Entry::Neighbour(*ipv4, *mac), false);
        }
        for (ipv4, mac) in wanted.iter().filter(|(ipv4, mac)| have.neighbours.get(ipv4) != Some(mac)) {
            set(Entry::Neighbour(*ipv4, *mac), true);
        }
    }
    // An entry that is not static is no entry of ours even when its MAC is right.
    let right = |mac: &Mac| have.stations.get(mac) == Some(&Station::Static);
    for mac in have.stations.keys().filter(|mac| !(want.stations.contains(mac) && right(mac))) {
        set(Entry::Station(*mac), false);
    }
    for mac in want.stations.iter().filter(|mac| !right(mac)) {
        set(Entry::Station(*mac), true);
    }
    for (mac, hosts) in &have.tunnels {
        for host in hosts.iter().filter(|host| want.tunnels.get(mac) != Some(host)) {
            set(Entry::Tunnel(*mac, *host), false);
        }
    }
    for (mac, host) in &want.tunnels {
        if !have.tunnels.get(mac).is_some_and(|hosts| hosts.contains(host)) {
            set(Entry::Tunnel(*mac, *host), true);
        }
    }
}

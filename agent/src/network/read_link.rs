//! Reads interfaces out of netlink messages.
//!
//! In: the messages of one dump. Out: [`LinkInventory`] by name, without the entries of other tables. Called by `read`.

use std::collections::BTreeMap;

use netlink_packet_route::link::{
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoTun, InfoVxlan, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};

use rtnetlink::packet_core::Nla as _;

use super::{
    addr::Mac,
    inventory::{LinkInventory, LinkKind, PortFlags, TapFlags, Vxlan},
    links,
};

/// The interfaces of a dump, `lo` left out.
pub(super) fn links(messages: &[LinkMessage]) -> BTreeMap<String, LinkInventory> {
    let names: BTreeMap<u32, &str> =
        messages.iter().filter_map(|message| Some((message.header.index, name(message)?))).collect();
    let links = messages.iter().filter(|message| !message.header.flags.contains(LinkFlags::Loopback));
    links.filter_map(|message| Some((name(message)?.to_owned(), read(message, &names)))).collect()
}

/// MTU of an interface, in bytes.
pub(super) fn mtu(message: &LinkMessage) -> Option<u32> {
    message
        .attributes
        .iter()
        .find_map(|attribute| if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None })
}

fn name(message: &LinkMessage) -> Option<&str> {
    message.attributes.iter().find_map(|attribute| {
        if let LinkAttribute::IfName(name) = attribute { Some(name.as_str()) } else { None }
    })
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the kernel's attributes are an open set")]
fn read(message: &LinkMessage, names: &BTreeMap<u32, &str>) -> LinkInventory {
    let mut link = links::fresh(LinkKind::Other(String::new()), Mac([0; 6]), 0);
    link.index = message.header.index;
    link.up = message.header.flags.contains(LinkFlags::Up);
    let mut peer = 0;
    let mut infos: &[LinkInfo] = &[];
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Address(bytes) => link.mac = Mac::from_bytes(bytes).unwrap_or(link.mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(index) => peer = *index,
            LinkAttribute::Controller(index) => link.bridge = names.get(index).map(|name| (*name).to_owned()),
            LinkAttribute::LinkInfo(found) => infos = found,
            _ => {}
        }
    }
    for info in infos {
        match info {
            LinkInfo::Kind(InfoKind::Veth) => link.kind = LinkKind::Veth { peer },
            LinkInfo::Kind(kind) => link.kind = LinkKind::Other(kind.to_string()),
            LinkInfo::Data(InfoData::Bridge(data)) => link.kind = bridge(data),
            LinkInfo::Data(InfoData::Vxlan(data)) => link.kind = vxlan(data),
            LinkInfo::Data(InfoData::Tun(data)) => link.kind = tun(data),
            LinkInfo::PortData(InfoPortData::BridgePort(data)) => link.flags = port_flags(data),
            _ => {}
        }
    }
    link
}

fn bridge(data: &[InfoBridge]) -> LinkKind {
    let multicast_snooping = data.contains(&InfoBridge::MulticastSnooping(true));
    LinkKind::Bridge { multicast_snooping }
}

/// Numbers of the attributes, from `linux/if_link.h`; the crate does not read them.
const TUN_OWNER: u16 = 1;
const TUN_TYPE: u16 = 3;
const TUN_VNET_HDR: u16 = 5;
const TUN_PERSIST: u16 = 6;
const TUN_MULTI_QUEUE: u16 = 7;

fn tun(data: &[InfoTun]) -> LinkKind {
    let value = |wanted: u16| data.iter().find(|item| item.kind() == wanted).map(value);
    let is = |wanted: u16| value(wanted).is_some_and(|bytes| bytes.first().is_some_and(|byte| *byte != 0));
    if value(TUN_TYPE).and_then(|bytes| bytes.first().copied()) != Some(TYPE_TAP) {
        return LinkKind::Other("tun".to_owned());
    }
    LinkKind::Tap(TapFlags {
        persistent: is(TUN_PERSIST),
        vnet_header: is(TUN_VNET_HDR),
        multi_queue: is(TUN_MULTI_QUEUE),
        owner: value(TUN_OWNER).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes),
    })
}

/// `IFF_TAP` as the attribute carries it.
const TYPE_TAP: u8 = 2;

fn value(item: &InfoTun) -> Vec<u8> {
    let mut bytes = vec![0; item.value_len()];
    item.emit_value(&mut bytes);
    bytes
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the kernel's attributes are an open set")]
fn vxlan(data: &[InfoVxlan]) -> LinkKind {
    let mut vxlan = Vxlan { vni: 0, local: None, port: 0, learning: false };
    for item in data {
        match item {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Local(local) => vxlan.local = Some(*local),
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            _ => {}
        }
    }
    LinkKind::Vxlan(vxlan)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the kernel's attributes are an open set")]
fn port_flags(data: &[InfoBridgePort]) -> PortFlags {
    let mut flags = PortFlags::default();
    for item in data {
        match item {
            InfoBridgePort::Learning(on) => flags.learning = *on,
            InfoBridgePort::UnicastFlood(on) => flags.unicast_flood = *on,
            InfoBridgePort::MulticastFlood(on) => flags.multicast_flood = *on,
            InfoBridgePort::BroadcastFlood(on) => flags.broadcast_flood = *on,
            InfoBridgePort::NeighSupress(on) => flags.neigh_suppress = *on,
            _ => {}
        }
    }
    flags
}

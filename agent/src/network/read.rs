//! Reads what exists of ours from the kernel.
//!
//! In: a worker and the folder of namespace files. Out: [`NetworkInventory`]. Called before every `diff`; reads
//! everything each time, because nothing that is remembered is as true as the kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::Stdio,
};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    link::LinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};
use shardplane_proto::ids::{InstanceId, ResourceId};

use super::{
    addr::{Ipv4Prefix, Mac},
    error::NetworkError,
    filter::TABLE_PREFIX,
    inventory::{LinkInventory, NetworkInventory, Station, VpcInventory},
    name::Namespace,
    read_link,
    worker::{self, Place, Worker},
};

/// Sysctls of a VPC's namespace. The second file is missing where the kernel has no IPv6.
pub(super) const SYSCTLS: [(&str, &str); 2] =
    [("/proc/sys/net/ipv4/ip_forward", "1"), ("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")];

/// Everything of ours.
pub(super) fn inventory(worker: &mut Worker, netns_dir: &Path) -> Result<NetworkInventory, NetworkError> {
    let mut inventory = NetworkInventory::default();
    for namespace in namespaces(netns_dir)? {
        if !worker::is_namespace(&worker.path(namespace))? {
            inventory.debris.insert(namespace);
            continue;
        }
        match namespace {
            Namespace::Vpc(vpc) => {
                inventory.vpcs.insert(vpc, read_vpc(worker, vpc)?);
            }
            Namespace::Machine(instance) => {
                inventory.machines.insert(instance, read_machine(worker, instance)?);
            }
        }
    }
    Ok(inventory)
}

fn namespaces(netns_dir: &Path) -> Result<Vec<Namespace>, NetworkError> {
    let failed = |cause| NetworkError::File { what: "list", path: netns_dir.to_owned(), cause };
    let mut found = Vec::new();
    for entry in fs::read_dir(netns_dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        found.extend(name.to_str().and_then(Namespace::from_file_name));
    }
    found.sort();
    Ok(found)
}

/// The interface with this address, and its MTU in bytes.
pub(super) fn mtu_of_address(worker: &mut Worker, address: Ipv4Addr) -> Result<Option<u32>, NetworkError> {
    let addresses = dump_addresses(worker, Place::Host)?;
    let index = addresses.iter().find(|(_, prefix)| prefix.address == address).map(|(index, _)| *index);
    let links = dump_links(worker, Place::Host)?;
    Ok(index.and_then(|index| links.iter().find(|link| link.header.index == index)).and_then(read_link::mtu))
}

fn read_machine(worker: &mut Worker, instance: InstanceId) -> Result<Option<LinkInventory>, NetworkError> {
    let links = dump_links(worker, Place::In(Namespace::Machine(instance)))?;
    Ok(read_link::links(&links).remove("eth0"))
}

fn read_vpc(worker: &mut Worker, vpc: ResourceId) -> Result<VpcInventory, NetworkError> {
    let place = Place::In(Namespace::Vpc(vpc));
    let mut links = read_link::links(&dump_links(worker, place)?);
    let mut by_index: BTreeMap<u32, &mut LinkInventory> =
        links.values_mut().map(|link| (link.index, link)).collect();
    for (index, prefix) in dump_addresses(worker, place)? {
        if let Some(link) = by_index.get_mut(&index) {
            link.addresses.insert(prefix);
        }
    }
    for entry in dump_neighbours(worker, place, AddressFamily::Bridge)? {
        if let Some(link) = by_index.get_mut(&entry.header.ifindex) {
            add_forwarding(link, &entry);
        }
    }
    for entry in dump_neighbours(worker, place, AddressFamily::Inet)? {
        if let (Some(link), NeighbourState::Permanent) =
            (by_index.get_mut(&entry.header.ifindex), entry.header.state)
            && let (Some(ipv4), Some(mac)) = (destination(&entry), mac(&entry))
        {
            link.neighbours.insert(ipv4, mac);
        }
    }
    worker.enter(place)?;
    Ok(VpcInventory { sysctls_set: sysctls_set()?, filters: filters(worker, vpc)?, links })
}

/// One entry of a bridge (with a controller) or of a VXLAN device itself.
fn add_forwarding(link: &mut LinkInventory, entry: &NeighbourMessage) {
    let Some(mac) = mac(entry) else { return };
    if entry.header.flags.contains(NeighbourFlags::Own) {
        if let Some(host) = destination(entry) {
            link.tunnels.entry(mac).or_default().insert(host);
        }
    } else if link.bridge.is_some() && mac != link.mac {
        let state = u16::from(entry.header.state);
        let permanent = state & u16::from(NeighbourState::Permanent) != 0;
        let fixed = state & u16::from(NeighbourState::Noarp) != 0;
        let station = if fixed && !permanent { Station::Static } else { Station::Other };
        link.stations.insert(mac, station);
    }
}

fn mac(entry: &NeighbourMessage) -> Option<Mac> {
    entry.attributes.iter().find_map(|attribute| {
        if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
            Mac::from_bytes(bytes)
        } else {
            None
        }
    })
}

fn destination(entry: &NeighbourMessage) -> Option<Ipv4Addr> {
    entry.attributes.iter().find_map(|attribute| {
        let NeighbourAttribute::Destination(destination) = attribute else { return None };
        if let NeighbourAddress::Inet(address) = destination {
            return Some(*address);
        }
        // In family bridge the length alone tells which family the far host's address has.
        let NeighbourAddress::Other(bytes) = destination else { return None };
        <[u8; 4]>::try_from(bytes.as_slice()).ok().map(Ipv4Addr::from)
    })
}

fn dump_links(worker: &mut Worker, place: Place) -> Result<Vec<LinkMessage>, NetworkError> {
    let netlink = worker.netlink(place)?;
    worker.ask(&|| format!("list the interfaces of {place}"), netlink.link().get().execute().try_collect())
}

fn dump_addresses(worker: &mut Worker, place: Place) -> Result<Vec<(u32, Ipv4Prefix)>, NetworkError> {
    let netlink = worker.netlink(place)?;
    let what = || format!("list the addresses of {place}");
    let found: Vec<AddressMessage> = worker.ask(&what, netlink.address().get().execute().try_collect())?;
    let read = |message: &AddressMessage| {
        let address = message.attributes.iter().find_map(|attribute| {
            if let AddressAttribute::Local(IpAddr::V4(address)) = attribute { Some(*address) } else { None }
        })?;
        Some((message.header.index, Ipv4Prefix { address, length: message.header.prefix_len }))
    };
    Ok(found.iter().filter_map(read).collect())
}

fn dump_neighbours(
    worker: &mut Worker,
    place: Place,
    family: AddressFamily,
) -> Result<Vec<NeighbourMessage>, NetworkError> {
    let netlink = worker.netlink(place)?;
    let request = netlink.neighbours().get().set_address_family(family);
    worker.ask(&|| format!("list the neighbours of {place}"), request.execute().try_collect())
}

fn sysctls_set() -> Result<bool, NetworkError> {
    for (path, value) in SYSCTLS {
        match fs::read_to_string(path) {
            Ok(text) if text.trim() == value => {}
            Ok(_) => return Ok(false),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(NetworkError::File { what: "read", path: path.into(), cause }),
        }
    }
    Ok(true)
}

/// Names of our tables in the namespace that the thread is in.
fn filters(worker: &Worker, vpc: ResourceId) -> Result<BTreeSet<String>, NetworkError> {
    let what = || format!("list the packet filters of VPC {vpc}");
    let run = async {
        let mut nft = tokio::process::Command::new("nft");
        nft.args(["list", "tables", "bridge"]).stdin(Stdio::null()).kill_on_drop(true).output().await
    };
    let output = worker.wait(&what, run)?.map_err(|cause| NetworkError::Thread { what: what(), cause })?;
    if !output.status.success() {
        return Err(NetworkError::nft(what(), &output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let tables = text.lines().filter_map(|line| line.strip_prefix("table bridge "));
    Ok(tables.map(str::trim).filter(|name| name.starts_with(TABLE_PREFIX)).map(str::to_owned).collect())
}

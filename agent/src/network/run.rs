//! Does the steps that `diff` has decided.
//!
//! In: a worker and one [`Step`]. Out: the kernel changed, or why not. Called by `Network::ensure` only.

use std::{fs, io, net::Ipv4Addr, os::fd::AsRawFd as _, process::Stdio};

use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    link::{InfoBridgePort, InfoData, InfoKind, InfoVeth},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};
use nix::net::if_::if_nametoindex;
use rtnetlink::{LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan};
use shardplane_proto::ids::{InstanceId, ResourceId};
use tokio::io::AsyncWriteExt as _;

use super::{
    addr::Mac,
    diff::VXLAN_PORT,
    error::NetworkError,
    inventory::PortFlags,
    name::Namespace,
    read::SYSCTLS,
    step::{Entry, LinkChange, Step},
    tap,
    worker::{Place, Worker},
};

/// Does one step.
pub(super) fn run(worker: &mut Worker, step: &Step) -> Result<(), NetworkError> {
    let what = || step.to_string();
    match step {
        Step::RemoveDebris(namespace) | Step::DropNamespace(namespace) => worker.drop_namespace(*namespace),
        Step::MakeNamespace(namespace) => worker.make_namespace(*namespace),
        Step::SetSysctls(vpc) => set_sysctls(worker, *vpc),
        Step::SetFilter { vpc, script } => set_filter(worker, &what, *vpc, script),
        Step::DeleteLink { at, name } => delete_link(worker, &what, *at, name),
        Step::AddBridge { vpc, name, mac, mtu } => {
            let netlink = worker.netlink(of(*vpc))?;
            let message = LinkMessageBuilder::<LinkBridge>::new(name)
                .address(mac.0.to_vec())
                .mtu(*mtu)
                .mcast_snooping(false)
                .build();
            worker.ask(&what, netlink.link().add(message).execute())
        }
        Step::AddVxlan { vpc, name, vni, local, mtu } => {
            // Made from the host's namespace straight into the VPC's: the tunnel's socket is the host's, and there is
            // no moment in which a half-made device of ours lies about in the host's namespace.
            let target = worker.open(Namespace::Vpc(*vpc))?;
            let netlink = worker.netlink(Place::Host)?;
            let message = LinkVxlan::new(name, *vni)
                .local(*local)
                .port(VXLAN_PORT)
                .learning(false)
                .mtu(*mtu)
                .setns_by_fd(target.as_raw_fd())
                .build();
            worker.ask(&what, netlink.link().add(message).execute())
        }
        Step::AddVeth { vpc, name, instance, mac, mtu } => {
            add_veth(worker, &what, *vpc, name, (*instance, *mac, *mtu))
        }
        Step::AddTap { vpc, name, .. } => {
            worker.enter(of(*vpc))?;
            tap::make(name).map_err(|cause| NetworkError::Thread { what: what(), cause })
        }
        Step::SetLink { at, name, change } => set_link(worker, &what, *at, name, change),
        Step::SetEntry { vpc, link, entry, present } => {
            set_entry(worker, &what, *vpc, link, *entry, *present)
        }
    }
}

fn of(vpc: ResourceId) -> Place {
    Place::In(Namespace::Vpc(vpc))
}

fn set_sysctls(worker: &mut Worker, vpc: ResourceId) -> Result<(), NetworkError> {
    worker.enter(of(vpc))?;
    for (path, value) in SYSCTLS {
        match fs::write(path, value) {
            Ok(()) => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(NetworkError::File { what: "write", path: path.into(), cause }),
        }
    }
    Ok(())
}

fn set_filter(
    worker: &mut Worker,
    what: &dyn Fn() -> String,
    vpc: ResourceId,
    script: &str,
) -> Result<(), NetworkError> {
    worker.enter(of(vpc))?;
    let run = async {
        let mut nft = tokio::process::Command::new("nft");
        nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = nft.kill_on_drop(true).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // When nft stops reading, its own words say why better than a broken pipe does.
            let _ = input.write_all(script.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = worker.wait(what, run)?.map_err(|cause| NetworkError::Thread { what: what(), cause })?;
    if output.status.success() { Ok(()) } else { Err(NetworkError::nft(what(), &output.stderr)) }
}

/// Number of an interface where the thread is; `None` when there is none of that name.
fn index_of(what: &dyn Fn() -> String, name: &str) -> Result<Option<u32>, NetworkError> {
    match if_nametoindex(name) {
        Ok(index) => Ok(Some(index)),
        Err(nix::errno::Errno::ENODEV) => Ok(None),
        Err(errno) => Err(NetworkError::Netlink { what: what(), cause: errno.into() }),
    }
}

fn must_exist(what: &dyn Fn() -> String, name: &str) -> Result<u32, NetworkError> {
    let missing = || NetworkError::Netlink {
        what: what(),
        cause: io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}")),
    };
    index_of(what, name)?.ok_or_else(missing)
}

fn delete_link(
    worker: &mut Worker,
    what: &dyn Fn() -> String,
    at: Namespace,
    name: &str,
) -> Result<(), NetworkError> {
    let netlink = worker.netlink(Place::In(at))?;
    match index_of(what, name)? {
        Some(index) => worker.ask(what, netlink.link().del(index).execute()),
        None => Ok(()),
    }
}

fn add_veth(
    worker: &mut Worker,
    what: &dyn Fn() -> String,
    vpc: ResourceId,
    name: &str,
    (instance, mac, mtu): (InstanceId, Mac, u32),
) -> Result<(), NetworkError> {
    let target = worker.open(Namespace::Machine(instance))?;
    let netlink = worker.netlink(of(vpc))?;
    let far = LinkMessageBuilder::<LinkUnspec>::new()
        .name("eth0")
        .address(mac.0.to_vec())
        .mtu(mtu)
        .setns_by_fd(target.as_raw_fd())
        .build();
    let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
        .name(name)
        .mtu(mtu)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(far)))
        .build();
    worker.ask(what, netlink.link().add(message).execute())
}

fn set_link(
    worker: &mut Worker,
    what: &dyn Fn() -> String,
    at: Namespace,
    name: &str,
    change: &LinkChange,
) -> Result<(), NetworkError> {
    let netlink = worker.netlink(Place::In(at))?;
    let index = must_exist(what, name)?;
    let link = LinkUnspec::new_with_index(index);
    let message = match change {
        LinkChange::Alias(alias) => link.alias(alias.clone()).build(),
        LinkChange::Mac(mac) => link.address(mac.0.to_vec()).build(),
        LinkChange::Mtu(mtu) => link.mtu(*mtu).build(),
        LinkChange::Bridge(bridge) => link.controller(must_exist(what, bridge)?).build(),
        LinkChange::Up => link.up().build(),
        LinkChange::Down => link.down().build(),
        LinkChange::NoSnooping => {
            LinkMessageBuilder::<LinkBridge>::new(name).index(index).mcast_snooping(false).build()
        }
        LinkChange::Flags(flags) => port_message(index, *flags),
    };
    worker.ask(what, netlink.link().change(message).execute())
}

fn port_message(index: u32, flags: PortFlags) -> netlink_packet_route::link::LinkMessage {
    LinkBridgePort::new(index)
        .append_info_data(InfoBridgePort::Learning(flags.learning))
        .append_info_data(InfoBridgePort::UnicastFlood(flags.unicast_flood))
        .append_info_data(InfoBridgePort::MulticastFlood(flags.multicast_flood))
        .append_info_data(InfoBridgePort::BroadcastFlood(flags.broadcast_flood))
        .append_info_data(InfoBridgePort::NeighSupress(flags.neigh_suppress))
        .build()
}

fn set_entry(
    worker: &mut Worker,
    what: &dyn Fn() -> String,
    vpc: ResourceId,
    link: &str,
    entry: Entry,
    present: bool,
) -> Result<(), NetworkError> {
    let netlink = worker.netlink(of(vpc))?;
    let index = must_exist(what, link)?;
    let message = match entry {
        Entry::Address(prefix) if present => {
            let request = netlink.address().add(index, prefix.address.into(), prefix.length);
            return worker.ask(what, request.execute());
        }
        Entry::Address(prefix) => {
            let mut message = AddressMessage::default();
            message.header.family = AddressFamily::Inet;
            message.header.index = index;
            message.header.prefix_len = prefix.length;
            message.attributes.push(AddressAttribute::Local(prefix.address.into()));
            return gone(worker.ask(what, netlink.address().del(message).execute()));
        }
        Entry::Station(mac) => neighbour(
            AddressFamily::Bridge,
            index,
            NeighbourState::Noarp,
            NeighbourFlags::Controller,
            mac,
            None,
        ),
        Entry::Tunnel(mac, host) => neighbour(
            AddressFamily::Bridge,
            index,
            NeighbourState::Permanent,
            NeighbourFlags::Own,
            mac,
            Some(host),
        ),
        Entry::Neighbour(ipv4, mac) => neighbour(
            AddressFamily::Inet,
            index,
            NeighbourState::Permanent,
            NeighbourFlags::empty(),
            mac,
            Some(ipv4),
        ),
    };
    if !present {
        return gone(worker.ask(what, netlink.neighbours().del(message).execute()));
    }
    let mut request = netlink.neighbours().add_bridge(index, &[]).replace();
    *request.message_mut() = message;
    worker.ask(what, request.execute())
}

fn neighbour(
    family: AddressFamily,
    index: u32,
    state: NeighbourState,
    flags: NeighbourFlags,
    mac: Mac,
    destination: Option<Ipv4Addr>,
) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = index;
    message.header.state = state;
    message.header.flags = flags;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message
        .attributes
        .extend(destination.map(|ipv4| NeighbourAttribute::Destination(NeighbourAddress::Inet(ipv4))));
    message
}

/// What is not there any more needs no removal: an earlier step may have taken it along.
fn gone(result: Result<(), NetworkError>) -> Result<(), NetworkError> {
    let absent = [nix::libc::ENOENT, nix::libc::ESRCH, nix::libc::EADDRNOTAVAIL, nix::libc::ENODEV];
    match result {
        Err(NetworkError::Netlink { cause, .. })
            if cause.raw_os_error().is_some_and(|code| absent.contains(&code)) =>
        {
            Ok(())
        }
        other => other,
    }
}

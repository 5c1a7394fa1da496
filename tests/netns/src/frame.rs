//! Raw Ethernet frames: what an honest machine sends, and what a dishonest one tries.
//!
//! In: addresses and a payload. Out: bytes for [`Wire::send`]; [`Wire::receive`] sees everything that arrives.

use std::{
    fs::File,
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::{
    libc,
    net::if_::if_nametoindex,
    sys::{
        socket::{
            AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _, bind,
            recv, send, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use shardplane_agent::network::Mac;

use crate::inside;

/// A raw socket on `eth0` of a namespace.
pub struct Wire {
    socket: OwnedFd,
}

impl Wire {
    /// Opens it.
    pub fn open(namespace: &File) -> Result<Self> {
        inside(namespace, || {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
            bind(socket.as_raw_fd(), &address(if_nametoindex("eth0")?)?)?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20))?;
            Ok(Self { socket })
        })
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        send(self.socket.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    /// Collects the frames that hold one of these marks until the last mark has come and nothing else for a while.
    pub fn receive(&self, marks: &[&str], last: &str) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        let mut deadline = Instant::now() + Duration::from_secs(5);
        let mut buffer = vec![0; 2048];
        while Instant::now() < deadline {
            let Ok(length) = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) else { continue };
            let frame = String::from_utf8_lossy(&buffer[..length]);
            for mark in marks.iter().filter(|mark| frame.contains(**mark)) {
                seen.push((*mark).to_owned());
                if *mark == last {
                    deadline = Instant::now() + Duration::from_millis(200);
                }
            }
        }
        Ok(seen)
    }
}

fn address(interface: u32) -> Result<LinkAddr> {
    // SAFETY: sockaddr_ll is plain data for which all zeroes is a value.
    #[allow(unsafe_code)]
    let mut raw: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    raw.sll_family = libc::AF_PACKET as u16;
    raw.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    raw.sll_ifindex = interface.try_into()?;
    let length = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the pointer is to a whole sockaddr_ll that outlives the call, and the length is its size.
    #[allow(unsafe_code)]
    let address = unsafe { LinkAddr::from_raw((&raw const raw).cast(), Some(length)) };
    address.ok_or_else(|| anyhow::anyhow!("the kernel's link address has another form"))
}

/// An Ethernet frame.
pub fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &kind.to_be_bytes(), payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A UDP datagram in IPv4.
pub fn udp(from: Ipv4Addr, to: Ipv4Addr, from_port: u16, mark: &str) -> Vec<u8> {
    let length = 8 + mark.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + length).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    ip.extend(from.octets());
    ip.extend(to.octets());
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let ports = [from_port.to_be_bytes(), 9_u16.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat();
    [ip, ports, mark.as_bytes().to_vec()].concat()
}

/// A UDP datagram in IPv6 between link-local addresses.
pub fn udp6(mark: &str) -> Vec<u8> {
    let length = 8 + mark.len() as u16;
    let head = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[17, 64]].concat();
    let address = |last: u8| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let ports = [1000_u16.to_be_bytes(), 9_u16.to_be_bytes(), length.to_be_bytes(), [0, 0]].concat();
    [&head[..], &address(1), &address(2), &ports, mark.as_bytes()].concat()
}

/// An ARP reply; the mark is in the padding.
pub fn arp((mac, ip): (Mac, Ipv4Addr), (target_mac, target_ip): (Mac, Ipv4Addr), mark: &str) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    [&head[..], &mac.0, &ip.octets(), &target_mac.0, &target_ip.octets(), mark.as_bytes()].concat()
}

//! Address, gateway and MTU of the guest's one card, and the loopback device.
//!
//! In: [`GuestNic`] of the config. Out: the kernel's state, the same however often it is called. Called by `run`.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt as _;
use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder,
    packet_route::{
        address::AddressAttribute,
        link::{LinkAttribute, LinkMessage},
    },
};
use shardplane_proto::v1::GuestNic;

/// The guest's one card.
const CARD: &str = "eth0";

/// Why the card does not have its address.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The config does not make sense.
    #[error("network config: {0}")]
    Config(String),
    /// No netlink socket.
    #[error("open a netlink socket")]
    Socket(#[source] std::io::Error),
    /// The kernel refused a step.
    #[error("{step}")]
    Netlink {
        /// What was attempted.
        step: String,
        /// The kernel's answer.
        #[source]
        source: rtnetlink::Error,
    },
    /// The host has not plugged it yet.
    #[error("there is no network device {0}")]
    Missing(&'static str),
}

/// [`GuestNic`], parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    mac: Vec<u8>,
    /// Own address.
    pub address: Ipv4Addr,
    prefix: u8,
    gateway: Option<Ipv4Addr>,
    mtu: Option<u32>,
}

/// Parses the config of the card. An empty MAC, gateway or MTU means: leave it as it is.
pub fn parse(nic: &GuestNic) -> Result<Nic, NicError> {
    let refused = |what: &str, text: &str| NicError::Config(format!("{text:?} is not {what}"));
    let cidr = || refused("an IPv4 address with prefix length", &nic.ipv4);
    let (address, prefix) = nic.ipv4.split_once('/').ok_or_else(cidr)?;
    let prefix: u8 = prefix.parse().map_err(|_| cidr())?;
    if prefix > 32 {
        return Err(cidr());
    }
    let mac = match nic.mac.as_str() {
        "" => Vec::new(),
        text => text
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16))
            .collect::<Result<Vec<_>, _>>()
            .ok()
            .filter(|mac| mac.len() == 6)
            .ok_or_else(|| refused("a MAC address", text))?,
    };
    let gateway = match nic.gateway.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| refused("an IPv4 gateway", text))?),
    };
    Ok(Nic {
        mac,
        address: address.parse().map_err(|_| cidr())?,
        prefix,
        gateway,
        mtu: (nic.mtu > 0).then_some(nic.mtu),
    })
}

/// Makes the kernel's state so: loopback up, and when a card is configured its address (no other), MTU, default route.
pub async fn ensure(nic: Option<&Nic>) -> Result<(), NicError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NicError::Socket)?;
    let connection = tokio::spawn(connection);
    let done = async {
        let loopback = link(&handle, "lo").await?;
        let up = LinkUnspec::new_with_index(loopback.header.index).up().build();
        handle.link().set(up).execute().await.map_err(step("set lo up"))?;
        match nic {
            Some(nic) => ensure_card(&handle, nic).await,
            None => Ok(()),
        }
    }
    .await;
    connection.abort();
    done
}

async fn ensure_card(handle: &Handle, nic: &Nic) -> Result<(), NicError> {
    let card = link(handle, CARD).await?;
    let index = card.header.index;
    let has_mac = card.attributes.iter().any(|a| matches!(a, LinkAttribute::Address(mac) if *mac == nic.mac));
    let mut change = LinkUnspec::new_with_index(index).up();
    if let Some(mtu) = nic.mtu {
        change = change.mtu(mtu);
    }
    if !nic.mac.is_empty() && !has_mac {
        change = change.address(nic.mac.clone());
    }
    handle
        .link()
        .set(change.build())
        .execute()
        .await
        .map_err(step(format!("set {CARD} up, MTU {:?}", nic.mtu)))?;

    let own = IpAddr::V4(nic.address);
    let adding = handle.address().add(index, own, nic.prefix).replace();
    adding.execute().await.map_err(step(format!("give {CARD} the address {own}/{}", nic.prefix)))?;
    let mut addresses = handle.address().get().set_link_index_filter(index).execute();
    while let Some(address) =
        addresses.try_next().await.map_err(step(format!("list the addresses of {CARD}")))?
    {
        let stale = address.attributes.iter().any(|a| {
            matches!(a, AddressAttribute::Local(ip) if ip.is_ipv4() && (*ip != own || address.header.prefix_len != nic.prefix))
        });
        if stale {
            handle
                .address()
                .del(address)
                .execute()
                .await
                .map_err(step(format!("remove an old address of {CARD}")))?;
        }
    }
    if let Some(gateway) = nic.gateway {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).output_interface(index).build();
        let adding = handle.route().add(route).replace();
        adding.execute().await.map_err(step(format!("set the default route through {gateway}")))?;
    }
    Ok(())
}

async fn link(handle: &Handle, name: &'static str) -> Result<LinkMessage, NicError> {
    // An absent device is an error answer (ENODEV), not an empty list.
    let found = handle.link().get().match_name(name).execute().try_next().await;
    found.ok().flatten().ok_or(NicError::Missing(name))
}

fn step(step: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NicError {
    let step = step.into();
    move |source| NicError::Netlink { step, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_parsed_and_nonsense_refused() {
        let mut nic = GuestNic {
            mac: "52:54:00:00:00:0a".into(),
            ipv4: "10.20.0.5/24".into(),
            gateway: "10.20.0.1".into(),
            mtu: 1450,
        };
        let parsed = parse(&nic).unwrap();
        assert_eq!(
            (parsed.address, parsed.prefix, parsed.mtu),
            (Ipv4Addr::new(10, 20, 0, 5), 24, Some(1450))
        );
        assert_eq!(parsed.mac, [0x52, 0x54, 0, 0, 0, 0x0a]);
        nic.ipv4 = "10.20.0.5/33".into();
        assert!(parse(&nic).is_err());
        nic.ipv4 = "10.20.0.5/24".into();
        nic.mac = "52:54".into();
        assert_eq!(parse(&nic).unwrap_err().to_string(), "network config: \"52:54\" is not a MAC address");
    }
}

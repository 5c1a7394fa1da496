//! Addresses. In: a CIDR as text. Out: subnets that know their usable addresses, and MAC addresses. Used by validation,
//! placement and host specs.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use serde::{Deserialize, Serialize};

/// An IPv4 network, written `10.20.0.0/24`; host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    network: Ipv4Addr,
    prefix: u8,
}

/// Why a text is not a subnet that instances can live in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotASubnet {
    /// Not `a.b.c.d/n`.
    #[error("{0:?} is not an IPv4 network like 10.20.0.0/24")]
    Syntax(String),
    /// Too small for a gateway and one instance, or absurdly large.
    #[error("prefix /{0} is not allowed: a subnet is /8 to /29")]
    Prefix(u8),
    /// Bits after the prefix are set.
    #[error("{given} has host bits set: did you mean {meant}?")]
    HostBits {
        /// What was given.
        given: String,
        /// The network it lies in.
        meant: Cidr,
    },
    /// Loopback, multicast, link-local or unspecified.
    #[error("{0} is not a network that instances can have")]
    Reserved(Cidr),
}

impl Cidr {
    fn mask(prefix: u8) -> u32 {
        u32::MAX.checked_shl(u32::from(32 - prefix.min(32))).unwrap_or(0)
    }

    /// Bits of the network part.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The first address after the network's own: the gateway.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.network) + 1)
    }

    /// The addresses instances can have, lowest first: without network, gateway and broadcast.
    pub fn usable(self) -> impl Iterator<Item = Ipv4Addr> {
        let first = u32::from(self.network) + 2;
        let broadcast = u32::from(self.network) | !Self::mask(self.prefix);
        (first..broadcast).map(Ipv4Addr::from)
    }

    /// Whether the two share an address.
    pub fn overlaps(self, other: Cidr) -> bool {
        let mask = Self::mask(self.prefix.min(other.prefix));
        u32::from(self.network) & mask == u32::from(other.network) & mask
    }
}

impl FromStr for Cidr {
    type Err = NotASubnet;

    fn from_str(text: &str) -> Result<Self, NotASubnet> {
        let syntax = || NotASubnet::Syntax(text.chars().take(64).collect());
        let (address, prefix) = text.split_once('/').ok_or_else(syntax)?;
        let address: Ipv4Addr = address.parse().map_err(|_| syntax())?;
        if prefix.is_empty() || prefix.len() > 2 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(syntax());
        }
        let prefix: u8 = prefix.parse().map_err(|_| syntax())?;
        if !(8..=29).contains(&prefix) {
            return Err(NotASubnet::Prefix(prefix));
        }
        let network = Ipv4Addr::from(u32::from(address) & Self::mask(prefix));
        let cidr = Self { network, prefix };
        if network != address {
            return Err(NotASubnet::HostBits { given: text.to_owned(), meant: cidr });
        }
        if network.is_loopback()
            || network.is_multicast()
            || network.is_link_local()
            || network.octets()[0] == 0
            || network.octets()[0] >= 240
        {
            return Err(NotASubnet::Reserved(cidr));
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The MAC of an instance: locally administered, unique in its subnet because its address is.
pub fn mac_of(vni: u32, ipv4: Ipv4Addr) -> String {
    let [a, b, c, d] = ipv4.octets();
    format!("02:{:02x}:{a:02x}:{b:02x}:{c:02x}:{d:02x}", vni & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_knows_its_gateway_and_usable_addresses() {
        let cidr: Cidr = "10.20.0.0/29".parse().unwrap();
        assert_eq!(cidr.gateway(), Ipv4Addr::new(10, 20, 0, 1));
        let usable: Vec<_> = cidr.usable().map(|a| a.octets()[3]).collect();
        assert_eq!(usable, [2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_is_not_a_subnet_is_refused_with_a_reason() {
        for (text, part) in [
            ("10.20.0.0", "is not an IPv4 network"),
            ("10.20.0.0/33", "prefix /33"),
            ("10.20.0.0/-1", "is not an IPv4 network"),
            ("10.20.0.5/24", "did you mean 10.20.0.0/24?"),
            ("127.0.0.0/8", "not a network that instances"),
            ("224.0.0.0/8", "not a network that instances"),
            ("0.0.0.0/8", "not a network that instances"),
            ("10.20.0.0/24 ", "is not an IPv4 network"),
        ] {
            let refused = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn overlap_is_seen_from_both_sides() {
        let (wide, narrow, other): (Cidr, Cidr, Cidr) =
            ("10.0.0.0/8".parse().unwrap(), "10.20.0.0/24".parse().unwrap(), "10.21.0.0/24".parse().unwrap());
        assert!(wide.overlaps(narrow) && narrow.overlaps(wide) && !narrow.overlaps(other));
    }
}

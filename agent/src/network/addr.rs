//! Ethernet addresses and IPv4 prefixes as types.
//!
//! In: text of a spec or bytes of a netlink message. Out: values that compare and print. Used all over `network`, and
//! by whoever describes a guest's NIC.

use std::{fmt, net::Ipv4Addr, str::FromStr};

/// A text that is not an Ethernet address or not an IPv4 prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {wanted}")]
pub struct NotAnAddress {
    /// What was given, cut to 64 characters.
    pub given: String,
    /// What would have been right, with an example.
    pub wanted: &'static str,
}

fn refused(given: &str, wanted: &'static str) -> NotAnAddress {
    NotAnAddress { given: given.chars().take(64).collect(), wanted }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether a single station can own it: neither a group address nor all zeroes.
    pub const fn is_unicast(self) -> bool {
        let zero = matches!(self.0, [0, 0, 0, 0, 0, 0]);
        self.0[0] & 1 == 0 && !zero
    }

    /// The address in these bytes of a netlink message, when they are six.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        const WANTED: &str = "an Ethernet address such as 02:53:50:00:00:01";
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(|| refused(text, WANTED))?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(refused(text, WANTED));
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| refused(text, WANTED))?;
        }
        if parts.next().is_some() { Err(refused(text, WANTED)) } else { Ok(Self(bytes)) }
    }
}

/// An IPv4 address with the length of its prefix: a network (host bits zero) or an interface address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipv4Prefix {
    /// The address as given, host bits included.
    pub address: Ipv4Addr,
    /// 0 to 32.
    pub length: u8,
}

impl Ipv4Prefix {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0)
    }

    /// The first address of the network: all host bits zero.
    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.mask())
    }

    /// Whether the address lies in the network.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.network().to_bits()
    }
}

impl fmt::Display for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Debug for Ipv4Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Ipv4Prefix {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        const WANTED: &str = "an IPv4 network such as 10.20.0.0/24";
        let (address, length) = text.split_once('/').ok_or_else(|| refused(text, WANTED))?;
        let address = address.parse().map_err(|_| refused(text, WANTED))?;
        let length =
            length.parse().ok().filter(|length| *length <= 32).ok_or_else(|| refused(text, WANTED))?;
        Ok(Self { address, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_alike() {
        let mac: Mac = "02:53:5a:00:0F:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:53:5a:00:0f:01");
        let prefix: Ipv4Prefix = "10.20.0.7/24".parse().unwrap();
        assert_eq!(prefix.to_string(), "10.20.0.7/24");
        assert_eq!(prefix.network(), Ipv4Addr::new(10, 20, 0, 0));
        assert!(prefix.contains(Ipv4Addr::new(10, 20, 0, 255)));
        assert!(!prefix.contains(Ipv4Addr::new(10, 20, 1, 0)));
        assert!("0.0.0.0/0".parse::<Ipv4Prefix>().unwrap().contains(Ipv4Addr::BROADCAST));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "02:53:5a:00:0f",
            "02:53:5a:00:0f:01:02",
            "2:53:5a:0:f:1",
            "02:53:5a:00:0f:+1",
            "zz:53:5a:00:0f:01",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/24", "10.0.0.0/-1"] {
            assert!(text.parse::<Ipv4Prefix>().is_err(), "{text}");
        }
        assert!(!Mac([1, 0, 0x5e, 0, 0, 1]).is_unicast());
        assert!(!Mac([0; 6]).is_unicast());
        assert!(Mac([2, 0, 0, 0, 0, 1]).is_unicast());
    }
}

//! Ids and counters as types, so that a host's id can never stand where an instance's is wanted.
//!
//! In: text of a ULID in either case. Out: a typed id that prints in lower case. Everybody uses it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// A text that is not a ULID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a ULID (26 characters of 0-9 and a-z without i, l, o, u)")]
pub struct NotAnId {
    /// What was given, cut to 64 characters.
    pub given: String,
}

fn parse(text: &str) -> Result<Ulid, NotAnId> {
    let refused = || NotAnId { given: text.chars().take(64).collect() };
    // The first character of a 128-bit number in base 32 is at most 7; anything above overflows.
    if !text.as_bytes().first().is_some_and(|first| (b'0'..=b'7').contains(first)) {
        return Err(refused());
    }
    if text.bytes().any(|b| matches!(b.to_ascii_lowercase(), b'i' | b'l' | b'o' | b'u')) {
        return Err(refused());
    }
    Ulid::from_string(&text.to_ascii_uppercase()).map_err(|_| refused())
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Ulid);

        impl $name {
            /// The id with this number.
            pub const fn from_u128(number: u128) -> Self {
                Self(Ulid(number))
            }

            /// The id as a number.
            pub const fn as_u128(self) -> u128 {
                self.0.0
            }
        }

        impl From<Ulid> for $name {
            fn from(id: Ulid) -> Self {
                Self(id)
            }
        }

        impl From<$name> for Ulid {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.to_string().to_ascii_lowercase())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                parse(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// A public resource of any type.
    ResourceId
    /// A cluster: the id of its resource.
    ClusterId
    /// A group of a cluster: one primary and its replicas. Made by the client.
    GroupId
    /// One member of a group: one machine with its volume and address.
    InstanceId
    /// A bare-metal host.
    HostId
    /// A change request, as PUT and DELETE answer it.
    RequestId
    /// An operation: a chain of tasks with one purpose.
    OperationId
    /// One engine step that the log has recorded.
    TaskId
    /// An API token; its secret is not part of the id.
    TokenId
}

impl From<ResourceId> for ClusterId {
    fn from(id: ResourceId) -> Self {
        Self(id.0)
    }
}

impl From<ClusterId> for ResourceId {
    fn from(id: ClusterId) -> Self {
        Self(id.0)
    }
}

/// A counter that only rises; who holds a newer one refuses an older.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_case_is_accepted_and_lower_case_is_answered() {
        let id: HostId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        assert_eq!(id.to_string(), "01arz3ndektsv4rrffq69g5fav");
        assert_eq!(id, id.to_string().parse().unwrap());
    }

    #[test]
    fn what_is_not_a_ulid_is_refused() {
        for text in [
            "",
            "x",
            "81arz3ndektsv4rrffq69g5fav",
            "01arz3ndektsv4rrffq69g5fai",
            "01arz3ndektsv4rrffq69g5fa",
            "01arz3ndektsv4rrffq69g5fa\u{e9}",
        ] {
            assert!(text.parse::<HostId>().is_err(), "{text}");
        }
    }
}

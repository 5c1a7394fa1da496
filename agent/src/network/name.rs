//! Names and tags of what this agent makes.
//!
//! In: ids. Out: interface names of 15 bytes (a prefix and the random end of the ULID), aliases that carry the whole
//! id, and file names of namespaces. An interface is ours when its name has the form and its alias does not say
//! otherwise: an alias can only be set after the interface exists, so one without is a half-made one of ours.

use shardplane_proto::ids::{InstanceId, ResourceId};

/// Length of an interface name.
const LENGTH: usize = 15;
/// Alias of every finished interface: this and the whole id.
const TAG: &str = "shardplane:";

fn interface(prefix: &str, id: &str) -> String {
    // The front of a ULID is a time stamp, which neighbours share; its end is random.
    let end = id.len() - (LENGTH - prefix.len());
    format!("{prefix}{}", &id[end..])
}

/// The bridge of a subnet.
pub fn bridge(subnet: ResourceId) -> String {
    interface("spb", &subnet.to_string())
}

/// The VXLAN device of a subnet.
pub fn vxlan(subnet: ResourceId) -> String {
    interface("spx", &subnet.to_string())
}

/// The port of an instance, on the bridge's side.
pub fn port(instance: InstanceId) -> String {
    interface("spp", &instance.to_string())
}

/// Alias of the interface of this id.
pub fn alias(id: impl ToString) -> String {
    format!("{TAG}{}", id.to_string())
}

/// Whether an interface inside one of our namespaces is ours.
pub fn is_ours(name: &str, alias: Option<&str>) -> bool {
    let formed = name.len() == LENGTH
        && ["spb", "spx", "spp"].iter().any(|prefix| name.starts_with(prefix))
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    formed && alias.is_none_or(|alias| alias.strip_prefix(TAG).is_some_and(|id| id.ends_with(&name[3..])))
}

/// A network namespace that the agent keeps as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespace {
    /// Of a VPC.
    Vpc(ResourceId),
    /// Of a namespace machine.
    Machine(InstanceId),
}

impl Namespace {
    /// Its file name.
    pub fn file_name(self) -> String {
        match self {
            Self::Vpc(vpc) => format!("vpc-{vpc}"),
            Self::Machine(instance) => format!("machine-{instance}"),
        }
    }

    /// The namespace with this file name; `None` when it is not a name that [`Namespace::file_name`] makes.
    pub fn from_file_name(name: &str) -> Option<Self> {
        let found = match name.split_once('-')? {
            ("vpc", id) => Self::Vpc(id.parse().ok()?),
            ("machine", id) => Self::Machine(id.parse().ok()?),
            _ => return None,
        };
        (found.file_name() == name).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_carry_the_random_end() {
        let id: ResourceId = "01arz3ndektsv4rrffq69g5fav".parse().unwrap();
        assert_eq!(bridge(id), "spbrrffq69g5fav");
        assert_eq!(alias(id), "shardplane:01arz3ndektsv4rrffq69g5fav");
    }

    #[test]
    fn only_ours_is_ours() {
        let ours = "spbrrffq69g5fav";
        assert!(is_ours(ours, Some("shardplane:01arz3ndektsv4rrffq69g5fav")));
        assert!(is_ours(ours, None), "half-made");
        assert!(!is_ours(ours, Some("shardplane:01arz3ndektsv4rrffq69g5faw")));
        assert!(!is_ours(ours, Some("uplink")));
        assert!(!is_ours("eth0", None));
        assert!(!is_ours("spb0", None));
    }

    #[test]
    fn namespaces_are_found_by_their_file_names() {
        let vpc = Namespace::Vpc(ResourceId::from_u128(7));
        assert_eq!(Namespace::from_file_name(&vpc.file_name()), Some(vpc));
        for name in ["vpc-x", "machine-", "vpc", "VPC-00000000000000000000000007", "other"] {
            assert_eq!(Namespace::from_file_name(name), None, "{name}");
        }
    }
}

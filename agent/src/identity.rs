//! Who this host is and which run of the kernel this is.
//!
//! In: the state directory and `/proc`. Out: the host id (made once), the boot id, and the tag every machine carries.
//! Called at start; tags are made by the machine owners and read back by the search for machines.

use std::{fmt, fs, io, path::Path, str::FromStr, time::SystemTime};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{HostId, InstanceId};
use ulid::Ulid;

use crate::durable;

/// The environment variable in which a machine's PID 1 and its launcher carry their [`MachineTag`].
pub const TAG_VARIABLE: &str = "SHARDPLANE_MACHINE";

/// Identity of one start of a machine: a restarted machine has a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineUuid(Ulid);

impl MachineUuid {
    /// A new one.
    pub fn generate() -> Self {
        Self(new_ulid())
    }

    /// Its 128 bits.
    pub fn as_u128(self) -> u128 {
        self.0.0
    }
}

impl fmt::Display for MachineUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_string().to_ascii_lowercase())
    }
}

impl fmt::Debug for MachineUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MachineUuid({self})")
    }
}

impl FromStr for MachineUuid {
    type Err = ulid::DecodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ulid::from_string(&text.to_ascii_uppercase()).map(Self)
    }
}

impl Serialize for MachineUuid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MachineUuid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A number of 128 bits as UUIDs are written.
pub fn uuid_text(number: u128) -> String {
    let hex = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| hex.get(range).unwrap_or_default());
    parts.join("-")
}

/// `<host>/<instance>/<uuid>`: what a machine says about itself, so that it is found without any memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineTag {
    /// The host whose agent started it.
    pub host: HostId,
    /// The instance it is.
    pub instance: InstanceId,
    /// Which start of it.
    pub uuid: MachineUuid,
}

impl fmt::Display for MachineTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.host, self.instance, self.uuid)
    }
}

impl MachineTag {
    /// Reads the text of [`TAG_VARIABLE`]; `None` when it is not a tag.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let tag = Self {
            host: parts.next()?.parse().ok()?,
            instance: parts.next()?.parse().ok()?,
            uuid: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(tag)
    }
}

/// The host's id from `state_dir/host-id`; made and stored when there is none.
///
/// # Errors
/// When the file is unreadable, holds something else, or cannot be written.
pub fn host_id(state_dir: &Path) -> anyhow::Result<HostId> {
    let path = state_dir.join("host-id");
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().with_context(|| {
            format!(
                "{} does not hold a host id; restore it, or remove it to become a new host",
                path.display()
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = HostId::from(new_ulid());
            durable::replace(&path, format!("{id}\n").as_bytes())
                .with_context(|| format!("cannot store the new host id in {}", path.display()))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// `/proc/sys/kernel/random/boot_id`.
///
/// # Errors
/// When `/proc` is not there.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn new_ulid() -> Ulid {
    let millis =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Ulid::from_parts(u64::try_from(millis).unwrap_or(0), rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let first = host_id(dir.path()).unwrap();
        assert_eq!(first, host_id(dir.path()).unwrap());
    }

    #[test]
    fn a_damaged_id_is_refused_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("host-id"), "nonsense").unwrap();
        assert!(host_id(dir.path()).is_err());
        assert_eq!(fs::read_to_string(dir.path().join("host-id")).unwrap(), "nonsense");
    }

    #[test]
    fn a_tag_is_read_back() {
        let tag = MachineTag {
            host: HostId::from_u128(1),
            instance: InstanceId::from_u128(2),
            uuid: MachineUuid::generate(),
        };
        assert_eq!(MachineTag::parse(&tag.to_string()), Some(tag));
        assert_eq!(MachineTag::parse(&format!("{tag}/x")), None);
        assert_eq!(MachineTag::parse("1/2/3"), None);
    }
}

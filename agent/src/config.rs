//! The agent's configuration file.
//!
//! In: TOML. Out: [`Config`]; an unknown key, a missing one or a value out of range is refused by name. Read once, by the
//! command line.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use shardplane_proto::v1;

/// Everything an operator can set. `deploy/samples/agent.toml` explains each key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the host, for people.
    pub name: String,
    /// Rack, for placement.
    #[serde(default)]
    pub rack: String,
    /// Zone, for placement.
    #[serde(default)]
    pub zone: String,
    /// Durable: ledger, host id, volumes.
    pub state_dir: PathBuf,
    /// Lost at a reboot: sockets, network namespaces, lock.
    pub run_dir: PathBuf,
    /// Folder of links to block devices, each of which may become one volume. Absent: volumes are files in `state_dir`.
    pub volume_devices: Option<PathBuf>,
    /// Guest images and their manifests.
    pub image_dir: PathBuf,
    /// `host:port` of the coordinator's members.
    pub coordinators: Vec<String>,
    /// File that holds the host token; read at every connect, so that it may be rotated.
    pub host_token_file: PathBuf,
    /// Address of the VXLAN underlay on this host.
    pub underlay_ipv4: Ipv4Addr,
    /// MTU of the machines, in bytes. Absent: that of the underlay's device less what VXLAN adds.
    pub mtu: Option<u32>,
    /// How machines are run.
    #[serde(default)]
    pub vmm: VmmKind,
    /// How cloud-hypervisor is run, when it is.
    #[serde(default)]
    cloud_hypervisor: CloudHypervisorTable,
    /// Overrides what was found on the host.
    #[serde(default)]
    pub capacity: Amounts,
    /// Kept back for the host itself; subtracted from what was found, not from an override.
    #[serde(default)]
    pub reserve: Amounts,
}

/// How machines are run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmmKind {
    /// The image and its supervisor in namespaces of this kernel.
    #[default]
    Namespace,
    /// Virtual machines, one cloud-hypervisor process each.
    CloudHypervisor,
}

/// The table `[cloud_hypervisor]` as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudHypervisorTable {
    binary: Option<PathBuf>,
    kernel: Option<PathBuf>,
    initramfs: Option<PathBuf>,
    first_uid: Option<u32>,
    uids: Option<u32>,
    hugepages: Option<bool>,
}

/// How cloud-hypervisor is run, with what the table leaves out.
#[derive(Debug, Clone)]
pub struct CloudHypervisor {
    /// The program.
    pub binary: PathBuf,
    /// Kernel of all machines.
    pub kernel: PathBuf,
    /// Initramfs of all machines.
    pub initramfs: PathBuf,
    /// First of the user ids that VMMs run as.
    pub first_uid: u32,
    /// How many there are: no more machines can run.
    pub uids: u32,
    /// Machines' memory comes from the host's 2 MiB pages.
    pub hugepages: bool,
}

/// User ids that distributions give to nobody, as of Debian's policy (65536 and up are free for local use).
const FIRST_UID: u32 = 2_000_000;
const UIDS: u32 = 10_000;

/// Amounts of what a host offers; absent means "as found" or "nothing".
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amounts {
    /// Hundredths of a vCPU.
    pub vcpu_percent: Option<u64>,
    /// MiB of memory.
    pub memory_mib: Option<u64>,
    /// GiB of disk for volumes.
    pub disk_gib: Option<u64>,
    /// I/O operations a second.
    pub iops: Option<u64>,
}

/// IOPS offered when the configuration names none: they cannot be measured without disturbing what runs.
const DEFAULT_IOPS: u64 = 10_000;

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, has an unknown key or a value that cannot work.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("the configuration {} is refused", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text)?;
        if config.name.is_empty() {
            bail!("name is empty; give the host a name");
        }
        if config.coordinators.is_empty() {
            bail!("coordinators is empty; name at least one member as \"host:port\"");
        }
        for address in &config.coordinators {
            let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(_))) {
                bail!("{address:?} in coordinators is not \"host:port\"");
            }
        }
        let folders = [
            ("state_dir", &config.state_dir),
            ("run_dir", &config.run_dir),
            ("image_dir", &config.image_dir),
        ];
        let devices = config.volume_devices.iter().map(|folder| ("volume_devices", folder));
        for (key, path) in folders.into_iter().chain(devices) {
            if !path.is_absolute() {
                bail!("{key} = {:?} is not an absolute path", path.display());
            }
        }
        if config.mtu.is_some_and(|mtu| !(576..=65_485).contains(&mtu)) {
            bail!("mtu = {} is not between 576 and 65485", config.mtu.unwrap_or_default());
        }
        let own = config.cloud_hypervisor();
        for (key, path) in [("binary", &own.binary), ("kernel", &own.kernel), ("initramfs", &own.initramfs)] {
            if !path.is_absolute() {
                bail!("{key} = {:?} in [cloud_hypervisor] is not an absolute path", path.display());
            }
        }
        if own.first_uid < 1000 || own.uids == 0 || own.first_uid.checked_add(own.uids).is_none() {
            bail!(
                "first_uid = {} and uids = {} in [cloud_hypervisor] are no range of user ids from 1000 on",
                own.first_uid,
                own.uids
            );
        }
        Ok(config)
    }

    /// How cloud-hypervisor is run.
    pub fn cloud_hypervisor(&self) -> CloudHypervisor {
        let table = &self.cloud_hypervisor;
        let in_images = |name: &str| self.image_dir.join("kernel").join(name);
        CloudHypervisor {
            binary: table.binary.clone().unwrap_or_else(|| "/usr/bin/cloud-hypervisor".into()),
            kernel: table.kernel.clone().unwrap_or_else(|| in_images("vmlinuz")),
            initramfs: table.initramfs.clone().unwrap_or_else(|| in_images("initramfs")),
            first_uid: table.first_uid.unwrap_or(FIRST_UID),
            uids: table.uids.unwrap_or(UIDS),
            hugepages: table.hugepages.unwrap_or(false),
        }
    }

    /// What this host offers, given what was found on it.
    pub fn capacity(&self, found: v1::Capacity) -> v1::Capacity {
        let pick = |over: Option<u64>, found: u64, reserve: Option<u64>| {
            over.unwrap_or_else(|| found.saturating_sub(reserve.unwrap_or(0)))
        };
        let (over, reserve) = (self.capacity, self.reserve);
        v1::Capacity {
            vcpu_percent: pick(over.vcpu_percent, found.vcpu_percent, reserve.vcpu_percent),
            memory_mib: pick(over.memory_mib, found.memory_mib, reserve.memory_mib),
            disk_gib: pick(over.disk_gib, found.disk_gib, reserve.disk_gib),
            iops: pick(over.iops, DEFAULT_IOPS, reserve.iops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../deploy/samples/agent.toml");

    #[test]
    fn the_sample_is_accepted() {
        let config = Config::parse(SAMPLE).unwrap();
        assert_eq!(config.vmm, VmmKind::Namespace);
        let shown = config.cloud_hypervisor();
        let text = SAMPLE.replace("vmm = \"namespace\"", "vmm = \"cloud-hypervisor\"");
        let uncommented = ["binary", "kernel", "initramfs", "first_uid", "uids", "hugepages"]
            .iter()
            .fold(text, |text, key| text.replace(&format!("# {key} = "), &format!("{key} = ")));
        let config = Config::parse(&uncommented).unwrap();
        assert_eq!(config.vmm, VmmKind::CloudHypervisor);
        let written = config.cloud_hypervisor();
        assert_eq!(format!("{shown:?}"), format!("{written:?}"), "the sample shows what is taken without it");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named() {
        for (text, named) in [
            (format!("colour = 1\n{SAMPLE}"), "colour"),
            (SAMPLE.replace("state_dir = \"/", "state_dir = \""), "state_dir"),
            (SAMPLE.replace("# volume_devices = \"/", "volume_devices = \""), "volume_devices"),
            (SAMPLE.replace(":7710", ""), "coordinators"),
            (SAMPLE.replace("vmm = \"namespace\"", "vmm = \"qemu\""), "vmm"),
            (SAMPLE.replace("# binary = \"/usr", "binary = \"usr"), "binary"),
            (SAMPLE.replace("# first_uid = 2000000", "first_uid = 0"), "first_uid"),
            (SAMPLE.replace("# uids = 10000", "uids = 0"), "uids"),
            (SAMPLE.replace("# uids = 10000", "uid = 1"), "uid"),
        ] {
            let error = format!("{:#}", Config::parse(&text).unwrap_err());
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    #[test]
    fn an_override_wins_and_the_reserve_is_subtracted_otherwise() {
        let mut config = Config::parse(SAMPLE).unwrap();
        config.capacity = Amounts { memory_mib: Some(100), ..Amounts::default() };
        config.reserve = Amounts { memory_mib: Some(7), disk_gib: Some(7), ..Amounts::default() };
        let found = v1::Capacity { vcpu_percent: 400, memory_mib: 1000, disk_gib: 10, iops: 0 };
        let offered = config.capacity(found);
        assert_eq!((offered.vcpu_percent, offered.memory_mib, offered.disk_gib), (400, 100, 3));
    }
}

//! What a VMM is told about its machine, exactly as it goes over the wire.
//!
//! In: a [`MachineSpec`]. Out: [`VmConfig`] and [`NetConfig`] as JSON, and [`difference`] for what the VMM then says it has.
//! Paths are relative: the VMM's working directory is the machine's own folder, where the launcher has put the files.
//! The VMM ignores keys that it does not know, so a wrong name here would lose a setting without a word: what it holds is
//! read back and compared before the machine boots.

use serde::Serialize;
use serde_json::Value;

use crate::{
    identity::{MachineUuid, uuid_text},
    vmm::MachineSpec,
};

/// Names in the machine's folder.
pub mod files {
    /// The API.
    pub const API: &str = "api";
    /// Root file system, read-only, shared by all machines of an image.
    pub const ROOT: &str = "root";
    /// Data volume.
    pub const DATA: &str = "data";
    /// Kernel.
    pub const KERNEL: &str = "kernel";
    /// Initramfs.
    pub const INITRAMFS: &str = "initramfs";
    /// Where the VMM takes connections to the guest; those of the guest to port P go to a socket of this name and `_P`.
    pub const VSOCK: &str = "vsock";
    /// The first serial port.
    pub const SERIAL: &str = "serial";
}

/// The port at which the supervisor finds the agent.
pub const GUEST_PORT: u32 = 1024;
/// Every VMM has a vsock of its own, so that all guests can have the first number that is not reserved (0 to 2 are).
const GUEST_CID: u32 = 3;
/// Milliseconds for which a limiter's budget is counted. Well above the 100 ms for which the VMM's limiter rests after it
/// was exhausted, or less than the limit would pass.
const REFILL_MS: u64 = 1000;
const MIB: u64 = 1 << 20;
/// The huge pages that `hugepages` of the configuration means, in MiB.
const HUGE_PAGE_MIB: u64 = 2;
/// A kernel takes 2048 bytes of command line.
const MOST_WORDS: usize = 1500;

/// The body of `vm.create`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmConfig {
    cpus: Cpus,
    memory: Memory,
    payload: Payload,
    disks: Vec<Disk>,
    rng: Rng,
    serial: Console,
    console: Console,
    vsock: Vsock,
    platform: Platform,
    pvpanic: bool,
    /// The VMM may touch nothing but the files named here. A watchdog is not asked for: Linux has no driver for it.
    landlock_enable: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Cpus {
    boot_vcpus: u32,
    max_vcpus: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Memory {
    /// Bytes, page aligned.
    size: u64,
    hugepages: bool,
    /// Bytes. Told, or the VMM would ask `/dev/hugepages`, which it does not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    hugepage_size: Option<u64>,
    /// All huge pages are the machine's from its boot on, or the boot fails. Otherwise a guest that touches its memory when others have taken
    /// the pages would be killed in the middle of its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserve: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Payload {
    kernel: &'static str,
    initramfs: &'static str,
    cmdline: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Disk {
    /// Named, or the VMM would number them; never with `__`, which it keeps for itself.
    id: &'static str,
    path: &'static str,
    readonly: bool,
    /// Told, not guessed: a guessed raw disk refuses writes to its first sector. Upper and lower case count. Never a format that names other
    /// files (qcow2): the volume is the guest's to write.
    image_type: &'static str,
    /// What the guest finds it by.
    serial: &'static str,
    /// At most as many as vCPUs.
    num_queues: u32,
    /// A power of two.
    queue_size: u32,
    /// Room that the guest gives back is given back to the host.
    sparse: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_limiter_config: Option<RateLimiter>,
}

/// The one object whose unknown keys the VMM refuses. It cannot be changed while the machine runs; a bucket of size 0 would be none. Cards
/// could have one too, for each direction its own: they have none.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RateLimiter {
    ops: Bucket,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Bucket {
    size: u64,
    refill_time: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Rng {
    src: &'static str,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Console {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Vsock {
    id: &'static str,
    cid: u32,
    socket: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Platform {
    system_uuid: String,
}

/// The body of `vm.add-net`. Without a tap and without descriptors in the body: those come beside it, and what a body says
/// about descriptors the VMM ignores and makes an interface of its own instead.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetConfig {
    id: &'static str,
    /// Told, or it would be drawn at random at every start.
    mac: String,
    // No MTU: the VMM would set it on the tap too, which it has no right to. It tells the guest that of the tap, which the agent sets, as it
    // sets the tap up: a VMM does neither with a tap that it is handed. No offloads: by default all are on, and of these two (offload_tso,
    // offload_ufo) may not stand without the third (offload_csum).
    /// One for each direction: the tap has a single queue. A tap with several needs more than 2 here, and the other way round.
    num_queues: u32,
    queue_size: u32,
}

/// A machine's UUID as firmware and guest see it.
pub fn system_uuid(uuid: MachineUuid) -> String {
    uuid_text(uuid.as_u128())
}

/// Why a machine cannot be described to a VMM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoConfig {
    /// It would become part of a kernel's command line.
    #[error("the host name {0:?} has other characters than letters, digits, dots and dashes")]
    Hostname(String),
    /// They came with the kernel.
    #[error("the words for the kernel's command line are more than printable ones in one line: {0:?}")]
    Words(String),
    /// None.
    #[error("it has no vCPU")]
    NoVcpu,
    /// Not a multiple of the page size in use.
    #[error("{0} MiB of memory are no whole number of 2 MiB pages")]
    Memory(u64),
}

impl VmConfig {
    /// Describes a machine. `words` are those that its kernel wants on the command line besides ours.
    ///
    /// # Errors
    /// When it cannot be one.
    pub fn new(spec: &MachineSpec, hugepages: bool, words: &str) -> Result<Self, NoConfig> {
        let hostname = &spec.hostname;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        if hostname.is_empty() || !hostname.bytes().all(plain) {
            return Err(NoConfig::Hostname(hostname.clone()));
        }
        if words.len() > MOST_WORDS || words.chars().any(|one| one.is_control() || !one.is_ascii()) {
            return Err(NoConfig::Words(words.chars().take(80).collect()));
        }
        let mut cmdline =
            format!("console=ttyS0 quiet loglevel=4 panic=-1 shardplane.hostname={hostname} {words}");
        cmdline.truncate(cmdline.trim_end().len());
        let limits = spec.limits;
        if limits.vcpus == 0 {
            return Err(NoConfig::NoVcpu);
        }
        if hugepages && !limits.memory_mib.is_multiple_of(HUGE_PAGE_MIB) {
            return Err(NoConfig::Memory(limits.memory_mib));
        }
        let disk = |id, readonly, rate_limiter_config| Disk {
            id,
            path: id,
            readonly,
            image_type: "Raw",
            serial: id,
            num_queues: 1,
            queue_size: 128,
            sparse: !readonly,
            rate_limiter_config,
        };
        let limiter = (limits.iops > 0)
            .then(|| RateLimiter { ops: Bucket { size: limits.iops.into(), refill_time: REFILL_MS } });
        Ok(Self {
            cpus: Cpus { boot_vcpus: limits.vcpus, max_vcpus: limits.vcpus },
            // Anonymous memory: huge pages of a VM that is killed are free at once.
            memory: Memory {
                size: limits.memory_mib * MIB,
                hugepages,
                hugepage_size: hugepages.then_some(HUGE_PAGE_MIB * MIB),
                reserve: hugepages.then_some(true),
            },
            payload: Payload { kernel: files::KERNEL, initramfs: files::INITRAMFS, cmdline },
            // Two readers may have one image; of a volume's file the VMM takes a lock, so no second machine gets it. Of a device each VMM
            // has a node of its own, and a lock of one is none of the other: there the proof of absence before a start has to do.
            disks: vec![disk(files::ROOT, true, None), disk(files::DATA, false, limiter)],
            rng: Rng { src: "/dev/urandom" },
            // A file would be emptied at each reboot of the guest, and a mode File without file panics the VMM. The VMM keeps
            // the last MiB while nobody reads.
            serial: Console { mode: "Socket", socket: Some(files::SERIAL) },
            // Left out it would be the VMM's terminal.
            console: Console { mode: "Off", socket: None },
            // Only guests connect, to the agent. The other way would be through this socket, where a guest whose driver is not up gives no answer
            // at all. With its folder, in which Landlock then lets the VMM make it: a bare name has none.
            vsock: Vsock { id: "vsock", cid: GUEST_CID, socket: format!("./{}", files::VSOCK) },
            platform: Platform { system_uuid: system_uuid(spec.tag.uuid) },
            pvpanic: true,
            landlock_enable: true,
        })
    }
}

impl NetConfig {
    /// Describes the one network card of a machine.
    pub fn new(spec: &MachineSpec) -> Self {
        Self { id: "eth0", mac: spec.nic.mac.clone(), num_queues: 2, queue_size: 256 }
    }
}

/// Where what the VMM holds differs from what it was told; `None` when all that was told is there.
pub fn difference(told: &Value, holds: &Value) -> Option<String> {
    differs(told, holds, "config").err()
}

fn differs(told: &Value, holds: &Value, path: &str) -> Result<(), String> {
    match (told, holds) {
        (Value::Object(told), Value::Object(holds)) => told.iter().try_for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            let found = holds.get(key).ok_or_else(|| format!("{path} is not there"))?;
            differs(value, found, &path)
        }),
        (Value::Array(told), Value::Array(holds)) if told.len() == holds.len() => {
            let pairs = told.iter().zip(holds).enumerate();
            pairs
                .into_iter()
                .try_for_each(|(at, (told, holds))| differs(told, holds, &format!("{path}[{at}]")))
        }
        (told, holds) if told == holds => Ok(()),
        (told, holds) => Err(format!("{path} is {holds} and not {told}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::vmm::cloud_hypervisor::fake::spec;

    #[test]
    fn a_machine_is_described_as_the_vmm_reads_it() {
        let mut spec = spec();
        spec.hostname = "db-1.x".into();
        let config = serde_json::to_value(VmConfig::new(&spec, false, "").unwrap()).unwrap();
        assert_eq!(
            config["payload"]["cmdline"],
            "console=ttyS0 quiet loglevel=4 panic=-1 shardplane.hostname=db-1.x"
        );
        assert_eq!(config["memory"]["size"], 256 << 20, "bytes, as a number");
        assert_eq!(config["memory"], json!({"size": 256 << 20, "hugepages": false}));
        let on_pages = serde_json::to_value(VmConfig::new(&spec, true, "").unwrap()).unwrap();
        assert_eq!(
            on_pages["memory"],
            json!({"size": 256 << 20, "hugepages": true, "hugepage_size": 2 << 20, "reserve": true})
        );
        assert_eq!(config.get("net"), None, "vm.create takes no descriptors");
        assert_eq!(config["serial"], json!({"mode": "Socket", "socket": "serial"}));
        assert_eq!(config["console"], json!({"mode": "Off"}), "left out it would be a terminal");
        for disk in 0..2 {
            let disk = &config["disks"][disk];
            assert_eq!((&disk["image_type"], &disk["num_queues"]), (&json!("Raw"), &json!(1)), "{disk}");
            let (id, queue) = (disk["id"].as_str().unwrap(), disk["queue_size"].as_u64().unwrap());
            assert!(!id.starts_with("__") && queue.is_power_of_two(), "{disk}");
        }
        assert_ne!(config["disks"][0]["id"], config["disks"][1]["id"]);
        assert_eq!((&config["vsock"]["cid"], &config["landlock_enable"]), (&json!(3), &json!(true)));
        assert_eq!(config.get("watchdog"), None, "Linux has no driver for it");
        let with_words = VmConfig::new(&spec, false, "a.b=c d").unwrap().payload.cmdline;
        assert!(with_words.ends_with("shardplane.hostname=db-1.x a.b=c d"), "{with_words}");
        for bad in ["two\nlines", "gr\u{fc}n", &"x".repeat(2000)] {
            assert!(matches!(VmConfig::new(&spec, false, bad), Err(NoConfig::Words(_))));
        }
        let net = serde_json::to_value(NetConfig::new(&spec)).unwrap();
        assert!(net.get("tap").is_none() && net.get("fds").is_none(), "{net}");
        assert_eq!((&net["num_queues"], net.get("mtu")), (&json!(2), None), "{net}");
    }

    /// HOST-11: what a volume may do is counted for a whole second, far longer than the limiter rests; reading the image is not limited.
    #[test]
    fn host_11_operations_are_counted_by_the_second() {
        let mut spec = spec();
        let limiter = |spec: &MachineSpec, disk: usize| {
            let config = serde_json::to_value(VmConfig::new(spec, false, "").unwrap()).unwrap();
            config["disks"][disk].get("rate_limiter_config").cloned()
        };
        assert_eq!(limiter(&spec, 1), Some(json!({"ops": {"size": 750, "refill_time": 1000}})));
        assert_eq!(limiter(&spec, 0), None);
        spec.limits.iops = 0;
        assert_eq!(limiter(&spec, 1), None, "no limit is no limiter");
    }

    #[test]
    fn what_cannot_be_a_machine_is_refused() {
        let refusal = |change: &dyn Fn(&mut MachineSpec)| {
            let mut spec = spec();
            change(&mut spec);
            VmConfig::new(&spec, true, "").unwrap_err()
        };
        assert_eq!(refusal(&|s| s.limits.vcpus = 0), NoConfig::NoVcpu);
        assert_eq!(refusal(&|s| s.limits.memory_mib = 255), NoConfig::Memory(255));
        for bad in ["", "a b", "a init=/bin/sh", "a\nb"] {
            assert_eq!(refusal(&|s| s.hostname = bad.into()), NoConfig::Hostname(bad.into()));
        }
    }

    #[test]
    fn a_setting_that_was_lost_or_changed_is_found() {
        let told = json!({"a": [{"x": 1}], "platform": {"system_uuid": "u"}});
        let holds = json!({"a": [{"x": 1, "more": true}], "b": 1, "platform": {"system_uuid": "u"}});
        assert_eq!(difference(&told, &holds), None);
        let lost = json!({"a": [{}], "platform": {"system_uuid": "u"}});
        assert_eq!(difference(&told, &lost).unwrap(), "config.a[0].x is not there");
        let changed = json!({"a": [{"x": 2}], "platform": {"system_uuid": "u"}});
        assert_eq!(difference(&told, &changed).unwrap(), "config.a[0].x is 2 and not 1");
        let shorter = json!({"a": [], "platform": {"system_uuid": "u"}});
        assert!(difference(&told, &shorter).is_some(), "a disk that is gone");
    }

    #[test]
    fn a_uuid_has_its_usual_form() {
        let uuid: MachineUuid = "01arz3ndektsv4rrffq69g5fav".parse().unwrap();
        assert_eq!(system_uuid(uuid), "01563e3a-b5d3-d676-4c61-efb99302bd5b");
    }
}

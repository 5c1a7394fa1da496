//! Whether this host can run machines at all, and what it has to offer.
//!
//! In: the host and the configuration. Out: [`Finding`]s, each with what to do where something is missing; the capacity
//! found. The command `check` shows all; the agent refuses to start on a failed one, before anything else.

mod vm;

use std::{fs, io, os::fd::AsRawFd as _, path::Path};

use anyhow::Context as _;
use shardplane_proto::v1;

use crate::config::{Config, VmmKind};

/// Programs the agent runs, and the Debian package of each.
const PROGRAMS: [(&str, &str); 5] = [
    ("nft", "nftables"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("mount", "mount"),
];
/// Below this a volume or a log will soon find no room.
const LEAST_FREE_GIB: u64 = 5;
/// With a smaller MTU of the underlay, machines have less than the 1500 bytes that the world is used to.
const WANTED_MTU: u32 = 1550;

/// How good one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Machines run, but not as well as they could.
    Warn,
    /// Machines cannot run.
    Fail,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How good it is.
    pub level: Level,
    /// What was found and, unless it is good, what to do.
    pub text: String,
}

impl Finding {
    fn ok(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Ok, text: text.into() }
    }

    fn warn(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Warn, text: text.into() }
    }

    fn fail(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Fail, text: text.into() }
    }

    /// Good, or failed with the reason.
    fn must(what: &str, found: Result<String, String>) -> Self {
        found.map_or_else(|text| Self::fail(what, text), |text| Self::ok(what, text))
    }
}

/// All that failed, with what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host cannot run machines:\n  {}", .0.join("\n  "))]
pub struct CannotRun(Vec<String>);

/// Looks at everything that the configured way to run machines needs.
pub fn look(config: &Config) -> Vec<Finding> {
    let mut findings = basics(config);
    findings.push(underlay(config));
    findings.push(cgroups());
    findings.push(disk(config));
    findings.extend(match config.vmm {
        VmmKind::Namespace => namespaces(),
        VmmKind::CloudHypervisor => vm::look(&config.cloud_hypervisor()),
    });
    findings
}

/// Looks at what even a sweep needs.
pub fn basics(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let root = nix::unistd::geteuid().is_root();
    let root = if root {
        Ok("yes".into())
    } else {
        Err("the agent makes namespaces and mounts and must run as root".into())
    };
    findings.push(Finding::must("root", root));
    findings.extend(PROGRAMS.iter().map(|(program, package)| {
        let missing = || format!("the program {program} is not installed: install the package {package}");
        Finding::must(program, in_path(program).then(|| "installed".into()).ok_or_else(missing))
    }));
    for (key, dir) in [("state_dir", &config.state_dir), ("run_dir", &config.run_dir)] {
        let made = fs::create_dir_all(dir).map(|()| dir.display().to_string());
        findings.push(Finding::must(
            key,
            made.map_err(|error| format!("cannot make {}: {error}", dir.display())),
        ));
    }
    let images = config.image_dir.display();
    let found = if config.image_dir.is_dir() {
        Ok(images.to_string())
    } else {
        Err(format!("{images} is not a folder: make it and put images in"))
    };
    findings.push(Finding::must("image_dir", found));
    findings
}

/// Refuses a host with a failed finding.
///
/// # Errors
/// All that failed, at once.
pub fn judge(findings: &[Finding]) -> Result<(), CannotRun> {
    let failed = findings.iter().filter(|finding| finding.level == Level::Fail);
    let failed: Vec<_> = failed.map(|finding| format!("{}: {}", finding.what, finding.text)).collect();
    if failed.is_empty() { Ok(()) } else { Err(CannotRun(failed)) }
}

/// One line a finding.
pub fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    let line = |finding: &Finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        format!("{level:<5} {:<width$}  {}\n", finding.what, finding.text)
    };
    findings.iter().map(line).collect()
}

fn namespaces() -> Vec<Finding> {
    let mut findings = Vec::new();
    let loops = Path::new("/dev/loop-control").exists();
    let loops = loops
        .then(|| "there".into())
        .ok_or_else(|| "/dev/loop-control does not exist: load the module loop (modprobe loop)".to_owned());
    findings.push(Finding::must("loop devices", loops));
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for (name, wanted_for) in [("ext4", "volumes"), ("erofs", "images")] {
        let known = filesystems.split_ascii_whitespace().any(|word| word == name) || module_exists(name);
        let missing = || format!("the kernel has no {name}, which {wanted_for} need: load the module {name}");
        findings.push(Finding::must(name, known.then(|| "there".into()).ok_or_else(missing)));
    }
    findings
}

fn underlay(config: &Config) -> Finding {
    let address = config.underlay_ipv4;
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let name = interfaces.into_iter().find_map(|one| {
        let ipv4 = one.address.as_ref()?.as_sockaddr_in()?.ip();
        (ipv4 == address).then_some(one.interface_name)
    });
    let Some(name) = name else {
        return Finding::fail(
            "underlay",
            format!("no device has the address {address}: set underlay_ipv4, or the address"),
        );
    };
    let mtu = match mtu_of(&name) {
        Ok(mtu) => mtu,
        Err(error) => {
            return Finding::warn(
                "underlay",
                format!("cannot read the MTU of {name}, which has {address}: {error}"),
            );
        }
    };
    let of_machines = config.mtu.unwrap_or_else(|| mtu.saturating_sub(crate::network::VXLAN_OVERHEAD));
    let text = format!("{address} is on {name} with MTU {mtu}; machines have {of_machines}");
    if of_machines + crate::network::VXLAN_OVERHEAD > mtu {
        return Finding::fail(
            "underlay",
            format!("{text}, which does not fit into it with VXLAN: set mtu lower"),
        );
    }
    if mtu < WANTED_MTU {
        return Finding::warn("underlay", format!("{text}; {WANTED_MTU} and more would give them 1500"));
    }
    Finding::ok("underlay", text)
}

/// Not from `/sys`, which may show the devices of another network namespace.
#[allow(unsafe_code)]
fn mtu_of(name: &str) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the descriptor is open and the request outlives the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

fn cgroups() -> Finding {
    let roots = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")];
    let found = roots.iter().find_map(|root| fs::read_to_string(root.join("cgroup.controllers")).ok());
    let has =
        |name: &str| found.as_ref().is_some_and(|text| text.split_ascii_whitespace().any(|one| one == name));
    if has("cpu") && has("memory") {
        Finding::ok("cgroup v2", found.unwrap_or_default().trim())
    } else {
        let text = "cgroup v2 with the controllers cpu and memory is not mounted: machines run without limits; boot with \
                    systemd.unified_cgroup_hierarchy=1";
        Finding::warn("cgroup v2", text)
    }
}

fn disk(config: &Config) -> Finding {
    let dir = config.state_dir.display();
    match rustix::fs::statvfs(&config.state_dir) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize) >> 30;
            let text = format!("{free} GiB are free for volumes in {dir}");
            if free < LEAST_FREE_GIB {
                Finding::warn("disk", format!("{text}: make room, or set state_dir elsewhere"))
            } else {
                Finding::ok("disk", text)
            }
        }
        Err(error) => Finding::warn("disk", format!("cannot measure the file system of {dir}: {error}")),
    }
}

/// The kernel loads a file system's module at the first mount, so a module on disk is enough.
fn module_exists(name: &str) -> bool {
    let Ok(uname) = nix::sys::utsname::uname() else { return false };
    let dep = Path::new("/lib/modules").join(uname.release()).join("modules.dep");
    fs::read_to_string(dep).is_ok_and(|text| text.contains(&format!("/{name}.ko")))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// What is there: all cores, all memory, the whole file system of the volumes.
///
/// # Errors
/// When it cannot be found out.
pub fn capacity(state_dir: &Path) -> anyhow::Result<v1::Capacity> {
    let cores = std::thread::available_parallelism().context("cannot count the cores")?;
    let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let memory_kib = memory_kib(&meminfo).context("/proc/meminfo has no MemTotal")?;
    let disk = rustix::fs::statvfs(state_dir).map_err(io::Error::from);
    let disk = disk.with_context(|| format!("cannot measure the file system of {}", state_dir.display()))?;
    Ok(v1::Capacity {
        vcpu_percent: u64::try_from(cores.get())? * 100,
        memory_mib: memory_kib / 1024,
        disk_gib: disk.f_blocks.saturating_mul(disk.f_frsize) >> 30,
        iops: 0,
    })
}

fn memory_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_found() {
        assert_eq!(memory_kib("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2048));
        let found = capacity(Path::new("/")).unwrap();
        assert!(found.vcpu_percent >= 100 && found.memory_mib > 0);
    }

    #[test]
    fn the_table_says_what_to_do_and_only_a_failure_forbids_to_run() {
        let mut findings = vec![Finding::ok("root", "yes"), Finding::warn("disk", "full: make room")];
        assert_eq!(table(&findings), "ok    root  yes\nwarn  disk  full: make room\n");
        assert_eq!(judge(&findings), Ok(()));
        findings.push(Finding::fail("/dev/kvm", "is not there: load kvm_intel or kvm_amd"));
        let refusal = judge(&findings).unwrap_err().to_string();
        assert!(refusal.ends_with("/dev/kvm: is not there: load kvm_intel or kvm_amd"), "{refusal}");
    }
}

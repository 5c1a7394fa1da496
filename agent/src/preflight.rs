//! Whether this host can run machines at all, and what it has to offer.
//!
//! In: the host. Out: nothing, or every reason why not with what to do; the capacity found. Called before anything else.

use std::{fs, io, path::Path};

use anyhow::{Context as _, bail};
use shardplane_proto::v1;

use crate::config::Config;

/// Programs the agent runs, and the Debian package of each.
const PROGRAMS: [(&str, &str); 5] = [
    ("nft", "nftables"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("mount", "mount"),
];

/// Checks the host.
///
/// # Errors
/// All that is missing, at once.
pub fn check(config: &Config) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the agent makes namespaces and mounts and must run as root");
    }
    let mut missing = Vec::new();
    for (program, package) in PROGRAMS {
        if !in_path(program) {
            missing.push(format!("the program {program} is not installed: install the package {package}"));
        }
    }
    if !Path::new("/dev/loop-control").exists() {
        missing.push("/dev/loop-control does not exist: load the module loop (modprobe loop)".into());
    }
    let filesystems = fs::read_to_string("/proc/filesystems").context("cannot read /proc/filesystems")?;
    for (name, wanted_for) in [("ext4", "volumes"), ("erofs", "images")] {
        let known = filesystems.split_ascii_whitespace().any(|word| word == name);
        if !known && !module_exists(name) {
            missing
                .push(format!("the kernel has no {name}, which {wanted_for} need: load the module {name}"));
        }
    }
    for (key, dir) in [("state_dir", &config.state_dir), ("run_dir", &config.run_dir)] {
        if let Err(error) = fs::create_dir_all(dir) {
            missing.push(format!("cannot make {key} {}: {error}", dir.display()));
        }
    }
    if !config.image_dir.is_dir() {
        missing.push(format!(
            "image_dir {} is not a folder: make it and put images in",
            config.image_dir.display()
        ));
    }
    if missing.is_empty() {
        Ok(())
    } else {
        bail!("this host cannot run machines:\n  {}", missing.join("\n  "))
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
}

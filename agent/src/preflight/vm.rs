//! What a host needs to run virtual machines.
//!
//! In: how cloud-hypervisor is to be run. Out: findings. Called by `look` on hosts that are configured so. No vhost is
//! looked for: network cards and sockets of the machines are served by the VMM itself.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::PermissionsExt as _},
    path::Path,
    process::Command,
};

use super::{Finding, Level};
use crate::{config::CloudHypervisor, vmm::cloud_hypervisor::start::readable};

/// The one version of KVM's interface that there has been since 2007.
const KVM_API: i32 = 12;
/// `KVM_GET_API_VERSION` of `linux/kvm.h`.
const KVM_GET_API_VERSION: u64 = 0xAE00;
/// What the VMM's own rules need, of the kernel's Landlock.
const LANDLOCK_ABI: i64 = 3;
/// Older ones do not know all that they are told, newer ones may not know it any more.
const TESTED: u32 = 54;

/// Looks at everything.
pub(super) fn look(config: &CloudHypervisor) -> Vec<Finding> {
    vec![
        Finding::must("/dev/kvm", kvm()),
        binary(&config.binary),
        Finding::must("kernel", file(&config.kernel)),
        Finding::must("initramfs", file(&config.initramfs)),
        Finding::must("/dev/net/tun", tun()),
        Finding::must("landlock", landlock()),
        hugepages(config.hugepages, Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB")),
        uids(config, &fs::read_to_string("/etc/passwd").unwrap_or_default()),
    ]
}

#[allow(unsafe_code)]
fn kvm() -> Result<String, String> {
    let file = File::options().read(true).write(true).open("/dev/kvm").map_err(|error| {
        format!("cannot be opened ({error}): switch virtualization on in the firmware and load kvm_intel or kvm_amd")
    })?;
    // SAFETY: the descriptor is open and the request takes no argument.
    let version = unsafe { libc::ioctl(file.as_raw_fd(), KVM_GET_API_VERSION, 0) };
    if version == KVM_API {
        Ok(format!("API version {version}"))
    } else {
        Err(format!("says API version {version} and not {KVM_API}: it is no KVM that a VMM can use"))
    }
}

fn binary(path: &Path) -> Finding {
    let what = "cloud-hypervisor";
    let shown = path.display();
    let executable = fs::metadata(path).map(|meta| meta.is_file() && meta.permissions().mode() & 0o001 != 0);
    match executable {
        Ok(true) => {}
        Ok(false) => {
            return Finding::fail(what, format!("{shown} is not executable by all users: chmod 755 {shown}"));
        }
        Err(error) => {
            let text = format!(
                "cannot look at {shown}: {error}; install its release binary there, or set binary in [cloud_hypervisor]"
            );
            return Finding::fail(what, text);
        }
    }
    let output = match Command::new(path).arg("--version").output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(output) => return Finding::fail(what, format!("{shown} --version ended with {}", output.status)),
        Err(error) => return Finding::fail(what, format!("cannot run {shown}: {error}")),
    };
    let (level, text) = judge_version(output.lines().next().unwrap_or_default());
    Finding { what: what.into(), level, text: format!("{shown}: {text}") }
}

/// Judges the line that `--version` prints.
fn judge_version(line: &str) -> (Level, String) {
    let version = line.strip_prefix("cloud-hypervisor ").unwrap_or_default();
    let major = version.rsplit(' ').next().unwrap_or_default().trim_start_matches('v').split('.').next();
    match major.and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major == TESTED => (Level::Ok, line.to_owned()),
        Some(_) => (Level::Warn, format!("{line}; this agent is tested with version {TESTED}")),
        None => (Level::Fail, format!("says {line:?} for its version: it is not cloud-hypervisor")),
    }
}

fn file(path: &Path) -> Result<String, String> {
    readable(path).map_err(|why| format!("{why}; images/build kernel makes it"))?;
    Ok(path.display().to_string())
}

fn tun() -> Result<String, String> {
    match File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok("can be opened".into()),
        Err(error) => Err(format!("cannot be opened ({error}): load the module tun (modprobe tun)")),
    }
}

#[allow(unsafe_code)]
fn landlock() -> Result<String, String> {
    // `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
    let version: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call reads nothing and answers a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, version) };
    let enable = "boot with landlock in the list of lsm=";
    match abi {
        abi if abi >= LANDLOCK_ABI => Ok(format!("ABI {abi}")),
        abi if abi > 0 => Err(format!(
            "the kernel has ABI {abi}, and VMMs are locked in by ABI {LANDLOCK_ABI}: run Linux 6.2 or newer"
        )),
        _ => Err(format!("the kernel does not have it ({}): {enable}", io::Error::last_os_error())),
    }
}

fn hugepages(wanted: bool, dir: &Path) -> Finding {
    let what = "hugepages";
    if !wanted {
        return Finding::ok(what, "not used");
    }
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    match (read("nr_hugepages"), read("free_hugepages")) {
        (Some(all), Some(free)) if all > 0 => {
            let text = format!("{} MiB in 2 MiB pages, {} MiB free", all * 2, free * 2);
            Finding::ok(what, format!("{text}; offer no more than that: memory_mib in [capacity]"))
        }
        _ => {
            let text = "no 2 MiB pages are set aside: set vm.nr_hugepages, or hugepages = false";
            Finding::fail(what, text)
        }
    }
}

fn uids(config: &CloudHypervisor, passwd: &str) -> Finding {
    let range = config.first_uid..config.first_uid.saturating_add(config.uids);
    let users = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid: u32 = fields.nth(1)?.parse().ok()?;
        range.contains(&uid).then(|| format!("{name} ({uid})"))
    });
    let users: Vec<_> = users.collect();
    let (first, last) = (range.start, range.end.saturating_sub(1));
    if users.is_empty() {
        Finding::ok("user ids", format!("{first} to {last} belong to nobody"))
    } else {
        let text = format!(
            "{first} to {last} are for VMMs alone, but belong to {}: set first_uid",
            users.join(", ")
        );
        Finding::fail("user ids", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for (line, level) in [
            ("cloud-hypervisor v54.0.0", Level::Ok),
            ("cloud-hypervisor v54.1-dirty", Level::Ok),
            ("cloud-hypervisor v48.0.0", Level::Warn),
            ("qemu something", Level::Fail),
            ("", Level::Fail),
        ] {
            assert_eq!(judge_version(line).0, level, "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(hugepages(false, dir.path()).level, Level::Ok);
        assert!(hugepages(true, dir.path()).text.contains("vm.nr_hugepages"));
        fs::write(dir.path().join("nr_hugepages"), "512\n").unwrap();
        fs::write(dir.path().join("free_hugepages"), "500\n").unwrap();
        let found = hugepages(true, dir.path());
        assert!(found.level == Level::Ok && found.text.starts_with("1024 MiB"), "{found:?}");

        let missing = dir.path().join("none");
        assert!(file(&missing).unwrap_err().contains("images/build kernel"));
        let found = binary(&missing);
        assert!(found.level == Level::Fail && found.text.contains("release binary"), "{found:?}");
        let found = binary(Path::new("/bin/true"));
        assert!(found.level == Level::Fail, "{found:?}");

        let config = CloudHypervisor {
            binary: missing.clone(),
            kernel: missing.clone(),
            initramfs: missing,
            first_uid: 5000,
            uids: 10,
            hugepages: false,
        };
        assert_eq!(uids(&config, "root:x:0:0::/:/bin/sh\n").level, Level::Ok);
        let found = uids(&config, "eve:x:5009:5009::/:/bin/sh\n");
        assert!(found.level == Level::Fail && found.text.contains("eve (5009)"), "{found:?}");
    }
}

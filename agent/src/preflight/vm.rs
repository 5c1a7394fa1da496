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

use super::{Finding, Level, View};
use crate::{
    config::CloudHypervisor,
    digests::Digests,
    vmm::cloud_hypervisor::{
        kernel::{self, Payload},
        start::readable,
    },
};

/// The one version of KVM's interface that there has been since 2007.
const KVM_API: i32 = 12;
/// `KVM_GET_API_VERSION` of `linux/kvm.h`.
const KVM_GET_API_VERSION: u64 = 0xAE00;
/// What the VMM's own rules need, of the kernel's Landlock.
const LANDLOCK_ABI: i64 = 3;
/// Older ones do not know all that they are told, newer ones may not know it any more.
const TESTED: u32 = 54;

/// Looks at everything.
pub(super) fn look(view: &View, config: &CloudHypervisor, digests: &Digests) -> Vec<Finding> {
    vec![
        Finding::must("/dev/kvm", judge_kvm(kvm(&view.path("/dev/kvm")))),
        binary(&config.binary),
        Finding::must("kernel", file(&config.kernel)),
        Finding::must("initramfs", file(&config.initramfs)),
        payload(config, digests),
        Finding::must("/dev/net/tun", tun(view)),
        Finding::must("landlock", judge_landlock(landlock())),
        hugepages(config.hugepages, view),
        uids(config, &view.read("/etc/passwd").unwrap_or_default()),
    ]
}

/// The version of KVM's interface.
#[allow(unsafe_code)]
fn kvm(path: &Path) -> io::Result<i32> {
    let file = File::options().read(true).write(true).open(path)?;
    // SAFETY: the descriptor is open and the request takes no argument.
    Ok(unsafe { libc::ioctl(file.as_raw_fd(), KVM_GET_API_VERSION, 0) })
}

fn judge_kvm(version: io::Result<i32>) -> Result<String, String> {
    match version {
        Ok(KVM_API) => Ok(format!("API version {KVM_API}")),
        Ok(version) => {
            Err(format!("says API version {version} and not {KVM_API}: it is no KVM that a VMM can use"))
        }
        Err(error) => Err(format!(
            "cannot be opened ({error}): switch virtualization on in the firmware and load kvm_intel or kvm_amd"
        )),
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

fn payload(config: &CloudHypervisor, digests: &Digests) -> Finding {
    let what = "kernel digests";
    match kernel::verify(config, digests) {
        Ok(Payload::Verified) => Finding::ok(what, "as kernel.json names them"),
        Ok(Payload::Unnamed) => {
            let text = "no kernel.json is beside the kernel: damage of it would show in boots that fail only";
            Finding::warn(what, text)
        }
        Err(why) => Finding::fail(what, why),
    }
}

fn tun(view: &View) -> Result<String, String> {
    match File::options().read(true).write(true).open(view.path("/dev/net/tun")) {
        Ok(_) => Ok("can be opened".into()),
        Err(error) => Err(format!("cannot be opened ({error}): load the module tun (modprobe tun)")),
    }
}

/// The version of Landlock.
#[allow(unsafe_code)]
fn landlock() -> io::Result<i64> {
    // `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
    let version: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call reads nothing and answers a number.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, version) };
    if abi < 0 { Err(io::Error::last_os_error()) } else { Ok(abi) }
}

fn judge_landlock(abi: io::Result<i64>) -> Result<String, String> {
    match abi {
        Ok(abi) if abi >= LANDLOCK_ABI => Ok(format!("ABI {abi}")),
        Ok(abi) => Err(format!(
            "the kernel has ABI {abi}, and VMMs are locked in by ABI {LANDLOCK_ABI}: run Linux 6.2 or newer"
        )),
        Err(error) => {
            Err(format!("the kernel does not have it ({error}): boot with landlock in the list of lsm="))
        }
    }
}

fn hugepages(wanted: bool, view: &View) -> Finding {
    let what = "hugepages";
    if !wanted {
        return Finding::ok(what, "not used");
    }
    let read = |name: &str| -> Option<u64> {
        let text = view.read(&format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}")).ok()?;
        text.trim().parse().ok()
    };
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
    use crate::preflight::assert_row;

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

    /// A host that has all, made of files, and its configuration.
    fn host() -> (tempfile::TempDir, View, CloudHypervisor) {
        let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let (dir, view) = View::with(&[
            ("/dev/net/tun", ""),
            ("/images/vmlinuz", "a"),
            ("/images/initramfs", "b"),
            ("/etc/passwd", "root:x:0:0::/:/bin/sh\n"),
            (&format!("{pages}/nr_hugepages"), "512\n"),
            (&format!("{pages}/free_hugepages"), "500\n"),
        ]);
        let config = CloudHypervisor {
            binary: view.path("/usr/bin/cloud-hypervisor"),
            kernel: view.path("/images/vmlinuz"),
            initramfs: view.path("/images/initramfs"),
            first_uid: 5000,
            uids: 10,
            hugepages: true,
        };
        says(&config.binary, "echo cloud-hypervisor v54.0.0");
        for path in [&config.kernel, &config.initramfs] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        (dir, view, config)
    }

    /// Makes a program. By another one: whatever this process starts meanwhile would hold what it writes, which then cannot be run.
    fn says(program: &Path, script: &str) {
        let source = tempfile::NamedTempFile::new().unwrap();
        fs::write(source.path(), format!("#!/bin/sh\n{script}\n")).unwrap();
        let made = Command::new("install").args(["-D", "-m", "755"]).arg(source.path()).arg(program).status();
        assert!(made.unwrap().success());
    }

    fn row(view: &View, config: &CloudHypervisor, what: &str) -> Finding {
        let digests = Digests::open(&view.path("/"));
        look(view, config, &digests).into_iter().find(|finding| finding.what == what).unwrap()
    }

    #[test]
    fn each_row_is_good_on_a_host_that_has_all_and_says_what_to_do_on_one_that_lacks_it() {
        use Level::{Fail, Ok as Fine, Warn};
        let change = |absolute: &str, text: &str| {
            let (dir, view, config) = host();
            fs::write(view.path(absolute), text).unwrap();
            (dir, view, config)
        };
        let (_dir, view, config) = host();
        assert_row(&row(&view, &config, "cloud-hypervisor"), Fine, &["v54.0.0"]);
        assert_row(&row(&view, &config, "kernel"), Fine, &["vmlinuz"]);
        assert_row(&row(&view, &config, "initramfs"), Fine, &["initramfs"]);
        assert_row(&row(&view, &config, "/dev/net/tun"), Fine, &[]);
        assert_row(&row(&view, &config, "hugepages"), Fine, &["1024 MiB in 2 MiB pages, 1000 MiB free"]);
        assert_row(&row(&view, &config, "user ids"), Fine, &["5000 to 5009"]);
        assert_row(&row(&view, &config, "kernel digests"), Warn, &["kernel.json"]);
        assert_row(&row(&view, &config, "/dev/kvm"), Fail, &["virtualization on in the firmware"]);
        let unused = CloudHypervisor { hugepages: false, ..config.clone() };
        assert_row(&row(&view, &unused, "hugepages"), Fine, &["not used"]);

        let missing = CloudHypervisor {
            binary: "/none".into(),
            kernel: "/none".into(),
            initramfs: "/none".into(),
            ..config.clone()
        };
        assert_row(&row(&view, &missing, "cloud-hypervisor"), Fail, &["install its release binary"]);
        assert_row(&row(&view, &missing, "kernel"), Fail, &["images/build kernel makes it"]);
        assert_row(&row(&view, &missing, "initramfs"), Fail, &["images/build kernel makes it"]);
        fs::set_permissions(&config.binary, fs::Permissions::from_mode(0o700)).unwrap();
        assert_row(&row(&view, &config, "cloud-hypervisor"), Fail, &["chmod 755"]);
        fs::set_permissions(&config.kernel, fs::Permissions::from_mode(0o600)).unwrap();
        assert_row(&row(&view, &config, "kernel"), Fail, &["chmod o+r"]);
        says(&config.binary, "echo cloud-hypervisor v48.0");
        assert_row(&row(&view, &config, "cloud-hypervisor"), Warn, &["tested with version 54"]);
        says(&config.binary, "exit 3");
        assert_row(&row(&view, &config, "cloud-hypervisor"), Fail, &["ended with exit status: 3"]);

        let (_dir, view, config) = host();
        fs::remove_file(view.path("/dev/net/tun")).unwrap();
        assert_row(&row(&view, &config, "/dev/net/tun"), Fail, &["modprobe tun"]);
        let (_dir, view, config) = change("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
        assert_row(&row(&view, &config, "hugepages"), Fail, &["vm.nr_hugepages"]);
        let (_dir, view, config) = change("/etc/passwd", "eve:x:5009:5009::/:/bin/sh\n");
        assert_row(&row(&view, &config, "user ids"), Fail, &["eve (5009)", "set first_uid"]);

        let of = |text: &str| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(text));
        let manifest = format!(r#"{{"vmlinuz": "{}", "initramfs": "{}"}}"#, of("a"), of("b"));
        let (_dir, view, config) = change("/images/kernel.json", &manifest);
        assert_row(&row(&view, &config, "kernel digests"), Fine, &[]);
        fs::write(&config.initramfs, "B").unwrap();
        assert_row(&row(&view, &config, "kernel digests"), Fail, &["initramfs has the digest"]);
    }

    #[test]
    fn the_kernels_answers_are_judged() {
        assert!(judge_kvm(Ok(12)).is_ok());
        assert!(judge_kvm(Ok(-1)).unwrap_err().contains("API version -1 and not 12"));
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(judge_kvm(Err(denied)).unwrap_err().contains("kvm_intel or kvm_amd"));
        assert_eq!(judge_landlock(Ok(3)).unwrap(), "ABI 3");
        assert!(judge_landlock(Ok(2)).unwrap_err().contains("Linux 6.2"));
        let off = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        assert!(judge_landlock(Err(off)).unwrap_err().contains("lsm="));
    }
}

//! What a host needs however it runs machines: one function a row of the table.
//!
//! In: a row's facts. Out: a finding. Called by `look`; where asking the kernel cannot be played by a test, asking and judging are two.

use std::{collections::BTreeMap, ffi::OsStr, fs, io, net::Ipv4Addr, os::fd::AsRawFd as _, path::Path};

use super::{Finding, View, modules};
use crate::{
    config::Config,
    network::VXLAN_OVERHEAD,
    volumes::{
        VolumeError,
        devices::{Found, Standing},
    },
};

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
const WANTED_MTU: u32 = 1500 + VXLAN_OVERHEAD;

pub(super) fn root(is_root: bool) -> Finding {
    let why = "the agent makes namespaces and mounts and must run as root";
    Finding::must("root", is_root.then(|| "yes".into()).ok_or_else(|| why.into()))
}

pub(super) fn programs(path: &OsStr) -> Vec<Finding> {
    let is_there = |program: &str| std::env::split_paths(path).any(|dir| dir.join(program).is_file());
    let look = |(program, package): &(&str, &str)| {
        let missing = || format!("the program {program} is not installed: install the package {package}");
        Finding::must(program, is_there(program).then(|| "installed".into()).ok_or_else(missing))
    };
    PROGRAMS.iter().map(look).collect()
}

pub(super) fn own_folder(key: &str, dir: &Path) -> Finding {
    let made = fs::create_dir_all(dir).map(|()| dir.display().to_string());
    Finding::must(
        key,
        made.map_err(|error| format!("cannot make {}: {error}; set {key} elsewhere", dir.display())),
    )
}

pub(super) fn images(dir: &Path) -> Finding {
    let shown = dir.display();
    let found = if dir.is_dir() {
        Ok(shown.to_string())
    } else {
        Err(format!("{shown} is not a folder: make it and put images in"))
    };
    Finding::must("image_dir", found)
}

pub(super) fn underlay(config: &Config) -> Finding {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let name = interfaces.into_iter().find_map(|one| {
        let ipv4 = one.address.as_ref()?.as_sockaddr_in()?.ip();
        (ipv4 == config.underlay_ipv4).then_some(one.interface_name)
    });
    let device = name.map(|name| {
        let mtu = mtu_of(&name);
        (name, mtu)
    });
    judge_underlay(config.underlay_ipv4, device, config.mtu)
}

/// `device` has the address: its name and its MTU.
fn judge_underlay(
    address: Ipv4Addr,
    device: Option<(String, io::Result<u32>)>,
    configured: Option<u32>,
) -> Finding {
    let what = "underlay";
    let (name, mtu) = match device {
        Some((name, Ok(mtu))) => (name, mtu),
        Some((name, Err(error))) => {
            let text = format!("cannot read the MTU of {name}, which has {address}: {error}");
            return Finding::warn(what, text);
        }
        None => {
            let text = format!("no device has the address {address}: set underlay_ipv4, or the address");
            return Finding::fail(what, text);
        }
    };
    let of_machines = configured.unwrap_or_else(|| mtu.saturating_sub(VXLAN_OVERHEAD));
    let text = format!("{address} is on {name} with MTU {mtu}; machines have {of_machines}");
    if of_machines + VXLAN_OVERHEAD > mtu {
        return Finding::fail(what, format!("{text}, which does not fit into it with VXLAN: set mtu lower"));
    }
    if mtu < WANTED_MTU {
        return Finding::warn(what, format!("{text}; {WANTED_MTU} and more would give them 1500"));
    }
    Finding::ok(what, text)
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

pub(super) fn cgroups(view: &View) -> Finding {
    let roots = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers"];
    let found = roots.iter().find_map(|path| view.read(path).ok());
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

pub(super) fn disk(dir: &Path) -> Finding {
    judge_disk(dir, rustix::fs::statvfs(dir).map(|found| found.f_bavail.saturating_mul(found.f_frsize)))
}

/// `free` in bytes.
fn judge_disk(dir: &Path, free: Result<u64, rustix::io::Errno>) -> Finding {
    let dir = dir.display();
    match free {
        Ok(free) => {
            let free = free >> 30;
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

pub(super) fn devices(found: Result<BTreeMap<String, Found>, VolumeError>) -> Finding {
    let what = "volume devices";
    let found = match found {
        Ok(found) => found,
        Err(error) => return Finding::fail(what, format!("{error}; set volume_devices, or make the folder")),
    };
    let mut unfit = Vec::new();
    let (mut free, mut taken) = (0, 0);
    for (name, one) in &found {
        match &one.standing {
            Standing::Free => free += 1,
            Standing::Volume(_) => taken += 1,
            Standing::Unfit(why) => unfit.push(format!("{name}: {why}")),
        }
    }
    let text = format!("{free} are free, {taken} are volumes, {} GiB together", offered(&found));
    if unfit.is_empty() && free + taken > 0 {
        return Finding::ok(what, text);
    }
    let why = if unfit.is_empty() { "no links to devices are there".into() } else { unfit.join("; ") };
    Finding::warn(what, format!("{text}; {why}"))
}

/// GiB of all devices that are volumes or can become one.
pub(super) fn offered(found: &BTreeMap<String, Found>) -> u64 {
    let counts = |one: &&Found| match one.standing {
        Standing::Free | Standing::Volume(_) => true,
        Standing::Unfit(_) => false,
    };
    found.values().filter(counts).map(|one| one.gib).sum()
}

pub(super) fn namespaces(view: &View) -> Vec<Finding> {
    let loops = view.path("/dev/loop-control").exists();
    let missing = "/dev/loop-control does not exist: load the module loop (modprobe loop)";
    let loops = Finding::must("loop devices", loops.then(|| "there".into()).ok_or_else(|| missing.into()));
    let filesystems = view.read("/proc/filesystems").unwrap_or_default();
    let filesystem = |(name, wanted_for): (&str, &str)| {
        // The kernel loads a file system's module at the first mount.
        let known =
            filesystems.split_ascii_whitespace().any(|word| word == name) || modules::on_disk(view, name);
        let missing = || format!("the kernel has no {name}, which {wanted_for} need: load the module {name}");
        Finding::must(name, known.then(|| "there".into()).ok_or_else(missing))
    };
    let filesystems = [("ext4", "volumes"), ("erofs", "images")].map(filesystem);
    std::iter::once(loops).chain(filesystems).collect()
}

#[cfg(test)]
mod tests {
    use shardplane_proto::ids::InstanceId;

    use super::*;
    use crate::preflight::{
        Level::{Fail, Ok as Fine, Warn},
        assert_row,
    };

    #[test]
    fn root_programs_and_folders() {
        assert_row(&root(true), Fine, &[]);
        assert_row(&root(false), Fail, &["must run as root"]);
        let dir = tempfile::tempdir().unwrap();
        for missing in programs(dir.path().as_os_str()) {
            assert_row(&missing, Fail, &["install the package"]);
        }
        for (program, _) in PROGRAMS {
            fs::write(dir.path().join(program), "").unwrap();
        }
        for found in programs(dir.path().as_os_str()) {
            assert_row(&found, Fine, &[]);
        }
        assert_row(&own_folder("run_dir", &dir.path().join("a/b")), Fine, &["a/b"]);
        assert_row(&own_folder("run_dir", &dir.path().join("nft/b")), Fail, &["cannot make", "set run_dir"]);
        assert_row(&images(dir.path()), Fine, &[]);
        assert_row(&images(&dir.path().join("none")), Fail, &["is not a folder: make it"]);
    }

    #[test]
    fn an_underlay_without_room_for_the_tunnel_is_refused() {
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let judge = |mtu, configured| judge_underlay(address, Some(("eth0".into(), mtu)), configured);
        assert_row(&judge(Ok(9000), None), Fine, &["eth0 with MTU 9000; machines have 8950"]);
        assert_row(&judge(Ok(1550), Some(1500)), Fine, &["machines have 1500"]);
        assert_row(&judge(Ok(1500), None), Warn, &["machines have 1450", "1550 and more"]);
        assert_row(&judge(Ok(1500), Some(1500)), Fail, &["set mtu lower"]);
        assert_row(&judge(Err(io::Error::other("no")), None), Warn, &["cannot read the MTU of eth0"]);
        assert_row(&judge_underlay(address, None, None), Fail, &["no device has the address 10.0.0.1"]);
    }

    #[test]
    fn cgroups_need_both_controllers_at_either_place() {
        for place in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            let file = format!("{place}/cgroup.controllers");
            let (_dir, view) = View::with(&[(&file, "cpuset cpu io memory pids\n")]);
            assert_row(&cgroups(&view), Fine, &["cpuset cpu io memory pids"]);
            let (_dir, view) = View::with(&[(&file, "cpuset io\n")]);
            assert_row(&cgroups(&view), Warn, &["systemd.unified_cgroup_hierarchy=1"]);
        }
        let (_dir, view) = View::with(&[]);
        assert_row(&cgroups(&view), Warn, &["without limits"]);
    }

    #[test]
    fn room_for_volumes_on_disk_and_on_devices() {
        let dir = Path::new("/state");
        assert_row(&judge_disk(dir, Ok(5 << 30)), Fine, &["5 GiB are free"]);
        assert_row(&judge_disk(dir, Ok((5 << 30) - 1)), Warn, &["4 GiB", "make room"]);
        assert_row(&judge_disk(dir, Err(rustix::io::Errno::IO)), Warn, &["cannot measure"]);

        let one = |gib, standing| Found { gib, standing };
        let mut found = BTreeMap::from([
            ("a".to_owned(), one(10, Standing::Free)),
            ("b".to_owned(), one(20, Standing::Volume(InstanceId::from_u128(1)))),
        ]);
        assert_row(&devices(Ok(found.clone())), Fine, &["1 are free, 1 are volumes, 30 GiB"]);
        found.insert("c".into(), one(40, Standing::Unfit("holds something: wipe it".into())));
        assert_row(&devices(Ok(found)), Warn, &["30 GiB", "c: holds something: wipe it"]);
        assert_row(&devices(Ok(BTreeMap::new())), Warn, &["no links to devices"]);
        let missing = crate::volumes::devices::Devices::new(Path::new("/none/x"), Path::new("/none/y"));
        assert_row(&devices(missing.survey()), Fail, &["cannot list /none/x", "set volume_devices"]);
    }

    #[test]
    fn machines_in_namespaces_need_loop_devices_and_two_file_systems() {
        let (_dir, view) = View::with(&[
            ("/dev/loop-control", ""),
            ("/proc/filesystems", "nodev\tsysfs\n\text4\n"),
            ("/proc/sys/kernel/osrelease", "6.1\n"),
            ("/lib/modules/6.1/modules.dep", "kernel/fs/erofs/erofs.ko.xz:\n"),
        ]);
        for found in namespaces(&view) {
            assert_row(&found, Fine, &["there"]);
        }
        let (_dir, view) = View::with(&[]);
        let words = ["modprobe loop", "load the module ext4", "load the module erofs"];
        for (found, words) in namespaces(&view).iter().zip(words) {
            assert_row(found, Fail, &[words]);
        }
    }
}

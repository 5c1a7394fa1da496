//! What a machine sees as its file system.
//!
//! In: an image, a volume and a stage folder, in a fresh mount namespace. Out: the machine's root there, and after
//! [`pivot`] nothing else. Called by the launcher; every mount ends with the mount namespace, loop devices with the mounts.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    fcntl::{Flock, FlockArg},
    mount::{MntFlags, MsFlags, umount2},
    sys::stat::{Mode, SFlag, makedev, mknod, umask},
    unistd,
};

use super::launch::LaunchSpec;
use crate::vmm::{
    cgroup,
    launching::{Failure, Step as _, mount},
};

const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);
/// Attempts to attach a loop device: another launcher may take, or the kernel free, the one that was chosen.
const LOOP_ATTEMPTS: u32 = 5;

/// Mounts all that needs no pid namespace.
pub fn build(spec: &LaunchSpec) -> Result<(), Failure> {
    let (stage, machine) = (&spec.stage, &spec.machine);
    let kind = if machine.image.extension().is_some_and(|extension| extension == "squashfs") {
        "squashfs"
    } else {
        "erofs"
    };
    mount_loop(&machine.image, stage, kind, "ro,loop,nosuid,nodev")?;
    for folder in ["data", "run", "tmp", "dev", "proc", "sys"] {
        let path = stage.join(folder);
        if !path.is_dir() {
            return Err("the image has no such folder").step(|| format!("mount over /{folder}"));
        }
    }
    let volume = fs::metadata(&machine.volume).step(|| "look at the volume".into())?;
    if volume.file_type().is_block_device() {
        mount(Some(&machine.volume), &stage.join("data"), Some("ext4"), SAFE, "")?;
    } else {
        mount_loop(&machine.volume, &stage.join("data"), "ext4", "loop,nosuid,nodev,noexec")?;
    }
    limit_io(spec)?;
    let (run, dev) = (stage.join("run"), stage.join("dev"));
    tmpfs(&run, SAFE, "mode=755,size=32m,nr_inodes=4096")?;
    tmpfs(&stage.join("tmp"), SAFE, "mode=1777,size=64m,nr_inodes=16384")?;
    // Apart from /run: what a machine writes there without end must not take the room of what it needs to run.
    let console = run.join("console");
    fs::create_dir(&console).step(|| "make /run/console".into())?;
    tmpfs(&console, SAFE, "mode=700,size=1m,nr_inodes=16")?;
    let link = run.join("shardplane");
    fs::create_dir(&link).step(|| "make /run/shardplane".into())?;
    mount(Some(&machine.host_dir), &link, None, MsFlags::MS_BIND, "")?;
    // A socket can be connected to on a read-only mount; files cannot be made on the host.
    read_only(&link, SAFE)?;
    devices(&dev)?;
    let sys = stage.join("sys");
    mount(Some(Path::new("sysfs")), &sys, Some("sysfs"), SAFE, "")?;
    read_only(&sys, SAFE)
}

fn devices(dev: &Path) -> Result<(), Failure> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    tmpfs(dev, flags, "mode=755,size=64k,nr_inodes=64")?;
    let before = umask(Mode::empty());
    for (name, minor, major) in
        [("null", 3, 1), ("zero", 5, 1), ("full", 7, 1), ("random", 8, 1), ("urandom", 9, 1), ("tty", 0, 5)]
    {
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&dev.join(name), SFlag::S_IFCHR, mode, makedev(major, minor))
            .step(|| format!("make /dev/{name}"))?;
    }
    umask(before);
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name)).step(|| format!("make /dev/{name}"))?;
    }
    let shm = dev.join("shm");
    fs::create_dir(&shm).step(|| "make /dev/shm".into())?;
    tmpfs(&shm, SAFE, "mode=1777,size=64m,nr_inodes=4096")?;
    read_only(dev, flags)
}

/// Mounts `/proc` of the new pid namespace, with everything of the whole kernel hidden or read-only: root in a machine is
/// root's number on the host too.
pub fn mount_proc(stage: &Path) -> Result<(), Failure> {
    let proc = stage.join("proc");
    mount(Some(Path::new("proc")), &proc, Some("proc"), SAFE, "")?;
    for name in ["sys", "sysrq-trigger", "irq", "bus", "fs", "driver", "acpi", "scsi", "mtrr"] {
        let path = proc.join(name);
        if path.exists() {
            mount(Some(&path), &path, None, MsFlags::MS_BIND | MsFlags::MS_REC, "")?;
            read_only(&path, SAFE)?;
        }
    }
    let null = stage.join("dev/null");
    for name in [
        "kcore",
        "keys",
        "key-users",
        "timer_list",
        "sched_debug",
        "kmsg",
        "kallsyms",
        "kpagecount",
        "kpageflags",
    ] {
        let path = proc.join(name);
        if path.exists() {
            mount(Some(&null), &path, None, MsFlags::MS_BIND, "")?;
        }
    }
    Ok(())
}

/// Makes the stage the root and lets go of the host's.
pub fn pivot(stage: &Path) -> Result<(), Failure> {
    unistd::chdir(stage).step(|| format!("enter {}", stage.display()))?;
    // With both arguments the same the old root is stacked over the new one, and is then the one that "." unmounts.
    unistd::pivot_root(".", ".").step(|| "make the image the root".into())?;
    umount2(".", MntFlags::MNT_DETACH).step(|| "let go of the host's root".into())?;
    unistd::chdir("/").step(|| "enter /".into())
}

fn tmpfs(target: &Path, flags: MsFlags, options: &str) -> Result<(), Failure> {
    mount(Some(Path::new("tmpfs")), target, Some("tmpfs"), flags, options)
}

fn read_only(target: &Path, flags: MsFlags) -> Result<(), Failure> {
    let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None, target, None, flags, "")
}

/// The command attaches the loop device so that it is freed with its last mount, and shares one among all mounts of an image.
/// It looks for one before it attaches another: two launchers at once would each find none, and the host would keep what
/// the image's pages hold twice. So they take turns, by a lock of the file that ends with its holder.
fn mount_loop(file: &Path, target: &Path, kind: &str, options: &str) -> Result<(), Failure> {
    let turn = fs::File::open(file).step(|| format!("open {}", file.display()))?;
    let _turn = Flock::lock(turn, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .step(|| format!("wait for the turn to attach {}", file.display()))?;
    let mut cause = String::new();
    for attempt in 0..LOOP_ATTEMPTS {
        thread::sleep(Duration::from_millis(50) * attempt);
        let run =
            Command::new("mount").args(["-n", "-t", kind, "-o", options]).arg(file).arg(target).output();
        match run {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => cause = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "),
            Err(error) => cause = format!("cannot run mount: {error}; install util-linux"),
        }
    }
    Err(cause).step(|| format!("mount {} as {kind}", file.display()))
}

fn limit_io(spec: &LaunchSpec) -> Result<(), Failure> {
    let (Some(group), iops) = (&spec.cgroup, spec.machine.limits.iops) else { return Ok(()) };
    let file = group.join("io.max");
    if iops == 0 || !file.exists() {
        return Ok(());
    }
    let device = fs::metadata(spec.stage.join("data")).step(|| "look at the volume's device".into())?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let line = cgroup::io_max(major, minor, iops);
    fs::write(&file, &line).step(|| format!("write {line:?} to {}", file.display()))
}

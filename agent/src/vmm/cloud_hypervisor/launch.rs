//! The launcher of a VMM: from a spec on stdin to a process that may do nothing but run its one machine.
//!
//! In: a [`LaunchSpec`] as JSON on stdin. Out: a [`launching::Answer`] as JSON on stdout. Run by the driver as
//! `shardplane-agent launch-vm`; must have one thread. The VMM gets: the VPC's network namespace, a mount namespace in which
//! the machine's files lie in its folder and `/dev` holds three devices, a user id of its own, no capability, no way to
//! new ones, its API socket already listening and its logs in memory of a fixed size.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::{self, File, OpenOptions},
    os::{
        fd::{AsFd as _, BorrowedFd, IntoRawFd as _},
        unix::{
            ffi::OsStrExt as _,
            fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use nix::{
    mount::MsFlags,
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        stat::{self, Mode, SFlag},
    },
    unistd::{self, Gid, Uid},
};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::config::files;
use crate::{
    identity::{MachineTag, TAG_VARIABLE},
    ledger::ProcessId,
    vmm::{
        launching::{self, Failure, Step as _, mount},
        procfs::VMM_VARIABLE,
    },
};

/// Where the VMM finds its listening API socket. High, so that nothing of the launcher has the number.
const API_FD: i32 = 100;
/// Where the VMM writes its events; the agent opens it again through `/proc`.
pub const EVENTS_FD: i32 = 101;
/// The volume in the VMM's own `/dev`, when it is a device.
const VOLUME: &str = "/dev/volume";
/// Memory for the VMM's log and events.
const LOG_SPACE: &str = "size=1m,nr_inodes=16,mode=700";

/// All that the launcher is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// What the process carries in its environment.
    pub tag: MachineTag,
    /// The VMM's program.
    pub binary: PathBuf,
    /// The machine's folder, which belongs to the user below; the VMM's working directory.
    pub dir: PathBuf,
    /// The VPC's network namespace.
    pub netns: PathBuf,
    /// Its cgroup, when limits are enforced.
    pub cgroup: Option<PathBuf>,
    /// User and group that the VMM runs as.
    pub uid: u32,
    /// Files, of which the volume may be a block device, that appear in the folder: name there, path on the host. The host's folders on the
    /// way to them need not be open to the user.
    pub files: Vec<(String, PathBuf)>,
}

/// The hidden command `launch-vm`.
pub fn main() -> ExitCode {
    launching::answer(launch)
}

fn launch(spec: &LaunchSpec) -> Result<ProcessId, Failure> {
    launching::detach(spec.cgroup.as_deref())?;
    launching::enter_netns(&spec.netns)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC).step(|| "make a mount namespace".into())?;
    // What the host unmounts goes here too: a machine does not hold a disk of the host.
    mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_SLAVE, "")?;
    // From here on everything is relative, so that the VMM needs no right to search the folders above.
    unistd::chdir(&spec.dir).step(|| format!("enter {}", spec.dir.display()))?;
    // Looked at while `/dev` is still the host's.
    let mut volume = None;
    for (name, path) in &spec.files {
        match block_device(path)? {
            Some(device) => volume = Some((name, device)),
            None => offer(name, path)?,
        }
    }
    let logs = Path::new("log");
    fs::create_dir(logs).step(|| "make the folder of the VMM's log".into())?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(Path::new("tmpfs")), logs, Some("tmpfs"), flags, LOG_SPACE)?;
    let binary = File::open(&spec.binary).step(|| format!("open the VMM {}", spec.binary.display()))?;
    let program = CString::new(spec.binary.as_os_str().as_bytes()).step(|| "name the VMM".into())?;
    devices(spec.uid, volume.map(|(_, device)| device))?;
    if let Some((name, _)) = volume {
        place(Path::new(name))?;
        mount(Some(Path::new(VOLUME)), Path::new(name), None, MsFlags::MS_BIND, "")?;
    }
    let log = log_file("log/vmm")?;
    let events = log_file("log/events")?;
    let null = File::open("/dev/null").step(|| "open /dev/null".into())?;
    // The VMM takes the same umask: its sockets are open to its own user and to root.
    // Listening before the VMM runs: the agent's first call waits for its answer and never has to try again.
    stat::umask(Mode::from_bits_truncate(0o077));
    let api = UnixListener::bind(files::API).step(|| "listen at the VMM's API socket".into())?;
    launching::spawn(|| {
        // Its own session again: the launcher, which led the first one, is about to end. A hang-up would kill the VMM.
        unistd::setsid().step(|| "make a session".into())?;
        unistd::dup2_stdin(null.as_fd()).step(|| "redirect stdin".into())?;
        unistd::dup2_stdout(log.as_fd()).step(|| "redirect stdout".into())?;
        unistd::dup2_stderr(log.as_fd()).step(|| "redirect stderr".into())?;
        launching::close_other_files()?;
        hand_over(api.as_fd(), API_FD)?;
        hand_over(events.as_fd(), EVENTS_FD)?;
        launching::limit_resources()?;
        become_nobody(spec.uid)?;
        exec(&binary, &program, spec.tag)
    })
}

/// The number of a device, when it is one.
fn block_device(path: &Path) -> Result<Option<u64>, Failure> {
    let meta = fs::metadata(path).step(|| format!("look at {}", path.display()))?;
    Ok(meta.file_type().is_block_device().then_some(meta.rdev()))
}

/// A place to mount over; left by an earlier start, it is as good.
fn place(target: &Path) -> Result<(), Failure> {
    let made = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(target);
    made.map(drop).step(|| format!("make a place for {}", target.display()))
}

/// Makes a host's file appear in the machine's folder, in this mount namespace only.
fn offer(name: &str, path: &Path) -> Result<(), Failure> {
    let target = Path::new(name);
    place(target)?;
    mount(Some(path), target, None, MsFlags::MS_BIND, "")?;
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // Whatever the VMM becomes, and whoever opens its files through it: what machines share cannot be written here.
    flags.set(MsFlags::MS_RDONLY, name != files::DATA);
    mount(None, target, None, flags, "")
}

/// A `/dev` with what a VMM needs. No `/dev/net/tun`: a VMM that lacks its tap must not make one that nobody filters. A volume that is a
/// device of the host gets a node here that the VMM's user may open: the host's own node stays as it is.
fn devices(uid: u32, volume: Option<u64>) -> Result<(), Failure> {
    let dev = Path::new("/dev");
    let kvm = fs::metadata("/dev/kvm").step(|| "look at /dev/kvm".into())?;
    let kvm = kvm.rdev();
    mount(
        Some(Path::new("tmpfs")),
        dev,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        "mode=755,size=64k,nr_inodes=16",
    )?;
    let before = stat::umask(Mode::empty());
    let nodes =
        [("null", stat::makedev(1, 3), 0o666), ("urandom", stat::makedev(1, 9), 0o444), ("kvm", kvm, 0o600)];
    for (name, device, mode) in nodes {
        let path = dev.join(name);
        stat::mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), device)
            .step(|| format!("make /dev/{name}"))?;
    }
    if let Some(device) = volume {
        stat::mknod(Path::new(VOLUME), SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), device)
            .step(|| format!("make {VOLUME}"))?;
        chown(VOLUME, Some(uid), Some(uid)).step(|| "give it its volume".into())?;
    }
    stat::umask(before);
    chown("/dev/kvm", Some(uid), Some(uid)).step(|| "give it /dev/kvm".into())?;
    mount(None, dev, None, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY, "")
}

fn log_file(name: &str) -> Result<File, Failure> {
    let opened = OpenOptions::new().append(true).create_new(true).mode(0o600).open(name);
    opened.step(|| format!("make {name} of the VMM"))
}

/// Gives the VMM a descriptor under a number that it is told; it outlives the exec.
#[allow(unsafe_code)]
fn hand_over(fd: BorrowedFd<'_>, number: i32) -> Result<(), Failure> {
    // SAFETY: in a launcher's child no Rust value owns the number.
    let copied = unsafe { unistd::dup2_raw(fd, number) };
    // Not to be closed here: the VMM owns it from now on.
    let given = copied.map(|fd| fd.into_raw_fd()).step(|| format!("hand over descriptor {number}"))?;
    debug_assert_eq!(given, number);
    Ok(())
}

fn become_nobody(uid: u32) -> Result<(), Failure> {
    launching::keep_capabilities(CapabilitySet::empty(), CapabilitySet::SETUID | CapabilitySet::SETGID)?;
    unistd::setgroups(&[]).step(|| "leave all groups".into())?;
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    unistd::setresgid(group, group, group).step(|| format!("become group {uid}"))?;
    // Takes the last capabilities along.
    unistd::setresuid(user, user, user).step(|| format!("become user {uid}"))?;
    prctl::set_no_new_privs().step(|| "forbid new privileges".into())
}

fn exec(binary: &File, program: &CString, tag: MachineTag) -> Result<Infallible, Failure> {
    let text = |text: String| CString::new(text).step(|| "write the VMM's arguments".into());
    // No --no-shutdown: a guest that turns itself off ends its VMM, so that there is one kind of death. The events go to a file, which never is
    // full of what nobody reads: a pipe would lose and tear them.
    let arguments = [
        program.clone(),
        text("--api-socket".into())?,
        text(format!("fd={API_FD}"))?,
        text("--event-monitor".into())?,
        text(format!("fd={EVENTS_FD}"))?,
        text("--seccomp".into())?,
        text("true".into())?,
    ];
    let environment = [text(format!("{TAG_VARIABLE}={tag}"))?, text(format!("{VMM_VARIABLE}=1"))?];
    // By descriptor: the user need not be able to reach the program's folder.
    unistd::fexecve(binary, &arguments, &environment).step(|| "run the VMM".into())
}

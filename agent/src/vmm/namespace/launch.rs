//! The launcher: from a spec on stdin to PID 1 of a machine.
//!
//! In: a [`LaunchSpec`] as JSON on stdin. Out: a [`launching::Answer`] as JSON on stdout. Run by the namespace VMM as
//! `shardplane-agent launch`; must have one thread. When it ends early, its mount namespace takes every mount with it.

use std::{
    convert::Infallible,
    fs::{File, OpenOptions},
    os::{
        fd::AsFd as _,
        unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    mount::MsFlags,
    sched::{CloneFlags, unshare},
    sys::{prctl, stat},
    unistd,
};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::rootfs;
use crate::{
    identity::TAG_VARIABLE,
    ledger::ProcessId,
    vmm::{
        MachineSpec,
        launching::{self, Failure, Step as _},
    },
};

/// Where every image has its supervisor.
const SUPERVISOR: &str = "/sbin/shardplane-supervisor";

/// All that the launcher is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// The machine.
    pub machine: MachineSpec,
    /// Empty folder to mount the image over.
    pub stage: PathBuf,
    /// Its cgroup, when limits are enforced.
    pub cgroup: Option<PathBuf>,
}

/// The hidden command `launch`.
pub fn main() -> ExitCode {
    launching::answer(launch)
}

fn launch(spec: &LaunchSpec) -> Result<ProcessId, Failure> {
    launching::detach(spec.cgroup.as_deref())?;
    launching::enter_netns(&spec.machine.nic.netns)?;
    unshare(CloneFlags::CLONE_NEWNS).step(|| "make a mount namespace".into())?;
    launching::mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    rootfs::build(spec)?;
    unshare(
        CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWCGROUP,
    )
    .step(|| "make pid, uts, ipc and cgroup namespaces".into())?;
    launching::spawn(|| enter_and_exec(spec))
}

/// In the child, PID 1 of the new pid namespace.
fn enter_and_exec(spec: &LaunchSpec) -> Result<Infallible, Failure> {
    // A mount namespace apart from the launcher's: pivot_root moves the root of every process that shares it, and the
    // launcher still needs the host's /proc.
    unshare(CloneFlags::CLONE_NEWNS).step(|| "make the machine's mount namespace".into())?;
    rootfs::mount_proc(&spec.stage)?;
    let hostname = &spec.machine.hostname;
    unistd::sethostname(hostname).step(|| format!("set the host name {hostname}"))?;
    let console = spec.stage.join("run/console/log");
    let console = OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(&console)
        .step(|| "make /run/console/log in the machine".into())?;
    let null = File::open("/dev/null").step(|| "open /dev/null".into())?;
    rootfs::pivot(&spec.stage)?;
    unistd::dup2_stdin(null.as_fd()).step(|| "redirect stdin".into())?;
    unistd::dup2_stdout(console.as_fd()).step(|| "redirect stdout".into())?;
    unistd::dup2_stderr(console.as_fd()).step(|| "redirect stderr".into())?;
    drop((null, console));
    launching::close_other_files()?;
    launching::limit_resources()?;
    stat::umask(stat::Mode::from_bits_truncate(0o022));
    launching::keep_capabilities(KEPT, KEPT)?;
    prctl::set_no_new_privs().step(|| "forbid new privileges".into())?;
    let error = Command::new(SUPERVISOR).env_clear().env(TAG_VARIABLE, spec.machine.tag.to_string()).exec();
    Err(error).step(|| format!("run {SUPERVISOR} of the image"))
}

/// What the supervisor needs: change owners and users, signal, set up its network, bind low ports.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SYS_CHROOT);

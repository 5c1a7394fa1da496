//! The launcher: from a spec on stdin to PID 1 of a machine.
//!
//! In: a [`LaunchSpec`] as JSON on stdin. Out: an [`Answer`] as JSON on stdout. Run by the namespace VMM as
//! `shardplane-agent launch`; must have one thread. When it ends early, its mount namespace takes every mount with it.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    fcntl::OFlag,
    mount::MsFlags,
    sched::{CloneFlags, setns, unshare},
    sys::{prctl, stat, wait::waitpid},
    unistd::{self, ForkResult},
};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, CapabilitySets},
};
use serde::{Deserialize, Serialize};

use super::{procfs::Procfs, rootfs};
use crate::{identity::TAG_VARIABLE, ledger::ProcessId, vmm::MachineSpec};

/// Where every image has its supervisor.
const SUPERVISOR: &str = "/sbin/shardplane-supervisor";
/// Open files of a machine's processes.
const MAX_FILES: u64 = 524_288;

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

/// What the launcher says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The supervisor runs.
    Started(ProcessId),
    /// A step failed; nothing is left.
    Failed {
        /// What was attempted.
        step: String,
        /// The kernel's or the program's text.
        cause: String,
    },
}

/// A step that failed.
#[derive(Debug)]
pub struct Failure {
    step: String,
    cause: String,
}

/// Names the step of a result.
pub trait Step<T> {
    /// Adds what was attempted.
    ///
    /// # Errors
    /// The same, named.
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: ToString> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure { step: step(), cause: error.to_string() })
    }
}

/// The hidden command `launch`.
pub fn main() -> ExitCode {
    let answer = match launch() {
        Ok(process) => Answer::Started(process),
        Err(Failure { step, cause }) => Answer::Failed { step, cause },
    };
    let written = serde_json::to_string(&answer).map_err(std::io::Error::from);
    let written = written.and_then(|line| std::io::stdout().write_all(line.as_bytes()));
    match (written, answer) {
        (Ok(()), Answer::Started(_)) => ExitCode::SUCCESS,
        (Ok(()) | Err(_), Answer::Started(_) | Answer::Failed { .. }) => ExitCode::FAILURE,
    }
}

fn launch() -> Result<ProcessId, Failure> {
    let spec: LaunchSpec =
        serde_json::from_reader(std::io::stdin().lock()).step(|| "read the launch spec from stdin".into())?;
    // Fails only for a process that already leads a group, which then has its own group anyhow.
    let _already_leader = unistd::setsid();
    // The agent may be protected from the out-of-memory killer; its machines must not inherit that.
    let score = fs::read_to_string("/proc/self/oom_score_adj").step(|| "read oom_score_adj".into())?;
    if score.starts_with('-') {
        fs::write("/proc/self/oom_score_adj", "0").step(|| "reset oom_score_adj".into())?;
    }
    if let Some(cgroup) = &spec.cgroup {
        let procs = cgroup.join("cgroup.procs");
        fs::write(&procs, "0").step(|| format!("join the cgroup {}", procs.display()))?;
    }
    let netns = &spec.machine.netns;
    let fd = File::open(netns).step(|| format!("open the network namespace {}", netns.display()))?;
    setns(fd.as_fd(), CloneFlags::CLONE_NEWNET)
        .step(|| format!("enter the network namespace {}", netns.display()))?;
    unshare(CloneFlags::CLONE_NEWNS).step(|| "make a mount namespace".into())?;
    rootfs::mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    rootfs::build(&spec)?;
    unshare(
        CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWCGROUP,
    )
    .step(|| "make pid, uts, ipc and cgroup namespaces".into())?;
    let (read, write) = unistd::pipe2(OFlag::O_CLOEXEC).step(|| "make a pipe".into())?;
    fork(&spec, read, write)
}

#[allow(unsafe_code)]
fn fork(spec: &LaunchSpec, read: OwnedFd, write: OwnedFd) -> Result<ProcessId, Failure> {
    // SAFETY: the command `launch` never makes a second thread, so the child may do everything the parent could.
    match unsafe { unistd::fork() }.step(|| "fork".into())? {
        ForkResult::Child => {
            drop(read);
            let Failure { step, cause } = become_machine(spec);
            // When the launcher is gone nobody can be told; the exit itself ends the machine.
            let _nobody_listens = File::from(write).write_all(format!("{step}\0{cause}").as_bytes());
            std::process::exit(1)
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut text = String::new();
            File::from(read)
                .read_to_string(&mut text)
                .step(|| "hear from the machine's first process".into())?;
            // The pipe closes without a word at the exec.
            if text.is_empty() {
                let seen =
                    Procfs::default().see(child.as_raw()).step(|| "look at the machine's process".into())?;
                let alive = seen.filter(|seen| !seen.zombie).map(|seen| seen.start_ticks);
                let start_ticks = alive.ok_or("it ended at once").step(|| "run the supervisor".into())?;
                return Ok(ProcessId { pid: child.as_raw(), start_ticks });
            }
            let _reaped = waitpid(child, None);
            let (step, cause) = text.split_once('\0').unwrap_or((text.as_str(), ""));
            Err(Failure { step: step.into(), cause: cause.into() })
        }
    }
}

/// In the child, PID 1 of the new pid namespace. Returns only when a step failed.
fn become_machine(spec: &LaunchSpec) -> Failure {
    match enter_and_exec(spec) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn enter_and_exec(spec: &LaunchSpec) -> Result<std::convert::Infallible, Failure> {
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
    close_other_files()?;
    allow_open_files()?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).step(|| "forbid core dumps".into())?;
    stat::umask(stat::Mode::from_bits_truncate(0o022));
    drop_capabilities()?;
    prctl::set_no_new_privs().step(|| "forbid new privileges".into())?;
    let error = Command::new(SUPERVISOR).env_clear().env(TAG_VARIABLE, spec.machine.tag.to_string()).exec();
    Err(error).step(|| format!("run {SUPERVISOR} of the image"))
}

/// As many as wanted, or as many as the agent itself may have where it may not raise its own limit.
fn allow_open_files() -> Result<(), Failure> {
    let wanted = Rlimit { current: Some(MAX_FILES), maximum: Some(MAX_FILES) };
    let set = setrlimit(Resource::Nofile, wanted).or_else(|_| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    });
    set.step(|| format!("allow {MAX_FILES} open files"))
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

fn drop_capabilities() -> Result<(), Failure> {
    for number in 0..63 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number that this kernel does not know: there are no more.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error).step(|| format!("drop capability {number}")),
        }
    }
    rustix::thread::clear_ambient_capability_set().step(|| "clear ambient capabilities".into())?;
    let sets = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).step(|| "give up capabilities".into())
}

/// Marks every descriptor but the standard three to be closed by the exec. The pipe to the launcher lives until then.
#[allow(unsafe_code)]
fn close_other_files() -> Result<(), Failure> {
    // SAFETY: the call changes only flags of descriptors; no descriptor is closed that a Rust value owns.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    nix::errno::Errno::result(result).map(drop).step(|| "mark open files to be closed".into())
}

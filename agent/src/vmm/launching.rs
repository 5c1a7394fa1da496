//! What every launcher does: the way from the agent, with its many threads, to a process that is nobody's child.
//!
//! In: a spec on stdin. Out: an [`Answer`] on stdout. The agent runs itself again ([`run`]) with a hidden command; that
//! process has one thread, so it may fork, change namespaces and drop powers ([`spawn`]). Used by the VMMs on both sides.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::{ExitCode, Stdio},
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    mount::MsFlags,
    sched::{CloneFlags, setns},
    sys::wait::waitpid,
    unistd::{self, ForkResult},
};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, CapabilitySets},
};
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use super::{StartError, procfs::Procfs};
use crate::{
    identity::{MachineTag, TAG_VARIABLE},
    ledger::ProcessId,
};

/// Open files of a machine's processes.
const MAX_FILES: u64 = 524_288;
/// A start that takes longer is ended.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// What a launcher says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The machine's process runs.
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

/// A whole start, of which the launcher is a part, within its deadline; dropping it kills the launcher.
///
/// # Errors
/// Its own, and when it takes too long.
pub async fn within_deadline(
    start: impl Future<Output = Result<ProcessId, StartError>>,
) -> Result<ProcessId, StartError> {
    let late = |_| {
        let seconds = START_DEADLINE.as_secs();
        StartError::Launcher(format!("it did not finish within {seconds} s and was ended"))
    };
    timeout(START_DEADLINE, start).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

/// The agent's side: runs this program again with a hidden command and hands it the spec.
///
/// # Errors
/// When it cannot be run, gives no answer, or answers that a step failed.
pub async fn run(command: &str, tag: MachineTag, spec: &impl Serialize) -> Result<ProcessId, StartError> {
    let failed = |what: &str, error: io::Error| StartError::Launcher(format!("{what}: {error}"));
    let bytes = serde_json::to_vec(spec).map_err(|error| failed("write its spec", error.into()))?;
    let mut child = tokio::process::Command::new("/proc/self/exe")
        .arg(command)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env(TAG_VARIABLE, tag.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed("start this program again", error))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&bytes).await.map_err(|error| failed("hand it the spec", error))?;
    }
    let output = child.wait_with_output().await.map_err(|error| failed("wait for it", error))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Answer::Started(process)) => Ok(process),
        Ok(Answer::Failed { step, cause }) => Err(StartError::Step { step, cause }),
        Err(_) => Err(StartError::Launcher(format!("it ended without an answer ({})", output.status))),
    }
}

/// The launcher's side: reads the spec, launches, and says how it went.
pub fn answer<S: for<'de> Deserialize<'de>>(
    launch: impl FnOnce(&S) -> Result<ProcessId, Failure>,
) -> ExitCode {
    let spec = serde_json::from_reader(io::stdin().lock()).step(|| "read the launch spec from stdin".into());
    let answer = match spec.and_then(|spec| launch(&spec)) {
        Ok(process) => Answer::Started(process),
        Err(Failure { step, cause }) => Answer::Failed { step, cause },
    };
    let written = serde_json::to_string(&answer).map_err(io::Error::from);
    let written = written.and_then(|line| io::stdout().write_all(line.as_bytes()));
    match (written, answer) {
        (Ok(()), Answer::Started(_)) => ExitCode::SUCCESS,
        (Ok(()) | Err(_), Answer::Started(_) | Answer::Failed { .. }) => ExitCode::FAILURE,
    }
}

/// Leaves the agent's session and cgroup.
pub fn detach(cgroup: Option<&Path>) -> Result<(), Failure> {
    // Fails only for a process that already leads a group, which then has its own group anyhow.
    let _already_leader = unistd::setsid();
    // The agent may be protected from the out-of-memory killer; its machines must not inherit that.
    let score = fs::read_to_string("/proc/self/oom_score_adj").step(|| "read oom_score_adj".into())?;
    if score.starts_with('-') {
        fs::write("/proc/self/oom_score_adj", "0").step(|| "reset oom_score_adj".into())?;
    }
    if let Some(cgroup) = cgroup {
        let procs = cgroup.join("cgroup.procs");
        fs::write(&procs, "0").step(|| format!("join the cgroup {}", procs.display()))?;
    }
    Ok(())
}

/// Enters a network namespace that is kept as a file.
pub fn enter_netns(netns: &Path) -> Result<(), Failure> {
    let fd = File::open(netns).step(|| format!("open the network namespace {}", netns.display()))?;
    setns(fd.as_fd(), CloneFlags::CLONE_NEWNET)
        .step(|| format!("enter the network namespace {}", netns.display()))
}

/// `mount(2)` with its step named.
pub fn mount(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    data: &str,
) -> Result<(), Failure> {
    let data = (!data.is_empty()).then_some(data);
    nix::mount::mount(source, target, kind, flags, data).step(|| {
        let what = kind.or(source.and_then(Path::to_str)).unwrap_or("propagation");
        format!("mount {what} at {}", target.display())
    })
}

/// Forks a child that becomes the machine by an exec; returns once it has, or says which of its steps failed. The child is
/// nobody's when the launcher ends.
#[allow(unsafe_code)]
pub fn spawn(become_machine: impl FnOnce() -> Result<Infallible, Failure>) -> Result<ProcessId, Failure> {
    let (read, write): (OwnedFd, OwnedFd) = unistd::pipe2(OFlag::O_CLOEXEC).step(|| "make a pipe".into())?;
    // SAFETY: a launcher never makes a second thread, so the child may do everything the parent could.
    match unsafe { unistd::fork() }.step(|| "fork".into())? {
        ForkResult::Child => {
            drop(read);
            let Failure { step, cause } = match become_machine() {
                Ok(never) => match never {},
                Err(failure) => failure,
            };
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
                let start_ticks =
                    alive.ok_or("it ended at once").step(|| "run the machine's program".into())?;
                return Ok(ProcessId { pid: child.as_raw(), start_ticks });
            }
            let _reaped = waitpid(child, None);
            let (step, cause) = text.split_once('\0').unwrap_or((text.as_str(), ""));
            Err(Failure { step: step.into(), cause: cause.into() })
        }
    }
}

/// No core dumps, which would hold what the machine knows, and many open files: as many as wanted, or as many as the agent
/// itself may have where it may not raise its own limit.
pub fn limit_resources() -> Result<(), Failure> {
    let wanted = Rlimit { current: Some(MAX_FILES), maximum: Some(MAX_FILES) };
    let set = setrlimit(Resource::Nofile, wanted).or_else(|_| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    });
    set.step(|| format!("allow {MAX_FILES} open files"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).step(|| "forbid core dumps".into())
}

/// Gives up every capability but `kept`. Those in `bound` are all that a program run from here on can ever have.
pub fn keep_capabilities(bound: CapabilitySet, kept: CapabilitySet) -> Result<(), Failure> {
    for number in 0..63 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if bound.contains(capability) {
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
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).step(|| "give up capabilities".into())
}

/// Marks every descriptor but the standard three to be closed by the exec. The pipe to the launcher lives until then.
#[allow(unsafe_code)]
pub fn close_other_files() -> Result<(), Failure> {
    // SAFETY: the call changes only flags of descriptors; no descriptor is closed that a Rust value owns.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    nix::errno::Errno::result(result).map(drop).step(|| "mark open files to be closed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_that_never_ends_is_ended_and_told() {
        let error = within_deadline(std::future::pending()).await.unwrap_err().to_string();
        assert_eq!(error, "cannot run the launcher: it did not finish within 30 s and was ended");
        let process = ProcessId { pid: 1, start_ticks: 1 };
        assert_eq!(within_deadline(async { Ok(process) }).await.unwrap(), process);
    }
}

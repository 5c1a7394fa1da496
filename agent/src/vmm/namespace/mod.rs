//! Machines as processes of this kernel: the image and its supervisor as PID 1 of new namespaces.
//!
//! In: a [`MachineSpec`]. Out: PID 1 of a pid namespace whose mounts, processes and loop devices all end with it. The agent
//! runs itself as `shardplane-agent launch` for each start, so that what happens between fork and exec happens in a
//! process with one thread, and so that the machine is nobody's child.

pub mod cgroup;
pub mod launch;
pub mod procfs;
mod rootfs;

use std::{
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use shardplane_proto::{
    ids::{HostId, InstanceId},
    v1,
};
use tokio::io::{AsyncWriteExt as _, Interest, unix::AsyncFd};

use self::{
    cgroup::Cgroups,
    launch::{Answer, LaunchSpec},
    procfs::Procfs,
};
use super::{Found, MachineSpec, StartError, Verdict, Vmm, console::Console, judge};
use crate::{
    identity::TAG_VARIABLE,
    ledger::{ProcessId, Run},
};

/// A launch that takes longer is ended.
const LAUNCH_DEADLINE: Duration = Duration::from_secs(30);
/// How often a process is looked at when the kernel gives no descriptor for it.
const FALLBACK_POLL: Duration = Duration::from_millis(500);

/// The namespace VMM of one host.
#[derive(Debug)]
pub struct NamespaceVmm {
    host: HostId,
    boot_id: String,
    /// An empty folder: each launcher mounts its image over it, in a mount namespace of its own.
    stage: PathBuf,
    procfs: Procfs,
    cgroups: Cgroups,
}

impl NamespaceVmm {
    /// Prepares the host; limits that cannot be enforced become a condition.
    ///
    /// # Errors
    /// When the stage folder cannot be made.
    pub fn open(host: HostId, boot_id: String, run_dir: &Path) -> io::Result<Self> {
        let stage = run_dir.join("stage");
        std::fs::create_dir_all(&stage)?;
        Ok(Self { host, boot_id, stage, procfs: Procfs::default(), cgroups: Cgroups::detect(host) })
    }

    /// Removes the host's cgroup; every machine must be gone.
    ///
    /// # Errors
    /// When one is not.
    pub fn release_all(&self) -> io::Result<()> {
        self.cgroups.release_all()
    }

    async fn launch(&self, spec: &MachineSpec) -> Result<ProcessId, StartError> {
        let failed = |what: &str, error: io::Error| StartError::Launcher(format!("{what}: {error}"));
        let prepared = self.cgroups.prepare(spec.tag.instance, &spec.limits);
        let cgroup = prepared.map_err(|error| StartError::Step {
            step: "set the limits of the machine".into(),
            cause: error.to_string(),
        })?;
        let spec = LaunchSpec { machine: spec.clone(), stage: self.stage.clone(), cgroup };
        let bytes = serde_json::to_vec(&spec).map_err(|error| failed("write its spec", error.into()))?;
        let mut child = tokio::process::Command::new("/proc/self/exe")
            .arg("launch")
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env(TAG_VARIABLE, spec.machine.tag.to_string())
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

    /// The descriptor of a process that still is the recorded one.
    fn open_process(procfs: &Procfs, process: ProcessId) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Looked at after opening: the descriptor cannot change its process any more.
        let same = procfs.see(process.pid)?.is_some_and(|seen| seen.start_ticks == process.start_ticks);
        Ok(same.then_some(fd))
    }
}

/// Registers a pidfd: it becomes readable when its process has ended.
#[allow(unsafe_code)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value handed over, which neither closes nor replaces it before it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

impl Vmm for NamespaceVmm {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn conditions(&self) -> Vec<v1::HostCondition> {
        self.cgroups.condition().into_iter().collect()
    }

    fn start<'a>(&'a self, spec: &'a MachineSpec) -> BoxFuture<'a, Result<ProcessId, StartError>> {
        async move {
            match tokio::time::timeout(LAUNCH_DEADLINE, self.launch(spec)).await {
                Ok(result) => result,
                Err(_) => Err(StartError::Launcher(format!(
                    "it did not finish within {} s and was ended",
                    LAUNCH_DEADLINE.as_secs()
                ))),
            }
        }
        .boxed()
    }

    fn find(&self) -> io::Result<Vec<Found>> {
        self.procfs.find(self.host)
    }

    fn inspect(&self, instance: InstanceId, run: &Run) -> io::Result<Verdict> {
        let seen = match run.process {
            Some(process) => self.procfs.see(process.pid)?,
            None => None,
        };
        Ok(judge(instance, run, &self.boot_id, seen))
    }

    fn death(&self, process: ProcessId) -> BoxFuture<'static, ()> {
        let procfs = self.procfs.clone();
        async move {
            let opened = Self::open_process(&procfs, process);
            match opened.and_then(|fd| fd.map(watched).transpose()) {
                Ok(None) => return,
                Ok(Some(fd)) => {
                    if fd.readable().await.is_ok() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(pid = process.pid, %error, "no descriptor for a machine; polling it")
                }
            }
            while matches!(procfs.see(process.pid),
                Ok(Some(seen)) if seen.start_ticks == process.start_ticks && !seen.zombie)
            {
                tokio::time::sleep(FALLBACK_POLL).await;
            }
        }
        .boxed()
    }

    fn console(&self, process: ProcessId) -> Option<Console> {
        // What the machine has as its standard error may be anything by now: nothing here may block, and only a file counts.
        let opened = std::fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(format!("/proc/{}/fd/2", process.pid));
        let console = opened.and_then(Console::new).unwrap_or_else(|error| {
            tracing::debug!(pid = process.pid, %error, "no console");
            None
        });
        let same = Self::open_process(&self.procfs, process).is_ok_and(|fd| fd.is_some());
        console.filter(|_| same)
    }

    fn kill(&self, process: ProcessId) -> io::Result<()> {
        match Self::open_process(&self.procfs, process)? {
            Some(fd) => match pidfd_send_signal(fd, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
                Err(error) => Err(error.into()),
            },
            None => Ok(()),
        }
    }

    fn release(&self, instance: InstanceId) -> io::Result<()> {
        self.cgroups.release(instance)
    }
}

//! Machines as processes of this kernel: the image and its supervisor as PID 1 of new namespaces.
//!
//! In: a [`MachineSpec`]. Out: PID 1 of a pid namespace whose mounts, processes and loop devices all end with it. The agent
//! runs itself as `shardplane-agent launch` for each start, so that what happens between fork and exec happens in a
//! process with one thread, and so that the machine is nobody's child.

pub mod launch;
mod rootfs;

use std::{
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_proto::{
    ids::{HostId, InstanceId},
    v1,
};

use self::launch::LaunchSpec;
use super::{
    Found, FoundKind, GuestSocket, MachineSpec, Press, StartError, Verdict, Vmm,
    cgroup::{Cgroups, OutOfMemory},
    console::Console,
    launching, process,
    procfs::Procfs,
};
use crate::ledger::{ProcessId, Run};

/// Memory that the supervisor and the kernel need beside the engine, in MiB.
const OVERHEAD_MIB: u64 = 64;

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

    async fn launch(&self, spec: &MachineSpec) -> Result<ProcessId, StartError> {
        let prepared = self.cgroups.prepare(spec.tag.instance, &spec.limits, OVERHEAD_MIB);
        let cgroup = prepared.map_err(|error| StartError::Step {
            step: "set the limits of the machine".into(),
            cause: error.to_string(),
        })?;
        let spec = LaunchSpec { machine: spec.clone(), stage: self.stage.clone(), cgroup };
        launching::run("launch", spec.machine.tag, &spec).await
    }
}

impl Vmm for NamespaceVmm {
    fn name(&self) -> &'static str {
        "namespace"
    }

    fn conditions(&self) -> Vec<v1::HostCondition> {
        self.cgroups.condition().into_iter().collect()
    }

    fn guest_socket(&self, _: InstanceId, machine_dir: &Path) -> io::Result<GuestSocket> {
        Ok(GuestSocket { path: machine_dir.join("host.sock"), owner: None })
    }

    fn start<'a>(&'a self, spec: &'a MachineSpec) -> BoxFuture<'a, Result<ProcessId, StartError>> {
        launching::within_deadline(self.launch(spec)).boxed()
    }

    fn find(&self) -> io::Result<Vec<Found>> {
        self.procfs.find(self.host)
    }

    fn is_finished(&self, found: &Found) -> bool {
        match found.kind {
            FoundKind::Machine => true,
            FoundKind::Launcher => false,
        }
    }

    fn inspect(&self, instance: InstanceId, run: &Run) -> io::Result<Verdict> {
        self.procfs.inspect(instance, run, &self.boot_id)
    }

    fn death(&self, process: ProcessId) -> BoxFuture<'static, ()> {
        process::death(self.procfs.clone(), process)
    }

    fn console(&self, _: InstanceId, process: ProcessId) -> Option<Console> {
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
        let same = process::open(&self.procfs, process).is_ok_and(|fd| fd.is_some());
        console.filter(|_| same)
    }

    fn out_of_memory(&self, instance: InstanceId) -> Option<OutOfMemory> {
        self.cgroups.out_of_memory(instance)
    }

    fn press_power_button(&self, _: InstanceId) -> BoxFuture<'_, Press> {
        async { Press::NoButton }.boxed()
    }

    fn kill(&self, process: ProcessId) -> io::Result<()> {
        process::kill(&self.procfs, process)
    }

    fn release(&self, instance: InstanceId) -> io::Result<()> {
        self.cgroups.release(instance)
    }

    fn release_all(&self) -> io::Result<()> {
        self.cgroups.release_all()
    }
}

//! Machines as microVMs: one cloud-hypervisor process each, which outlives the agent.
//!
//! In: a [`MachineSpec`]. Out: a VMM process that is the machine: when it ends, for whatever reason and with whatever code, the
//! machine is dead (a crash of a vCPU ends it with 0, as an orderly end does). A VMM runs one machine and is never used
//! again. What of it is not its process lies in the machine's folder: `vm`, which belongs to its user; `booted`, which says
//! that it got as far; `console.log`.
//!
//! Restart of a guest goes on in the same process, with the same disks, card, address and UUID.
//!
//! What is not used, and why nobody should begin without reading up on it: Migration and snapshots: a machine's end is never "migrated
//! away", a VMM that waits for a migration hears nobody until it is killed, and a snapshot binds a machine to its paths. Devices that come
//! or go while it runs: a removal is done only when the guest agrees, until then id, lock and tap are held; what is added later lies outside
//! of what Landlock lets the VMM open. Its pages, disks and limits are therefore those of its start; a change takes effect with the next one.

pub mod api;
mod boot;
mod cmdline;
pub mod config;
mod event;
#[cfg(test)]
mod fake;
pub mod kernel;
pub mod launch;
#[cfg(test)]
mod schema;
pub mod start;
mod uid;
pub mod watch;
mod wire;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_proto::{
    ids::{HostId, InstanceId},
    v1,
};
use tokio::net::UnixStream;

use self::{
    api::Api,
    config::{GUEST_PORT, files, system_uuid},
    event::Events,
    launch::EVENTS_FD,
    uid::Uids,
    watch::{LastEvents, Serial},
};
use super::{
    Found, FoundKind, GuestSocket, MachineSpec, Press, StartError, Verdict, Vmm,
    cgroup::{Cgroups, OutOfMemory},
    console::{Console, OfVmm},
    launching, process,
    procfs::Procfs,
};
use crate::{
    config::CloudHypervisor,
    digests::Digests,
    identity::MachineTag,
    ledger::{ProcessId, Run},
};

/// How long a VMM is asked whether its machine runs.
const ASK_DEADLINE: Duration = Duration::from_secs(3);

/// The cloud-hypervisor VMM of one host.
#[derive(Debug)]
pub struct CloudHypervisorVmm {
    host: HostId,
    boot_id: String,
    machines_dir: PathBuf,
    config: CloudHypervisor,
    digests: Arc<Digests>,
    uids: Uids,
    /// Serial ports of machines that have just been started, until somebody follows them.
    serials: Mutex<BTreeMap<InstanceId, UnixStream>>,
    procfs: Procfs,
    cgroups: Cgroups,
}

impl CloudHypervisorVmm {
    /// Prepares the host; limits that cannot be enforced become a condition.
    ///
    /// # Errors
    /// When the run directory cannot be used.
    pub fn open(
        host: HostId,
        boot_id: String,
        run_dir: &Path,
        config: CloudHypervisor,
        digests: Arc<Digests>,
    ) -> io::Result<Self> {
        let uids = Uids::open(run_dir, config.first_uid, config.uids)?;
        Ok(Self {
            host,
            boot_id,
            machines_dir: run_dir.join("machines"),
            config,
            digests,
            uids,
            serials: Mutex::default(),
            procfs: Procfs::default(),
            cgroups: Cgroups::detect(host),
        })
    }

    /// The machine's folder that belongs to its user, and that user.
    fn own_dir(&self, instance: InstanceId) -> io::Result<(PathBuf, u32)> {
        let uid = self.uids.ensure(instance)?;
        let dir = self.vm_dir(instance);
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        chown(&dir, Some(uid), Some(uid))?;
        Ok((dir, uid))
    }

    fn vm_dir(&self, instance: InstanceId) -> PathBuf {
        self.machines_dir.join(instance.to_string()).join("vm")
    }

    fn booted(&self, instance: InstanceId) -> PathBuf {
        self.machines_dir.join(instance.to_string()).join("booted")
    }

    fn serial(&self, instance: InstanceId) -> PathBuf {
        self.vm_dir(instance).join(files::SERIAL)
    }

    fn serials(&self) -> MutexGuard<'_, BTreeMap<InstanceId, UnixStream>> {
        self.serials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attach_serial(&self, instance: InstanceId) {
        match UnixStream::connect(self.serial(instance)).await {
            Ok(stream) => drop(self.serials().insert(instance, stream)),
            // It is looked for again when the machine runs.
            Err(error) => tracing::debug!(%instance, %error, "no serial port yet"),
        }
    }

    fn api(&self, instance: InstanceId) -> Api {
        Api::new(&self.vm_dir(instance).join(files::API))
    }

    /// The VMM's log, as long as it lives; `None` when it is another process.
    fn log_of(&self, process: ProcessId) -> Option<File> {
        let path = format!("/proc/{}/fd/2", process.pid);
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        self.is_still(process).then_some(file).filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))
    }

    fn is_still(&self, process: ProcessId) -> bool {
        process::open(&self.procfs, process).is_ok_and(|fd| fd.is_some())
    }

    /// A VMM of ours is a machine when its machine was seen running. One that an agent left half-way is none, unless it
    /// says that its machine runs after all: a boot goes on when who asked for it is gone.
    fn was_booted(&self, tag: MachineTag, process: ProcessId) -> bool {
        let booted = fs::read_to_string(self.booted(tag.instance));
        if booted.is_ok_and(|text| text.trim() == tag.uuid.to_string()) {
            return true;
        }
        match self.ask(tag.instance, &system_uuid(tag.uuid)) {
            Ok(runs) => runs,
            // Nobody at the socket, or another machine's VMM: this one never got as far as having one.
            Err(api::ApiError::Unreachable { .. }) => false,
            // In doubt it is a machine: those are not ended because they are slow to answer.
            Err(error) => {
                tracing::warn!(instance = %tag.instance, pid = process.pid, "taken for a machine: {error}");
                true
            }
        }
    }

    /// Asks a VMM, from a thread that may or may not belong to the runtime.
    fn ask(&self, instance: InstanceId, uuid: &str) -> Result<bool, api::ApiError> {
        let api = self.api(instance);
        let late = || api::ApiError::Deadline { call: api::Call::Info, limit: ASK_DEADLINE };
        let asked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
                Some(runtime.block_on(boot::runs(&api, uuid)))
            });
            thread.join()
        });
        asked.ok().flatten().unwrap_or_else(|| Err(late()))
    }
}

impl Vmm for CloudHypervisorVmm {
    fn name(&self) -> &'static str {
        "cloud-hypervisor"
    }

    fn conditions(&self) -> Vec<v1::HostCondition> {
        // IOPS are limited by the VMM, so the io controller is not missed.
        self.cgroups.condition_without_io().into_iter().collect()
    }

    fn guest_socket(&self, instance: InstanceId, _: &Path) -> io::Result<GuestSocket> {
        let (dir, uid) = self.own_dir(instance)?;
        Ok(GuestSocket { path: dir.join(format!("{}_{GUEST_PORT}", files::VSOCK)), owner: Some(uid) })
    }

    fn start<'a>(&'a self, spec: &'a MachineSpec) -> BoxFuture<'a, Result<ProcessId, StartError>> {
        launching::within_deadline(self.start_machine(spec)).boxed()
    }

    fn find(&self) -> io::Result<Vec<Found>> {
        self.procfs.find(self.host)
    }

    fn is_finished(&self, found: &Found) -> bool {
        match found.kind {
            FoundKind::Launcher => false,
            // A namespace machine from before the configuration was changed has no VMM that could be asked.
            FoundKind::Machine => {
                !self.procfs.is_vmm(found.process) || self.was_booted(found.tag, found.process)
            }
        }
    }

    fn inspect(&self, instance: InstanceId, run: &Run) -> io::Result<Verdict> {
        self.procfs.inspect(instance, run, &self.boot_id)
    }

    fn death(&self, process: ProcessId) -> BoxFuture<'static, ()> {
        process::death(self.procfs.clone(), process)
    }

    fn console(&self, instance: InstanceId, process: ProcessId) -> Option<Console> {
        let path = self.machines_dir.join(instance.to_string()).join("console.log");
        let file = || File::options().create(true).read(true).append(true).mode(0o600).open(&path);
        let (log, file) = match (file(), file()) {
            (Ok(log), Ok(file)) => (log, file),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%instance, %error, "the machine's console is not kept");
                return None;
            }
        };
        let events = format!("/proc/{}/fd/{EVENTS_FD}", process.pid);
        let events = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(events).ok();
        let events = events.filter(|_| self.is_still(process)).map(Events::new);
        let last = LastEvents::default();
        let serial = Serial { path: self.serial(instance), first: self.serials().remove(&instance) };
        let follower =
            tokio::spawn(watch::follow(instance, serial, log, events, last.clone(), self.death(process)));
        Some(Console::of_vmm(file, OfVmm { log: self.log_of(process), events: last, follower }))
    }

    fn out_of_memory(&self, instance: InstanceId) -> Option<OutOfMemory> {
        self.cgroups.out_of_memory(instance)
    }

    fn press_power_button(&self, instance: InstanceId) -> BoxFuture<'_, Press> {
        async move { boot::press_power_button(&self.api(instance)).await }.boxed()
    }

    fn kill(&self, process: ProcessId) -> io::Result<()> {
        process::kill(&self.procfs, process)
    }

    fn release(&self, instance: InstanceId) -> io::Result<()> {
        self.serials().remove(&instance);
        self.cgroups.release(instance)?;
        let dir = self.vm_dir(instance);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // Last: until here nobody else may have the number.
        self.uids.release(instance)
    }

    fn release_all(&self) -> io::Result<()> {
        self.cgroups.release_all()?;
        self.uids.release_all()
    }
}

#[cfg(test)]
mod tests {
    use super::{config::VmConfig, *};

    /// An agent may die anywhere in a start; what it leaves is a machine only when its guest ever ran.
    #[tokio::test]
    async fn a_vmm_that_an_agent_left_half_way_is_told_from_a_machine() {
        let dir = tempfile::tempdir().unwrap();
        let config = CloudHypervisor {
            binary: "/none".into(),
            kernel: "/none".into(),
            initramfs: "/none".into(),
            first_uid: 4_000_000,
            uids: 1,
            hugepages: false,
        };
        let tag = fake::spec().tag;
        let digests = Arc::new(Digests::open(dir.path()));
        let vmm = CloudHypervisorVmm::open(tag.host, "boot".into(), dir.path(), config, digests).unwrap();
        let process = ProcessId { pid: 1, start_ticks: 1 };
        let is_machine = || vmm.was_booted(tag, process);
        fs::create_dir_all(vmm.vm_dir(tag.instance)).unwrap();
        assert!(!is_machine(), "no socket yet");
        let server = fake::FakeServer::start_at(vmm.vm_dir(tag.instance).join(files::API), 1);
        assert!(!is_machine(), "it was told nothing");
        let api = vmm.api(tag.instance);
        let told = VmConfig::new(&fake::spec(), false, "").unwrap();
        api.give(api::Call::Create, &told, Vec::new()).await.unwrap();
        assert!(!is_machine(), "it was not booted");
        api.call(api::Call::Boot).await.unwrap();
        assert!(is_machine(), "the agent died before it could note it");
        let other = MachineTag { uuid: "01arz3ndektsv4rrffq69g5faw".parse().unwrap(), ..tag };
        assert!(!vmm.was_booted(other, process), "the VMM of another start");
        server.next("vm.info", fake::Reply::Hangup);
        assert!(is_machine(), "in doubt");
        fs::write(vmm.booted(tag.instance), tag.uuid.to_string()).unwrap();
        server.next("vm.info", fake::Reply::empty(404));
        assert!(is_machine(), "noted, and not asked again");
    }
}

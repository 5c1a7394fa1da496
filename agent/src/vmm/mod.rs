//! How machines are run: the seam between an owner and a way to run machines.
//!
//! In: a [`MachineSpec`]. Out: a process that is the machine: its death is the machine's death, and nothing of it outlives
//! that process. Called by the machine owners, by adoption and by sweep. `cloud_hypervisor` and `namespace` are for hosts, `fake` for tests.

pub mod cgroup;
pub mod cloud_hypervisor;
pub mod console;
#[cfg(test)]
pub mod fake;
pub mod launching;
pub mod namespace;
pub mod process;
pub mod procfs;

use std::{
    io,
    path::{Path, PathBuf},
};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use shardplane_proto::{ids::InstanceId, v1};

use self::{cgroup::OutOfMemory, console::Console};
use crate::{
    identity::MachineTag,
    ledger::{ProcessId, Run},
};

/// Everything needed to start one machine. Holds no secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MachineSpec {
    /// What it carries in its environment.
    pub tag: MachineTag,
    /// Its host name.
    pub hostname: String,
    /// Root file system image (erofs or squashfs by its extension), read-only and shared.
    pub image: PathBuf,
    /// Data volume: ext4 in a raw file or on a block device, of this machine alone.
    pub volume: PathBuf,
    /// Its network card.
    pub nic: Nic,
    /// Folder of the host with `host.sock`, which the supervisor dials.
    pub host_dir: PathBuf,
    /// What it may use.
    pub limits: Limits,
}

/// A machine's one network card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Nic {
    /// File of the network namespace with the interface.
    pub netns: PathBuf,
    /// The interface: the machine's end of a veth pair, or a tap.
    pub interface: String,
    /// MAC of the machine.
    pub mac: String,
}

/// Where a guest finds the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestSocket {
    /// The socket's file.
    pub path: PathBuf,
    /// The user that connects on the guest's behalf; `None`: root.
    pub owner: Option<u32>,
}

/// What a machine may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Percent of each vCPU.
    pub vcpu_share: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// I/O operations a second on the volume; 0 is no limit.
    pub iops: u32,
}

/// A machine, or the launcher of one, found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it says about itself.
    pub tag: MachineTag,
    /// The process.
    pub process: ProcessId,
    /// A machine, or still on the way to one.
    pub kind: FoundKind,
}

/// What a tagged process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundKind {
    /// PID 1 of a machine.
    Machine,
    /// A launcher that has not finished, left over from an agent that died.
    Launcher,
}

/// Why a machine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The launcher could not be run or gave no answer.
    #[error("cannot run the launcher: {0}")]
    Launcher(String),
    /// A step of the launch failed.
    #[error("cannot {step}: {cause}")]
    Step {
        /// What was attempted, on what.
        step: String,
        /// The kernel's or the program's text.
        cause: String,
    },
}

/// A way to run machines. All methods are safe to repeat.
pub trait Vmm: Send + Sync + 'static {
    /// As the coordinator knows it, for example `namespace`.
    fn name(&self) -> &'static str;

    /// What is not as it should be with this host.
    fn conditions(&self) -> Vec<v1::HostCondition>;

    /// Starts a machine that outlives the agent. Ends within 30 s.
    fn start<'a>(&'a self, spec: &'a MachineSpec) -> BoxFuture<'a, Result<ProcessId, StartError>>;

    /// Everything of this host's that lives, found without any memory. Blocks for some milliseconds.
    ///
    /// # Errors
    /// When the search was not possible; nothing is then proved.
    fn find(&self) -> io::Result<Vec<Found>>;

    /// Whether what was found is a machine that an agent has started to the end; what is not is ended at the next adoption. In
    /// doubt it is. Blocks for up to seconds.
    fn is_finished(&self, found: &Found) -> bool;

    /// Does the process recorded in the ledger still live, and is it that machine? Blocks briefly.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn inspect(&self, instance: InstanceId, run: &Run) -> io::Result<Verdict>;

    /// Resolves when the process is dead; at once when it already is.
    fn death(&self, process: ProcessId) -> BoxFuture<'static, ()>;

    /// Where the machine's guest will look for the agent: below `machine_dir`, which is there and the agent's. Makes what it
    /// needs around it. Blocks briefly.
    ///
    /// # Errors
    /// When it cannot be made.
    fn guest_socket(&self, instance: InstanceId, machine_dir: &Path) -> io::Result<GuestSocket>;

    /// Its console, when it has one. Called inside the runtime.
    fn console(&self, instance: InstanceId, process: ProcessId) -> Option<Console>;

    /// Whether a machine that is dead was killed by the kernel because memory ran out. Blocks briefly.
    fn out_of_memory(&self, instance: InstanceId) -> Option<OutOfMemory>;

    /// Asks the machine, not its supervisor, to end in order. What then happens is seen by [`Vmm::death`].
    fn press_power_button(&self, instance: InstanceId) -> BoxFuture<'_, Press>;

    /// Kills it and everything in it, and returns without waiting. A process that is dead, or whose number another process
    /// has now, is success.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn kill(&self, process: ProcessId) -> io::Result<()>;

    /// Frees what the machine has outside of its process. Called when it is proved absent.
    ///
    /// # Errors
    /// When something could not be freed.
    fn release(&self, instance: InstanceId) -> io::Result<()>;

    /// Frees what is left of this host's; every machine must be gone.
    ///
    /// # Errors
    /// When one is not.
    fn release_all(&self) -> io::Result<()>;
}

/// What became of a press of the power button. That the machine heard it, only its death shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// Such machines have no button.
    NoButton,
    /// It was pressed.
    Done,
    /// The VMM refused or gave no answer, which may be because it has just ended.
    Unanswered,
}

/// Is a recorded process the recorded machine?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It lives and is ours.
    Ours(ProcessId),
    /// The machine is lost, for this reason. Whatever has its number now is not touched.
    Lost(LostReason),
}

/// Why a recorded machine is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The host was booted since.
    #[error("the host was restarted")]
    OtherBoot,
    /// No process has the number.
    #[error("its process is gone")]
    NoProcess,
    /// It ended and was not yet reaped.
    #[error("its process has ended")]
    Zombie,
    /// The number belongs to a process that started at another time.
    #[error("its process number belongs to another process now")]
    OtherStart,
    /// The process does not carry the machine's tag.
    #[error("the process of that number is another machine or no machine")]
    OtherTag,
    /// The launch had not finished.
    #[error("its start was never finished")]
    NeverStarted,
}

/// What `/proc` says about one process number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// When it started.
    pub start_ticks: u64,
    /// Ended, not reaped.
    pub zombie: bool,
    /// The tag in its environment.
    pub tag: Option<MachineTag>,
}

/// The rule of adoption: pid, start time, boot and uuid must all agree.
pub fn judge(instance: InstanceId, run: &Run, boot_id: &str, seen: Option<Seen>) -> Verdict {
    let Some(process) = run.process else { return Verdict::Lost(LostReason::NeverStarted) };
    if run.boot_id != boot_id {
        return Verdict::Lost(LostReason::OtherBoot);
    }
    let Some(seen) = seen else { return Verdict::Lost(LostReason::NoProcess) };
    if seen.start_ticks != process.start_ticks {
        return Verdict::Lost(LostReason::OtherStart);
    }
    if seen.zombie {
        return Verdict::Lost(LostReason::Zombie);
    }
    match seen.tag {
        Some(tag) if tag.uuid == run.uuid && tag.instance == instance => Verdict::Ours(process),
        Some(_) | None => Verdict::Lost(LostReason::OtherTag),
    }
}

#[cfg(test)]
mod tests {
    use shardplane_proto::ids::HostId;

    use super::*;
    use crate::identity::MachineUuid;

    /// HOST-1: the process number of a dead machine was taken by a stranger.
    #[test]
    fn adoption_needs_pid_start_time_boot_and_uuid() {
        let instance = InstanceId::from_u128(1);
        let uuid = MachineUuid::generate();
        let process = ProcessId { pid: 100, start_ticks: 5 };
        let run = Run { uuid, boot_id: "boot".into(), process: Some(process) };
        let tag = MachineTag { host: HostId::from_u128(9), instance, uuid };
        let ours = Seen { start_ticks: 5, zombie: false, tag: Some(tag) };
        let other = MachineTag { uuid: "01arz3ndektsv4rrffq69g5fav".parse().unwrap(), ..tag };
        let unfinished = Run { process: None, ..run.clone() };
        use LostReason::{NeverStarted, NoProcess, OtherBoot, OtherStart, OtherTag, Zombie};
        for (run, boot, seen, expected) in [
            (&run, "boot", Some(ours), Verdict::Ours(process)),
            (&run, "boot", None, Verdict::Lost(NoProcess)),
            (&run, "next", Some(ours), Verdict::Lost(OtherBoot)),
            (&run, "boot", Some(Seen { start_ticks: 6, ..ours }), Verdict::Lost(OtherStart)),
            (&run, "boot", Some(Seen { start_ticks: 6, tag: None, ..ours }), Verdict::Lost(OtherStart)),
            (&run, "boot", Some(Seen { zombie: true, tag: None, ..ours }), Verdict::Lost(Zombie)),
            (&run, "boot", Some(Seen { tag: None, ..ours }), Verdict::Lost(OtherTag)),
            (&run, "boot", Some(Seen { tag: Some(other), ..ours }), Verdict::Lost(OtherTag)),
            (&unfinished, "boot", Some(ours), Verdict::Lost(NeverStarted)),
        ] {
            assert_eq!(judge(instance, run, boot, seen), expected, "{seen:?} in {boot}");
        }
    }
}

//! Machines in memory, for tests of everything around a machine.
//!
//! In: starts and kills. Out: processes that die when told to. Used by unit tests only.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_proto::{ids::InstanceId, v1};
use tokio::sync::watch;

use super::{
    Found, FoundKind, GuestSocket, MachineSpec, Press, Seen, StartError, Verdict, Vmm, cgroup::OutOfMemory,
    console::Console, judge,
};
use crate::{
    identity::MachineTag,
    ledger::{ProcessId, Run},
};

/// The boot id of the fake host.
pub const BOOT: &str = "fake-boot";

#[derive(Default)]
struct Inner {
    living: BTreeMap<i32, (MachineTag, watch::Sender<bool>)>,
    last_pid: i32,
    failures: u32,
    unkillable: bool,
    button: Button,
    presses: u32,
    out_of_memory: Option<OutOfMemory>,
    kills: u32,
    starts: Vec<MachineSpec>,
}

/// What machines do when their power button is pressed.
#[derive(Debug, Clone, Copy, Default)]
pub enum Button {
    /// They have none.
    #[default]
    None,
    /// They end at the press of this number.
    HearsPress(u32),
    /// Nothing: the guest does not listen.
    NotHeard,
    /// Their VMM gives no answer.
    Broken,
    /// They end, and their VMM with them before it has answered.
    DiesUnanswered,
}

/// A host in memory.
#[derive(Default)]
pub struct FakeVmm(Mutex<Inner>);

impl FakeVmm {
    /// A process that is there without having been started.
    pub fn plant(&self, tag: MachineTag) -> ProcessId {
        let mut inner = self.lock();
        inner.last_pid += 1;
        let pid = inner.last_pid;
        inner.living.insert(pid, (tag, watch::Sender::new(false)));
        ProcessId { pid, start_ticks: 1 }
    }

    /// The machine of an instance dies by itself.
    pub fn die(&self, id: InstanceId) {
        self.lock().living.retain(|_, (tag, dead)| {
            let dies = tag.instance == id;
            dead.send_replace(dies);
            !dies
        });
    }

    /// The next starts fail.
    pub fn fail_starts(&self, failures: u32) {
        self.lock().failures = failures;
    }

    /// Kills have no effect, as on a process that hangs in the kernel.
    pub fn set_unkillable(&self, unkillable: bool) {
        self.lock().unkillable = unkillable;
    }

    /// What the power buttons do.
    pub fn set_power_button(&self, button: Button) {
        self.lock().button = button;
    }

    /// Machines that are dead were killed for want of memory.
    pub fn run_out_of_memory(&self, how: OutOfMemory) {
        self.lock().out_of_memory = Some(how);
    }

    /// How often a power button was pressed.
    pub fn presses(&self) -> u32 {
        self.lock().presses
    }

    /// How many living machines were killed.
    pub fn kills(&self) -> u32 {
        self.lock().kills
    }

    /// How many machines live.
    pub fn living(&self) -> usize {
        self.lock().living.len()
    }

    /// All starts so far, also those that failed.
    pub fn starts(&self) -> usize {
        self.lock().starts.len()
    }

    /// The image of each start so far.
    pub fn images(&self) -> Vec<PathBuf> {
        self.lock().starts.iter().map(|spec| spec.image.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

impl Vmm for FakeVmm {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn conditions(&self) -> Vec<v1::HostCondition> {
        Vec::new()
    }

    fn guest_socket(&self, _: InstanceId, machine_dir: &Path) -> io::Result<GuestSocket> {
        Ok(GuestSocket { path: machine_dir.join("host.sock"), owner: None })
    }

    fn start<'a>(&'a self, spec: &'a MachineSpec) -> BoxFuture<'a, Result<ProcessId, StartError>> {
        async move {
            {
                let mut inner = self.lock();
                inner.starts.push(spec.clone());
                if inner.failures > 0 {
                    inner.failures -= 1;
                    return Err(StartError::Step { step: "do it".into(), cause: "told to fail".into() });
                }
            }
            Ok(self.plant(spec.tag))
        }
        .boxed()
    }

    fn find(&self) -> io::Result<Vec<Found>> {
        let inner = self.lock();
        let found = inner.living.iter().map(|(pid, (tag, _))| Found {
            tag: *tag,
            process: ProcessId { pid: *pid, start_ticks: 1 },
            kind: FoundKind::Machine,
        });
        Ok(found.collect())
    }

    fn is_finished(&self, _: &Found) -> bool {
        true
    }

    fn inspect(&self, instance: InstanceId, run: &Run) -> io::Result<Verdict> {
        let inner = self.lock();
        let living = run.process.and_then(|process| inner.living.get(&process.pid));
        let seen = living.map(|(tag, _)| Seen { start_ticks: 1, zombie: false, tag: Some(*tag) });
        Ok(judge(instance, run, BOOT, seen))
    }

    fn death(&self, process: ProcessId) -> BoxFuture<'static, ()> {
        let dead = self.lock().living.get(&process.pid).map(|(_, dead)| dead.subscribe());
        async move {
            if let Some(mut dead) = dead {
                // An error means that the sender is gone, and with it the process.
                let _gone = dead.wait_for(|dead| *dead).await;
            }
        }
        .boxed()
    }

    fn console(&self, _: InstanceId, _: ProcessId) -> Option<Console> {
        None
    }

    fn kill(&self, process: ProcessId) -> io::Result<()> {
        let mut inner = self.lock();
        if !inner.unkillable && inner.living.remove(&process.pid).is_some() {
            inner.kills += 1;
        }
        Ok(())
    }

    fn out_of_memory(&self, _: InstanceId) -> Option<OutOfMemory> {
        self.lock().out_of_memory
    }

    fn press_power_button(&self, id: InstanceId) -> BoxFuture<'_, Press> {
        let (button, presses) = {
            let mut inner = self.lock();
            inner.presses += 1;
            (inner.button, inner.presses)
        };
        let pressed = match button {
            Button::None => Press::NoButton,
            Button::NotHeard => Press::Done,
            Button::Broken => Press::Unanswered,
            Button::HearsPress(number) => {
                if presses >= number {
                    self.die(id);
                }
                Press::Done
            }
            Button::DiesUnanswered => {
                self.die(id);
                Press::Unanswered
            }
        };
        async move { pressed }.boxed()
    }

    fn release(&self, _: InstanceId) -> io::Result<()> {
        Ok(())
    }

    fn release_all(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Polls until `holds`, for at most 10 s.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

//! The one task that starts, watches, restarts, stops and removes a machine.
//!
//! In: what is wanted, and the death of the process. Out: states on the board. Nobody else touches the machine.

use std::{sync::Arc, time::Duration};

use shardplane_proto::{ids::InstanceId, v1::MachineState};
use tokio::{
    sync::watch,
    time::{sleep, sleep_until, timeout},
};

use super::{
    Assignment, Desired, Shared,
    absence::make_absent,
    backoff::Backoff,
    stop::{self, Ended},
};
use crate::{
    boot_time::BootTime,
    contact::{StartRule, may_start},
    guest_link::GuestLink,
    ledger::ProcessId,
    vmm::{cgroup::OutOfMemory, console::Console},
};

/// What the guest gets to stop in order.
const STOP_DEADLINE: Duration = Duration::from_secs(10);
/// How often a long console is looked for.
const TRIM_EVERY: Duration = Duration::from_secs(60);
/// How often the start rule is looked at while it forbids.
const RULE_POLL: Duration = Duration::from_secs(1);

/// A machine's owner.
pub struct Owner {
    pub(super) id: InstanceId,
    pub(super) shared: Arc<Shared>,
    link: Option<GuestLink>,
    pub(super) desired: watch::Receiver<Desired>,
    pub(super) running: Option<(ProcessId, std::time::Instant)>,
    console: Option<Console>,
    pub(super) backoff: Backoff,
    /// It was proved absent since it was fenced.
    pub(super) absent: bool,
    ended: bool,
}

impl Owner {
    /// Owns a machine whose process, if any, was adopted.
    pub fn new(
        id: InstanceId,
        shared: Arc<Shared>,
        link: GuestLink,
        desired: watch::Receiver<Desired>,
        running: Option<ProcessId>,
    ) -> Self {
        let console = running.and_then(|process| shared.vmm.console(id, process));
        let running = running.map(|process| (process, std::time::Instant::now()));
        Self {
            id,
            shared,
            link: Some(link),
            desired,
            running,
            console,
            backoff: Backoff::default(),
            absent: false,
            ended: false,
        }
    }

    /// Until the machine is removed.
    pub async fn run(mut self) {
        if self.running.is_some() {
            self.say(MachineState::Running, "");
        }
        while !self.ended {
            let desired = self.desired.borrow_and_update().clone();
            if !matches!(desired, Desired::Fence { .. }) {
                // Before anything is started: what was proved holds only as long as it is fenced.
                self.absent = false;
                self.shared.board.set_fenced(self.id, false);
            }
            match (desired, self.running) {
                (Desired::Fence { port_cut }, _) => self.fence(port_cut).await,
                (Desired::Retire, _) => self.retire().await,
                (Desired::Observe, Some((process, since))) => self.watch(process, since).await,
                (Desired::Observe, None) => {
                    self.say(MachineState::Down, &StartRule::Unconfirmed.to_string());
                    self.changed().await;
                }
                (Desired::Run { assignment, .. }, Some((process, since))) => {
                    self.hand_over(&assignment);
                    self.watch(process, since).await;
                }
                (Desired::Run { assignment, blocked }, None) => self.try_start(&assignment, blocked).await,
            }
        }
    }

    pub(super) async fn changed(&mut self) {
        if self.desired.changed().await.is_err() {
            self.ended = true;
        }
    }

    fn hand_over(&self, assignment: &Arc<Assignment>) {
        if let Some(link) = &self.link {
            link.want(|wanted| {
                wanted.assignment = Some(Arc::clone(assignment));
                wanted.stop = None;
            });
        }
    }

    async fn watch(&mut self, process: ProcessId, since: std::time::Instant) {
        let death = self.shared.vmm.death(process);
        tokio::select! {
            () = death => self.died(process, since).await,
            () = self.changed() => {}
            () = sleep(TRIM_EVERY) => {
                if let Some(console) = &self.console {
                    console.trim();
                }
            }
        }
    }

    async fn died(&mut self, process: ProcessId, since: std::time::Instant) {
        self.running = None;
        let delay = self.backoff.failed(std::time::Instant::now(), since.elapsed());
        let again = format!("it is started again in {:.1} s", delay.as_secs_f32());
        let mut message = match self.out_of_memory().await {
            Some(why) => format!("the machine died {why}; {again}"),
            None => format!("the machine died; {again}"),
        };
        if let Some(console) = self.console.take() {
            let words = console.last_words().await;
            if !words.is_empty() {
                message = format!("{message}; it wrote last: {words}");
            }
        }
        tracing::warn!(instance = %self.id, pid = process.pid, "{message}");
        self.say(MachineState::Down, &message);
        self.record_end().await;
    }

    async fn out_of_memory(&self) -> Option<OutOfMemory> {
        let (vmm, id) = (Arc::clone(&self.shared.vmm), self.id);
        // A death is told also when its cause cannot be found.
        tokio::task::spawn_blocking(move || vmm.out_of_memory(id)).await.ok().flatten()
    }

    async fn try_start(&mut self, assignment: &Arc<Assignment>, blocked: Option<String>) {
        if let Some(why) = blocked {
            self.say(MachineState::Preparing, &why);
            return self.changed().await;
        }
        if let Some(next) = self.backoff.wait_until(std::time::Instant::now()) {
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = self.changed() => {}
            }
            return;
        }
        if let Err(rule) = may_start(self.shared.contact.now(), BootTime::now()) {
            self.say(MachineState::Down, &rule.to_string());
            tokio::select! {
                () = sleep(RULE_POLL) => {}
                () = self.changed() => {}
            }
            return;
        }
        self.say(MachineState::Preparing, "");
        self.hand_over(assignment);
        let shared = Arc::clone(&self.shared);
        let _permit = tokio::select! {
            // The semaphore is never closed.
            permit = shared.starts.acquire() => permit,
            () = self.changed() => return,
        };
        match self.start(assignment).await {
            Ok(process) => {
                self.running = Some((process, std::time::Instant::now()));
                self.console = self.shared.vmm.console(self.id, process);
                tracing::info!(instance = %self.id, pid = process.pid, "the machine runs");
                self.say(MachineState::Running, "");
            }
            Err(why) => {
                let delay = self.backoff.failed(std::time::Instant::now(), Duration::ZERO);
                tracing::warn!(instance = %self.id, "the machine did not start: {why}");
                self.say(
                    MachineState::Failed,
                    &format!("{why} (tried again in {:.1} s)", delay.as_secs_f32()),
                );
            }
        }
    }

    /// One attempt to stop and remove it; the loop comes back here until one succeeds.
    async fn retire(&mut self) {
        self.say(MachineState::Stopping, "");
        self.ask_to_stop(STOP_DEADLINE).await;
        if let Err(why) = self.remove().await {
            let delay = self.backoff.failed(std::time::Instant::now(), Duration::ZERO);
            self.say(MachineState::Stopping, &why);
            tracing::warn!(instance = %self.id, "not yet removed: {why}");
            return sleep(delay).await;
        }
        self.ended = true;
        tracing::info!(instance = %self.id, "process and volume are gone");
        // The reconciler is gone only when the agent ends.
        let _agent_ends = self.shared.removed.send(self.id).await;
    }

    /// Gives the machine that long to stop in order. Whoever asks makes sure of it afterwards.
    pub(super) async fn ask_to_stop(&self, deadline: Duration) {
        let (Some((process, _)), Some(link)) = (self.running, &self.link) else { return };
        match stop::in_order(&*self.shared.vmm, self.id, process, link, deadline).await {
            Ended::BySupervisor => tracing::info!(instance = %self.id, "its supervisor stopped it"),
            Ended::ByButton => tracing::info!(instance = %self.id, "its power button stopped it"),
            Ended::No => {
                tracing::warn!(instance = %self.id, pid = process.pid, "it did not stop in order and is killed");
            }
        }
    }

    /// Ends whatever runs of it, and proves it.
    pub(super) async fn end_process(&mut self) -> Result<(), String> {
        make_absent(&self.shared.vmm, Some(self.id)).await?;
        if let Some((process, _)) = self.running {
            // It carried no tag, or the search would have found it: then its own descriptor has to prove the end.
            self.shared
                .vmm
                .kill(process)
                .map_err(|error| format!("cannot kill process {}: {error}", process.pid))?;
            let died = timeout(Duration::from_secs(5), self.shared.vmm.death(process)).await;
            died.map_err(|_| format!("process {} was killed but does not end", process.pid))?;
            self.running = None;
        }
        Ok(())
    }

    async fn remove(&mut self) -> Result<(), String> {
        self.end_process().await?;
        // A device is overwritten, which may take minutes.
        self.say(MachineState::Stopping, "nothing of it runs; its volume is being removed");
        let (vmm, volumes, id) = (Arc::clone(&self.shared.vmm), self.shared.volumes.clone(), self.id);
        let dir = self.shared.machines_dir.join(id.to_string());
        self.link = None;
        let removal = tokio::task::spawn_blocking(move || {
            vmm.release(id).map_err(|error| format!("cannot free what it had on the host: {error}"))?;
            volumes.remove(id).map_err(|error| error.to_string())?;
            match std::fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("cannot remove {}: {error}", dir.display()))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        });
        removal.await.map_err(|error| error.to_string())?
    }

    pub(super) fn say(&self, state: MachineState, message: &str) {
        let starts = self.shared.ledger.machine(self.id).map_or(0, |record| record.starts);
        self.shared.board.set_machine(self.id, state, message, starts);
    }
}

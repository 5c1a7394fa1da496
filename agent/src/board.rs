//! What the coordinator is to be told: the newest fact of each kind, never a queue.
//!
//! In: states from machine owners, reports and outcomes from guests, problems from the reconciler. Out: one full report a
//! session and then differences, as large as what changed however slow the stream is. The session takes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use shardplane_proto::{ids::InstanceId, v1};
use tokio::sync::Notify;

#[derive(Debug, Clone, Default, PartialEq)]
struct Entry {
    machine: i32,
    machine_message: String,
    starts: u32,
    guest: Option<v1::GuestReport>,
    guest_note: String,
    fenced: bool,
    port_cut: bool,
}

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<InstanceId, Entry>,
    gone: BTreeSet<InstanceId>,
    dirty: BTreeSet<InstanceId>,
    problems: BTreeMap<&'static str, String>,
    facts_dirty: bool,
    accepted_generation: u64,
    outcomes: BTreeMap<String, (InstanceId, v1::TaskOutcome)>,
    outcomes_dirty: BTreeSet<String>,
}

/// The board of one agent.
#[derive(Debug, Default)]
pub struct Board {
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Board {
    /// A machine's state, as its owner sees it.
    pub fn set_machine(&self, id: InstanceId, state: v1::MachineState, message: &str, starts: u32) {
        self.edit(id, |entry| {
            entry.machine = state.into();
            message.clone_into(&mut entry.machine_message);
            entry.starts = starts;
        });
    }

    /// What the supervisor in a machine says, or with `None` why it says nothing.
    pub fn set_guest(&self, id: InstanceId, guest: Option<v1::GuestReport>, note: &str) {
        self.edit(id, |entry| {
            entry.guest = guest;
            note.clone_into(&mut entry.guest_note);
        });
    }

    /// Whether an instance is proved to serve nobody, as its spec wants.
    pub fn set_fenced(&self, id: InstanceId, fenced: bool) {
        self.edit(id, |entry| entry.fenced = fenced);
    }

    /// Whether the port of an instance is cut.
    pub fn set_port_cut(&self, id: InstanceId, cut: bool) {
        self.edit(id, |entry| entry.port_cut = cut);
    }

    /// Whether the port of an instance is cut, in the kernel.
    pub fn is_port_cut(&self, id: InstanceId) -> bool {
        self.lock().entries.get(&id).is_some_and(|entry| entry.port_cut)
    }

    /// What the guest says, while its machine runs and it is connected.
    pub fn guest(&self, id: InstanceId) -> Option<v1::GuestReport> {
        self.lock().entries.get(&id).and_then(|entry| entry.guest.clone())
    }

    /// An instance is proved gone: no process, no volume, no port.
    pub fn set_gone(&self, id: InstanceId) {
        let mut inner = self.lock();
        if inner.entries.remove(&id).is_some() {
            inner.dirty.remove(&id);
            inner.gone.insert(id);
            self.changed.notify_one();
        }
    }

    /// Sets (or with `None` clears) the problem of one `kind`: why the newest spec could not be carried out.
    pub fn set_problem(&self, kind: &'static str, problem: Option<String>) {
        let mut inner = self.lock();
        let before = inner.problems.get(kind).cloned();
        if before != problem {
            if let Some(text) = &problem {
                tracing::error!(kind, "{text}");
            } else {
                tracing::info!(kind, "no longer a problem");
            }
            match problem {
                Some(text) => inner.problems.insert(kind, text),
                None => inner.problems.remove(kind),
            };
            inner.facts_dirty = true;
            self.changed.notify_one();
        }
    }

    /// A spec of this generation was accepted.
    pub fn set_accepted(&self, generation: u64) {
        let mut inner = self.lock();
        if inner.accepted_generation != generation {
            inner.accepted_generation = generation;
            inner.facts_dirty = true;
            self.changed.notify_one();
        }
    }

    /// The newest accepted generation.
    pub fn accepted(&self) -> u64 {
        self.lock().accepted_generation
    }

    /// The outcome of a task. Kept until [`Board::keep_outcomes`] drops it.
    pub fn set_outcome(&self, id: InstanceId, outcome: v1::TaskOutcome) {
        let mut inner = self.lock();
        let task = outcome.task_id.clone();
        inner.outcomes.insert(task.clone(), (id, outcome));
        inner.outcomes_dirty.insert(task);
        self.changed.notify_one();
    }

    /// Is the outcome of this task known?
    pub fn has_outcome(&self, task: &str) -> bool {
        self.lock().outcomes.contains_key(task)
    }

    /// Drops the outcomes of tasks that the spec no longer has.
    pub fn keep_outcomes(&self, wanted: &BTreeSet<String>) {
        let mut inner = self.lock();
        inner.outcomes.retain(|task, _| wanted.contains(task));
        inner.outcomes_dirty.retain(|task| wanted.contains(task));
    }

    /// Everything, for the first report of a session; differences count from here.
    pub fn full(&self) -> v1::HostReport {
        let mut inner = self.lock();
        inner.dirty.clear();
        inner.gone.clear();
        inner.facts_dirty = false;
        inner.outcomes_dirty = inner.outcomes.keys().cloned().collect();
        let instances = inner.entries.iter().map(|(id, entry)| entry.report(*id)).collect();
        inner.report(true, instances, Vec::new())
    }

    /// What changed since the last call; `None` when nothing did.
    pub fn changes(&self) -> Option<v1::HostReport> {
        let mut inner = self.lock();
        if inner.dirty.is_empty() && inner.gone.is_empty() && !inner.facts_dirty {
            return None;
        }
        let dirty = std::mem::take(&mut inner.dirty);
        let gone = std::mem::take(&mut inner.gone);
        inner.facts_dirty = false;
        let changed = dirty.iter().filter_map(|id| inner.entries.get(id).map(|entry| entry.report(*id)));
        let instances = changed.collect();
        Some(inner.report(false, instances, gone.iter().map(ToString::to_string).collect()))
    }

    /// The heartbeat: nothing changed.
    pub fn heartbeat(&self) -> v1::HostReport {
        self.lock().report(false, Vec::new(), Vec::new())
    }

    /// One outcome that was not yet sent in this session.
    pub fn next_outcome(&self) -> Option<v1::TaskOutcome> {
        let mut inner = self.lock();
        let task = inner.outcomes_dirty.pop_first()?;
        inner.outcomes.get(&task).map(|(_, outcome)| outcome.clone())
    }

    /// Has every outcome sent again: the coordinator answers by dropping the task from the spec.
    pub fn repeat_outcomes(&self) {
        let mut inner = self.lock();
        inner.outcomes_dirty = inner.outcomes.keys().cloned().collect();
    }

    /// Returns when something was set after the last return.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn edit(&self, id: InstanceId, edit: impl FnOnce(&mut Entry)) {
        let mut inner = self.lock();
        let entry = inner.entries.entry(id).or_default();
        let before = entry.clone();
        edit(entry);
        if *entry != before {
            inner.gone.remove(&id);
            inner.dirty.insert(id);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn report(&self, full: bool, instances: Vec<v1::InstanceReport>, gone: Vec<String>) -> v1::HostReport {
        v1::HostReport {
            full,
            instances,
            gone,
            accepted_generation: self.accepted_generation,
            problems: self.problems.values().cloned().collect(),
        }
    }
}

impl Entry {
    fn report(&self, id: InstanceId) -> v1::InstanceReport {
        let running = self.machine == i32::from(v1::MachineState::Running);
        let message =
            if running && self.machine_message.is_empty() { &self.guest_note } else { &self.machine_message };
        v1::InstanceReport {
            instance_id: id.to_string(),
            machine: self.machine,
            message: message.clone(),
            guest: if running { self.guest.clone() } else { None },
            machine_starts: self.starts,
            fenced: self.fenced,
            port_cut: self.port_cut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: InstanceId = InstanceId::from_u128(1);

    #[test]
    fn many_changes_become_one_difference() {
        let board = Board::default();
        assert!(board.full().full);
        assert_eq!(board.changes(), None);
        for starts in 1..100 {
            board.set_machine(ID, v1::MachineState::Running, "", starts);
        }
        let report = board.changes().unwrap();
        assert_eq!(report.instances.iter().map(|i| i.machine_starts).collect::<Vec<_>>(), [99]);
        board.set_machine(ID, v1::MachineState::Running, "", 99);
        assert_eq!(board.changes(), None, "the same again is no change");
    }

    #[test]
    fn gone_is_told_once_and_not_after_a_full_report() {
        let board = Board::default();
        board.set_machine(ID, v1::MachineState::Running, "", 1);
        board.set_gone(ID);
        assert_eq!(board.changes().unwrap().gone, [ID.to_string()]);
        assert_eq!(board.changes(), None);
        assert!(board.full().instances.is_empty());
    }

    #[test]
    fn outcomes_come_again_until_the_spec_drops_the_task() {
        let board = Board::default();
        let outcome = v1::TaskOutcome { task_id: "t".into(), ok: true, ..Default::default() };
        board.set_outcome(ID, outcome.clone());
        assert_eq!(board.next_outcome(), Some(outcome.clone()));
        assert_eq!(board.next_outcome(), None);
        board.full();
        assert_eq!(board.next_outcome(), Some(outcome));
        board.keep_outcomes(&BTreeSet::new());
        board.full();
        assert_eq!(board.next_outcome(), None);
    }

    #[test]
    fn a_dead_machine_has_no_guest_report() {
        let board = Board::default();
        board.set_machine(ID, v1::MachineState::Running, "", 1);
        board.set_guest(ID, Some(v1::GuestReport::default()), "");
        board.set_machine(ID, v1::MachineState::Down, "died", 1);
        let report = board.full().instances.remove(0);
        assert_eq!((report.guest, report.message.as_str()), (None, "died"));
    }
}

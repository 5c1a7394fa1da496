//! The one owner of what is observed. In: what sessions hear. Out: a snapshot of it, replaced as a whole. Sessions, the executor and
//! the API hold a handle.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use shardplane_model::{
    command::Ended,
    observed::{HostReport, Lasting, MemberReport, Observed},
    time::Timestamp,
};
use shardplane_proto::ids::{ClusterId, Generation, HostId, InstanceId, TaskId};
use tokio::sync::watch;

use crate::clock::Clock;

/// Number of a session; a newer one of the same host replaces an older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionNumber(u64);

/// What a host said in one message, parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) full: bool,
    pub(super) accepted: Generation,
    pub(super) members: Vec<(InstanceId, MemberReport)>,
    pub(super) gone: Vec<InstanceId>,
    pub(super) problems: Vec<String>,
}

/// Outcomes of tasks that the log does not know yet. Bounded by the tasks that are asked for: others are dropped.
pub(super) type Outcomes = BTreeMap<TaskId, Ended>;

struct Heard {
    observed: Arc<Observed>,
    sessions: BTreeMap<HostId, SessionNumber>,
    outcomes: Outcomes,
}

/// A handle to what is observed.
#[derive(Clone)]
pub(super) struct Ear {
    heard: Arc<Mutex<Heard>>,
    changed: watch::Sender<u64>,
    next: Arc<AtomicU64>,
    clock: Clock,
}

impl Ear {
    pub(super) fn start(clock: Clock) -> Self {
        let heard = Heard { observed: Arc::default(), sessions: BTreeMap::new(), outcomes: Outcomes::new() };
        Self {
            heard: Arc::new(Mutex::new(heard)),
            changed: watch::channel(0).0,
            next: Arc::new(AtomicU64::new(1)),
            clock,
        }
    }

    /// Runs `change` on what is heard. A panic elsewhere leaves a whole picture behind, so poisoning is no reason to stop.
    fn with<T>(&self, change: impl FnOnce(&mut Heard) -> T) -> T {
        change(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub(super) fn observed(&self) -> Arc<Observed> {
        self.with(|heard| Arc::clone(&heard.observed))
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        self.with(|heard| heard.outcomes.clone())
    }

    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Forgets everything: this member begins to lead now, or ceased to.
    pub(super) fn reset(&self) {
        let since = self.clock.now();
        self.with(|heard| {
            heard.observed = Arc::new(Observed { since, ..Observed::default() });
            heard.sessions.clear();
            heard.outcomes.clear();
        });
        self.tell();
    }

    /// Remembers what the last plan waits for, so that status can say it.
    pub(super) fn set_waiting(&self, waiting: BTreeMap<ClusterId, Vec<String>>) {
        let changed = self.with(|heard| {
            let differs = heard.observed.waiting != waiting;
            if differs {
                Arc::make_mut(&mut heard.observed).waiting = waiting;
            }
            differs
        });
        if changed {
            self.tell();
        }
    }

    /// Drops outcomes the log already knows.
    pub(super) fn forget_outcomes(&self, known: impl Fn(TaskId) -> bool) {
        self.with(|heard| heard.outcomes.retain(|task, _| !known(*task)));
    }

    /// A host opened a session.
    pub(super) fn open(&self, host: HostId, accepted: Generation) -> SessionNumber {
        let number = SessionNumber(self.next.fetch_add(1, Ordering::Relaxed));
        let at = self.clock.now();
        self.with(|heard| {
            heard.sessions.insert(host, number);
            // Its welcome is on its way, and the log has heard of it since it asked.
            let report = HostReport {
                connected: true,
                at,
                accepted,
                complete: false,
                problems: Vec::new(),
                granted: at,
            };
            Arc::make_mut(&mut heard.observed).hosts.insert(host, report);
        });
        self.tell();
        number
    }

    /// The host is told something from which its leases go on; said before it is sent.
    pub(super) fn grant(&self, host: HostId, number: SessionNumber) {
        let at = self.clock.now();
        self.with(|heard| {
            if heard.sessions.get(&host) == Some(&number)
                && let Some(report) = Arc::make_mut(&mut heard.observed).hosts.get_mut(&host)
            {
                report.granted = at;
            }
        });
    }

    /// A session ended; nothing changes when a newer one took its place.
    pub(super) fn close(&self, host: HostId, number: SessionNumber) {
        self.with(|heard| {
            if heard.sessions.get(&host) == Some(&number) {
                heard.sessions.remove(&host);
                if let Some(report) = Arc::make_mut(&mut heard.observed).hosts.get_mut(&host) {
                    report.connected = false;
                }
            }
        });
        self.tell();
    }

    /// What a host said. False when a newer session took the place of this one: the session ends.
    pub(super) fn report(&self, host: HostId, number: SessionNumber, said: Said) -> bool {
        let at = self.clock.now();
        let current = self.with(|heard| {
            if heard.sessions.get(&host) != Some(&number) {
                return false;
            }
            take(Arc::make_mut(&mut heard.observed), host, at, said);
            true
        });
        if current {
            self.tell();
        }
        current
    }

    /// How a task ended, as the guest says.
    pub(super) fn outcome(&self, task: TaskId, ended: Ended) {
        self.with(|heard| heard.outcomes.insert(task, ended));
        self.tell();
    }
}

fn take(observed: &mut Observed, host: HostId, at: Timestamp, said: Said) {
    let silent_before = Timestamp::default();
    let report = observed.hosts.entry(host).or_insert_with(|| HostReport {
        connected: true,
        at: silent_before,
        accepted: Generation(0),
        complete: false,
        problems: Vec::new(),
        granted: silent_before,
    });
    report.connected = true;
    report.at = at;
    report.accepted = said.accepted;
    report.complete |= said.full;
    report.problems = said.problems;
    let lasting: BTreeMap<InstanceId, Lasting> = observed
        .members
        .iter()
        .filter(|(_, member)| member.host == host)
        .map(|(id, member)| (*id, member.lasting()))
        .collect();
    if said.full {
        observed.members.retain(|_, member| member.host != host);
    }
    // A heartbeat says that what was reported before still holds.
    for member in observed.members.values_mut().filter(|member| member.host == host) {
        member.at = at;
    }
    for gone in said.gone {
        if observed.members.get(&gone).is_some_and(|member| member.host == host) {
            observed.members.remove(&gone);
        }
    }
    for (id, member) in said.members {
        observed.members.insert(id, member.heard(lasting.get(&id).cloned(), at));
    }
}

#[cfg(test)]
mod tests {
    use shardplane_proto::v1;

    use super::*;

    fn member(host: HostId) -> MemberReport {
        MemberReport {
            host,
            at: Timestamp(0),
            machine: v1::MachineState::Running,
            message: String::new(),
            engine_state: v1::EngineState::Running,
            engine_message: String::new(),
            engine: None,
            config_generation: 0,
            restart_generation: 0,
            failed_since: None,
            silent_since: None,
            detached_since: None,
            under_way: None,
            fenced: false,
            port_cut: false,
        }
    }

    #[test]
    fn a_full_report_replaces_what_was_known_of_the_host_and_a_difference_adds() {
        let ear = Ear::start(Clock::start());
        let (host, other) = (HostId::from_u128(1), HostId::from_u128(2));
        let (a, b, c) = (InstanceId::from_u128(1), InstanceId::from_u128(2), InstanceId::from_u128(3));
        let (mine, theirs) = (ear.open(host, Generation(0)), ear.open(other, Generation(0)));
        ear.report(other, theirs, Said { full: true, members: vec![(c, member(other))], ..Said::default() });
        ear.report(host, mine, Said { full: true, members: vec![(a, member(host))], ..Said::default() });
        ear.report(host, mine, Said { members: vec![(b, member(host))], ..Said::default() });
        assert_eq!(ear.observed().members.keys().copied().collect::<Vec<_>>(), [a, b, c]);
        ear.report(host, mine, Said { full: true, members: vec![(b, member(host))], ..Said::default() });
        assert_eq!(ear.observed().members.keys().copied().collect::<Vec<_>>(), [b, c]);
        ear.report(host, mine, Said { gone: vec![b, c], ..Said::default() });
        assert_eq!(ear.observed().members.keys().copied().collect::<Vec<_>>(), [c]);
    }

    #[test]
    fn a_newer_session_of_a_host_silences_the_older() {
        let ear = Ear::start(Clock::start());
        let host = HostId::from_u128(1);
        let old = ear.open(host, Generation(0));
        let new = ear.open(host, Generation(0));
        assert!(!ear.report(host, old, Said::default()));
        ear.close(host, old);
        assert!(ear.observed().hosts[&host].connected);
        assert!(ear.report(host, new, Said::default()));
        ear.close(host, new);
        assert!(!ear.observed().hosts[&host].connected);
    }
}

//! The simulated leader around the pure model: what it hears becomes [`Observed`] and notices, the plan becomes entries, hosts are
//! told. Every entry goes through [`Leader::apply`], which audits the state after it.

use std::collections::{BTreeMap, VecDeque};

use shardplane_model::{
    audit,
    command::{Applied, Command, Decision, Ended, Entry, Notice},
    observed::Observed,
    plan::{self, Plan},
    refusal::{Refusal, RefusalCode},
    state::{Presence, State, TaskState},
    time::Timestamp,
};
use shardplane_proto::ids::{Generation, HostId, TaskId};

use super::{clock::Clock, host::SimHost, mesh::Mesh, rng::Rng, trace::Trace, world::STEP};

/// Decisions of a former leader come at most that late, in steps.
const LATE: u64 = 60;

pub struct Leader {
    pub state: State,
    pub observed: Observed,
    pub index: u64,
    pub term: u64,
    /// There is no leader before that.
    pub leads_from: u64,
    pub last: Plan,
    pub ids: u64,
    /// Every decision that the log accepted, with its time.
    pub decided: Vec<(u64, Decision)>,
    pub trace: Trace,
    pub clock: Clock,
    /// Hosts report every so many milliseconds.
    pub reports_every: u64,
    /// Whoever led before and does not know better yet.
    pub deposed: Option<Deposed>,
    pub(super) outcomes: BTreeMap<TaskId, Ended>,
    /// What each host was told last, and when.
    pub(super) told: BTreeMap<HostId, (Generation, u64)>,
    /// When the newest report of each host was sent, by its own clock.
    pub(super) newest: BTreeMap<HostId, u64>,
    /// What was planned in the last [`LATE`] steps, be it that the log has it or not.
    planned: VecDeque<(u64, Vec<Decision>)>,
}

/// A leader of an earlier term that goes on telling hosts what it knew.
#[derive(Debug, Clone)]
pub struct Deposed {
    pub state: State,
    pub term: u64,
    pub until: u64,
}

impl Leader {
    pub fn new(now: u64) -> Self {
        Self {
            state: State::default(),
            observed: Observed { since: Timestamp(now), ..Observed::default() },
            index: 0,
            term: 1,
            leads_from: now,
            last: Plan::default(),
            ids: 0,
            decided: Vec::new(),
            trace: Trace::default(),
            clock: Clock::right(),
            reports_every: STEP,
            deposed: None,
            outcomes: BTreeMap::new(),
            told: BTreeMap::new(),
            newest: BTreeMap::new(),
            planned: VecDeque::new(),
        }
    }

    /// An id like a ULID: time first.
    pub fn id(&mut self, now: u64) -> u128 {
        self.ids += 1;
        u128::from(now) << 80 | u128::from(self.ids)
    }

    /// Another member leads from `from` on; it has heard nothing yet.
    pub fn change(&mut self, from: u64) {
        self.term += 1;
        self.leads_from = from;
        self.observed = Observed { since: self.stamp(from), ..Observed::default() };
        self.outcomes.clear();
        self.told.clear();
        self.newest.clear();
        self.last = Plan::default();
    }

    /// What its clock shows; a leader goes on where the log's stamps stand.
    pub fn stamp(&self, now: u64) -> Timestamp {
        Timestamp(self.clock.at(now)).max(self.state.now)
    }

    pub fn apply(&mut self, now: u64, commands: Vec<Command>) -> Vec<Result<Applied, Refusal>> {
        self.index += 1;
        let entry = Entry { at: self.stamp(now), commands };
        let before: BTreeMap<HostId, Generation> =
            self.state.hosts.values().map(|h| (h.id, h.generation)).collect();
        let mut twin = self.state.clone();
        let answers = self.state.apply(self.index, &entry);
        assert_eq!(twin.apply(self.index, &entry), answers, "the same entry has the same answers");
        assert!(twin == self.state, "the same entry leads to the same state");
        assert_eq!(audit::audit(&self.state), Vec::<String>::new(), "after {entry:?}");
        for (host, generation) in before {
            let risen = self.state.hosts.get(&host).is_none_or(|host| host.generation >= generation);
            assert!(risen, "a generation went back");
        }
        for (command, answer) in entry.commands.iter().zip(&answers) {
            self.trace.line(now, format!("{command:?} -> {answer:?}"));
            if let (Command::Decide(decision), Ok(_)) = (command, answer) {
                self.decided.push((now, decision.clone()));
            }
        }
        answers
    }

    /// What was decided for an older state is refused or changes nothing that matters.
    fn again(&mut self, now: u64) {
        let places =
            |d: &&Decision| matches!(d, Decision::Place { reservations, .. } if !reservations.is_empty());
        for place in self.last.propose.iter().filter(places).cloned().collect::<Vec<_>>() {
            let before = self.state.clone();
            let answers = self.apply(now, vec![Command::Decide(place.clone())]);
            assert!(
                matches!(&answers[..], [Err(refusal)] if refusal.code == RefusalCode::Outdated),
                "{place:?} applied twice: {answers:?}"
            );
            assert!(before.instances == self.state.instances && before.clusters == self.state.clusters);
        }
    }

    /// The log gets what was planned earlier once more, or only now: its rules have to hold then, too.
    pub fn late(&mut self, now: u64, rng: &mut Rng) {
        self.planned.retain(|(at, _)| now - at <= LATE * STEP);
        if self.leads_from <= now && rng.below(4) == 0 {
            let plan = self.plan(now).propose;
            self.planned.push_back((now, plan));
        }
        if rng.below(4) > 0 || self.planned.is_empty() {
            return;
        }
        let which = usize::try_from(rng.below(self.planned.len() as u64)).unwrap();
        let commands = self.planned[which].1.iter().cloned().map(Command::Decide).collect();
        self.apply(now, commands);
    }

    /// Level-triggered, as the coordinator does it.
    fn notices(&self) -> Vec<Command> {
        let mut notices = Vec::new();
        for (id, member) in &self.observed.members {
            let Some(instance) = self.state.instances.get(id).filter(|i| i.host == member.host) else {
                continue;
            };
            let Some(fact) = member.engine.as_ref().map(|engine| engine.fact()) else { continue };
            if instance.fact.as_ref().is_none_or(|(_, known)| *known != fact) {
                notices.push(Notice::Engine { instance: *id, fact });
            }
        }
        for instance in self.state.instances.values().filter(|i| !i.wanted()) {
            let accepted = self.state.hosts.get(&instance.host).is_some_and(|host| {
                host.presence == Presence::Present
                    && self
                        .observed
                        .hosts
                        .get(&host.id)
                        .is_some_and(|r| r.connected && r.complete && r.accepted >= host.generation)
            });
            if accepted && !self.observed.members.contains_key(&instance.id) {
                notices.push(Notice::Gone { instance: instance.id, host: instance.host });
            }
        }
        for (task, ended) in &self.outcomes {
            if self.state.tasks.get(task).is_some_and(|task| task.state == TaskState::Running) {
                notices.push(Notice::TaskEnded { task: *task, ended: ended.clone() });
            }
        }
        notices.into_iter().map(Command::Notice).collect()
    }

    pub fn plan(&mut self, now: u64) -> Plan {
        let mut ids = self.ids;
        let mut id = || {
            ids += 1;
            u128::from(now) << 80 | u128::from(ids)
        };
        let plan = plan::plan(&self.state, &self.observed, self.stamp(now), &mut id);
        self.ids = ids;
        plan
    }

    pub fn step(&mut self, hosts: &mut [SimHost], mesh: &Mesh, now: u64) {
        if now < self.leads_from {
            return;
        }
        self.hear(hosts, mesh, now);
        let running =
            |task: &TaskId| self.state.tasks.get(task).is_some_and(|task| task.state == TaskState::Running);
        self.outcomes.retain(|task, _| running(task));
        let notices = self.notices();
        if !notices.is_empty() {
            self.apply(now, notices);
        }
        let plan = self.plan(now);
        self.observed.waiting = plan.waiting.clone();
        let commands = plan.commands();
        if !plan.propose.is_empty() {
            self.planned.push_back((now, plan.propose.clone()));
        }
        if !commands.is_empty() {
            super::check::placed_well(&self.state, &self.observed, &plan, self.stamp(now));
            super::check::leavers_win_nothing(&self.state, mesh, &plan);
            let answers = self.apply(now, commands.clone());
            for (command, answer) in commands.iter().zip(&answers) {
                assert!(answer.is_ok(), "the planner's own decision was refused: {command:?}: {answer:?}");
            }
        }
        for id in &plan.deliver {
            let host = hosts.iter_mut().find(|host| host.id == *id).unwrap();
            self.deliver(host, now);
        }
        self.linger(hosts, now);
        self.last = plan;
        self.again(now);
    }
}

//! The executor: while this member leads, it asks the planner whenever something changed and does what it says: proposes decisions,
//! tells sessions which hosts are behind. It decides nothing itself. In: log, observation, time. Out: proposals and wake-ups.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use shardplane_model::{
    command::{Applied, Command},
    observed::Observed,
    plan::{self, Plan},
    state::{Settings, State},
    time::Timestamp,
};
use shardplane_proto::ids::{Generation, HostId};
use tokio::{sync::watch, time::Instant};

use super::{ear::Ear, facts};
use crate::{
    clock::Clock,
    raft::{ProposeError, Raft, Role},
};

/// Changes that come within this time are planned for together.
const GATHER: Duration = Duration::from_millis(50);
/// A plan is made at least that often: what nobody announced (a silent host) is noticed by time alone.
const AT_LEAST: Duration = Duration::from_secs(1);
/// Commands of one proposal: far below what an entry may hold, as long as one command is not a giant.
const PIECE: usize = 256;
/// After a proposal that did not get through.
const PAUSE: Duration = Duration::from_millis(500);

/// What sessions read: which hosts are behind, and that this member still leads.
#[derive(Debug, Clone, Default)]
pub(super) struct ForHosts {
    /// Newest desired generation of the hosts that have not accepted it.
    pub(super) behind: BTreeMap<HostId, Generation>,
    /// Rises, about once a second, each time a quorum confirmed that this member leads. Hosts rest their right to start machines
    /// on it, so a leader that was cut off does not keep it alive.
    pub(super) confirmed: u64,
    /// When the quorum was asked that confirmed it last. Whoever leads next was elected later.
    pub(super) asked: Option<Instant>,
}

/// What came of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Got {
    /// The log has it.
    Through {
        /// Whether the state is another one now.
        changed: bool,
    },
    /// It did not get there.
    Stuck,
}

impl Got {
    /// How soon to look again: a decision that changes nothing would be proposed anew at once, for ever.
    fn pause(self) -> Duration {
        match self {
            Got::Through { changed: true } => Duration::ZERO,
            Got::Through { changed: false } | Got::Stuck => PAUSE,
        }
    }
}

pub(super) struct Executor {
    pub(super) raft: Raft,
    pub(super) clock: Clock,
    pub(super) ear: Ear,
    pub(super) wanted: watch::Sender<ForHosts>,
    pub(super) settings: Settings,
}

impl Executor {
    /// Runs until the member stops.
    pub(super) async fn run(self) {
        let mut role = self.raft.role();
        loop {
            let now = role.borrow_and_update().clone();
            match now {
                Role::Leader { term } => {
                    self.clock.reach(self.raft.local().now);
                    self.ear.reset();
                    tracing::info!(term, "this member leads now");
                    self.lead(&mut role).await;
                    self.ear.reset();
                    tracing::warn!(term, "this member does not lead any more");
                }
                Role::Follower { .. } => {
                    self.compare_settings();
                    if role.changed().await.is_err() {
                        return;
                    }
                }
                Role::Stopped => return,
            }
        }
    }

    /// Whoever leads sets its own catalogue and timings: a member with others would change them at the next election.
    fn compare_settings(&self) {
        let in_force = self.raft.local().settings;
        if in_force != self.settings && in_force != Settings::default() {
            tracing::warn!(
                "the offers, lost_after or slot_moves in this member's configuration differ from those in force; they take effect \
                 when it leads: make the files of all members equal and restart them"
            );
        }
    }

    /// Leads until the role changes.
    async fn lead(&self, role: &mut watch::Receiver<Role>) {
        let mut applied = self.raft.applied();
        let mut heard = self.ear.changed();
        let mut confirmed_at = None;
        loop {
            applied.mark_unchanged();
            heard.mark_unchanged();
            let again_at = tokio::select! {
                again_at = self.turn(&mut confirmed_at) => again_at,
                _ = role.changed() => return,
            };
            let latest = Instant::now() + again_at.min(AT_LEAST);
            tokio::select! {
                _ = applied.changed() => {}
                _ = heard.changed() => {}
                () = tokio::time::sleep_until(latest) => {}
                _ = role.changed() => return,
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// One look at the world. Answers how long the result can be expected to hold.
    async fn turn(&self, confirmed_at: &mut Option<Instant>) -> Duration {
        // Acting on an old state is harmless, the log refuses it; hosts must not hear from a leader that was cut off.
        if confirmed_at.is_none_or(|at| at.elapsed() >= AT_LEAST) {
            let asked = Instant::now();
            match self.raft.read().await {
                Ok(state) => {
                    if self.clock.reach(state.now) {
                        self.ear.reset();
                    }
                    *confirmed_at = Some(Instant::now());
                    self.wanted.send_modify(|wanted| {
                        wanted.confirmed += 1;
                        wanted.asked = Some(asked);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "this member cannot confirm that it leads; it does nothing");
                    return PAUSE;
                }
            }
        }
        let state = self.raft.local();
        if state.settings != self.settings {
            return self.propose(vec![Command::Configure(self.settings.clone())]).await.pause();
        }
        let observed = self.ear.observed();
        let outcomes = self.ear.outcomes();
        let notices = facts::due(&state, &observed, &outcomes);
        if !notices.is_empty() {
            match self.propose(notices).await {
                Got::Through { .. } => {}
                Got::Stuck => return PAUSE,
            }
        }
        self.ear.forget_outcomes(|task| outcomes.contains_key(&task));
        // The plan sees the same observation as the notices: nothing is decided on a fact that the log does not have.
        let state = self.raft.local();
        let now = self.clock.now();
        let plan = self.plan(&state, &observed, now);
        self.ear.set_waiting(plan.waiting.clone());
        self.deliver(&state, &plan);
        if !plan.propose.is_empty() {
            return self.propose(plan.commands()).await.pause();
        }
        plan.again_at.map_or(AT_LEAST, |at| Duration::from_millis(at.since(now).0))
    }

    fn plan(&self, state: &State, observed: &Observed, now: Timestamp) -> Plan {
        let mut id = || ulid::Ulid::from_parts(now.0, rand::random()).0;
        plan::plan(state, observed, now, &mut id)
    }

    fn deliver(&self, state: &State, plan: &Plan) {
        let behind: BTreeMap<_, _> =
            plan.deliver.iter().filter_map(|id| Some((*id, state.hosts.get(id)?.generation))).collect();
        self.wanted.send_if_modified(|wanted| {
            let changed = !behind.is_empty() || !wanted.behind.is_empty();
            wanted.behind = behind;
            changed
        });
    }

    /// Proposes in pieces that fit into an entry; one that does not is halved.
    async fn propose(&self, commands: Vec<Command>) -> Got {
        let mut changed = false;
        let mut pieces: VecDeque<&[Command]> = commands.chunks(PIECE).collect();
        while let Some(piece) = pieces.pop_front() {
            match self.raft.propose(piece.to_vec()).await {
                Ok(answers) => {
                    for (command, answer) in piece.iter().zip(answers) {
                        match answer {
                            Ok(Applied::Changed | Applied::Accepted { .. }) => changed = true,
                            Ok(Applied::Unchanged) => {}
                            Err(refusal) => {
                                tracing::warn!(?command, %refusal, "a decision was refused by the log; planning anew");
                            }
                        }
                    }
                }
                Err(ProposeError::TooLarge { .. }) if piece.len() > 1 => {
                    let (first, second) = piece.split_at(piece.len() / 2);
                    pieces.push_front(second);
                    pieces.push_front(first);
                }
                Err(error @ ProposeError::TooLarge { .. }) => {
                    tracing::error!(%error, "one decision does not fit into an entry of the log; the rest goes on");
                }
                Err(
                    error @ (ProposeError::NotLeader { .. }
                    | ProposeError::NoQuorum
                    | ProposeError::Stopped
                    | ProposeError::Timeout),
                ) => {
                    tracing::warn!(%error, "a proposal did not get through; planning anew");
                    return Got::Stuck;
                }
            }
        }
        Got::Through { changed }
    }
}

#[cfg(test)]
#[path = "executor_tests.rs"]
mod tests;

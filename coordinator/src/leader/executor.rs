//! The executor: while this member leads, it asks the planner whenever something changed and does what it says: proposes decisions,
//! tells sessions which hosts are behind. It decides nothing itself. In: log, observation, time. Out: proposals and wake-ups.

use std::{collections::BTreeMap, time::Duration};

use shardplane_model::{
    command::Command,
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
                    self.ear.reset();
                    tracing::info!(term, "this member leads now");
                    self.lead(&mut role).await;
                    self.ear.reset();
                    tracing::info!(term, "this member does not lead any more");
                }
                Role::Follower { .. } => {
                    if role.changed().await.is_err() {
                        return;
                    }
                }
                Role::Stopped => return,
            }
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
            match self.raft.read().await {
                Ok(_) => {
                    *confirmed_at = Some(Instant::now());
                    self.wanted.send_modify(|wanted| wanted.confirmed += 1);
                }
                Err(error) => {
                    tracing::warn!(%error, "this member cannot confirm that it leads; it does nothing");
                    return PAUSE;
                }
            }
        }
        let state = self.raft.local();
        if state.settings != self.settings {
            return self.propose(vec![Command::Configure(self.settings.clone())]).await;
        }
        let observed = self.ear.observed();
        let outcomes = self.ear.outcomes();
        let notices = facts::due(&state, &observed, &outcomes);
        if !notices.is_empty() {
            return self.propose(notices).await;
        }
        self.ear.forget_outcomes(|task| outcomes.contains_key(&task));
        let now = self.clock.now();
        let plan = self.plan(&state, now);
        self.ear.set_waiting(plan.waiting.clone());
        self.deliver(&state, &plan);
        if !plan.propose.is_empty() {
            return self.propose(plan.commands()).await;
        }
        plan.again_at.map_or(AT_LEAST, |at| Duration::from_millis(at.since(now).0))
    }

    fn plan(&self, state: &State, now: Timestamp) -> Plan {
        let mut id = || ulid::Ulid::from_parts(now.0, rand::random()).0;
        plan::plan(state, &self.ear.observed(), now, &mut id)
    }

    fn deliver(&self, state: &State, plan: &Plan) {
        let behind: BTreeMap<_, _> = plan.deliver.iter().filter_map(|id| Some((*id, state.hosts.get(id)?.generation))).collect();
        self.wanted.send_if_modified(|wanted| {
            let changed = !behind.is_empty() || !wanted.behind.is_empty();
            wanted.behind = behind;
            changed
        });
    }

    async fn propose(&self, commands: Vec<Command>) -> Duration {
        match self.raft.propose(commands.clone()).await {
            Ok(answers) => {
                for (command, answer) in commands.iter().zip(answers) {
                    if let Err(refusal) = answer {
                        tracing::warn!(?command, %refusal, "a decision was refused by the log; planning anew");
                    }
                }
                Duration::ZERO
            }
            Err(
                error @ (ProposeError::NotLeader { .. }
                | ProposeError::NoQuorum
                | ProposeError::Stopped
                | ProposeError::TooLarge { .. }
                | ProposeError::Timeout),
            ) => {
                tracing::warn!(%error, "a proposal did not get through; planning anew");
                PAUSE
            }
        }
    }
}

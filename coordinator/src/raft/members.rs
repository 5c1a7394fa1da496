//! Changing who is a member, on the leader. In: joins, removals and, every second, learners that may be ready for a vote. Out:
//! changes of the membership, each safe at every point where a process may die. What is right is decided in `membership`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use openraft::{
    BasicNode, ChangeMembers, Membership,
    error::{ChangeMembershipError, ClientWriteError, RaftError},
};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Member, MemberStatus,
    client::{CallError, Peers},
    member_error::MemberError,
    membership::{self, Kept, Learner, Members, Promotion, Removal},
    role::leader_of,
    types::{Core, Metrics},
    wire::{LeaveRequest, MembersAnswer, Method, ProbeAnswer},
};

/// Deadline of one change of the membership.
const CHANGE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(2);
/// How often learners are looked at.
const TEND: Duration = Duration::from_secs(1);
/// Longest wait after a promotion that failed.
const TEND_MOST: Duration = Duration::from_secs(30);
/// A learner this close to the end of the log is up to date.
const NEARLY: u64 = 100;
/// Between two questions to a new leader.
const SUCCESSOR: Duration = Duration::from_millis(300);
/// Attempts to hand leadership over.
const HAND_OVERS: u32 = 3;

/// The membership as one member sees and, when it leads, changes it.
#[derive(Clone)]
pub(crate) struct Keeper {
    pub(crate) me: u64,
    pub(crate) core: Core,
    pub(crate) peers: Arc<Peers>,
    /// Where this member is reached.
    pub(crate) address: String,
    /// No voter grants a vote within this time after a heartbeat.
    pub(crate) lease: Duration,
    /// Held during a change.
    pub(crate) changing: Arc<Mutex<()>>,
    /// Set while leadership is handed over: nothing is written or read.
    pub(crate) paused: Arc<AtomicBool>,
}

impl Keeper {
    fn metrics(&self) -> Metrics {
        self.core.metrics().borrow().clone()
    }

    fn leading(&self) -> Result<Metrics, MemberError> {
        let metrics = self.metrics();
        if metrics.running_state.is_err() {
            return Err(MemberError::Stopped);
        }
        if metrics.current_leader != Some(self.me) {
            return Err(MemberError::NotLeader { leader: leader_of(&metrics) });
        }
        Ok(metrics)
    }

    /// All members by id.
    pub(crate) fn status(&self) -> Vec<MemberStatus> {
        let metrics = self.metrics();
        let membership = metrics.membership_config.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let matched = |id: &u64| match &metrics.replication {
            Some(replication) => replication.get(id).copied().flatten().map(|at| at.index),
            None => None,
        };
        let status = |(id, node): (&u64, &BasicNode)| MemberStatus {
            id: *id,
            address: node.addr.clone(),
            voter: voters.contains(id),
            leader: metrics.current_leader == Some(*id),
            matched: matched(id),
        };
        membership.nodes().map(status).collect()
    }

    /// Adds a member that already serves: as a learner, which has no vote and holds up no write, until it has all data; then,
    /// when a second one is ready or the voters are even in number, as a voter. Refused when it does not answer, or has not all
    /// data within `deadline`; then it was taken out again.
    pub(crate) async fn add(&self, id: u64, address: &str, deadline: Duration) -> MembersAnswer {
        let until = Instant::now() + deadline;
        let metrics = self.leading()?;
        let known = metrics.membership_config.membership().get_node(&id).map(|node| node.addr.clone());
        match &known {
            Some(known) if known != address => {
                return Err(MemberError::AddressChanged { id, known: known.clone() });
            }
            Some(_) | None => {}
        }
        let probe = self.probe(address, 0).await;
        let found = probe.map_err(|error| MemberError::Unreachable { id, reason: error.to_string() })?.id;
        if found != id {
            return Err(MemberError::OtherMember { id, address: address.to_owned(), found });
        }
        if known.is_none() {
            let learner = [(id, BasicNode::new(address))].into();
            self.change(&self.begin().await?, ChangeMembers::AddNodes(learner)).await?;
        }
        match timeout_at(until, self.caught_up(id)).await {
            Ok(done) => done?,
            Err(_) => {
                if known.is_none() {
                    self.change(&self.begin().await?, ChangeMembers::RemoveNodes([id].into())).await?;
                }
                return Err(MemberError::NotCaughtUp { id, seconds: deadline.as_secs() });
            }
        }
        Ok(self.status())
    }

    /// Until the member has every entry that the leader had at the beginning.
    async fn caught_up(&self, id: u64) -> Result<(), MemberError> {
        let mut metrics = self.core.metrics();
        let target = metrics.borrow().last_log_index.unwrap_or_default();
        loop {
            {
                let now = metrics.borrow_and_update();
                if now.running_state.is_err() {
                    return Err(MemberError::Stopped);
                }
                let Some(replication) = &now.replication else {
                    return Err(MemberError::NotLeader { leader: leader_of(&now) });
                };
                if now.membership_config.membership().get_node(&id).is_none() {
                    return Err(MemberError::Unknown { id });
                }
                if replication.get(&id).copied().flatten().is_some_and(|at| at.index >= target) {
                    return Ok(());
                }
            }
            metrics.changed().await.map_err(|_| MemberError::Stopped)?;
        }
    }

    /// Takes a member out and tells it; a learner that is ready takes the place of a voter. A leader that takes itself out hands
    /// leadership over first: about two seconds without writes. Refused for the only voter, and when an even number of voters
    /// would be left unless `allow_even`.
    pub(crate) async fn remove(&self, id: u64, allow_even: bool) -> MembersAnswer {
        let changing = self.begin().await?;
        let members = self.view(&self.leading()?, &self.membership().await?).await;
        let address = members.address(id).map(str::to_owned);
        let removal = membership::removal(&members, id, allow_even).map_err(|kept| match kept {
            Kept::Unknown => MemberError::Unknown { id },
            Kept::OnlyVoter => MemberError::OnlyVoter { id },
            Kept::Even(left) => MemberError::Even { id, left },
        })?;
        if id == self.me {
            let leader = self.hand_over(&changing).await?;
            return self.ask_successor(leader, &LeaveRequest { id, allow_even }).await;
        }
        let change = match removal {
            Removal::Learner => ChangeMembers::RemoveNodes([id].into()),
            Removal::Voters(left) => ChangeMembers::ReplaceAllVoters(left),
        };
        self.change(&changing, change).await?;
        drop(changing);
        if let Some(address) = address {
            let dismissed = self.peers.call::<_, ()>(&address, id, Method::Dismiss, &(), PROBE).await;
            if let Err(error) = dismissed {
                tracing::info!(member = id, %error, "the removed member could not be told; it waits for a leader in vain");
            }
        }
        Ok(self.status())
    }

    /// The new leader may still be committing its first entry.
    async fn ask_successor(&self, leader: Member, request: &LeaveRequest) -> MembersAnswer {
        let until = Instant::now() + CHANGE;
        loop {
            let answer =
                self.peers.call(&leader.address, leader.id, Method::Leave, request, CHANGE * 2).await;
            match answer.unwrap_or(Err(MemberError::NotLeader { leader: None })) {
                Err(MemberError::Busy | MemberError::NotLeader { .. }) if Instant::now() < until => {
                    sleep(SUCCESSOR).await;
                }
                answer => return answer,
            }
        }
    }

    /// One change at a time: what is decided must still be true when it is done.
    async fn begin(&self) -> Result<MutexGuard<'_, ()>, MemberError> {
        timeout(CHANGE, self.changing.lock()).await.map_err(|_| MemberError::Busy)
    }

    /// The membership in force, which may be newer than the metrics.
    async fn membership(&self) -> Result<Membership<u64, BasicNode>, MemberError> {
        let membership =
            self.core.with_raft_state(|state| state.membership_state.effective().membership().clone());
        membership.await.map_err(|_| MemberError::Stopped)
    }

    /// Voters that are left out of a change lose their membership altogether: their ids never come back.
    async fn change(
        &self,
        _begun: &MutexGuard<'_, ()>,
        change: ChangeMembers<u64, BasicNode>,
    ) -> Result<(), MemberError> {
        match timeout(CHANGE, self.core.change_membership(change, false)).await {
            Err(_) => Err(MemberError::Timeout),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::Fatal(_))) => Err(MemberError::Stopped),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => {
                Err(MemberError::NotLeader { leader: leader_of(&self.metrics()) })
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => {
                Err(match error {
                    ChangeMembershipError::InProgress(_) => MemberError::Busy,
                    ChangeMembershipError::EmptyMembership(_) => MemberError::OnlyVoter { id: self.me },
                    ChangeMembershipError::LearnerNotFound(missing) => {
                        MemberError::Unknown { id: missing.node_id }
                    }
                })
            }
        }
    }

    async fn probe(&self, address: &str, id: u64) -> Result<ProbeAnswer, CallError> {
        self.peers.call(address, id, Method::Probe, &(), PROBE).await
    }

    /// The members, with learners asked whether they are ready.
    async fn view(&self, metrics: &Metrics, membership: &Membership<u64, BasicNode>) -> Members {
        let last = metrics.last_log_index.unwrap_or_default();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let (voting, learning): (Vec<_>, Vec<_>) = membership
            .nodes()
            .map(|(id, node)| (*id, node.addr.clone()))
            .partition(|(id, _)| voters.contains(id));
        let learners = learning.into_iter().map(|(id, address)| async move {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(&id).copied().flatten());
            let near = matched.is_some_and(|at| at.index + NEARLY >= last);
            let ready =
                near && self.probe(&address, id).await.is_ok_and(|answer| answer.id == id && answer.serving);
            (id, Learner { address, ready })
        });
        Members {
            voters: voting.into_iter().collect(),
            learners: join_all(learners).await.into_iter().collect(),
        }
    }

    /// Makes another voter the leader. Voters refuse to vote while they hear a leader, so this one falls silent for the
    /// length of that lease, then asks the voter with most of the log to campaign. About two seconds without writes.
    async fn hand_over(&self, _begun: &MutexGuard<'_, ()>) -> Result<Member, MemberError> {
        let _silence = Silence::begin(self);
        self.hand_over_silently().await
    }

    async fn hand_over_silently(&self) -> Result<Member, MemberError> {
        for _ in 0..HAND_OVERS {
            sleep(self.lease).await;
            if let Some(target) = self.successor() {
                tracing::info!(from = self.me, to = target.id, "handing leadership over");
                let asked =
                    self.peers.call::<_, ()>(&target.address, target.id, Method::Elect, &(), PROBE).await;
                if let Err(error) = asked {
                    tracing::warn!(member = target.id, %error, "the successor cannot be asked to campaign");
                }
            }
            if let Ok(Some(leader)) = timeout(self.lease, self.other_leader()).await {
                return Ok(leader);
            }
        }
        Err(MemberError::NotHandedOver { id: self.me })
    }

    /// The other voter that has most of the log.
    fn successor(&self) -> Option<Member> {
        let metrics = self.metrics();
        let replication = metrics.replication.as_ref()?;
        let membership = metrics.membership_config.membership();
        let best = membership
            .voter_ids()
            .filter(|id| *id != self.me)
            .max_by_key(|id| replication.get(id).copied())?;
        Some(Member { id: best, address: membership.get_node(&best)?.addr.clone() })
    }

    /// Waits for another leader; nothing when the core ends.
    async fn other_leader(&self) -> Option<Member> {
        let mut metrics = self.core.metrics();
        loop {
            if let Some(leader) = leader_of(&metrics.borrow_and_update()) {
                return Some(leader);
            }
            metrics.changed().await.ok()?;
        }
    }

    /// Gives votes to learners that are ready, and finishes changes that another leader left half done. Runs until the
    /// core ends.
    pub(crate) async fn tend(self) {
        let (mut wait, mut failures) = (TEND, 0);
        loop {
            sleep(wait).await;
            wait = TEND;
            let metrics = match self.leading() {
                Ok(metrics) => metrics,
                Err(MemberError::Stopped) => return,
                Err(_) => continue,
            };
            let Ok(changing) = self.changing.try_lock() else { continue };
            if let Some(change) = self.due(&metrics).await {
                tracing::info!(?change, "changing the voters");
                if let Err(error) = self.change(&changing, change).await {
                    tracing::warn!(%error, "the voters could not be changed");
                    failures += 1;
                    wait = (TEND * 2u32.saturating_pow(failures)).min(TEND_MOST);
                    continue;
                }
            }
            failures = 0;
        }
    }

    async fn due(&self, metrics: &Metrics) -> Option<ChangeMembers<u64, BasicNode>> {
        let membership = self.membership().await.ok()?;
        if let [_, next] = membership.get_joint_config().as_slice() {
            return Some(ChangeMembers::ReplaceAllVoters(next.clone()));
        }
        membership.learner_ids().next()?;
        let members = self.view(metrics, &membership).await;
        Some(match membership::promotion(&members)? {
            Promotion::Add(learners) => ChangeMembers::AddVoterIds(learners),
            Promotion::Replace { voter, learner } => {
                let stay = members.voters.keys().copied().filter(|id| *id != voter);
                ChangeMembers::ReplaceAllVoters(stay.chain([learner]).collect())
            }
        })
    }
}

/// While it lives, this leader gives no sign of life; it ends however the hand-over ends, also when nobody waits for it
/// any more.
struct Silence<'a>(&'a Keeper);

impl<'a> Silence<'a> {
    fn begin(keeper: &'a Keeper) -> Self {
        keeper.paused.store(true, Ordering::Release);
        keeper.core.runtime_config().heartbeat(false);
        Self(keeper)
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        self.0.core.runtime_config().heartbeat(true);
        self.0.paused.store(false, Ordering::Release);
    }
}

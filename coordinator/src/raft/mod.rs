//! The replicated log of the coordinator. In: commands to record. Out: the state that all members agree on, the role of
//! this member, and the members. Everybody else in the coordinator goes through [`Raft`]; the consensus library (openraft)
//! and the store (redb) are not seen outside this folder.
//!
//! `disk`: the files · `log`, `tail`, `record`: the log on disk · `machine`, `snapshot`: the state · `client`, `service`, `proof`, `wire`: members'
//! calls · `propose`, `read`, `role`: what the rest of the coordinator uses · `membership` decides and `members` does
//! changes of the membership · `identity`, `remote`: init, join and leave.

mod client;
pub mod disk;
mod identity;
mod log;
mod machine;
mod member_error;
mod members;
mod membership;
mod open;
mod proof;
mod propose;
mod read;
mod record;
mod remote;
mod role;
mod runtime;
mod service;
mod snapshot;
mod tail;
mod types;
mod wire;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use shardplane_model::{
    command::{Applied, Command, Refusal},
    state::State,
};
use shardplane_proto::v1::raft_server::RaftServer;
use tokio::{sync::watch, time::timeout};

pub use self::{
    identity::{Identity, IdentityError, Standing},
    member_error::MemberError,
    open::{RaftConfig, RaftOpenError, Storage, Timing},
    propose::ProposeError,
    read::ReadError,
    remote::{RemoteError, join, leave},
    role::Role,
    service::RaftService,
};
use self::{
    machine::Published, members::Keeper, propose::Proposer, read::Reader, service::Dismissed, types::Core,
};

/// How long stopping may take.
const STOP: Duration = Duration::from_secs(10);

/// Index of an entry in the log: the state after it. Rises by at least one with every change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// A member and where to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its node id.
    pub id: u64,
    /// Its `host:port`.
    pub address: String,
}

/// A member as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its node id.
    pub id: u64,
    /// Its `host:port`.
    pub address: String,
    /// Whether it votes; a learner has the data and no vote.
    pub voter: bool,
    /// Whether it leads, as far as the asked member knows.
    pub leader: bool,
    /// Index up to which its log equals the leader's; only the leader knows.
    pub matched: Option<u64>,
}

/// This member of the coordinator. Cheap to clone. Somebody has to call [`Raft::stop`] in the end.
#[derive(Clone)]
pub struct Raft {
    core: Core,
    id: u64,
    published: Arc<Published>,
    proposer: Proposer,
    reader: Reader,
    role: watch::Receiver<Role>,
    keeper: Keeper,
    service: RaftService,
    closed: watch::Receiver<()>,
    data_dir: PathBuf,
    stopping: Arc<AtomicBool>,
}

impl fmt::Debug for Raft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raft({})", self.id)
    }
}

impl Raft {
    /// The node id of this member.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Records commands, in order, in one entry of the log, and answers each. Leader only; 10 s at most. Proposals that
    /// wait at the same time share an entry.
    ///
    /// # Errors
    /// See [`ProposeError`]: only `Timeout` and `Stopped` leave open whether the commands take effect.
    pub async fn propose(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Applied, Refusal>>, ProposeError> {
        self.proposer.propose(commands).await
    }

    /// The state with everything that was acknowledged before this call. Leader only. Waiting readers share one barrier.
    ///
    /// # Errors
    /// When this member does not lead, or cannot know whether it still does.
    pub async fn read(&self) -> Result<State, ReadError> {
        self.reader.read().await
    }

    /// Whatever this member has applied; on a follower it may be old.
    pub fn local(&self) -> State {
        self.published.state()
    }

    /// The role of this member, now and when it changes.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// The last applied entry, now and when it changes; [`Raft::local`] is never older.
    pub fn applied(&self) -> watch::Receiver<Revision> {
        self.published.applied()
    }

    /// The members that this one knows of, by id.
    pub fn members(&self) -> Vec<MemberStatus> {
        self.keeper.status()
    }

    /// The gRPC service that the other members call.
    pub fn service(&self) -> RaftServer<RaftService> {
        RaftServer::new(self.service.clone())
            .max_decoding_message_size(client::MAX_MESSAGE)
            .max_encoding_message_size(client::MAX_MESSAGE)
    }

    /// Why this member stopped; nothing while it runs or when [`Raft::stop`] was called.
    pub fn stop_reason(&self) -> Option<String> {
        if self.dismissed() {
            return Some("this member was taken out of the cluster".to_owned());
        }
        if self.stopping.load(Ordering::Acquire) {
            return None;
        }
        let metrics = self.core.metrics().borrow().clone();
        let fatal = metrics.running_state.err()?;
        Some(format!(
            "the log cannot go on, so this member stops before it answers for what it may not have kept: {fatal}"
        ))
    }

    /// Whether this member was taken out of the cluster.
    pub fn dismissed(&self) -> bool {
        self.service.dismissed.happened.load(Ordering::Acquire)
    }

    /// Until this member is told that it was taken out.
    pub async fn told_to_leave(&self) {
        let Dismissed { told, .. } = &*self.service.dismissed;
        told.notified().await;
    }

    /// Stops this member and waits until its files are closed, 20 s at most.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        if timeout(STOP, self.core.shutdown()).await.is_err() {
            tracing::warn!("the consensus core did not stop within {STOP:?}");
        }
        let mut closed = self.closed.clone();
        // Nothing is ever sent: the wait ends when the file is closed.
        if timeout(STOP, closed.changed()).await.is_err() {
            tracing::warn!("the log was not closed within {STOP:?}");
        }
    }
}

#[cfg(test)]
mod tests;

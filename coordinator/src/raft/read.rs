//! Linearizable reading. In: any number of readers. Out: a state that holds everything acknowledged before they asked. One
//! round trip to a quorum (ReadIndex) serves all readers that wait when it starts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use openraft::error::{CheckIsLeaderError, RaftError};
use shardplane_model::state::State;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};

use super::{machine::Published, types::Core};

/// Readers that may wait.
const QUEUE: usize = 1024;
/// How long a barrier may take, with repetitions: one heartbeat may be lost on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(50);

/// Why there is no linearizable state to read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Another member leads, or none.
    #[error("this member does not lead{}", .leader.as_ref().map_or_else(String::new, |at| format!("; the leader is {at}")))]
    NotLeader {
        /// Its address.
        leader: Option<String>,
    },
    /// Too few members answer: this one cannot know whether it still leads.
    #[error("no quorum: too few members of the coordinator answer")]
    NoQuorum,
    /// The member stopped.
    #[error("this member of the coordinator has stopped")]
    Stopped,
}

type Waiter = oneshot::Sender<Result<(), ReadError>>;

/// The readers' end.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    queue: mpsc::Sender<Waiter>,
    published: Arc<Published>,
}

impl Reader {
    pub(crate) async fn read(&self) -> Result<State, ReadError> {
        // One barrier may be under way; the next one is this reader's.
        let deadline = Instant::now() + DEADLINE * 2;
        let (waiter, passed) = oneshot::channel();
        match timeout_at(deadline, self.queue.send(waiter)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(ReadError::Stopped),
            Err(_) => return Err(ReadError::NoQuorum),
        }
        match timeout_at(deadline, passed).await {
            Ok(passed) => passed.unwrap_or(Err(ReadError::Stopped))?,
            Err(_) => return Err(ReadError::NoQuorum),
        }
        Ok(self.published.state())
    }
}

/// Starts the reading task; it ends with the last [`Reader`] or with the core.
pub(crate) fn start(core: Core, published: Arc<Published>, paused: Arc<AtomicBool>) -> Reader {
    let (queue, mut waiting) = mpsc::channel::<Waiter>(QUEUE);
    tokio::spawn(async move {
        while let Some(first) = waiting.recv().await {
            let mut waiters = vec![first];
            while waiters.len() < QUEUE
                && let Ok(waiter) = waiting.try_recv()
            {
                waiters.push(waiter);
            }
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                continue;
            }
            // A barrier is a sign of life, and a leader that hands over keeps silent.
            let passed = match paused.load(Ordering::Acquire) {
                true => Err(ReadError::NotLeader { leader: None }),
                false => barrier(&core).await,
            };
            for waiter in waiters {
                // A reader that went away needs no state.
                let _ = waiter.send(passed.clone());
            }
            if passed == Err(ReadError::Stopped) {
                return;
            }
        }
    });
    Reader { queue, published }
}

async fn barrier(core: &Core) -> Result<(), ReadError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match timeout_at(deadline, core.ensure_linearizable()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(forward)))) => {
                return Err(ReadError::NotLeader { leader: forward.leader_node.map(|node| node.addr) });
            }
            Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)))) => {
                if Instant::now() + RETRY >= deadline {
                    return Err(ReadError::NoQuorum);
                }
                sleep(RETRY).await;
            }
            Ok(Err(RaftError::Fatal(_))) => return Err(ReadError::Stopped),
            Err(_) => return Err(ReadError::NoQuorum),
        }
    }
}

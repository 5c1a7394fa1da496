//! Writing. In: commands of any number of callers. Out: one log entry for all that wait at the same time, and each caller's
//! own answers. One entry is in flight at a time: while it is synced here and on a quorum, the next one fills.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use openraft::error::{ClientWriteError, Fatal, RaftError};
use shardplane_model::command::{Command, Entry};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::{
    role::{has_quorum, leader_of},
    types::{Answers, Core},
};
use crate::clock::Clock;

/// How long a proposal may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
/// Proposals that may wait.
const QUEUE: usize = 256;
/// Commands in one entry, unless a single proposal has more.
const BATCH_COMMANDS: usize = 256;
/// JSON bytes of commands in one entry, unless a single proposal has more.
const BATCH_BYTES: usize = 1 << 20;
/// JSON bytes that one proposal may have: a follower has to take an entry within a heartbeat.
const MAX_BYTES: usize = 4 << 20;

/// Why a proposal has no answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another member leads, or none. Nothing was written.
    #[error("this member does not lead{}", .leader.as_ref().map_or_else(String::new, |at| format!("; the leader is {at}")))]
    NotLeader {
        /// Its address.
        leader: Option<String>,
    },
    /// Too few members answer. Nothing was written.
    #[error("no quorum: too few members of the coordinator answer; nothing was written")]
    NoQuorum,
    /// The proposal is larger than an entry may be. Nothing was written.
    #[error("the change has {bytes} bytes, an entry of the log may have {MAX_BYTES}; split it")]
    TooLarge {
        /// Its size as JSON.
        bytes: usize,
    },
    /// The member stopped. Whether the proposal was written is not known.
    #[error("this member of the coordinator has stopped")]
    Stopped,
    /// It was written here, but no quorum confirmed it in time: it may yet take effect. Repeat it: every command is
    /// safe to repeat.
    #[error("the members did not confirm the change within {DEADLINE:?}: it may yet take effect; repeat it")]
    Timeout,
}

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

struct Proposal {
    commands: Vec<Command>,
    bytes: usize,
    /// Who is first decides: the caller that gives up, or the batch that takes it.
    stage: Arc<AtomicU8>,
    answer: oneshot::Sender<Result<Answers, ProposeError>>,
}

impl Proposal {
    fn take(&self) -> bool {
        !self.answer.is_closed()
            && self.stage.compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The callers' end.
#[derive(Debug, Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
}

impl Proposer {
    pub(crate) async fn propose(&self, commands: Vec<Command>) -> Result<Answers, ProposeError> {
        let deadline = Instant::now() + DEADLINE;
        let bytes = size_of(&commands);
        if bytes > MAX_BYTES {
            return Err(ProposeError::TooLarge { bytes });
        }
        let stage = Arc::new(AtomicU8::new(QUEUED));
        let (answer, answered) = oneshot::channel();
        let proposal = Proposal { commands, bytes, stage: stage.clone(), answer };
        match timeout_at(deadline, self.queue.send(proposal)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(ProposeError::Stopped),
            Err(_) => return Err(ProposeError::NoQuorum),
        }
        match timeout_at(deadline, answered).await {
            Ok(answer) => answer.unwrap_or(Err(ProposeError::Stopped)),
            Err(_) => match stage.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Err(ProposeError::NoQuorum),
                Err(_) => Err(ProposeError::Timeout),
            },
        }
    }
}

/// Bytes of the commands as JSON, without keeping the JSON.
fn size_of(commands: &[Command]) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
            self.0 += buf.len();
            Ok(buf.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written as JSON counts as too large.
    serde_json::to_writer(&mut count, commands).map_or(usize::MAX, |()| count.0)
}

/// The writing task's parts.
pub(crate) struct Writer {
    pub(crate) core: Core,
    pub(crate) clock: Clock,
    /// A leader that has not heard a quorum for longer writes nothing.
    pub(crate) silence: Duration,
    /// Set while leadership is handed over.
    pub(crate) paused: Arc<AtomicBool>,
}

/// Starts the writing task; it ends with the last [`Proposer`] or with the core.
pub(crate) fn start(writer: Writer) -> Proposer {
    let (queue, waiting) = mpsc::channel(QUEUE);
    tokio::spawn(writer.run(waiting));
    Proposer { queue }
}

impl Writer {
    async fn run(self, mut waiting: mpsc::Receiver<Proposal>) {
        let mut held_back = None;
        loop {
            let first = match held_back.take() {
                Some(proposal) => proposal,
                None => match waiting.recv().await {
                    Some(proposal) => proposal,
                    None => return,
                },
            };
            let (batch, rest) = gather(first, &mut waiting);
            held_back = rest;
            if batch.is_empty() {
                continue;
            }
            if let Err(ProposeError::Stopped) = self.write(batch).await {
                return;
            }
        }
    }

    async fn write(&self, batch: Vec<Proposal>) -> Result<(), ProposeError> {
        let mut commands = Vec::new();
        let mut callers = Vec::with_capacity(batch.len());
        for proposal in batch {
            callers.push((proposal.commands.len(), proposal.answer));
            commands.extend(proposal.commands);
        }
        let written = match self.refuse() {
            Some(refusal) => Err(refusal),
            None => self.commit(Entry { at: self.clock.now(), commands }).await,
        };
        match written {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                for (count, caller) in callers {
                    // A caller that went away has no use for its answers.
                    let _ = caller.send(Ok(answers.by_ref().take(count).collect()));
                }
                Ok(())
            }
            Err(error) => {
                for (_, caller) in callers {
                    let _ = caller.send(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Why nothing should be written now: a leader that nobody answers would only grow its log.
    fn refuse(&self) -> Option<ProposeError> {
        if self.paused.load(Ordering::Acquire) {
            return Some(ProposeError::NotLeader { leader: None });
        }
        let metrics = self.core.metrics().borrow().clone();
        if metrics.running_state.is_err() {
            return Some(ProposeError::Stopped);
        }
        if metrics.current_leader != Some(metrics.id) {
            return Some(ProposeError::NotLeader {
                leader: leader_of(&metrics).map(|leader| leader.address),
            });
        }
        (!has_quorum(&metrics, self.silence)).then_some(ProposeError::NoQuorum)
    }

    async fn commit(&self, entry: Entry) -> Result<Answers, ProposeError> {
        match timeout(DEADLINE, self.core.client_write(entry)).await {
            Err(_) => Err(ProposeError::Timeout),
            Ok(Ok(written)) => Ok(written.data),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                Err(ProposeError::NotLeader { leader: forward.leader_node.map(|node| node.addr) })
            }
            // Only changes of membership are answered so.
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(_)))) => {
                Err(ProposeError::Stopped)
            }
            Ok(Err(RaftError::Fatal(Fatal::StorageError(_) | Fatal::Panicked | Fatal::Stopped))) => {
                Err(ProposeError::Stopped)
            }
        }
    }
}

/// Takes what waits, up to a full entry; the second value is the first one that did not fit.
fn gather(first: Proposal, waiting: &mut mpsc::Receiver<Proposal>) -> (Vec<Proposal>, Option<Proposal>) {
    let (mut commands, mut bytes) = (0, 0);
    let mut batch = Vec::new();
    let mut next = Some(first);
    while let Some(proposal) = next.take().or_else(|| waiting.try_recv().ok()) {
        let fits =
            commands + proposal.commands.len() <= BATCH_COMMANDS && bytes + proposal.bytes <= BATCH_BYTES;
        if !fits && !batch.is_empty() {
            return (batch, Some(proposal));
        }
        if proposal.take() {
            commands += proposal.commands.len();
            bytes += proposal.bytes;
            batch.push(proposal);
        }
    }
    (batch, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(bytes: usize) -> (Proposal, oneshot::Receiver<Result<Answers, ProposeError>>) {
        let (answer, answered) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(QUEUED));
        (Proposal { commands: Vec::new(), bytes, stage, answer }, answered)
    }

    #[test]
    fn what_waits_is_gathered_until_the_entry_is_full() {
        let (queue, mut waiting) = mpsc::channel(8);
        let mut callers = Vec::new();
        for bytes in [BATCH_BYTES / 2, BATCH_BYTES / 2, 1] {
            let (proposal, caller) = proposal(bytes);
            callers.push(caller);
            queue.try_send(proposal).unwrap_or_else(|_| panic!("the queue has room"));
        }
        let first = waiting.try_recv().unwrap();
        let (batch, rest) = gather(first, &mut waiting);
        assert_eq!(batch.len(), 2);
        assert_eq!(rest.map(|proposal| proposal.bytes), Some(1));
    }

    #[test]
    fn a_single_large_proposal_gets_an_entry_of_its_own() {
        let (_queue, mut waiting) = mpsc::channel(8);
        let (large, _caller) = proposal(BATCH_BYTES * 2);
        assert_eq!(gather(large, &mut waiting).0.len(), 1);
    }

    #[test]
    fn who_gave_up_or_went_away_is_left_out() {
        let (_queue, mut waiting) = mpsc::channel(8);
        let (gave_up, _caller) = proposal(1);
        gave_up.stage.store(GIVEN_UP, Ordering::Release);
        assert!(gather(gave_up, &mut waiting).0.is_empty());
        let (went_away, caller) = proposal(1);
        drop(caller);
        assert!(gather(went_away, &mut waiting).0.is_empty());
    }
}

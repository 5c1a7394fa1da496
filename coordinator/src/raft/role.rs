//! Which part this member plays. In: the consensus core's metrics. Out: [`Role`] for planner, executor and API. The watching
//! task belongs to the Raft handle.

use std::time::Duration;

use openraft::ServerState;
use tokio::sync::watch;

use super::{Member, types::Metrics};

/// The part of this member in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It leads, has applied an entry of its own term, so its state holds everything that was ever acknowledged, and a
    /// quorum has answered it lately.
    Leader {
        /// Rises with every leader; hosts refuse orders of an older one.
        term: u64,
    },
    /// It follows, waits for a leader, or is a leader that cannot act yet or no more.
    Follower {
        /// The leader, when one is known.
        leader: Option<Member>,
    },
    /// The member stopped and does not come back in this process; [`super::Raft::stop_reason`] says why.
    Stopped,
}

/// A leader that a quorum has not answered for longer than `silence` may have a successor.
pub(crate) fn role_of(metrics: &Metrics, silence: Duration) -> Role {
    if metrics.running_state.is_err() {
        return Role::Stopped;
    }
    match metrics.state {
        ServerState::Leader => {
            let term = metrics.current_term;
            let applied = metrics.last_applied.is_some_and(|last| last.leader_id.term == term);
            if applied && has_quorum(metrics, silence) {
                Role::Leader { term }
            } else {
                Role::Follower { leader: None }
            }
        }
        ServerState::Learner | ServerState::Follower | ServerState::Candidate => {
            Role::Follower { leader: leader_of(metrics) }
        }
        ServerState::Shutdown => Role::Stopped,
    }
}

/// Whether a quorum has answered this leader within `silence`.
pub(crate) fn has_quorum(metrics: &Metrics, silence: Duration) -> bool {
    metrics.millis_since_quorum_ack.is_some_and(|ms| Duration::from_millis(ms) <= silence)
}

/// The leader that this member follows.
pub(crate) fn leader_of(metrics: &Metrics) -> Option<Member> {
    let id = metrics.current_leader.filter(|id| *id != metrics.id)?;
    let address = metrics.membership_config.membership().get_node(&id)?.addr.clone();
    Some(Member { id, address })
}

/// Keeps `role` true until the core ends or every receiver is gone.
pub(crate) async fn watch_role(
    mut metrics: watch::Receiver<Metrics>,
    role: watch::Sender<Role>,
    silence: Duration,
) {
    loop {
        let now = role_of(&metrics.borrow_and_update(), silence);
        let stopped = now == Role::Stopped;
        role.send_if_modified(|role| {
            let changed = *role != now;
            *role = now;
            changed
        });
        if stopped {
            return;
        }
        let ended = tokio::select! {
            changed = metrics.changed() => changed.is_err(),
            () = role.closed() => return,
        };
        if ended {
            role.send_replace(Role::Stopped);
            return;
        }
    }
}

//! Asking the cluster from outside: `join` and `leave`. In: an address of any member. Out: the leader's answer; the way to the
//! leader is followed.

use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    MemberError, MemberStatus,
    client::{CallError, Peers},
    proof::Prover,
    wire::{JoinRequest, LeaveRequest, MembersAnswer, Method},
};
use crate::{dial::Dialer, secrets::ClusterKey};

/// The call itself takes this much longer than what it asks for.
const MARGIN: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(500);

/// Why the cluster did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The member cannot be reached or does not trust us.
    #[error("cannot ask the member at {address}: {reason}")]
    Call {
        /// Where.
        address: String,
        /// Why.
        reason: String,
    },
    /// The leader said no.
    #[error(transparent)]
    Refused(#[from] MemberError),
}

/// Asks the leader to add member `id` at `address`; `any` is the address of any member. The member must already serve.
///
/// # Errors
/// When the leader cannot be reached within `deadline`, or refuses.
pub async fn join(
    dialer: Dialer,
    key: &ClusterKey,
    any: &str,
    id: u64,
    address: &str,
    deadline: Duration,
) -> Result<Vec<MemberStatus>, RemoteError> {
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    let request = JoinRequest { id, address: address.to_owned(), deadline_ms };
    ask(&Peers::new(Prover::new(key), dialer), any, Method::Join, &request, deadline).await
}

/// Asks the leader to take member `id` out; `any` is the address of any member.
///
/// # Errors
/// When the leader cannot be reached within `deadline`, or refuses.
pub async fn leave(
    dialer: Dialer,
    key: &ClusterKey,
    any: &str,
    id: u64,
    allow_even: bool,
    deadline: Duration,
) -> Result<Vec<MemberStatus>, RemoteError> {
    let request = LeaveRequest { id, allow_even };
    ask(&Peers::new(Prover::new(key), dialer), any, Method::Leave, &request, deadline).await
}

async fn ask<Q: Serialize>(
    peers: &Peers,
    any: &str,
    method: Method,
    question: &Q,
    deadline: Duration,
) -> Result<Vec<MemberStatus>, RemoteError> {
    let until = Instant::now() + deadline;
    let mut address = any.to_owned();
    loop {
        let answer: Result<MembersAnswer, CallError> =
            peers.call(&address, 0, method, question, deadline + MARGIN).await;
        let late = Instant::now() + RETRY >= until;
        match answer {
            Ok(Ok(members)) => return Ok(members),
            Ok(Err(MemberError::NotLeader { leader: Some(leader) })) if !late => address = leader.address,
            // An election or another change passes.
            Ok(Err(MemberError::NotLeader { leader: None } | MemberError::Busy)) if !late => {
                sleep(RETRY).await
            }
            Ok(Err(refused)) => return Err(refused.into()),
            Err(error) => return Err(RemoteError::Call { address, reason: reason(&error) }),
        }
    }
}

fn reason(error: &CallError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

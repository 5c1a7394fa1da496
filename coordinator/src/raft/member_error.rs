//! Why a change of the members did not happen. In: what the leader found. Out: a text that says what to do next, and the same
//! value at the member that asked over the network.

use serde::{Deserialize, Serialize};

use super::Member;

/// Why the members are as they were (or, where the text says so, may change yet).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum MemberError {
    /// Another member leads, or none.
    #[error("this member does not lead{}", .leader.as_ref().map_or_else(|| "; no leader is known".to_owned(), |at| format!("; the leader is {}", at.address)))]
    NotLeader {
        /// Ask this one.
        leader: Option<Member>,
    },
    /// Nobody answers at the address of the new member.
    #[error(
        "cannot add member {id}: {reason}; start it with the same key file and check its `advertise` address"
    )]
    Unreachable {
        /// The new member.
        id: u64,
        /// What happened.
        reason: String,
    },
    /// Somebody else answers there.
    #[error("cannot add member {id}: at {address} answers member {found}; check the `advertise` addresses")]
    OtherMember {
        /// The new member.
        id: u64,
        /// The address it gave.
        address: String,
        /// Who answers.
        found: u64,
    },
    /// The id is in use at another address.
    #[error("member {id} is known at {known}; an id keeps its address: let the member leave and join anew")]
    AddressChanged {
        /// The member.
        id: u64,
        /// The address that the cluster knows.
        known: String,
    },
    /// The new member did not get all data in time; it was taken out again.
    #[error(
        "member {id} did not get all data within {seconds} s and was taken out again; check its disk and network and join again"
    )]
    NotCaughtUp {
        /// The new member.
        id: u64,
        /// The deadline.
        seconds: u64,
    },
    /// No such member.
    #[error("there is no member {id}")]
    Unknown {
        /// The id.
        id: u64,
    },
    /// It is the only one that votes.
    #[error("member {id} is the only voter: without it there is no cluster")]
    OnlyVoter {
        /// The id.
        id: u64,
    },
    /// An even number of voters would be left.
    #[error(
        "without member {id} there would be {left} voters, and an even number tolerates no more losses than one fewer; let a new member join first (it takes the place), or say that another one leaves next (--allow-even)"
    )]
    Even {
        /// The id.
        id: u64,
        /// Voters that would be left.
        left: usize,
    },
    /// Another change is under way.
    #[error("another change of the members is under way; try again when it is done")]
    Busy,
    /// No quorum confirmed the change in time.
    #[error(
        "too few members confirmed the change in time: it may yet take effect; look at the members and try again"
    )]
    Timeout,
    /// Leadership could not be handed over.
    #[error(
        "member {id} leads and no other voter took over; nothing was changed. Check that the other voters answer"
    )]
    NotHandedOver {
        /// The leader.
        id: u64,
    },
    /// The member stopped.
    #[error("this member has stopped")]
    Stopped,
}

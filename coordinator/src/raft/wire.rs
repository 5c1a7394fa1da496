//! What the members say beside the consensus library's own messages. In: typed requests. Out: JSON for the payload of a
//! `RaftMessage`. Used by both ends of a call.

use serde::{Deserialize, Serialize};

use super::{
    MemberStatus,
    member_error::MemberError,
    types::{SnapshotMeta, Vote},
};

/// The calls between members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    AppendEntries,
    Vote,
    InstallSnapshot,
    Probe,
    Elect,
    Join,
    Leave,
    Dismiss,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::AppendEntries => "AppendEntries",
            Method::Vote => "Vote",
            Method::InstallSnapshot => "InstallSnapshot",
            Method::Probe => "Probe",
            Method::Elect => "Elect",
            Method::Join => "Join",
            Method::Leave => "Leave",
            Method::Dismiss => "Dismiss",
        }
    }

    /// Whether the caller may not know yet which node it reaches.
    pub(crate) fn goes_to_an_address(self) -> bool {
        match self {
            Method::Probe | Method::Join | Method::Leave => true,
            Method::AppendEntries
            | Method::Vote
            | Method::InstallSnapshot
            | Method::Elect
            | Method::Dismiss => false,
        }
    }
}

/// Who answers at an address.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProbeAnswer {
    pub(crate) id: u64,
    /// False while it only joins and will be started for good later: it must not become a voter before.
    pub(crate) serving: bool,
}

/// Add this member.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JoinRequest {
    pub(crate) id: u64,
    pub(crate) address: String,
    /// How long the leader may take to bring it up to date.
    pub(crate) deadline_ms: u64,
}

/// Take this member out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeaveRequest {
    pub(crate) id: u64,
    pub(crate) allow_even: bool,
}

/// The members afterwards, or why nothing changed.
pub(crate) type MembersAnswer = Result<Vec<MemberStatus>, MemberError>;

/// The head of a snapshot stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotHeader {
    pub(crate) vote: Vote,
    pub(crate) meta: SnapshotMeta,
}

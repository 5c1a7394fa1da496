//! What is on disk, as types of our own: an upgrade of the consensus library cannot change it unnoticed. In: entries, votes,
//! memberships. Out: JSON in an envelope with a format number, and back. Called by the log and the snapshot files.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use openraft::{BasicNode, CommittedLeaderId, EntryPayload, LeaderId, Membership};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shardplane_model::command::Entry;

use super::types::{LogEntry, LogId, SnapshotMeta, StoredMembership, Vote};

/// The format that this program writes. It reads this one and every older one.
pub(crate) const FORMAT: u32 = 1;

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// A newer program wrote it.
    #[error("it has format {found}, this program reads formats up to {FORMAT}: run the newer program again")]
    Newer {
        /// The number in the envelope.
        found: u32,
    },
    /// Not what its format promises.
    #[error("it is not a record of format {FORMAT}")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    format: u32,
    record: T,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// The record in its envelope.
pub(crate) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, RecordError> {
    Ok(serde_json::to_vec(&Envelope { format: FORMAT, record })?)
}

/// The record out of its envelope.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    let found = serde_json::from_slice::<FormatOnly>(bytes)?.format;
    if found > FORMAT {
        return Err(RecordError::Newer { found });
    }
    Ok(serde_json::from_slice::<Envelope<T>>(bytes)?.record)
}

/// Where an entry stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    term: u64,
    leader: u64,
    index: u64,
}

impl From<LogId> for Position {
    fn from(id: LogId) -> Self {
        Self { term: id.leader_id.term, leader: id.leader_id.node_id, index: id.index }
    }
}

impl From<Position> for LogId {
    fn from(at: Position) -> Self {
        LogId::new(CommittedLeaderId::new(at.term, at.leader), at.index)
    }
}

/// Whom this member voted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteRecord {
    term: u64,
    leader: u64,
    committed: bool,
}

impl From<Vote> for VoteRecord {
    fn from(vote: Vote) -> Self {
        Self { term: vote.leader_id.term, leader: vote.leader_id.node_id, committed: vote.committed }
    }
}

impl From<VoteRecord> for Vote {
    fn from(vote: VoteRecord) -> Self {
        Vote { leader_id: LeaderId::new(vote.term, vote.leader), committed: vote.committed }
    }
}

/// Voters (two sets while they change) and the address of every member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembershipRecord {
    voters: Vec<BTreeSet<u64>>,
    addresses: BTreeMap<u64, String>,
}

impl From<&Membership<u64, BasicNode>> for MembershipRecord {
    fn from(membership: &Membership<u64, BasicNode>) -> Self {
        Self {
            voters: membership.get_joint_config().clone(),
            addresses: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }
}

impl From<MembershipRecord> for Membership<u64, BasicNode> {
    fn from(record: MembershipRecord) -> Self {
        let nodes: BTreeMap<u64, BasicNode> =
            record.addresses.into_iter().map(|(id, address)| (id, BasicNode::new(address))).collect();
        Membership::new(record.voters, nodes)
    }
}

/// One entry of the log.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EntryRecord<'a> {
    at: Position,
    payload: Payload<'a>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Payload<'a> {
    /// A new leader's first entry.
    Blank,
    Commands(Cow<'a, Entry>),
    Membership(MembershipRecord),
}

impl<'a> From<&'a LogEntry> for EntryRecord<'a> {
    fn from(entry: &'a LogEntry) -> Self {
        let payload = match &entry.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(commands) => Payload::Commands(Cow::Borrowed(commands)),
            EntryPayload::Membership(membership) => Payload::Membership(membership.into()),
        };
        Self { at: entry.log_id.into(), payload }
    }
}

impl From<EntryRecord<'_>> for LogEntry {
    fn from(record: EntryRecord<'_>) -> Self {
        let payload = match record.payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Commands(commands) => EntryPayload::Normal(commands.into_owned()),
            Payload::Membership(membership) => EntryPayload::Membership(membership.into()),
        };
        LogEntry { log_id: record.at.into(), payload }
    }
}

/// What a snapshot covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    id: String,
    last: Option<Position>,
    membership_at: Option<Position>,
    membership: MembershipRecord,
}

impl From<&SnapshotMeta> for SnapshotRecord {
    fn from(meta: &SnapshotMeta) -> Self {
        Self {
            id: meta.snapshot_id.clone(),
            last: meta.last_log_id.map(Into::into),
            membership_at: meta.last_membership.log_id().map(Into::into),
            membership: meta.last_membership.membership().into(),
        }
    }
}

impl From<SnapshotRecord> for SnapshotMeta {
    fn from(record: SnapshotRecord) -> Self {
        let membership =
            StoredMembership::new(record.membership_at.map(Into::into), record.membership.into());
        SnapshotMeta {
            last_log_id: record.last.map(Into::into),
            last_membership: membership,
            snapshot_id: record.id,
        }
    }
}

#[cfg(test)]
#[path = "tests/record.rs"]
mod tests;

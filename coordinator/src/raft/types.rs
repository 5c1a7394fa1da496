//! The consensus library's types, bound to ours. In: nothing. Out: the type configuration and short names for the rest of
//! this folder; none of them leaves it.

use shardplane_model::command::{Applied, Refusal};

/// One answer a command, in the order of the entry's commands; empty for entries without commands.
pub(crate) type Answers = Vec<Result<Applied, Refusal>>;

openraft::declare_raft_types!(
    /// An entry of ours is the model's; a snapshot travels as an open, complete file.
    pub(crate) TypeConfig:
        D = shardplane_model::command::Entry,
        R = Answers,
        NodeId = u64,
        Node = openraft::BasicNode,
        SnapshotData = super::disk::AnyFile,
        AsyncRuntime = super::runtime::Runtime,
);

pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type LogEntry = openraft::Entry<TypeConfig>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, openraft::BasicNode>;
pub(crate) type Snapshot = openraft::Snapshot<TypeConfig>;
pub(crate) type StoredMembership = openraft::StoredMembership<u64, openraft::BasicNode>;
pub(crate) type Metrics = openraft::RaftMetrics<u64, openraft::BasicNode>;
pub(crate) type Core = openraft::Raft<TypeConfig>;

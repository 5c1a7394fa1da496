//! Operations and their tasks: the engine steps that the log has recorded. In: started by the planner, ended by outcomes. Out: sent
//! to guests by way of the host specs, shown to people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{ClusterId, InstanceId, OperationId, TaskId};

use crate::time::Timestamp;

/// Why an operation exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationKind {
    /// A cluster is made.
    Create,
    /// A member is replaced whose host was lost.
    Repair,
    /// A member is moved for the sake of spread.
    Move,
    /// The primary of a group changes on our order.
    Switchover,
    /// Replicas are added.
    Grow,
    /// Replicas are taken away.
    Shrink,
    /// A cluster is deleted.
    Delete,
    /// Slots move because shards are added or taken away.
    Reshard,
    /// Changed parameters reach the members one after the other.
    Rollout,
    /// A replica becomes primary without the engine's vote, after the old primary is fenced.
    Takeover,
}

impl OperationKind {
    /// Whether it has reached what it is for when every member takes its part.
    pub fn makes_members(self) -> bool {
        match self {
            OperationKind::Create
            | OperationKind::Repair
            | OperationKind::Move
            | OperationKind::Switchover
            | OperationKind::Grow
            | OperationKind::Shrink => true,
            OperationKind::Delete
            | OperationKind::Reshard
            | OperationKind::Rollout
            | OperationKind::Takeover => false,
        }
    }
}

/// How an operation stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationState {
    /// Not ended.
    Running,
    /// Reached what it was for.
    Succeeded,
    /// Given up, or made pointless by something else.
    Failed {
        /// Why.
        error: String,
    },
    /// Somebody asked for its end; what was done so far stays.
    Cancelled {
        /// Who.
        by: String,
    },
}

/// What an operation has to reach, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// The name of the count, for example `slots`.
    pub what: String,
    /// How many.
    pub amount: u64,
}

/// A chain of tasks with one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Made by the leader.
    pub id: OperationId,
    /// Why it exists.
    pub kind: OperationKind,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Why it exists, for people.
    pub cause: String,
    /// When it began.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// How it stands.
    pub state: OperationState,
    /// Its tasks in order.
    pub tasks: Vec<TaskId>,
    /// What its tasks have done, added up: for example slots and keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// What has to be done in all, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// What people should know, newest last; at most [`Operation::NOTES_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it goes no further until somebody cancels it: the engine's text of a step that failed too often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<String>,
}

impl Operation {
    /// More notes are not kept.
    pub const NOTES_KEPT: usize = 16;

    /// Adds what people should know, once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
        let surplus = self.notes.len().saturating_sub(Self::NOTES_KEPT);
        self.notes.drain(..surplus);
    }
}

/// How a task stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// Asked for.
    Running,
    /// The engine did it.
    Succeeded,
    /// The engine said no.
    Failed {
        /// The engine's text.
        error: String,
    },
    /// No longer needed: what it was for came about, or became impossible, without it.
    Superseded,
}

/// One engine step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Made by the leader.
    pub id: TaskId,
    /// The operation it belongs to.
    pub operation: OperationId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Who performs it.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// The engine's own message, hex in JSON.
    #[serde(with = "hex::serde")]
    pub payload: Vec<u8>,
    /// How it stands.
    pub state: TaskState,
    /// When it was asked for.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

//! Operations and their tasks: the engine steps that the log has recorded. In: started by the planner, ended by outcomes. Out: sent
//! to guests by way of the host specs, shown to people.

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

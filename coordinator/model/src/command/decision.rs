//! What the planner decides, and what its decisions are made of. In: made by [`crate::plan`]. Out: entries of the log, checked again by
//! [`crate::apply`] as they are applied.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{
    ClusterId, Generation, GroupId, HostId, InstanceId, OperationId, RequestId, TaskId,
};

use crate::{
    engine::Layout,
    state::{Goal, OperationKind},
    time::{Millis, Timestamp},
};

/// An instance to reserve, with the degradation the planner accepted for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// The instance; its intent is `Wanted` and it has no facts.
    pub instance: crate::state::Instance,
    /// How many wanted members of its own group shared the host when it was chosen. Applying refuses when there are more.
    pub own_group_on_host: u32,
}

/// Why an instance's place is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplaceCause {
    /// Its host is lost. Applying refuses when the host is back.
    HostLost,
    /// Its host is there, but says for longer than the grace that it cannot run it.
    CannotRun,
}

/// An instance whose place another takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// The instance.
    pub instance: InstanceId,
    /// Why.
    pub cause: ReplaceCause,
}

/// A new operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewOperation {
    /// Made by the leader.
    pub id: OperationId,
    /// Why it exists.
    pub kind: OperationKind,
    /// Why it exists, for people.
    pub cause: String,
    /// What has to be done in all, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

/// A new task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// Made by the leader.
    pub id: TaskId,
    /// Who performs it.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// The engine's own message.
    pub payload: Vec<u8>,
}

/// Why a fenced member cannot serve. Applying checks as much of it as the log knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// Its host says so, having accepted a desired state that wants it fenced: the port is cut, no process of the machine is left.
    Stopped {
        /// Of the desired state that the host had accepted.
        generation: Generation,
    },
    /// Its host was not granted anything for longer than its lease: its agent has cut the port.
    LeaseExpired {
        /// When it was last granted something, at the latest.
        last_granted: Timestamp,
        /// The longest lease that it may go by.
        lease: Millis,
    },
    /// An operator says that its host never returns.
    HostRetired,
}

/// For people.
impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instance {} cannot serve, ", self.instance)?;
        match self.proof {
            Proof::Stopped { generation } => {
                write!(f, "its host has stopped it and cut its port (generation {})", generation.0)
            }
            Proof::LeaseExpired { last_granted, lease } => {
                write!(f, "the lease of {lease} that its host got at {last_granted} is over")
            }
            Proof::HostRetired => f.write_str("its host never returns, says an operator"),
        }
    }
}

/// A fenced member with its proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proven {
    /// The member.
    pub instance: InstanceId,
    /// Why it cannot serve.
    pub proof: Proof,
}

/// What the planner decides. Applying re-checks the rules and refuses what no longer fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// Reserve instances, all or none.
    Place {
        /// The cluster.
        cluster: ClusterId,
        /// The instances.
        reservations: Vec<Reservation>,
        /// Instances whose place they take at once.
        retire: Vec<Replaced>,
        /// The operation this begins.
        operation: NewOperation,
    },
    /// The cluster's roles are as wanted, but for those that the engine refused.
    RolesInForce {
        /// The cluster.
        cluster: ClusterId,
        /// Of the roles that are meant.
        revision: Generation,
        /// Names with the engine's words.
        refused: Vec<(String, String)>,
    },
    /// The change in flight wants more members and finds no place for them: it waits, under an operation that somebody can cancel.
    AwaitPlace {
        /// The cluster.
        cluster: ClusterId,
        /// The change in flight.
        request: RequestId,
        /// The operation this begins.
        operation: NewOperation,
        /// What is missing, for people.
        why: String,
    },
    /// Let instances go.
    Retire {
        /// The cluster.
        cluster: ClusterId,
        /// The instances.
        instances: Vec<InstanceId>,
        /// Why, for people.
        cause: String,
    },
    /// Let replicas go that the spec no longer wants; never a primary.
    Shrink {
        /// The cluster.
        cluster: ClusterId,
        /// At most one of each group that has more members than it shall have.
        instances: Vec<InstanceId>,
        /// The operation this begins.
        operation: NewOperation,
    },
    /// Data shall move between groups until the layout is reached. Applying refuses when another change is in flight by then, the
    /// layout is for other groups than the spec has, or another one is in force.
    Reshard {
        /// The cluster.
        cluster: ClusterId,
        /// The change in flight that this is for.
        request: RequestId,
        /// Where the data shall be.
        layout: Layout,
        /// The operation this begins.
        operation: NewOperation,
    },
    /// A step of a reshard failed too often: nothing more is tried until somebody cancels it.
    HaltReshard {
        /// The cluster.
        cluster: ClusterId,
        /// The operation.
        operation: OperationId,
        /// What failed and the engine's text.
        error: String,
    },
    /// The data is where the layout wants it, and nobody is left who has to give some away.
    Resharded {
        /// The cluster.
        cluster: ClusterId,
        /// The operation that moved it.
        operation: OperationId,
    },
    /// A group that leaves owns nothing any more: all its members go. Applying refuses when the log's facts do not prove that.
    Dissolve {
        /// The cluster.
        cluster: ClusterId,
        /// The group.
        group: GroupId,
    },
    /// Ask for engine steps, under the operation when it still runs, else under a new one.
    StartTasks {
        /// The cluster.
        cluster: ClusterId,
        /// The operation.
        operation: OperationId,
        /// Made when there is no operation of that id.
        new_operation: Option<NewOperation>,
        /// The steps.
        tasks: Vec<NewTask>,
    },
    /// Tell one member the newest parameters.
    Roll {
        /// The cluster.
        cluster: ClusterId,
        /// The member.
        instance: InstanceId,
        /// The parameters it was decided for.
        revision: Generation,
        /// The operation.
        operation: OperationId,
        /// Made when there is no operation of that id.
        new_operation: Option<NewOperation>,
    },
    /// The member that was told last has its parameters in force.
    Rolled {
        /// The cluster.
        cluster: ClusterId,
        /// The member.
        instance: InstanceId,
    },
    /// A member does not take the newest parameters, or does not come back with them: no other is told.
    HaltRollout {
        /// The cluster.
        cluster: ClusterId,
        /// The parameters it is about.
        revision: Generation,
        /// Why, for people.
        why: String,
    },
    /// Steps that are no longer needed.
    DropTasks {
        /// The steps.
        tasks: Vec<TaskId>,
    },
    /// Every group of the cluster has an owner of its slots or tables and serves: from now on nothing of it is expendable.
    Formed {
        /// The cluster.
        cluster: ClusterId,
    },
    /// The cluster is whole as its spec wants it. Applying refuses when another change is in flight by then.
    Satisfied {
        /// The cluster.
        cluster: ClusterId,
        /// The change in flight that this answers.
        request: RequestId,
    },
    /// The change in flight cannot be carried out; what it made is let go. Applying refuses when another change is in flight by then.
    Fail {
        /// The cluster.
        cluster: ClusterId,
        /// The change in flight that this answers.
        request: RequestId,
        /// Why, for the user.
        message: String,
    },
    /// The cluster is being deleted and nothing of it is left.
    Remove {
        /// The cluster.
        cluster: ClusterId,
    },
    /// No contact for longer than the grace.
    DeclareLost {
        /// The host.
        host: HostId,
        /// For people.
        message: String,
    },
    /// A host that was declared lost is heard: the declaration met it coming back.
    HostFound {
        /// The host.
        host: HostId,
    },
    /// A cordon has reached its end.
    LiftCordon {
        /// The host.
        host: HostId,
    },
    /// A cordon without an end stands for long: people are told.
    RemindCordon {
        /// The host.
        host: HostId,
    },
    /// Nothing is left on a host that was drained.
    Drained {
        /// The host.
        host: HostId,
    },
    /// Members may not serve any more, because others are to be promoted without the engine's vote: their hosts stop them.
    Fence {
        /// The cluster.
        cluster: ClusterId,
        /// The members.
        instances: Vec<InstanceId>,
        /// Those of them whose hosts are not heard.
        away: Vec<InstanceId>,
        /// The operation; begun unless it runs already.
        operation: NewOperation,
    },
    /// A replica is promoted without a vote.
    Takeover {
        /// The cluster.
        cluster: ClusterId,
        /// The group that has no primary.
        group: GroupId,
        /// The replica.
        heir: InstanceId,
        /// Of every fenced member of the cluster.
        proofs: Vec<Proven>,
        /// The operation that fenced them.
        operation: OperationId,
        /// The engine's step.
        task: NewTask,
    },
    /// Members may serve again.
    Unfence {
        /// The cluster.
        cluster: ClusterId,
        /// The members.
        instances: Vec<InstanceId>,
        /// Why, for people.
        cause: String,
    },
    /// The proof for fenced members does not come: people are told, once.
    AwaitProof {
        /// The cluster.
        cluster: ClusterId,
        /// The members.
        instances: Vec<InstanceId>,
        /// What is missing and what to do, for people.
        message: String,
    },
    /// An operation has nothing left to do.
    EndOperation {
        /// The operation.
        operation: OperationId,
        /// Why it failed; none when it succeeded.
        error: Option<String>,
    },
}

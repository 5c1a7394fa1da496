//! What the log records. In: users' changes, the planner's decisions and facts that decisions rest on. Out: applied by
//! [`crate::apply`] on every member alike. Every id and time in here was made before the entry was proposed.

mod decision;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{HostId, InstanceId, OperationId, RequestId, ResourceId, TaskId, TokenId};

use crate::{
    engine::Fact,
    resource::{Metadata, Spec, User},
    state::{HostFacts, Settings, Severity, Token},
};
pub use crate::{refusal::Refusal, time::Timestamp};
pub use decision::{Decision, NewOperation, NewTask, Proof, Proven, ReplaceCause, Replaced, Reservation};

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The leader's clock when it proposed the entry.
    pub at: Timestamp,
    /// Applied in order; each is judged by itself.
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// A user creates or updates a resource.
    Put(Put),
    /// A user deletes a resource.
    Delete(Delete),
    /// The planner decided something.
    Decide(Decision),
    /// A fact that decisions rest on.
    Notice(Notice),
    /// An operator says that a lost host never returns.
    ForgetHost(HostId),
    /// An operator closes a host for new instances.
    Cordon(CordonHost),
    /// An operator opens a host again; moves that a drain has begun are finished.
    Uncordon {
        /// The host.
        host: HostId,
        /// Who asks.
        by: User,
    },
    /// Somebody ends an operation before it has reached what it is for.
    CancelOperation {
        /// The operation.
        operation: OperationId,
        /// Who asks.
        by: User,
    },
    /// A new API token.
    AddToken(Token),
    /// An operator takes an API token back.
    RemoveToken(TokenId),
    /// The installation's configuration.
    Configure(Settings),
}

/// A user creates or updates a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Put {
    /// The resource.
    pub id: ResourceId,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its spec; secrets are sealed.
    pub spec: Spec,
    /// The id to poll.
    pub request: RequestId,
    /// Who asks.
    pub by: User,
}

/// An operator closes a host for new instances, and may want it empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CordonHost {
    /// The host.
    pub host: HostId,
    /// Who asks.
    pub by: User,
    /// Why, for people.
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// Whether what runs there moves away too; a drain that is under way goes on either way.
    pub drain: Option<DrainMode>,
}

/// How far a drain may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainMode {
    /// Moves that would break the spread, or concern the only copy of a shard, wait; a drain that was forced stays so.
    KeepSpread,
    /// Moves may break the spread; the only copy of a shard moves, too.
    Force,
}

/// A user deletes a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Delete {
    /// The resource.
    pub id: ResourceId,
    /// Its type, as the path named it.
    pub kind: crate::resource::Kind,
    /// The id to poll.
    pub request: RequestId,
    /// Who asks.
    pub by: User,
}

/// How an engine step ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The engine's text when it failed.
    pub error: Option<String>,
    /// What was done, counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// What people should know although it went well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Ended {
    /// Ended with the engine's refusal, or well when there is none; nothing counted.
    pub fn with(error: Option<String>) -> Self {
        Self { error, ..Self::default() }
    }
}

/// A fact that decisions rest on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// A host opened a session.
    Host {
        /// The host.
        host: HostId,
        /// What it says about itself.
        facts: HostFacts,
    },
    /// An engine's facts changed.
    Engine {
        /// The instance.
        instance: InstanceId,
        /// Its facts.
        fact: Fact,
    },
    /// A host proved that an instance is gone.
    Gone {
        /// The instance.
        instance: InstanceId,
        /// Its host.
        host: HostId,
    },
    /// A step ended.
    TaskEnded {
        /// The step.
        task: TaskId,
        /// How.
        ended: Ended,
    },
    /// Something worth telling people.
    Event {
        /// How loud.
        severity: Severity,
        /// One word.
        reason: String,
        /// Kind and id.
        subject: String,
        /// For people.
        message: String,
    },
}

/// What applying a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// The state changed.
    Changed,
    /// It was so already.
    Unchanged,
    /// A user's change was accepted under this request.
    Accepted {
        /// The id to poll.
        request: RequestId,
    },
}

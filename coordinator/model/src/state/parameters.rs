//! Which parameters a cluster shall run, and how far its members are brought to them. In: set by users' changes of a set or of a cluster,
//! moved on by the planner's decisions. Out: read by the planner, the host specs and the views. Names and values are the engine's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{Generation, InstanceId, RequestId};

use crate::time::{Millis, Timestamp};

/// Parameters as of one change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Log index of the change.
    pub revision: Generation,
    /// Name to value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}

impl Parameters {
    /// Whether there never were any.
    pub fn never_set(&self) -> bool {
        *self == Self::default()
    }
}

/// The member that was told last and has not been seen with its new parameters in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rolling {
    /// Who.
    pub instance: InstanceId,
    /// When it was told.
    pub since: Timestamp,
}

impl Rolling {
    /// A member that answers by then without what it was told keeps it from taking effect.
    pub const TAKES_EFFECT: Millis = Millis::seconds(60);
    /// A member that does not answer by then does not come back under what it was told; it may load much.
    pub const COMES_BACK: Millis = Millis::seconds(600);
    /// An engine that cannot run for that long is not left to be replaced by another that could not either.
    pub const FAILS: Millis = Millis::seconds(20);
}

/// Why no further member gets the newest parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halted {
    /// The parameters it is about; newer ones start anew.
    pub revision: Generation,
    /// For people, with the engine's text where it has one.
    pub why: String,
}

/// The parameters of a cluster and where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The newest: what new members start with and the others are brought to.
    pub parameters: Parameters,
    /// The change of the cluster that brought them; none when the set was edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// One at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling: Option<Rolling>,
    /// The last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halted>,
}

impl Rollout {
    /// Whether there never was anything to roll out.
    pub fn never_was(&self) -> bool {
        *self == Self::default()
    }

    /// Why the newest parameters go no further; none when they do.
    pub fn halted(&self) -> Option<&Halted> {
        self.halted.as_ref().filter(|halted| halted.revision == self.parameters.revision)
    }
}

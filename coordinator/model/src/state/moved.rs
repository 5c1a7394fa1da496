//! What a member was moved for, so that it is moved once for one cause. In: set when the planner moves it for the sake of spread. Out: read
//! by the planner, which asks for a newer cause or a more urgent aim before it moves the member again.

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::Generation;

/// What a move restores, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Aim {
    /// Members of one group on hosts of their own.
    Hosts,
    /// A host that the primary of its group may go to: the one it is on holds too many.
    Majority,
    /// Members of one group in racks and zones of their own.
    Racks,
}

/// A move in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// What for.
    pub aim: Aim,
    /// The log index of the newest change of hosts, capacity or of the cluster itself when it was decided.
    pub cause: Generation,
}

impl Moved {
    /// Whether a member that was moved so may be moved for `aim` because of `cause`.
    pub fn allows(&self, aim: Aim, cause: Generation) -> bool {
        self.cause < cause || aim < self.aim
    }
}

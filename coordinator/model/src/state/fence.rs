//! Fences and leases: what the log knows about a member that must not serve any more. In: made by `Decision::Fence`. Out: read by host
//! specs, the planner's takeover and the views.

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{Generation, InstanceId, OperationId};

use crate::time::{Millis, Timestamp};

/// A member that may not serve: its host cuts its port and stops its machine until the fence is taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// When it was fenced.
    pub since: Timestamp,
    /// Host specs of this generation or a later one say so.
    pub generation: Generation,
    /// The operation it belongs to.
    pub operation: OperationId,
    /// Its host was not heard then; when it is heard before anybody has taken over, the fence is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub away: bool,
    /// It led its group when it was fenced, as the log knew it. One that did not may have been elected where nobody saw it, and what it took
    /// there is older than what was taken since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub led: bool,
    /// The member that was chosen in its place; from then on it may have been promoted, whatever is heard of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<InstanceId>,
    /// A takeover was decided while it was fenced: something may have changed that it does not know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passed: bool,
    /// When people were told that its proof does not come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Timestamp>,
}

impl Fence {
    /// Whether it may have been elected where nobody saw it, while others were promoted.
    pub fn elected_unseen(&self) -> bool {
        self.passed && !self.led
    }
}

/// On top of the lease, before its end is counted on: clocks of hosts and coordinators may differ by a tenth of what they measure, and
/// an agent looks at its leases once a second.
const SLACK: Millis = Millis::seconds(2);

/// How long after the last grant every lease of this length is over, on any clock.
pub fn lease_ends_after(lease: Millis) -> Millis {
    Millis(lease.0.saturating_add(lease.0 / 10).saturating_add(SLACK.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_over_a_tenth_and_two_seconds_after_its_length() {
        assert_eq!(lease_ends_after(Millis::seconds(30)), Millis::seconds(35));
    }
}

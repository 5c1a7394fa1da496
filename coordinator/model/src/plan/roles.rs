//! Roles that are to be brought into force. In: a cluster's view. Out: that they are, when whoever brings them there says so; which of them the
//! engine has refused.

use super::cluster::{Then, Turn};
use crate::{command::Decision, resource::Outcome};

impl Turn<'_, '_, '_> {
    /// Needs nothing else of the cluster, and waits for nothing else.
    pub(super) fn roles_in_force(&mut self) -> Then {
        let roles = &self.view.cluster.roles;
        let all = roles.members.iter().copied().chain(roles.dropped.iter().map(|dropped| dropped.resource));
        let in_flight =
            |id| self.state.resources.get(&id).is_some_and(|role| role.change.outcome == Outcome::InFlight);
        if !all.into_iter().any(in_flight) {
            return Then::GoOn;
        }
        if let Some((revision, refused)) = self.view.roles_told()
            && revision == roles.revision
        {
            self.plan.propose.push(Decision::RolesInForce { cluster: self.id, revision, refused });
            return Then::Stop;
        }
        Then::GoOn
    }
}

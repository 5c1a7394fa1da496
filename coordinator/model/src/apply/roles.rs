//! Applying what concerns roles of clusters. In: users' changes of role resources, and that guests have brought them into force. Out: the cluster's
//! index of roles; changes that are done, or have failed with the engine's words.

use shardplane_proto::ids::{ClusterId, Generation, ResourceId};

use super::Step;
use crate::{
    command::Applied,
    engine::RoleSpec,
    refusal::Refusal,
    resource::{ChangeKind, Outcome, Resource, Spec},
    state::{Dropped, Roles, Severity},
};

impl Step<'_> {
    /// A role shall be as its resource says.
    pub(super) fn want_role(&mut self, id: ResourceId, role: &RoleSpec) {
        let revision = Generation(self.index);
        let cluster = ClusterId::from(role.cluster);
        let Some(known) = self.state.clusters.get_mut(&cluster) else { return };
        known.roles.revision = revision;
        known.roles.dropped.retain(|dropped| dropped.resource != id);
        if !known.roles.members.contains(&id) {
            known.roles.members.push(id);
        }
        self.touch_cluster(cluster);
    }

    /// A role shall go. Its resource stays until it has.
    pub(super) fn drop_role(&mut self, id: ResourceId, role: &RoleSpec) {
        let revision = Generation(self.index);
        let cluster = ClusterId::from(role.cluster);
        let Some(known) = self.state.clusters.get_mut(&cluster) else { return };
        known.roles.revision = revision;
        known.roles.members.retain(|member| *member != id);
        let (name, reassign_owned_to) = (role.name.clone(), role.reassign_owned_to.clone());
        known.roles.dropped.push(Dropped { resource: id, name, reassign_owned_to });
        self.touch_cluster(cluster);
    }

    /// The roles of this revision are as wanted, but for those that the engine refused.
    pub(super) fn roles_in_force(
        &mut self,
        id: ClusterId,
        revision: Generation,
        refused: &[(String, String)],
    ) -> Result<Applied, Refusal> {
        self.known(id)?;
        let Some(cluster) = self.state.clusters.get(&id).filter(|cluster| cluster.roles.revision == revision)
        else {
            return Err(Refusal::outdated(format!("the roles of cluster {id} have changed meanwhile")));
        };
        let roles = cluster.roles.clone();
        let all = roles.members.iter().copied().chain(roles.dropped.iter().map(|dropped| dropped.resource));
        let mut changed = false;
        for resource in all.collect::<Vec<_>>() {
            changed |= self.role_in_force(id, resource, refused);
        }
        Ok(if changed { Applied::Changed } else { Applied::Unchanged })
    }

    fn role_in_force(&mut self, cluster: ClusterId, id: ResourceId, refused: &[(String, String)]) -> bool {
        let Some(resource) = self.state.resources.get(&id).cloned() else { return false };
        let Spec::Role { role, .. } = &resource.spec else { return false };
        if resource.change.outcome != Outcome::InFlight {
            return false;
        }
        let why = refused.iter().find(|(name, _)| *name == role.name).map(|(_, why)| why.clone());
        match (why, resource.change.kind) {
            (None, ChangeKind::Put) => self.settle(id, &Outcome::Done),
            (None, ChangeKind::Delete) => {
                self.settle(id, &Outcome::Done);
                self.state.resources.remove(&id);
                if let Some(known) = self.state.clusters.get_mut(&cluster) {
                    known.roles.dropped.retain(|dropped| dropped.resource != id);
                }
            }
            (Some(message), ChangeKind::Put) => self.settle(id, &Outcome::Failed { message }),
            (Some(message), ChangeKind::Delete) => self.stays(&resource, role, message),
        }
        true
    }

    /// Roles go with their cluster.
    pub(super) fn forget_roles(&mut self, roles: &Roles) {
        let dropped = roles.dropped.iter().map(|dropped| dropped.resource);
        for id in roles.members.iter().copied().chain(dropped) {
            self.settle(id, &Outcome::Done);
            self.state.resources.remove(&id);
        }
    }

    /// A role that could not go is one that shall be again, under the request that failed.
    fn stays(&mut self, resource: &Resource, role: &RoleSpec, message: String) {
        let failed = Outcome::Failed { message: message.clone() };
        self.settle(resource.id, &failed);
        if let Some(stored) = self.state.resources.get_mut(&resource.id) {
            stored.change.kind = ChangeKind::Put;
        }
        self.want_role(resource.id, role);
        self.event(Severity::Warning, "RoleStays", format!("role/{}", resource.id), message);
    }
}

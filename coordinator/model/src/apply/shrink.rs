//! Applying that replicas go. In: the planner's choice. Out: they retire under an operation, or `Outdated`: one became a primary
//! meanwhile, or is wanted after all.

use shardplane_proto::ids::{ClusterId, InstanceId};

use super::Step;
use crate::{
    command::{Applied, NewOperation},
    refusal::Refusal,
    state::{Instance, OperationState, Presence, Severity},
};

impl Step<'_> {
    /// Each one is a replica, by the log, of a group that has more members than it shall have; the group keeps the rest.
    pub(super) fn shrink(
        &mut self,
        cluster: ClusterId,
        instances: &[InstanceId],
        operation: &NewOperation,
    ) -> Result<Applied, Refusal> {
        let spec = self.known(cluster)?;
        self.not_the_last(cluster, instances)?;
        self.stand_down(cluster, instances)?;
        for id in instances {
            let refuse = |why: &str| Err(Refusal::outdated(format!("instance {id} {why}")));
            let Some(instance) = self.state.instances.get(id).filter(|i| i.wanted() && i.cluster == cluster)
            else {
                return refuse("is leaving already");
            };
            let present =
                self.state.hosts.get(&instance.host).is_some_and(|h| h.presence == Presence::Present);
            if present && instance.fact.as_ref().is_some_and(|(_, fact)| fact.claims_primary()) {
                return refuse("became a primary meanwhile");
            }
            let own: Vec<_> = self
                .state
                .instances_of(cluster)
                .filter(|i| i.wanted() && i.group == instance.group)
                .collect();
            let leaving = own.iter().filter(|i| instances.contains(&i.id)).count();
            let groups = self.state.clusters.get(&cluster).map(|cluster| cluster.groups(&spec));
            let room = groups.unwrap_or_default().into_iter().find(|group| group.id == instance.group);
            let room = room.map_or(0, |group| usize::try_from(group.members).unwrap_or(usize::MAX));
            if own.iter().any(|i| i.replaces.is_some()) || own.len() - leaving < room {
                return refuse("is wanted: its shard has no member too many");
            }
        }
        let known = self.state.operations.get(&operation.id);
        if known.is_none_or(|known| known.state != OperationState::Running || known.cluster != cluster) {
            self.begin(cluster, operation);
        }
        self.retire(cluster, instances, Instance::FEWER_WANTED);
        for id in instances {
            let message = format!("instance {id} is let go: {}", operation.cause);
            self.event(Severity::Normal, "Removed", format!("cluster/{cluster}"), message);
        }
        Ok(Applied::Changed)
    }
}

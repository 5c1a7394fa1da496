//! Who may be let go, by what the log knows. In: instances that a decision lets go. Out: nothing, or `Outdated`: one of them is the last of
//! its group, its primary, or may still become its primary. Called by the decisions that let members go.

use shardplane_proto::ids::{ClusterId, InstanceId};

use super::Step;
use crate::{
    refusal::Refusal,
    state::{Instance, Presence, Task, TaskState},
};

impl Step<'_> {
    /// A group keeps at least one member that is wanted, on a present host, and, once the cluster has served, known to the log; unless
    /// it owns nothing.
    pub(super) fn not_the_last(&self, cluster: ClusterId, leaving: &[InstanceId]) -> Result<(), Refusal> {
        let formed = self.state.clusters.get(&cluster).is_some_and(|cluster| cluster.formed);
        let present =
            |host| self.state.hosts.get(host).is_some_and(|host| host.presence == Presence::Present);
        for instance in leaving.iter().filter_map(|id| self.state.instances.get(id)) {
            let stays = self.state.instances_of(cluster).any(|other| {
                other.group == instance.group
                    && other.wanted()
                    && !leaving.contains(&other.id)
                    && present(&other.host)
                    && (other.fact.is_some() || !formed)
            });
            if !stays && !self.state.owns_nothing(cluster, instance.group) {
                return Err(Refusal::outdated(format!("instance {} is the last of its shard", instance.id)));
            }
        }
        Ok(())
    }

    /// Nobody leaves a present host as the primary of its shard, as far as the log knows.
    pub(super) fn not_a_primary(&self, cluster: ClusterId, leaving: &[InstanceId]) -> Result<(), Refusal> {
        let fact = |instance: &Instance| instance.fact.clone().map(|(_, fact)| fact);
        let present =
            |host| self.state.hosts.get(host).is_some_and(|host| host.presence == Presence::Present);
        for instance in leaving.iter().filter_map(|id| self.state.instances.get(id)) {
            let Some(claim) = fact(instance).filter(|f| f.claims_primary() && present(&instance.host)) else {
                continue;
            };
            let succeeded = self.state.instances_of(cluster).any(|other| {
                let successor =
                    other.group == instance.group && other.wanted() && !leaving.contains(&other.id);
                successor && fact(other).is_some_and(|theirs| theirs.outranks(&claim))
            });
            if !succeeded {
                return Err(Refusal::outdated(format!(
                    "instance {} is the primary of its shard",
                    instance.id
                )));
            }
        }
        Ok(())
    }

    /// A follower leaves a shard that goes on only when the log knows that it wins no election on its way out.
    pub(super) fn stand_down(&self, cluster: ClusterId, leaving: &[InstanceId]) -> Result<(), Refusal> {
        let present =
            |host| self.state.hosts.get(host).is_some_and(|host| host.presence == Presence::Present);
        let engine = self.state.clusters.get(&cluster).map(|cluster| cluster.engine);
        for instance in leaving.iter().filter_map(|id| self.state.instances.get(id)) {
            let raised = |task: &Task| {
                let runs = task.instance == instance.id && task.state == TaskState::Running;
                runs && engine.is_some_and(|engine| engine.raises(&task.payload))
            };
            let may_win = instance.fact.as_ref().is_some_and(|(_, fact)| fact.stands())
                || self.state.tasks_of(cluster).any(raised);
            let goes_on = self
                .state
                .instances_of(cluster)
                .any(|i| i.group == instance.group && i.wanted() && !leaving.contains(&i.id));
            // One that is fenced reaches nobody who could vote for it.
            if may_win && instance.fence.is_none() && goes_on && present(&instance.host) {
                let id = instance.id;
                return Err(Refusal::outdated(format!("instance {id} may still become a primary")));
            }
        }
        Ok(())
    }
}

//! Applying that data moves between groups, that it halts, and that an emptied group goes. In: the planner's decisions and changed
//! specs. Out: the layout that the log keeps and the groups that leave, or `Outdated`: checked again by the log's own facts.

use shardplane_proto::ids::{ClusterId, GroupId, InstanceId, OperationId, RequestId, ResourceId};

use super::Step;
use crate::{
    command::{Applied, NewOperation},
    engine::{ClusterSpec, Layout},
    refusal::Refusal,
    resource::Outcome,
    state::{Instance, Operation, OperationKind, OperationState, Severity, TaskState},
};

impl Step<'_> {
    /// The layout is for the groups of the spec, and no other is in force.
    pub(super) fn reshard(
        &mut self,
        cluster: ClusterId,
        request: RequestId,
        layout: &Layout,
        operation: &NewOperation,
    ) -> Result<Applied, Refusal> {
        let spec = self.known(cluster)?;
        self.answers(cluster, request)?;
        let free = self.state.clusters.get(&cluster).is_some_and(|c| c.formed && c.layout.is_none());
        if !free || self.state.operations.contains_key(&operation.id) {
            return Err(Refusal::outdated(format!(
                "cluster {cluster} is not made yet, or its data moves already"
            )));
        }
        if operation.kind != OperationKind::Reshard {
            return Err(Refusal::outdated(format!("operation {} is for something else", operation.id)));
        }
        layout.check(&spec).map_err(|why| Refusal::outdated(format!("cluster {cluster}: {why}")))?;
        self.end_idle(cluster);
        self.begin(cluster, operation);
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.layout = Some(layout.clone());
        }
        self.event(Severity::Normal, "Resharding", format!("cluster/{cluster}"), operation.cause.clone());
        Ok(Applied::Changed)
    }

    /// What made the members has reached what it was for when data begins to move to them.
    fn end_idle(&mut self, cluster: ClusterId) {
        let now = self.state.now;
        let busy: Vec<OperationId> = self.state.running_tasks(cluster).map(|task| task.operation).collect();
        let idle: Vec<OperationId> = self
            .state
            .operations
            .values()
            .filter(|o| o.cluster == cluster && o.state == OperationState::Running)
            .filter(|o| o.kind.makes_members() && !busy.contains(&o.id))
            .map(|o| o.id)
            .collect();
        for id in idle {
            if let Some(operation) = self.state.operations.get_mut(&id) {
                (operation.state, operation.ended) = (OperationState::Succeeded, Some(now));
            }
        }
    }

    /// The operation, when it moves data of this cluster.
    fn moving(&mut self, cluster: ClusterId, operation: OperationId) -> Result<&mut Operation, Refusal> {
        let moves = |o: &&mut Operation| {
            o.cluster == cluster && o.kind == OperationKind::Reshard && o.state == OperationState::Running
        };
        let known = self.state.operations.get_mut(&operation).filter(moves);
        known.ok_or_else(|| Refusal::outdated(format!("operation {operation} moves nothing")))
    }

    /// Everything is where the layout wants it.
    pub(super) fn resharded(
        &mut self,
        cluster: ClusterId,
        operation: OperationId,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let now = self.state.now;
        if self.state.clusters.get(&cluster).is_none_or(|cluster| !cluster.leaving.is_empty()) {
            return Err(Refusal::outdated(format!("a shard of cluster {cluster} has to give its data away")));
        }
        let running = self.moving(cluster, operation)?;
        (running.state, running.ended) = (OperationState::Succeeded, Some(now));
        let message = format!("the slots are where they shall be: {}", running.cause);
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.layout = None;
        }
        self.event(Severity::Normal, "Resharded", format!("cluster/{cluster}"), message);
        Ok(Applied::Changed)
    }

    /// A step failed too often: nothing more is tried until somebody cancels.
    pub(super) fn halt_reshard(
        &mut self,
        cluster: ClusterId,
        operation: OperationId,
        error: &str,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let running = self.moving(cluster, operation)?;
        if running.halted.is_some() {
            return Ok(Applied::Unchanged);
        }
        running.halted = Some(error.to_owned());
        let message = format!(
            "the moving of slots has halted: {error}; put right what stands in the way, cancel operation {operation} and put the same spec again"
        );
        self.event(Severity::Warning, "ReshardHalted", format!("cluster/{cluster}"), message);
        Ok(Applied::Changed)
    }

    /// A group that leaves has given everything away: all of it goes.
    pub(super) fn dissolve(&mut self, cluster: ClusterId, group: GroupId) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let leaves = self
            .state
            .clusters
            .get(&cluster)
            .is_some_and(|known| known.leaving.iter().any(|leaving| leaving.id == group));
        if !leaves || !self.state.owns_nothing(cluster, group) {
            return Err(Refusal::outdated(format!("shard {group} does not leave, or may own something")));
        }
        let members: Vec<InstanceId> = self
            .state
            .instances_of(cluster)
            .filter(|i| i.group == group && i.wanted())
            .map(|i| i.id)
            .collect();
        self.retire(cluster, &members, Instance::GROUP_REMOVED);
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.leaving.retain(|leaving| leaving.id != group);
        }
        let message = format!("shard {group} owns nothing any more; its {} instances go", members.len());
        self.event(Severity::Normal, "ShardRemoved", format!("cluster/{cluster}"), message);
        Ok(Applied::Changed)
    }

    /// A changed spec: groups that it no longer has leave, those that it has again stay.
    pub(super) fn note_leaving(&mut self, id: ClusterId, old: Option<&ClusterSpec>, new: &ClusterSpec) {
        let wanted = new.groups();
        let Some(cluster) = self.state.clusters.get_mut(&id).filter(|cluster| cluster.formed) else { return };
        let stays = |group: GroupId| wanted.iter().any(|wanted| wanted.id == group);
        cluster.leaving.retain(|leaving| !stays(leaving.id));
        let gone = old.map(ClusterSpec::groups).unwrap_or_default().into_iter();
        cluster.leaving.extend(gone.filter(|group| !stays(group.id)));
    }

    /// Ends what a cancelled move asked for: where the data is, it stays.
    pub(super) fn cancel_reshard(&mut self, cluster: ClusterId, by: &str) {
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.layout = None;
        }
        let running: Vec<_> = {
            let engine = self.state.clusters.get(&cluster).map(|cluster| cluster.engine);
            let moves = |payload: &[u8]| engine.is_some_and(|engine| engine.is_move(payload));
            self.state
                .running_tasks(cluster)
                .filter(|task| moves(&task.payload))
                .map(|task| task.id)
                .collect()
        };
        for task in running {
            self.end_task(task, TaskState::Superseded);
        }
        let resource = self.state.resources.get(&ResourceId::from(cluster));
        if resource.is_some_and(|resource| resource.change.outcome == Outcome::InFlight) {
            let message = format!(
                "cancelled by {by}: slots that moved stay where they are; put the same spec again to go on, or the one before to go back"
            );
            self.settle(cluster.into(), &Outcome::Failed { message });
        }
    }
}

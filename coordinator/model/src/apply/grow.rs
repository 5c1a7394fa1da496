//! More members than before. In: changed specs, that no place is found, and that somebody takes such a change back. Out: an operation
//! that waits, or the spec that was there before and a change that has failed, as long as nothing new owns data.

use shardplane_proto::ids::{ClusterId, GroupId, RequestId, ResourceId};

use super::Step;
use crate::{
    command::{Applied, NewOperation},
    engine::ClusterSpec,
    refusal::Refusal,
    resource::{Outcome, Spec},
    state::{Operation, OperationKind, OperationState, Severity, State},
    validate,
};

impl State {
    /// The operation under which a cluster gets more members.
    pub fn growing(&self, cluster: ClusterId) -> Option<&Operation> {
        let grows = |o: &&Operation| {
            o.cluster == cluster && o.kind == OperationKind::Grow && o.state == OperationState::Running
        };
        self.operations.values().rev().find(grows)
    }

    /// Why nobody can end this operation before it has reached what it is for; none when somebody can.
    pub fn uncancellable(&self, operation: &Operation) -> Option<String> {
        if operation.state != OperationState::Running {
            return Some("it has ended".to_owned());
        }
        match operation.kind {
            OperationKind::Reshard | OperationKind::Rollout => None,
            OperationKind::Grow => self.has_grown(operation.cluster),
            OperationKind::Create
            | OperationKind::Repair
            | OperationKind::Move
            | OperationKind::Switchover
            | OperationKind::Shrink
            | OperationKind::Delete
            | OperationKind::Takeover => Some(
                "only the adding of shards or replicas, the moving of slots and the rollout of parameters can; it ends by itself"
                    .to_owned(),
            ),
        }
    }

    /// Why a cluster cannot go back to what it was before it was to get more members.
    fn has_grown(&self, id: ClusterId) -> Option<String> {
        let cluster = self.clusters.get(&id)?;
        let slots = |o: &&Operation| {
            o.cluster == id && o.kind == OperationKind::Reshard && o.state == OperationState::Running
        };
        if let Some(reshard) = self.operations.values().find(slots) {
            return Some(format!("slots move already; operation {}, which moves them, can be", reshard.id));
        }
        let spec = self.resources.get(&ResourceId::from(id))?.cluster_spec()?;
        let Some(before) = cluster.grows_from(spec) else {
            return Some("nothing is added any more; it ends by itself".to_owned());
        };
        let owner = new_groups(before, spec).into_iter().find(|new| !self.owns_nothing(id, *new))?;
        Some(format!("shard {owner} may own slots already; put the spec without it, and they move back"))
    }
}

/// Groups of `spec` that `before` does not have.
fn new_groups(before: &ClusterSpec, spec: &ClusterSpec) -> Vec<GroupId> {
    let had = before.groups();
    let new = |group: &GroupId| had.iter().all(|had| had.id != *group);
    spec.groups().into_iter().map(|group| group.id).filter(new).collect()
}

impl Step<'_> {
    /// Remembers what to go back to when a change of the number of members is taken back.
    pub(super) fn note_size(&mut self, id: ClusterId, old: Option<&ClusterSpec>, new: &ClusterSpec) {
        let Some(cluster) = self.state.clusters.get_mut(&id).filter(|cluster| cluster.formed) else { return };
        if let Some(old) = old.filter(|old| old.groups() != new.groups()) {
            cluster.resized_from = Some(old.clone());
        }
    }

    /// No place is found for what the change adds.
    pub(super) fn await_place(
        &mut self,
        cluster: ClusterId,
        request: RequestId,
        operation: &NewOperation,
        why: &str,
    ) -> Result<Applied, Refusal> {
        let spec = self.known(cluster)?;
        self.answers(cluster, request)?;
        let grows = self.state.clusters.get(&cluster).is_some_and(|known| known.grows_from(&spec).is_some());
        let begun =
            self.state.growing(cluster).is_some() || self.state.operations.contains_key(&operation.id);
        if !grows || begun || operation.kind != OperationKind::Grow {
            return Err(Refusal::outdated(format!(
                "cluster {cluster} gets its new members already, or none"
            )));
        }
        self.begin(cluster, operation);
        let message = format!("{} and there is no place: {why}", operation.cause);
        if let Some(operation) = self.state.operations.get_mut(&operation.id) {
            operation.note(format!("no place: {why}"));
        }
        self.event(Severity::Warning, "NoPlace", format!("cluster/{cluster}"), message);
        Ok(Applied::Changed)
    }

    /// Nothing is added any more: the spec is what it was, and what was placed for the change goes as if nobody had ever wanted it.
    pub(super) fn cancel_growth(&mut self, id: ClusterId, by: &str) {
        let resource = self.state.resources.get(&ResourceId::from(id)).cloned();
        let Some((mut resource, spec)) =
            resource.and_then(|r| r.cluster_spec().cloned().map(|spec| (r, spec)))
        else {
            return;
        };
        let Some(cluster) = self.state.clusters.get_mut(&id) else { return };
        let Some(before) = cluster.grows_from(&spec).cloned() else { return };
        cluster.resized_from = None;
        // A set that nobody used since then may be gone.
        let fits = validate::set_fits(self.state, &before);
        let before = if fits { before } else { before.with_parameters_set(spec.parameters_set()) };
        self.note_leaving(id, Some(&spec), &before);
        self.forget_unplaced(id);
        if before.parameters_set() != spec.parameters_set() {
            self.want_parameters_of(id, &before, resource.change.request);
        }
        self.want_cluster(id, before.engine());
        resource.spec = Spec::Cluster(before);
        self.state.resources.insert(resource.id, resource.clone());
        if resource.change.outcome == Outcome::InFlight {
            let message = format!(
                "cancelled by {by}: the spec is the one before this change again, and what was placed for the change goes; put the change again when there is room for it"
            );
            self.settle(id.into(), &Outcome::Failed { message });
        }
    }

    /// Groups that leave before any member was placed are gone.
    fn forget_unplaced(&mut self, id: ClusterId) {
        let placed: Vec<GroupId> =
            self.state.instances_of(id).filter(|instance| instance.wanted()).map(|i| i.group).collect();
        if let Some(cluster) = self.state.clusters.get_mut(&id) {
            cluster.leaving.retain(|leaving| placed.contains(&leaving.id));
        }
    }
}

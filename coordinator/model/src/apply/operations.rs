//! Operations begin and end. In: a decision that is applied. Out: what people see of it while it runs, and the rest after a move.

use shardplane_proto::ids::{ClusterId, InstanceId};

use super::Step;
use crate::{
    command::NewOperation,
    state::{Operation, OperationKind, OperationState, TaskState},
};

impl Step<'_> {
    /// What a decision begins.
    pub(super) fn begin(&mut self, cluster: ClusterId, new: &NewOperation) {
        let operation = Operation {
            id: new.id,
            kind: new.kind,
            cluster,
            cause: new.cause.clone(),
            created: self.state.now,
            ended: None,
            state: OperationState::Running,
            tasks: Vec::new(),
        };
        self.state.operations.insert(new.id, operation);
        match new.kind {
            OperationKind::Move | OperationKind::Switchover => self.note_move(cluster),
            OperationKind::Create
            | OperationKind::Repair
            | OperationKind::Grow
            | OperationKind::Shrink
            | OperationKind::Delete => {}
        }
    }

    /// Starts the rest between two moves of a cluster.
    pub(super) fn note_move(&mut self, cluster: ClusterId) {
        let now = self.state.now;
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.last_move = Some(now);
        }
    }

    /// The next members of a cluster are better not placed where this one cannot run.
    pub(super) fn note_bad_host(&mut self, cluster: ClusterId, instance: InstanceId) {
        let now = self.state.now;
        let host = self.state.instances.get(&instance).map(|instance| instance.host);
        if let (Some(host), Some(cluster)) = (host, self.state.clusters.get_mut(&cluster)) {
            cluster.note_bad_host(host, now);
        }
    }

    /// Ends what still runs for a cluster.
    pub(super) fn end_operations(&mut self, cluster: ClusterId, error: Option<&str>) {
        let tasks: Vec<_> = self.state.running_tasks(cluster).map(|task| task.id).collect();
        tasks.into_iter().for_each(|task| {
            self.end_task(task, TaskState::Superseded);
        });
        let now = self.state.now;
        let running: Vec<_> = self
            .state
            .operations
            .values()
            .filter(|o| o.cluster == cluster && o.state == OperationState::Running)
            .map(|o| o.id)
            .collect();
        for id in running {
            if let Some(operation) = self.state.operations.get_mut(&id) {
                operation.ended = Some(now);
                operation.state = match error {
                    None => OperationState::Succeeded,
                    Some(error) => OperationState::Failed { error: error.to_owned() },
                };
            }
        }
    }
}

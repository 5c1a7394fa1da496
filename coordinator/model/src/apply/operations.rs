//! Operations begin and end. In: a decision that is applied. Out: what people see of it while it runs, and the rest after a move.

use std::collections::BTreeMap;

use shardplane_proto::ids::{ClusterId, Generation, InstanceId, OperationId, TaskId};

use super::Step;
use crate::{
    command::{Applied, Ended, NewOperation},
    refusal::{Refusal, RefusalCode},
    resource::User,
    state::{Operation, OperationKind, OperationState, Severity, TaskState},
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
            counts: BTreeMap::new(),
            goal: new.goal.clone(),
            notes: Vec::new(),
            halted: None,
        };
        self.state.operations.insert(new.id, operation);
        match new.kind {
            OperationKind::Move | OperationKind::Switchover => self.note_move(cluster),
            OperationKind::Create
            | OperationKind::Repair
            | OperationKind::Grow
            | OperationKind::Shrink
            | OperationKind::Delete
            | OperationKind::Reshard
            | OperationKind::Rollout
            | OperationKind::Takeover => {}
        }
    }

    /// Hosts or what is free on them changed: members may be moved for it.
    pub(super) fn disturb(&mut self) {
        self.state.disturbed = Generation(self.index);
    }

    /// The cluster changed by something that is no move: its members may be moved for it.
    pub(super) fn disturb_cluster(&mut self, cluster: ClusterId) {
        let index = Generation(self.index);
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.disturbed = index;
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

    /// A guest says how a step ended: what it did counts once, although it may be said twice.
    pub(super) fn task_ended(&mut self, id: TaskId, ended: &Ended) -> Applied {
        let to = match &ended.error {
            None => TaskState::Succeeded,
            Some(error) => TaskState::Failed { error: error.clone() },
        };
        let operation = self.state.tasks.get(&id).map(|task| task.operation);
        let applied = self.end_task(id, to);
        if applied == Applied::Changed
            && let Some(operation) = operation.and_then(|id| self.state.operations.get_mut(&id))
        {
            for (what, amount) in &ended.counts {
                let sum = operation.counts.entry(what.clone()).or_default();
                *sum = sum.saturating_add(*amount);
            }
            ended.notes.iter().for_each(|note| operation.note(note.clone()));
        }
        applied
    }

    /// Somebody ends an operation: what it asks for is dropped, what was done stays.
    pub(super) fn cancel_operation(&mut self, id: OperationId, by: &User) -> Result<Applied, Refusal> {
        let missing = || {
            let text = format!("there is no operation {id}; ended ones are forgotten after a while");
            Refusal::new(RefusalCode::NotFound, text)
        };
        let operation = self.state.operations.get(&id).cloned().ok_or_else(missing)?;
        match &operation.state {
            OperationState::Cancelled { .. } => return Ok(Applied::Unchanged),
            OperationState::Succeeded | OperationState::Failed { .. } => {
                let text = format!("operation {id} has ended; there is nothing to cancel");
                return Err(Refusal::new(RefusalCode::BadData, text));
            }
            OperationState::Running => {}
        }
        if let Some(why) = self.state.uncancellable(&operation) {
            let text = format!("operation {id} cannot be cancelled: {why}");
            return Err(Refusal::new(RefusalCode::BadData, text));
        }
        for task in &operation.tasks {
            self.end_task(*task, TaskState::Superseded);
        }
        let now = self.state.now;
        if let Some(operation) = self.state.operations.get_mut(&id) {
            operation.ended = Some(now);
            operation.state = OperationState::Cancelled { by: by.name.clone() };
        }
        match operation.kind {
            OperationKind::Rollout => self.halt(operation.cluster, &format!("cancelled by {}", by.name)),
            OperationKind::Reshard => self.cancel_reshard(operation.cluster, &by.name),
            OperationKind::Grow => self.cancel_growth(operation.cluster, &by.name),
            OperationKind::Create
            | OperationKind::Repair
            | OperationKind::Move
            | OperationKind::Switchover
            | OperationKind::Shrink
            | OperationKind::Delete
            | OperationKind::Takeover => {}
        }
        let message = format!("operation {id} was cancelled by {}: {}", by.name, operation.cause);
        self.event(
            Severity::Warning,
            "OperationCancelled",
            format!("cluster/{}", operation.cluster),
            message,
        );
        Ok(Applied::Changed)
    }

    /// Ends what still runs for a cluster.
    pub(super) fn end_operations(&mut self, cluster: ClusterId, error: Option<&str>) {
        if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
            cluster.layout = None;
        }
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

//! Keeping the state bounded: old requests, events, ended operations and rested addresses go. Part of every apply, so that all
//! members forget alike.

use shardplane_proto::ids::TaskId;

use crate::{
    resource::Outcome,
    state::{OperationState, State},
    time::Timestamp,
};

impl State {
    /// Removes a task from everything that lists it.
    pub(super) fn forget_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.remove(&id) else { return };
        if let Some(cluster) = self.clusters.get_mut(&task.cluster) {
            cluster.tasks.retain(|other| *other != id);
        }
        if let Some(operation) = self.operations.get_mut(&task.operation) {
            operation.tasks.retain(|other| *other != id);
        }
    }

    pub(super) fn prune(&mut self) {
        while self.events.len() > State::EVENTS_KEPT
            && let Some((oldest, _)) = self.events.get_min().cloned()
        {
            self.events.remove(&oldest);
        }
        if self.requests.len() > State::REQUESTS_KEPT {
            let surplus = self.requests.len() - State::REQUESTS_KEPT;
            // Ids are ULIDs of the leader: the smallest are the oldest.
            let ended = self.requests.iter().filter(|(_, request)| request.outcome != Outcome::InFlight);
            let oldest: Vec<_> = ended.take(surplus).map(|(id, _)| *id).collect();
            oldest.iter().for_each(|id| {
                self.requests.remove(id);
            });
        }
        if self.operations.len() > State::OPERATIONS_KEPT {
            let surplus = self.operations.len() - State::OPERATIONS_KEPT;
            let ended = self.operations.values().filter(|o| o.state != OperationState::Running);
            let oldest: Vec<_> = ended.take(surplus).map(|o| (o.id, o.tasks.clone())).collect();
            for (id, tasks) in oldest {
                self.operations.remove(&id);
                tasks.iter().for_each(|task| self.forget_task(*task));
            }
        }
        let now = self.now;
        let rests = |at: &Timestamp| now.since(*at) <= State::ADDRESS_RESTS;
        // Looked at first: a map that nothing leaves stays shared with the snapshots of the state.
        if !self.resting.values().flat_map(|rest| rest.values()).all(rests) {
            let subnets = std::mem::take(&mut self.resting).into_iter();
            let left = subnets.map(|(subnet, mut rest)| {
                rest.retain(|_, at| rests(at));
                (subnet, rest)
            });
            self.resting = left.collect();
        }
    }
}

//! What is being done and was done. In: operations and tasks of the log, and what runs right now. Out: messages of the Operator
//! service, with how far each is and how long it may go on.

use std::collections::BTreeMap;

use shardplane_proto::{
    ids::{ClusterId, OperationId, ResourceId},
    v1,
};

use crate::{
    observed::Observed,
    plan::cluster_view,
    state::{Operation, OperationKind, OperationState, State, Task, TaskState},
    time::Timestamp,
};

/// A running operation never claims more than this many percent when it has a goal.
const ALMOST: u64 = 99;

/// What is still to come is not known without a goal, so such an operation claims less while it runs.
const WITHOUT_GOAL: u64 = 95;

/// The word for a kind.
pub fn kind_word(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Create => "create",
        OperationKind::Repair => "repair",
        OperationKind::Move => "move",
        OperationKind::Switchover => "switchover",
        OperationKind::Grow => "grow",
        OperationKind::Shrink => "shrink",
        OperationKind::Delete => "delete",
        OperationKind::Reshard => "reshard",
        OperationKind::Rollout => "rollout",
        OperationKind::Takeover => "takeover",
    }
}

fn step(task: &Task) -> v1::OperationStep {
    let (phase, error) = match &task.state {
        TaskState::Running => ("running", String::new()),
        TaskState::Succeeded => ("succeeded", String::new()),
        TaskState::Failed { error } => ("failed", error.clone()),
        TaskState::Superseded => ("superseded", String::new()),
    };
    v1::OperationStep {
        id: task.id.to_string(),
        name: task.name.clone(),
        instance_id: task.instance.to_string(),
        phase: phase.to_owned(),
        error,
    }
}

/// What its ended steps have done, and its running ones so far. Of what the goal counts the engine itself knows how much is left, whichever
/// steps did the rest.
fn counts(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    operation: &Operation,
) -> BTreeMap<String, u64> {
    let mut counts = operation.counts.clone();
    let running = operation.tasks.iter().filter_map(|task| state.tasks.get(task));
    for task in running.filter(|task| task.state == TaskState::Running) {
        let told = observed.members.get(&task.instance).and_then(|report| report.under_way.as_ref());
        let done = told.filter(|told| told.task == task.id).into_iter().flat_map(|told| &told.counts);
        for (what, amount) in done.filter(|(_, amount)| **amount > 0) {
            let sum = counts.entry(what.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }
    if let Some(goal) = operation.goal.as_ref().filter(|_| operation.state == OperationState::Running)
        && let Some(view) = cluster_view(state, observed, operation.cluster, now)
        && view.reshard.is_some_and(|reshard| reshard.id == operation.id)
        && let Some(moved) = view.moved()
    {
        counts.insert(goal.what.clone(), moved);
    }
    counts
}

/// Percent, and seconds to go at the pace so far.
fn progress(
    operation: &Operation,
    counts: &BTreeMap<String, u64>,
    steps: &[v1::OperationStep],
    now: Timestamp,
) -> (u64, Option<u64>) {
    if operation.state != OperationState::Running {
        return (100, None);
    }
    let Some(goal) = operation.goal.as_ref().filter(|goal| goal.amount > 0) else {
        let ended = steps.iter().filter(|step| step.phase != "running").count() as u64;
        return ((ended * WITHOUT_GOAL / (steps.len() as u64 + 1)).min(WITHOUT_GOAL), None);
    };
    let done = counts.get(&goal.what).copied().unwrap_or_default().min(goal.amount);
    let elapsed = now.since(operation.created).0;
    let left = u128::from(elapsed) * u128::from(goal.amount - done) / u128::from(done.max(1)) / 1000;
    let percent = u128::from(done) * 100 / u128::from(goal.amount);
    let percent = u64::try_from(percent).unwrap_or(ALMOST).min(ALMOST);
    (percent, (done > 0).then(|| u64::try_from(left).unwrap_or(u64::MAX)))
}

/// One operation; none when there is none of this id, or not any more.
pub fn operation(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    id: OperationId,
) -> Option<v1::OperationView> {
    let operation = state.operations.get(&id)?;
    let steps: Vec<_> = operation.tasks.iter().filter_map(|task| state.tasks.get(task)).map(step).collect();
    let (phase, error) = match &operation.state {
        OperationState::Succeeded => ("succeeded", String::new()),
        OperationState::Failed { error } => ("failed", error.clone()),
        OperationState::Cancelled { by } => ("cancelled", format!("cancelled by {by}")),
        OperationState::Running => ("running", operation.halted.clone().unwrap_or_default()),
    };
    let counts = counts(state, observed, now, operation);
    let (progress, estimate) = progress(operation, &counts, &steps, now);
    let resource = state.resources.get(&ResourceId::from(operation.cluster));
    Some(v1::OperationView {
        id: id.to_string(),
        kind: kind_word(operation.kind).to_owned(),
        cluster_id: operation.cluster.to_string(),
        cluster_name: resource.map(|resource| resource.metadata.name.clone()).unwrap_or_default(),
        phase: phase.to_owned(),
        steps,
        progress: u32::try_from(progress).unwrap_or(100),
        cancellable: state.uncancellable(operation).is_none(),
        error,
        create_time: operation.created.to_string(),
        end_time: operation.ended.map(|at| at.to_string()).unwrap_or_default(),
        cause: operation.cause.clone(),
        counts,
        goal: operation
            .goal
            .as_ref()
            .map(|goal| v1::OperationGoal { what: goal.what.clone(), amount: goal.amount }),
        notes: operation.notes.clone(),
        estimate_seconds: estimate.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX)),
    })
}

/// All operations kept, or those of the cluster whose id is `filter`; newest last.
pub fn operations(state: &State, observed: &Observed, now: Timestamp, filter: &str) -> v1::OperationList {
    let cluster: Option<ClusterId> = filter.parse().ok();
    let shown = state
        .operations
        .values()
        .filter(|o| filter.is_empty() || Some(o.cluster) == cluster || o.id.to_string() == filter);
    v1::OperationList { items: shown.filter_map(|o| operation(state, observed, now, o.id)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Goal;

    fn reshard(done: u64, amount: u64) -> Operation {
        Operation {
            id: OperationId::from_u128(1),
            kind: OperationKind::Reshard,
            cluster: ClusterId::from_u128(1),
            cause: "a shard is added".to_owned(),
            created: Timestamp(1_000),
            ended: None,
            state: OperationState::Running,
            tasks: Vec::new(),
            counts: [("slots".to_owned(), done)].into(),
            goal: Some(Goal { what: "slots".to_owned(), amount }),
            notes: Vec::new(),
            halted: None,
        }
    }

    #[test]
    fn progress_follows_the_counts_and_the_estimate_the_pace() {
        let of = |done, amount, seconds: u64| {
            let operation = reshard(done, amount);
            progress(&operation, &operation.counts, &[], Timestamp(1_000 + seconds * 1_000))
        };
        assert_eq!(of(0, 4096, 10), (0, None), "nothing is known of the pace yet");
        assert_eq!(of(1024, 4096, 10), (25, Some(30)));
        assert_eq!(of(4096, 4096, 40), (99, Some(0)), "it runs: something is left to do");
        // A slot that went back and over again counts twice.
        assert_eq!(of(5000, 4096, 40), (99, Some(0)));
        let ended = Operation { state: OperationState::Cancelled { by: "x".to_owned() }, ..reshard(1, 4) };
        assert_eq!(progress(&ended, &ended.counts, &[], Timestamp(9_000)), (100, None));
    }
}

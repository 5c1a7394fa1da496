//! From the steps an engine wants to ledgered tasks. In: wanted steps and the tasks in the log. Out: tasks to start and to drop.
//! A step that just ended is not asked for again until reports had time to show it; one that failed waits longer each time.

use shardplane_proto::ids::{ClusterId, OperationId, TaskId};

use super::{NewIds, Plan};
use crate::{
    command::{Decision, NewOperation, NewTask},
    engine::{ClusterView, Step},
    state::{OperationKind, OperationState, State, Task, TaskState},
    time::{Millis, Timestamp},
};

/// Reports need this long to show what a task did.
const SETTLES: Millis = Millis::seconds(2);
/// A task that nobody wants any more may still report its outcome for that long.
const LINGERS: Millis = Millis::seconds(10);
/// Longest pause between two tries of a failing step.
const LONGEST_PAUSE: Millis = Millis::seconds(30);
/// The same for a step that moves data: it is tried so often, and people wait for its end. What cannot be reached is not tried at all, so
/// who refuses that often means it.
const LONGEST_PAUSE_OF_A_MOVE: Millis = Millis::seconds(8);

/// How long after the last of `same` (ended tasks of one step) the step may be tried again.
pub(super) fn pause(same: &[&Task]) -> Millis {
    let failures =
        same.iter().rev().take_while(|task| matches!(task.state, TaskState::Failed { .. })).count();
    match u32::try_from(failures) {
        Ok(0) => SETTLES,
        Ok(n @ 1..=4) => Millis(SETTLES.0 << n).min(LONGEST_PAUSE),
        Ok(_) | Err(_) => LONGEST_PAUSE,
    }
}

/// When the step failed last, and how often without a success since then; none when it did not.
pub(super) fn failures(state: &State, cluster: ClusterId, step: &Step) -> Option<(Timestamp, u32)> {
    let same = state.tasks_of(cluster).filter(|t| t.instance == step.instance && t.payload == step.payload);
    let same: Vec<&Task> = same.collect();
    let failed = |task: &&&Task| matches!(task.state, TaskState::Failed { .. });
    let failures = same.iter().rev().take_while(failed).count();
    let ended = same.iter().rev().take_while(failed).filter_map(|task| task.ended).max()?;
    Some((ended, u32::try_from(failures).unwrap_or(u32::MAX)))
}

/// The operation steps go under: the newest that runs, else a new one.
fn operation(
    state: &State,
    view: &ClusterView<'_>,
    ids: NewIds<'_>,
    (kind, why): (OperationKind, &str),
) -> (OperationId, Option<NewOperation>) {
    let cluster = view.resource.id.into();
    let running =
        state.operations.values().rev().find(|o| o.cluster == cluster && o.state == OperationState::Running);
    match running {
        Some(operation) => (operation.id, None),
        None => {
            let id = OperationId::from_u128(ids());
            (id, Some(NewOperation { id, kind, cause: why.to_owned(), goal: None }))
        }
    }
}

/// Starts and drops tasks so that exactly `steps` are asked for. `kept` says which running tasks stay although no step asks for them;
/// `purpose` is what they are for when nothing runs that they belong to.
pub(super) fn reconcile(
    state: &State,
    view: &ClusterView<'_>,
    steps: &[Step],
    kept: impl Fn(&Task) -> bool,
    purpose: (OperationKind, &str),
    ids: NewIds<'_>,
    plan: &mut Plan,
) {
    let cluster = view.resource.id.into();
    let is = |task: &Task, step: &Step| task.instance == step.instance && task.payload == step.payload;
    let mut stale = Vec::new();
    for task in state.running_tasks(cluster) {
        if steps.iter().any(|step| is(task, step)) {
            continue;
        }
        if kept(task) {
            plan.wait(cluster, format!("{} on instance {}", task.name, task.instance));
            continue;
        }
        if view.now.since(task.created) > LINGERS {
            stale.push(task.id);
        } else {
            plan.again_after(task.created, Millis(LINGERS.0 + 1));
        }
    }
    if !stale.is_empty() {
        plan.propose.push(Decision::DropTasks { tasks: stale });
    }
    let mut new = Vec::new();
    for step in steps {
        let same: Vec<&Task> = state.tasks_of(cluster).filter(|task| is(task, step)).collect();
        if same.iter().any(|task| task.state == TaskState::Running) {
            plan.wait(cluster, format!("{} on instance {}", step.name, step.instance));
            continue;
        }
        let moves = view.cluster.engine.is_move(&step.payload);
        let longest = if moves { LONGEST_PAUSE_OF_A_MOVE } else { LONGEST_PAUSE };
        let (last, pause) = (same.iter().filter_map(|task| task.ended).max(), pause(&same).min(longest));
        if let Some(ended) = last
            && view.now.since(ended) < pause
        {
            plan.again_after(ended, pause);
            let error = same.last().and_then(|task| match &task.state {
                TaskState::Failed { error } => Some(format!(" (failed before: {error})")),
                TaskState::Running | TaskState::Succeeded | TaskState::Superseded => None,
            });
            plan.wait(
                cluster,
                format!("{} on instance {}{}", step.name, step.instance, error.unwrap_or_default()),
            );
            continue;
        }
        new.push(NewTask {
            id: TaskId::from_u128(ids()),
            instance: step.instance,
            name: step.name.clone(),
            payload: step.payload.clone(),
        });
    }
    if let Some(reshard) = view.reshard {
        let engine = view.cluster.engine;
        let (tasks, others) = new.into_iter().partition(|task: &NewTask| engine.is_move(&task.payload));
        new = others;
        if !tasks.is_empty() {
            let operation = reshard.id;
            plan.propose.push(Decision::StartTasks { cluster, operation, new_operation: None, tasks });
        }
    }
    if !new.is_empty() {
        let (operation, new_operation) = operation(state, view, ids, purpose);
        plan.propose.push(Decision::StartTasks { cluster, operation, new_operation, tasks: new });
    }
}

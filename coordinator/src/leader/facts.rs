//! From what is observed to what the log should know. In: state, observation, outcomes of tasks. Out: notices, only for what
//! differs. Level-triggered: a lost proposal is made again.

use shardplane_model::{
    command::{Command, Notice},
    observed::Observed,
    state::{Presence, State, TaskState},
};

use super::ear::Outcomes;

/// The notices that are due.
pub(super) fn due(state: &State, observed: &Observed, outcomes: &Outcomes) -> Vec<Command> {
    let mut notices = Vec::new();
    for (id, member) in &observed.members {
        let Some(instance) = state.instances.get(id).filter(|instance| instance.host == member.host) else {
            continue;
        };
        let Some(fact) = member.engine.as_ref().map(|engine| engine.fact()) else { continue };
        if instance.fact.as_ref().is_none_or(|(_, known)| *known != fact) {
            notices.push(Notice::Engine { instance: *id, fact });
        }
    }
    for instance in state.instances.values().filter(|instance| !instance.wanted()) {
        // Gone is what a host does not report any more after it has accepted the state that does not have it.
        let proved = state.hosts.get(&instance.host).is_some_and(|host| {
            host.presence == Presence::Present
                && observed.hosts.get(&host.id).is_some_and(|report| {
                    report.connected && report.complete && report.accepted >= host.generation
                })
        });
        if proved && !observed.members.contains_key(&instance.id) {
            notices.push(Notice::Gone { instance: instance.id, host: instance.host });
        }
    }
    for (task, ended) in outcomes {
        if state.tasks.get(task).is_some_and(|task| task.state == TaskState::Running) {
            notices.push(Notice::TaskEnded { task: *task, ended: ended.clone() });
        }
    }
    notices.into_iter().map(Command::Notice).collect()
}

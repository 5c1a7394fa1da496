//! The planner. In: the state, what is observed, and the time. Out: a [`Plan`]: decisions to propose to the log, hosts to tell
//! what the log already says, what is waited for and when time alone would change its mind. The leader calls [`plan`] whenever
//! something changed; it acts on nothing itself.

mod cluster;
mod cost;
mod draft;
mod drain;
mod explain;
mod foresee;
mod leave;
mod liveness;
mod outlook;
mod place;
mod proof;
mod rebalance;
mod rehearse;
mod replace;
mod reshard;
mod roles;
mod rollout;
mod score;
mod shrink;
mod takeover;
mod tasks;

use std::collections::BTreeMap;

use shardplane_proto::ids::{ClusterId, HostId, ResourceId};

pub use drain::{Left, LeftPhase, left};
pub use explain::explain;
pub use foresee::{Foreseen, ForeseenCluster, Question, foresee, foresee_all};
pub use outlook::Outlook;
pub(crate) use place::image_for;
pub(crate) use proof::stopped;
pub use rehearse::{Fate, Pause, Reach, Rehearsal, Rehearsed, RehearsedCluster, rehearse};
pub(crate) use rollout::shortfall;

use crate::{
    command::{Command, Decision},
    engine::{ClusterView, Member},
    observed::Observed,
    state::{Operation, OperationKind, OperationState, Presence, State},
    time::{Millis, Timestamp},
};

/// Where new ids come from: numbers of ULIDs, made by the leader, different at every call.
pub type NewIds<'a> = &'a mut dyn FnMut() -> u128;

/// What to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Decisions for the log, in order.
    pub propose: Vec<Decision>,
    /// Hosts that have not accepted their newest desired state.
    pub deliver: Vec<HostId>,
    /// What each cluster waits for, for people.
    pub waiting: BTreeMap<ClusterId, Vec<String>>,
    /// When time alone would change this plan.
    pub again_at: Option<Timestamp>,
}

impl Plan {
    /// Nothing to do and nothing waited for.
    pub fn is_empty(&self) -> bool {
        self.propose.is_empty() && self.deliver.is_empty() && self.waiting.is_empty()
    }

    /// The decisions as commands for the log.
    pub fn commands(&self) -> Vec<Command> {
        self.propose.iter().cloned().map(Command::Decide).collect()
    }

    fn wait(&mut self, cluster: ClusterId, why: String) {
        let lines = self.waiting.entry(cluster).or_default();
        if !lines.contains(&why) {
            lines.push(why);
        }
    }

    fn again_after(&mut self, now: Timestamp, span: Millis) {
        let at = now.plus(span);
        self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
    }
}

/// Decides. The same input gives the same plan.
pub fn plan(state: &State, observed: &Observed, now: Timestamp, ids: NewIds<'_>) -> Plan {
    let mut plan = Plan::default();
    liveness::plan(state, observed, now, &mut plan);
    // What clusters need is judged with the hosts that are there.
    if plan.propose.iter().any(|decision| matches!(decision, Decision::HostFound { .. })) {
        return plan;
    }
    let mut draft = draft::Draft::new(state, observed, now);
    if !draft.missing().is_empty() {
        plan.again_after(observed.since, Millis(crate::observed::FRESH.0 + 1));
    }
    for id in state.clusters.keys() {
        if let Some(view) = cluster_view(state, observed, *id, now) {
            cluster::plan(state, &view, &mut draft, ids, &mut plan, cluster::Extent::Whole);
        }
    }
    let behind = state.hosts.values().filter(|host| {
        host.presence == Presence::Present
            && observed
                .hosts
                .get(&host.id)
                .is_some_and(|report| report.connected && report.accepted < host.generation)
    });
    plan.deliver = behind.map(|host| host.id).collect();
    plan
}

/// Names for people: the first eight, and how many more there are. Events and operations are kept in the log's state.
fn listed<T: std::fmt::Display>(names: &[T]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = names.len().saturating_sub(SHOWN);
    let shown = shown.join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// A cluster with all that is known of it; none when there is no such cluster.
pub fn cluster_view<'a>(
    state: &'a State,
    observed: &'a Observed,
    id: ClusterId,
    now: Timestamp,
) -> Option<ClusterView<'a>> {
    let cluster = state.clusters.get(&id)?;
    let resource = state.resources.get(&ResourceId::from(id))?;
    let spec = resource.cluster_spec()?;
    let groups = cluster.groups(spec);
    let mut members: Vec<Member<'a>> = cluster
        .instances
        .iter()
        .filter_map(|id| state.instances.get(id))
        .map(|instance| {
            let report = observed.members.get(&instance.id).filter(|report| report.host == instance.host);
            Member {
                instance,
                group_index: groups.iter().position(|group| group.id == instance.group),
                host: state.hosts.get(&instance.host),
                report,
                fresh: report.is_some_and(|report| now.since(report.at) <= crate::observed::FRESH)
                    && observed.hears(instance.host, now),
                host_report: observed.hosts.get(&instance.host),
                heard: observed.hears(instance.host, now),
            }
        })
        .collect();
    members.sort_by_key(|m| (m.group_index.unwrap_or(usize::MAX), m.instance.id));
    let gathering = now.since(observed.since) <= crate::observed::FRESH;
    let reshard = cluster.layout.is_some().then(|| {
        let running = |o: &&Operation| {
            o.cluster == id && o.kind == OperationKind::Reshard && o.state == OperationState::Running
        };
        state.operations.values().rev().find(running)
    });
    Some(ClusterView {
        resource,
        spec,
        cluster,
        groups,
        reshard: reshard.flatten(),
        tasks: state.tasks_of(id).collect(),
        settings: &state.settings,
        members,
        now,
        gathering,
        listens_since: observed.since,
    })
}

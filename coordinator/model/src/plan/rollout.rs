//! Bringing changed parameters to the members of a formed cluster. In: its view. Out: one member at a time told the newest, replicas
//! before primaries; a primary that has to restart only after an in-sync replica that has them took over; the next one when the last
//! is seen with them in force. The first failure halts it. Level-triggered: the log says who was told, reports say who took it.

use std::collections::BTreeMap;

use shardplane_proto::ids::{InstanceId, OperationId};

use super::{
    cluster::{Then, Turn, lost},
    listed,
};
use crate::{
    apply::parameters::leads_others,
    command::{Decision, NewOperation},
    engine::{ClusterView, Member, Role, Step},
    state::{Goal, OperationKind, OperationState, Rolling, Task, TaskState},
    time::Millis,
};

/// A switchover that is refused so often in a row halts the rollout.
const TRIES: usize = 3;

/// What is left of a rollout.
pub(super) enum Roll {
    /// Every member has the newest parameters, or no further one gets them.
    Nothing,
    /// Not everybody has them; the step goes before the next member.
    Pending(Option<Step>),
}

/// How the member that was told last stands.
enum Verdict {
    InForce,
    Waits(String),
    Failed(String),
}

/// Whether a report shows the parameters of a member in force; what is missing otherwise.
pub(crate) fn shortfall(member: &Member<'_>) -> Option<String> {
    let id = member.instance.id;
    let (Some(report), Some(engine)) = (member.report.filter(|_| member.fresh), member.engine()) else {
        return Some(format!("instance {id} does not answer"));
    };
    let parameters = engine.parameters();
    if report.config_generation < member.instance.config_generation.0 {
        return Some(format!("instance {id} has not heard of its parameters yet"));
    }
    if !parameters.refused.is_empty() {
        let refused: Vec<String> =
            parameters.refused.iter().map(|(name, error)| format!("{name}: {error}")).collect();
        return Some(format!("instance {id} refused {}", listed(&refused)));
    }
    if report.restart_generation < member.instance.restart_generation.0 {
        return Some(format!("instance {id} has to restart"));
    }
    let unapplied = &parameters.unapplied;
    (!unapplied.is_empty()).then(|| format!("instance {id} does not have in force {}", listed(unapplied)))
}

fn judge(view: &ClusterView<'_>, member: &Member<'_>, rolling: Rolling, primary: bool) -> Verdict {
    let id = member.instance.id;
    let age = view.now.since(rolling.since);
    let Some(report) = member.report.filter(|_| member.fresh) else {
        return Verdict::Waits(format!("instance {id}, which gets its parameters, is not heard"));
    };
    let Some(missing) = shortfall(member) else {
        let serves = if primary { view.serves() } else { view.in_sync(id) };
        let waits = || Verdict::Waits(format!("instance {id} has its new parameters and becomes in sync"));
        return if serves { Verdict::InForce } else { waits() };
    };
    let said = [report.message.as_str(), report.engine_message.as_str()];
    let said = said.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
    let told = report.config_generation >= member.instance.config_generation.0;
    let restarted = report.restart_generation >= member.instance.restart_generation.0;
    let refused = member.engine().is_some_and(|engine| !engine.parameters().refused.is_empty());
    let answers = member.engine().is_some();
    let failed_for = report.failed_since.map_or(Millis(0), |since| view.now.since(since.max(rolling.since)));
    let (patience, what) = match (answers, told && restarted) {
        (true, true) if refused => (Millis(0), missing),
        (true, true) => (Rolling::TAKES_EFFECT, missing),
        (true, false) if told && refused => (Millis(0), missing),
        (true, false) => (Rolling::COMES_BACK, format!("{missing}: {said}")),
        (false, _) => {
            (Rolling::COMES_BACK, format!("instance {id} does not come back with its parameters: {said}"))
        }
    };
    if age > patience || failed_for > Rolling::FAILS || patience == Millis(0) {
        return Verdict::Failed(what);
    }
    Verdict::Waits(what)
}

impl Turn<'_, '_, '_> {
    /// Looks at the member that was told last. Comes before lost members are replaced: what one cannot run another could not either.
    pub(super) fn watch_roll(&mut self) -> Then {
        let Some(rolling) = self.state.rolling(self.id) else { return Then::GoOn };
        let Some(member) = self.view.wanted().find(|m| m.instance.id == rolling.instance) else {
            return Then::GoOn;
        };
        let (cluster, instance) = (self.id, rolling.instance);
        let primary = self.view.roles().contains(&(instance, Role::Primary));
        match judge(self.view, member, rolling, primary) {
            Verdict::InForce => {
                self.plan.propose.push(Decision::Rolled { cluster, instance });
                Then::Stop
            }
            // It took over meanwhile: another has to lead before it restarts, and its time counts from then.
            Verdict::Failed(_) if primary && leads_others(self.state, member.instance) && answers(member) => {
                self.plan.wait(cluster, format!("instance {instance} leads its shard and has to restart"));
                Then::GoOn
            }
            Verdict::Failed(why) => {
                self.halt(why);
                Then::Stop
            }
            Verdict::Waits(why) => {
                self.plan.wait(cluster, why);
                for patience in [Rolling::TAKES_EFFECT, Rolling::COMES_BACK, Rolling::FAILS] {
                    if self.view.now.since(rolling.since) <= patience {
                        self.plan.again_after(rolling.since, Millis(patience.0 + 1));
                    }
                }
                let failed = member.report.and_then(|report| report.failed_since);
                failed.into_iter().for_each(|since| {
                    self.plan.again_after(since.max(rolling.since), Millis(Rolling::FAILS.0 + 1));
                });
                Then::GoOn
            }
        }
    }

    fn halt(&mut self, why: String) {
        let revision = self.view.cluster.rollout.parameters.revision;
        self.plan.propose.push(Decision::HaltRollout { cluster: self.id, revision, why });
    }

    /// The next step of a rollout. `whole` says whether every member takes its part.
    pub(super) fn roll_out(&mut self, whole: bool) -> Roll {
        let view = self.view;
        if view.cluster.engine.shares_parameters() {
            return self.all_told();
        }
        let rollout = &view.cluster.rollout;
        if !view.cluster.formed || rollout.halted().is_some() {
            return Roll::Nothing;
        }
        let rolling = self.state.rolling(self.id);
        let differs = |m: &&Member<'_>| m.instance.parameters.values != rollout.parameters.values;
        let behind: Vec<&Member<'_>> = view.wanted().filter(differs).collect();
        if let Some(rolling) = rolling {
            let member = view.wanted().find(|m| m.instance.id == rolling.instance);
            return Roll::Pending(member.filter(|_| whole).and_then(|member| self.yields(member)));
        }
        if behind.is_empty() {
            return Roll::Nothing;
        }
        // What the last rollout broke does not serve: whatever it is told now can only cure it.
        let broken = rollout.halted.as_ref().and_then(|halted| {
            behind.iter().find(|m| {
                m.instance.parameters.revision == halted.revision && m.fresh && shortfall(m).is_some()
            })
        });
        if let Some(broken) = broken.filter(|m| !leads_others(self.state, m.instance)) {
            self.tell(broken.instance.id, behind.len());
            return Roll::Pending(None);
        }
        if !whole {
            return Roll::Pending(None);
        }
        if let Some(why) = self.rollout_waits() {
            self.plan.wait(self.id, why);
            return Roll::Pending(None);
        }
        let roles: BTreeMap<_, _> = view.roles().into_iter().collect();
        let leads = |m: &&&Member<'_>| roles.get(&m.instance.id) == Some(&Role::Primary);
        let next = behind.iter().find(|m| !leads(m)).or_else(|| behind.first());
        let Some(next) = next.copied() else { return Roll::Nothing };
        if self.restarts(next) && leads_others(self.state, next.instance) {
            let step = self.heir(next);
            if step.is_none() {
                let text =
                    format!("a replica has to be in sync before primary {} restarts", next.instance.id);
                self.plan.wait(self.id, text);
            }
            return Roll::Pending(step.and_then(|step| self.unless_refused(step)));
        }
        if self.state.running_tasks(self.id).next().is_none() {
            self.tell(next.instance.id, behind.len());
        }
        Roll::Pending(None)
    }

    /// All members were told at once: whether they have what they were told.
    fn all_told(&mut self) -> Roll {
        if self.view.cluster.rollout.halted().is_some() {
            return Roll::Nothing;
        }
        let short = self.view.wanted().find_map(|member| Some((member, shortfall(member)?)));
        let Some((member, why)) = short else { return Roll::Nothing };
        let refused = member.engine().is_some_and(|engine| !engine.parameters().refused.is_empty());
        if refused {
            self.halt(why);
        } else {
            self.plan.wait(self.id, why);
        }
        Roll::Pending(None)
    }

    fn restarts(&self, member: &Member<'_>) -> bool {
        let newest = &self.view.cluster.rollout.parameters.values;
        self.view.cluster.engine.needs_restart(&member.instance.parameters.values, newest)
    }

    /// Why no member is told now although the cluster is whole.
    fn rollout_waits(&self) -> Option<String> {
        let view = self.view;
        if let Some(moved) = view.wanted().find(|m| m.instance.replaces.is_some()) {
            return Some(format!("parameters wait until instance {} has taken its place", moved.instance.id));
        }
        if self.surplus().next().is_some() {
            return Some("parameters wait until no shard has a replica too many".to_owned());
        }
        // One that was replaced may be on a host that never says so.
        let leaves = |m: &&Member<'_>| !m.instance.wanted() && !lost(m) && m.instance.surplus();
        if let Some(leaver) = view.members.iter().find(leaves) {
            return Some(format!("parameters wait until instance {} is gone", leaver.instance.id));
        }
        let first = |o: &&crate::state::Operation| {
            let kind = matches!(o.kind, OperationKind::Reshard | OperationKind::Takeover);
            kind && o.cluster == self.id && o.state == OperationState::Running
        };
        if let Some(operation) = self.state.operations.values().find(first) {
            return Some(format!("parameters wait until operation {} has ended", operation.id));
        }
        let roles = view.roles();
        let lags = |m: &&Member<'_>| {
            !roles.contains(&(m.instance.id, Role::Primary)) && !view.in_sync(m.instance.id)
        };
        view.wanted().find(lags).map(|m| {
            format!("parameters wait until replica {} is in sync: a restart could need it", m.instance.id)
        })
    }

    /// The switchover to a replica of the same group that is in sync and has the newest parameters; an open host is better.
    fn heir(&self, primary: &Member<'_>) -> Option<Step> {
        let newest = &self.view.cluster.rollout.parameters.values;
        let fits = |m: &&Member<'_>| {
            m.instance.group == primary.instance.group
                && m.instance.id != primary.instance.id
                && m.instance.parameters.values == *newest
                && shortfall(m).is_none()
                && self.view.in_sync(m.instance.id)
        };
        let open = |m: &&Member<'_>| m.host.is_some_and(|host| host.schedulable());
        let heir =
            self.view.wanted().filter(fits).max_by_key(|m| (open(m), std::cmp::Reverse(m.instance.id)));
        heir.map(|heir| self.view.switchover(heir.instance.id))
    }

    /// A member that was told to restart and leads its group by now: one that follows it takes over.
    fn yields(&self, member: &Member<'_>) -> Option<Step> {
        let due = member.report.is_some_and(|r| r.restart_generation < member.instance.restart_generation.0);
        if !due || !leads_others(self.state, member.instance) {
            return None;
        }
        let follows = |m: &&Member<'_>| {
            m.instance.group == member.instance.group
                && m.instance.id != member.instance.id
                && self.view.in_sync(m.instance.id)
        };
        self.view.wanted().find(follows).map(|heir| self.view.switchover(heir.instance.id))
    }

    /// The step, unless the engine said no to it several times since the rollout began.
    fn unless_refused(&mut self, step: Step) -> Option<Step> {
        let Some((_, began)) = self.rollout_operation() else { return Some(step) };
        let same = |task: &&Task| {
            task.instance == step.instance && task.payload == step.payload && task.created >= began
        };
        let tries: Vec<&Task> = self.state.tasks_of(self.id).filter(same).collect();
        let refusals: Vec<&str> = tries
            .iter()
            .rev()
            .map_while(|task| match &task.state {
                TaskState::Failed { error } => Some(error.as_str()),
                TaskState::Running | TaskState::Succeeded | TaskState::Superseded => None,
            })
            .collect();
        let Some(last) = refusals.first().filter(|_| refusals.len() >= TRIES) else { return Some(step) };
        let why = format!("{} failed {} times: {last}", step.name, refusals.len());
        self.halt(why);
        None
    }

    fn rollout_operation(&self) -> Option<(OperationId, crate::time::Timestamp)> {
        let is = |o: &&crate::state::Operation| {
            o.cluster == self.id && o.kind == OperationKind::Rollout && o.state == OperationState::Running
        };
        self.state.operations.values().rev().find(is).map(|operation| (operation.id, operation.created))
    }

    fn tell(&mut self, instance: InstanceId, behind: usize) {
        let revision = self.view.cluster.rollout.parameters.revision;
        let (operation, new_operation) = match self.rollout_operation() {
            Some((operation, _)) => (operation, None),
            None => {
                let goal =
                    Goal { what: "members".to_owned(), amount: u64::try_from(behind).unwrap_or(u64::MAX) };
                let cause = "parameters were changed".to_owned();
                let new = self.operation(OperationKind::Rollout, cause);
                (new.id, Some(NewOperation { goal: Some(goal), ..new }))
            }
        };
        let cluster = self.id;
        self.plan.propose.push(Decision::Roll { cluster, instance, revision, operation, new_operation });
    }
}

fn answers(member: &Member<'_>) -> bool {
    member.engine().is_some()
}

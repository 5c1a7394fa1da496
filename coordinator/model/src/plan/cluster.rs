//! One cluster's turn. In: its view. Out: the next decisions for it, in this order: let a deleted one go, fail what cannot be, let an
//! emptied group go, promote replicas
//! where the engine cannot vote, judge the member that was told new parameters, replace lost members (after letting surplus replicas go), fill
//! empty seats, finish moves, bring parameters to the next member, engine steps, move data between groups, say that it is whole, empty
//! hosts that are drained, improve its spread.

use std::collections::BTreeSet;

use shardplane_proto::ids::{ClusterId, InstanceId, OperationId};

use super::{
    NewIds, Plan,
    draft::{Draft, Seat},
    drain,
    place::{self, Vacancy},
    rebalance,
    rollout::Roll,
    shrink, tasks,
};
use crate::{
    command::{Decision, NewOperation, Reservation},
    engine::{Class, ClusterView, Member, Role, Step},
    resource::Outcome,
    state::{OperationKind, OperationState, Presence, State},
    time::Millis,
};

/// Everything one cluster's turn works with.
pub(super) struct Turn<'p, 'v, 's> {
    pub(super) state: &'s State,
    pub(super) view: &'v ClusterView<'v>,
    pub(super) id: ClusterId,
    pub(super) draft: &'p mut Draft<'s>,
    pub(super) ids: NewIds<'p>,
    pub(super) plan: &'p mut Plan,
    /// Steps that parts of the turn ask for besides the engine's own.
    pub(super) asked: Vec<Step>,
    /// Members that are on their way out in this turn.
    pub(super) leaving: BTreeSet<InstanceId>,
}

/// What came of a part of the turn.
pub(super) enum Then {
    /// Go on with the next part.
    GoOn,
    /// A decision was proposed, or the cluster has to wait: the rest of the turn would be guesswork.
    Stop,
}

/// How much of a turn is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// Who shall sit where, and nothing that waits for engines.
    Seats,
}

/// Answers which members are on their way out in this turn.
pub(super) fn plan<'s>(
    state: &'s State,
    view: &ClusterView<'_>,
    draft: &mut Draft<'s>,
    ids: NewIds<'_>,
    plan: &mut Plan,
    extent: Extent,
) -> BTreeSet<InstanceId> {
    let id = view.resource.id.into();
    let mut turn = Turn { state, view, id, draft, ids, plan, asked: Vec::new(), leaving: BTreeSet::new() };
    let parts = [
        Turn::deleted,
        Turn::failed,
        Turn::impossible,
        Turn::roles_in_force,
        Turn::take_over,
        Turn::dissolve,
        Turn::watch_roll,
        Turn::shrink,
        Turn::replace_lost,
        Turn::fill_seats,
        Turn::run,
    ];
    let seating = parts.len() - 1;
    let taken = if extent == Extent::Whole { parts.len() } else { seating };
    for part in parts.into_iter().take(taken) {
        match part(&mut turn) {
            Then::GoOn => {}
            Then::Stop => break,
        }
    }
    turn.leaving
}

pub(super) fn lost(member: &Member<'_>) -> bool {
    member.host.is_none_or(|host| host.presence != Presence::Present)
}

/// Where the wanted members sit, with observed roles, and planned ones where there is no observation yet.
pub(super) fn seats(view: &ClusterView<'_>, without: &[InstanceId]) -> Vec<Seat> {
    let roles = view.roles();
    let observed = |member: &Member<'_>| {
        roles.iter().any(|(id, role)| *id == member.instance.id && *role == Role::Primary)
    };
    view.wanted()
        .filter(|member| !without.contains(&member.instance.id))
        .map(|member| Seat {
            group: member.instance.group,
            host: member.instance.host,
            primary: if view.cluster.formed { observed(member) } else { member.instance.first_primary },
            class: view.class_of(member.instance.group),
        })
        .collect()
}

impl Turn<'_, '_, '_> {
    pub(super) fn operation(&mut self, kind: OperationKind, cause: String) -> NewOperation {
        NewOperation { id: OperationId::from_u128((self.ids)()), kind, cause, goal: None }
    }

    pub(super) fn seats(&self, without: &[InstanceId]) -> Vec<Seat> {
        seats(self.view, without)
    }

    fn wait_for_gone(&mut self) {
        let leaving = |member: &&Member<'_>| !member.instance.wanted() && !lost(member);
        for member in self.view.members.iter().filter(leaving) {
            let host = member.host.map(|host| host.facts.name.clone()).unwrap_or_default();
            self.plan
                .wait(self.id, format!("instance {} is not gone from host {host} yet", member.instance.id));
        }
    }

    fn deleted(&mut self) -> Then {
        if !self.view.resource.deleting() {
            return Then::GoOn;
        }
        if self.view.members.iter().all(lost) {
            self.plan.propose.push(Decision::Remove { cluster: self.id });
        } else {
            self.wait_for_gone();
        }
        Then::Stop
    }

    fn failed(&mut self) -> Then {
        match (&self.view.resource.change.outcome, self.view.cluster.formed) {
            (Outcome::Failed { .. }, false) => {
                self.wait_for_gone();
                Then::Stop
            }
            (Outcome::Failed { .. }, true) | (Outcome::InFlight | Outcome::Done, _) => Then::GoOn,
        }
    }

    /// A version that no image has fails here and not at submit, as the API promises. While no host has told its images, it waits.
    fn impossible(&mut self) -> Then {
        // What is placed already has its image; only a cluster that has nothing yet can be impossible.
        if self.view.cluster.formed || self.view.wanted().next().is_some() {
            return Then::GoOn;
        }
        let engine = self.view.cluster.engine.name();
        let wanted = self.view.spec.version();
        let kind = self.view.cluster.engine;
        // A host that has not found this leader yet still has its images: its silence must not fail a create.
        let mut versions: Vec<&str> = self
            .state
            .hosts
            .values()
            .filter(|host| host.presence == Presence::Present)
            .flat_map(|host| &host.facts.images)
            .filter(|image| image.engine == engine)
            .map(|image| image.version.as_str())
            .collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.is_empty() {
            self.plan.wait(self.id, format!("no host with an image of {engine} is ready"));
            return Then::Stop;
        }
        if versions.iter().any(|version| kind.runs(version, wanted)) {
            return Then::GoOn;
        }
        let message = format!(
            "version {wanted} of {engine} cannot be run: the images on the hosts have {}; delete the cluster or put it again with one of those",
            versions.join(", ")
        );
        let request = self.view.resource.change.request;
        self.plan.propose.push(Decision::Fail { cluster: self.id, request, message });
        Then::Stop
    }

    fn fill_seats(&mut self) -> Then {
        let mut primaries = Vec::new();
        let mut replicas = Vec::new();
        for group in self.view.groups.iter().filter(|group| !self.view.goes_at_once(group.id)) {
            let own: Vec<_> = self.view.wanted().filter(|m| m.instance.group == group.id).collect();
            let replaced = own.iter().filter(|m| m.instance.replaces.is_some()).count();
            let has = own.len() - replaced.min(own.len());
            let vacancy =
                |primary| Vacancy { group: group.clone(), primary, replaces: None, not_on: Vec::new() };
            let mut missing = usize::try_from(group.members).unwrap_or(usize::MAX).saturating_sub(has);
            let begins = || !self.view.cluster.formed || self.view.is_empty(group.id);
            let data = group.class == Class::Data;
            if data && missing > 0 && begins() && !own.iter().any(|m| m.instance.first_primary) {
                primaries.push(vacancy(true));
                missing -= 1;
            }
            replicas.extend((0..missing).map(|_| vacancy(false)));
        }
        if primaries.is_empty() && replicas.is_empty() {
            return Then::GoOn;
        }
        let grows = self.view.cluster.formed
            && self.view.resource.change.outcome == Outcome::InFlight
            && self.view.cluster.grows_from(self.view.spec).is_some();
        let (kind, cause) = match (self.view.cluster.formed, grows) {
            (false, _) => (OperationKind::Create, "the cluster is made"),
            (true, true) if primaries.is_empty() => (OperationKind::Grow, "replicas are added"),
            (true, true) => (OperationKind::Grow, "a shard is added"),
            (true, false) => (OperationKind::Repair, "members are missing"),
        };
        let vacancies: Vec<Vacancy> = primaries.into_iter().chain(replicas).collect();
        let mut seats = self.seats(&[]);
        let filled = if self.view.cluster.formed {
            self.fill_each(&mut seats, &vacancies)
        } else {
            place::fill(self.state, self.view, self.draft, &mut seats, &vacancies, self.ids)
        };
        match filled {
            Ok(reservations) => {
                let operation = match self.state.growing(self.id).filter(|_| grows) {
                    Some(known) => NewOperation {
                        id: known.id,
                        kind: known.kind,
                        cause: known.cause.clone(),
                        goal: None,
                    },
                    None => self.operation(kind, cause.to_owned()),
                };
                self.plan.propose.push(Decision::Place {
                    cluster: self.id,
                    reservations,
                    retire: Vec::new(),
                    operation,
                });
                Then::Stop
            }
            Err(why) => {
                let way_out = match self.state.growing(self.id).filter(|_| grows) {
                    Some(known) => format!("; operation {} can be cancelled", known.id),
                    None => String::new(),
                };
                self.plan.wait(self.id, format!("no place: {why}{way_out}"));
                if !self.view.cluster.formed {
                    return Then::Stop;
                }
                // Hosts that have not found this leader yet may have room.
                if !grows || self.state.growing(self.id).is_some() || !self.draft.missing().is_empty() {
                    return Then::GoOn;
                }
                let (cluster, request) = (self.id, self.view.resource.change.request);
                let operation = self.operation(kind, cause.to_owned());
                self.plan.propose.push(Decision::AwaitPlace { cluster, request, operation, why });
                Then::Stop
            }
        }
    }

    /// As many of the vacancies as fit, each for itself; the reason why not when none does.
    fn fill_each(
        &mut self,
        seats: &mut Vec<Seat>,
        vacancies: &[Vacancy],
    ) -> Result<Vec<Reservation>, String> {
        let mut reservations = Vec::new();
        let mut refused = None;
        for vacancy in vacancies {
            let vacancy = std::slice::from_ref(vacancy);
            match place::fill(self.state, self.view, self.draft, seats, vacancy, self.ids) {
                Ok(filled) => reservations.extend(filled),
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            Some(why) if reservations.is_empty() => Err(why),
            Some(_) | None => Ok(reservations),
        }
    }

    fn run(&mut self) -> Then {
        if !self.view.cluster.formed && self.view.serves() {
            self.plan.propose.push(Decision::Formed { cluster: self.id });
            return Then::Stop;
        }
        let next = self.view.next();
        let mut steps = next.steps;
        for why in next.waiting {
            self.plan.wait(self.id, why);
        }
        if let Some(at) = next.again_at {
            self.plan.again_after(at, Millis(0));
        }
        if let (Some(error), Some(operation)) = (next.halt, self.view.reshard) {
            let (cluster, operation) = (self.id, operation.id);
            self.plan.propose.push(Decision::HaltReshard { cluster, operation, error });
            return Then::Stop;
        }
        if next.settled {
            self.end_repairs();
        }
        let whole = next.whole;
        if whole && let Some(step) = self.finish_moves() {
            steps.push(step);
        }
        steps.append(&mut self.asked);
        if self.view.cluster.formed {
            steps.extend(self.stand_again());
        }
        let rolling = match self.roll_out(whole && steps.is_empty()) {
            Roll::Nothing => false,
            Roll::Pending(step) => {
                steps.extend(step);
                true
            }
        };
        let roles = self.view.roles();
        let switching = |task: &crate::state::Task| {
            let done = roles.contains(&(task.instance, Role::Primary));
            !done && task.payload == self.view.switchover(task.instance).payload
        };
        let purpose = match self.view.cluster.formed {
            false => (OperationKind::Create, "the cluster is made"),
            true if self.surplus().next().is_some() => (OperationKind::Shrink, shrink::FEWER),
            true => (OperationKind::Repair, "the members have to agree again"),
        };
        tasks::reconcile(self.state, self.view, &steps, switching, purpose, self.ids, self.plan);
        let busy = self.state.running_tasks(self.id).next().is_some();
        let moving = self.view.wanted().any(|m| m.instance.replaces.is_some());
        let leaving = |m: &&Member<'_>| !m.instance.wanted() && !lost(m);
        let shrinking = self.view.members.iter().filter(leaving).any(|m| m.instance.surplus());
        let leaving = self.view.members.iter().any(|m| leaving(&m));
        if !whole || !steps.is_empty() || busy {
            return Then::Stop;
        }
        // A replica that nobody wants is gone when its host says so; one that was replaced may be on a host that never will.
        if shrinking {
            self.wait_for_gone();
        }
        if shrinking || self.surplus().next().is_some() {
            return Then::Stop;
        }
        if let Some(done) = self.resharded() {
            self.plan.propose.push(done);
            return Then::Stop;
        }
        if rolling {
            return Then::Stop;
        }
        if self.view.resource.change.outcome == Outcome::InFlight {
            match self.reshard(!moving && !leaving) {
                Then::GoOn => {}
                Then::Stop => return Then::Stop,
            }
            let request = self.view.resource.change.request;
            self.plan.propose.push(Decision::Satisfied { cluster: self.id, request });
            return Then::Stop;
        }
        if leaving {
            self.wait_for_gone();
        }
        if moving || leaving {
            return Then::Stop;
        }
        let running: Vec<OperationId> = self
            .state
            .operations
            .values()
            .filter(|o| o.cluster == self.id && o.state == OperationState::Running)
            .map(|o| o.id)
            .collect();
        if !running.is_empty() {
            let ends = running.into_iter().map(|operation| Decision::EndOperation { operation, error: None });
            self.plan.propose.extend(ends);
            return Then::Stop;
        }
        if drain::plan(self) {
            return Then::Stop;
        }
        rebalance::plan(self)
    }
}

//! Emptying a host. In: a whole cluster with members on hosts that are drained. Out: one move at a time a cluster, by the same policy as
//! a create: the new member first, then a switchover when it takes a primary's place, then the old one goes. What cannot move stays, and
//! [`left`] says why by name.

use std::collections::BTreeMap;

use shardplane_proto::ids::{ClusterId, HostId, InstanceId};

use super::{
    NewIds,
    cluster::{Turn, lost, seats},
    cluster_view,
    draft::{Draft, Seat},
    place::{self, Shape, Vacancy, choose},
    rebalance::REST,
    score::{Candidate, score},
};
use crate::{
    command::{Decision, Reservation},
    engine::{ClusterView, Member, Role},
    observed::Observed,
    resource::Outcome,
    state::{Drain, Instance, OperationKind, State},
    time::Timestamp,
};

/// How an instance on a drained host stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftPhase {
    /// Its place is known to exist; it waits for its turn.
    Waiting,
    /// Another is made to take its place.
    Moving,
    /// It was let go, and its host has not proved it gone yet.
    Leaving,
    /// It cannot move until something changes.
    Blocked,
}

/// An instance that is still on a host that is drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The instance.
    pub instance: InstanceId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// How it stands.
    pub phase: LeftPhase,
    /// For people: what it waits for, and what to do when it is blocked.
    pub why: String,
}

fn drain_of<'v>(member: &Member<'v>) -> Option<&'v Drain> {
    member.host.and_then(|host| host.drain())
}

/// The first step that gets an instance off its host.
pub(super) enum Way {
    /// A new member is made.
    Move(Vec<Reservation>),
    /// This replica of its shard becomes primary first: where the new member fits, a primary would not.
    SwitchOver(InstanceId),
}

/// Begins the next move off a drained host. Answers whether the rest of the turn has to wait.
pub(super) fn plan(turn: &mut Turn<'_, '_, '_>) -> bool {
    let view = turn.view;
    let leaving: Vec<_> = view.wanted().filter_map(|m| Some((m, drain_of(m)?.force))).collect();
    if leaving.is_empty() {
        return false;
    }
    if let Some(last) = view.cluster.last_move
        && view.now.since(last) < REST
    {
        turn.plan.again_after(last, REST);
        return true;
    }
    for (member, force) in leaving {
        let host = member.host.map(|host| host.facts.name.as_str()).unwrap_or_default();
        let id = member.instance.id;
        let primary = view.roles().contains(&(id, Role::Primary));
        let seats = seats(view, &[id]);
        // What is not begun takes no room.
        let mut draft = turn.draft.clone();
        match way(turn.state, view, &mut draft, seats, (member, primary), force, turn.ids) {
            Ok(Way::Move(_)) if !turn.draft.may_move() => {
                let text = "is moved when fewer others are on the move in the installation";
                turn.plan.wait(turn.id, format!("instance {id} on host {host} {text}"));
                return true;
            }
            Ok(Way::Move(reservations)) => {
                *turn.draft = draft;
                turn.draft.begin_move();
                let cause = format!("host {host} is drained: replaces instance {}", member.instance.id);
                let operation = turn.operation(OperationKind::Move, cause);
                let (cluster, retire) = (turn.id, Vec::new());
                turn.plan.propose.push(Decision::Place { cluster, reservations, retire, operation });
                return true;
            }
            Ok(Way::SwitchOver(heir)) => {
                turn.switch_over(heir, format!("host {host}, which is drained, holds the primary"));
                return true;
            }
            Err(_) => {}
        }
    }
    false
}

/// How a member that leaves can do so, or why it cannot. `seats` are those of the others: it does not stand in the way of its own
/// heir.
pub(super) fn way(
    state: &State,
    view: &ClusterView<'_>,
    draft: &mut Draft<'_>,
    mut seats: Vec<Seat>,
    (member, primary): (&Member<'_>, bool),
    force: bool,
    ids: NewIds<'_>,
) -> Result<Way, String> {
    let id = member.instance.id;
    let group = view.groups.iter().find(|group| group.id == member.instance.group).cloned();
    let group = group.ok_or("its shard is no longer wanted")?;
    // With force, too, the copy is made and takes over first; but the shard hangs on this one host until then.
    if !force && !view.wanted().any(|m| m.instance.group == group.id && m.instance.id != id) {
        return Err(
            "its shard has no other copy, so nothing can take over from it; set replicasPerShard to 1 first, or drain with --force: a copy is made, takes over, and then it goes"
                .to_owned(),
        );
    }
    let vacancy = Vacancy { group, primary, replaces: Some(id), not_on: Vec::new() };
    let shape =
        place::shape(state, view, vacancy.group.class).ok_or("its offers are no longer in the catalogue")?;
    if let Some(best) = choose(view, draft, &seats, &vacancy, &shape).filter(|_| !force) {
        let host = draft.host(best.host).map(|host| host.facts.name.as_str()).unwrap_or_default();
        // Its place may be good enough for a replica.
        if best.own_group_on_host == 0
            && best.majority_on_host
            && let Some(heir) = leader_elsewhere(view, draft, &seats, &vacancy, &shape)
        {
            return Ok(Way::SwitchOver(heir));
        }
        let breaks = if best.own_group_on_host > 0 {
            Some("holds a member of its own shard already")
        } else if best.majority_on_host {
            Some("would hold so many primaries of the cluster that its loss takes the majority")
        } else {
            None
        };
        if let Some(breaks) = breaks {
            return Err(format!(
                "the best place left is host {host}, which {breaks}; add or uncordon a host, or drain with --force"
            ));
        }
    }
    place::fill(state, view, draft, &mut seats, &[vacancy], ids).map(Way::Move)
}

/// A replica of the same shard that is in sync, on an open host that may hold another primary.
fn leader_elsewhere(
    view: &ClusterView<'_>,
    draft: &Draft<'_>,
    seats: &[Seat],
    vacancy: &Vacancy,
    shape: &Shape,
) -> Option<InstanceId> {
    let candidate = Candidate {
        group: vacancy.group.id,
        primary: true,
        footprint: shape.footprint,
        groups: view.data_groups().count(),
        class: vacancy.group.class,
    };
    let fits = |m: &&Member<'_>| {
        m.instance.group == vacancy.group.id
            && Some(m.instance.id) != vacancy.replaces
            && view.in_sync(m.instance.id)
            && draft
                .open_hosts()
                .find(|host| host.id == m.instance.host)
                .is_some_and(|host| !score(draft, seats, host, candidate).majority_on_host)
    };
    view.wanted().find(fits).map(|m| m.instance.id)
}

/// What is still on `host`, in order of cluster and instance, with what each waits for.
pub fn left(state: &State, observed: &Observed, now: Timestamp, host: HostId) -> Vec<Left> {
    let mut draft = Draft::new(state, observed, now);
    let mut on_it: BTreeMap<ClusterId, Vec<&Instance>> = BTreeMap::new();
    for instance in state.instances.values().filter(|instance| instance.host == host) {
        on_it.entry(instance.cluster).or_default().push(instance);
    }
    let force = state.hosts.get(&host).and_then(|host| host.drain()).is_some_and(|drain| drain.force);
    let mut left = Vec::new();
    for (cluster, instances) in on_it {
        let view = cluster_view(state, observed, cluster, now);
        for instance in instances {
            let (phase, why) = match &view {
                Some(view) => stands(state, observed, view, &mut draft, instance, force),
                None => (LeftPhase::Leaving, "its cluster was deleted".to_owned()),
            };
            left.push(Left { instance: instance.id, cluster, phase, why });
        }
    }
    left
}

fn waits(observed: &Observed, view: &ClusterView<'_>) -> String {
    observed.waiting.get(&view.resource.id.into()).map(|lines| lines.join("; ")).unwrap_or_default()
}

/// The member that is made to take this one's place.
pub(super) fn heir_of<'v>(view: &'v ClusterView<'_>, instance: InstanceId) -> Option<&'v Member<'v>> {
    view.wanted().find(|m| m.instance.replaces == Some(instance))
}

/// Why no move of the cluster begins now, whichever instance it is about; none when one may.
pub(super) fn held_up(
    state: &State,
    observed: &Observed,
    view: &ClusterView<'_>,
) -> Option<(LeftPhase, String)> {
    let waits = || waits(observed, view);
    if !view.cluster.formed {
        return Some((LeftPhase::Blocked, format!("its cluster is not made yet: {}", waits())));
    }
    if view.wanted().any(|m| m.instance.replaces.is_some()) {
        let text = format!("another instance of its cluster is moved first: {}", waits());
        return Some((LeftPhase::Waiting, text));
    }
    if view.resource.change.outcome == Outcome::InFlight {
        return Some((LeftPhase::Blocked, format!("a change of its cluster is in flight: {}", waits())));
    }
    let next = view.next();
    if !next.whole {
        let lines = if next.waiting.is_empty() { waits() } else { next.waiting.join("; ") };
        return Some((LeftPhase::Blocked, format!("its cluster is not whole: {lines}")));
    }
    if let Some(leaver) = view.members.iter().find(|m| !m.instance.wanted() && !lost(m)) {
        let host = leaver.host.map(|host| host.facts.name.as_str()).unwrap_or_default();
        let id = leaver.instance.id;
        let text = format!("instance {id} of its cluster has to be gone from host {host} first");
        let heard = observed.hears(leaver.instance.host, view.now);
        return Some(if heard {
            (LeftPhase::Waiting, text)
        } else {
            (LeftPhase::Blocked, format!("{text}, and that host is silent"))
        });
    }
    let task = state.running_tasks(view.resource.id.into()).next()?;
    Some((LeftPhase::Waiting, format!("{} on instance {} has to end first", task.name, task.instance)))
}

fn stands(
    state: &State,
    observed: &Observed,
    view: &ClusterView<'_>,
    draft: &mut Draft<'_>,
    instance: &Instance,
    force: bool,
) -> (LeftPhase, String) {
    if !instance.wanted() {
        return (LeftPhase::Leaving, "its host has to prove it gone".to_owned());
    }
    if let Some(heir) = heir_of(view, instance.id) {
        let to = heir.host.map(|host| host.facts.name.as_str()).unwrap_or_default();
        let heir = heir.instance.id;
        return (
            LeftPhase::Moving,
            format!("instance {heir} on host {to} takes its place: {}", waits(observed, view)),
        );
    }
    if let Some(held_up) = held_up(state, observed, view) {
        return held_up;
    }
    let Some(member) = view.wanted().find(|m| m.instance.id == instance.id) else {
        return (LeftPhase::Waiting, String::new());
    };
    // Nothing is placed here: the ids are for nobody.
    let mut number = 0;
    let mut ids = || {
        number += 1;
        number
    };
    let primary = view.roles().contains(&(instance.id, Role::Primary));
    let others = seats(view, &[instance.id]);
    match way(state, view, draft, others, (member, primary), force, &mut ids) {
        Ok(_) => (LeftPhase::Waiting, "its turn comes next".to_owned()),
        Err(why) => (LeftPhase::Blocked, why),
    }
}

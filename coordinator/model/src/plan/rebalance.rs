//! Keeping the spread. In: a whole cluster whose spread is worse than it could be. Out: one switchover or one move at a time, never
//! within [`REST`] of the last one. A replica moves by making the new one first; a primary moves by switching over to a replica.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::{GroupId, HostId, InstanceId, TaskId};

use super::{
    cluster::{Then, Turn},
    cost::{Cost, cost},
    draft::{Draft, Seat},
    leave::{Leave, may_succeed},
    place::{self, Vacancy, choose},
    tasks,
};
use crate::{
    command::{Decision, NewTask},
    engine::{Member, Role, Step},
    state::{Aim, Host, Moved, OperationKind},
    time::Millis,
    view::spread::most_primaries_on_a_host,
};

/// Between two moves of one cluster: reports show what the last one did, and clients find their new primaries.
pub(super) const REST: Millis = Millis::seconds(15);
/// Between two tries of a switch-over that the engine refuses.
const LONGEST_REST: Millis = Millis::seconds(1800);

impl Turn<'_, '_, '_> {
    /// A member that was made to replace another is in sync: the old one goes, after a switchover when it is a primary.
    pub(super) fn finish_moves(&mut self) -> Option<Step> {
        let roles: BTreeMap<_, _> = self.view.roles().into_iter().collect();
        for member in self.view.wanted() {
            let Some(old) = member.instance.replaces else { continue };
            let heir = member.instance.id;
            let (leads, leaves) = (roles.get(&heir) == Some(&Role::Primary), self.view.stands_down(old));
            if roles.get(&old) == Some(&Role::Primary) {
                if may_succeed(self.view, heir) {
                    return Some(self.view.switchover(heir));
                }
            } else if leads || (may_succeed(self.view, heir) && (leaves || self.view.holds_all_of(heir, old)))
            {
                match self.leave(old) {
                    // Reports of a busy shard rarely meet at one moment: what was asked for stands until they do.
                    Leave::Now if !leads && !self.view.holds_all_of(heir, old) => {}
                    Leave::Now => {
                        let cause = format!("instance {heir} took its place");
                        let instances = vec![old];
                        self.plan.propose.push(Decision::Retire { cluster: self.id, instances, cause });
                        return None;
                    }
                    Leave::After(step) => return Some(step),
                    Leave::Wait(why) => {
                        self.plan.wait(self.id, why);
                        continue;
                    }
                }
            }
            self.plan.wait(self.id, format!("instance {heir} becomes in sync to replace {old}"));
        }
        None
    }
}

impl Turn<'_, '_, '_> {
    /// Makes an in-sync replica the primary of its group, under an operation of its own.
    pub(super) fn switch_over(&mut self, heir: InstanceId, cause: String) {
        let step = self.view.switchover(heir);
        let operation = self.operation(OperationKind::Switchover, cause);
        let task = NewTask {
            id: TaskId::from_u128((self.ids)()),
            instance: heir,
            name: step.name,
            payload: step.payload,
        };
        self.plan.propose.push(Decision::StartTasks {
            cluster: self.id,
            operation: operation.id,
            new_operation: Some(operation),
            tasks: vec![task],
        });
    }

    /// Whether a switch-over to this replica that failed lately has rested: longer each time.
    fn rested(&mut self, heir: InstanceId) -> bool {
        let step = self.view.switchover(heir);
        let Some((ended, failures)) = tasks::failures(self.state, self.id, &step) else { return true };
        let rest = Millis((REST.0 << failures.min(16)).min(LONGEST_REST.0));
        self.plan.again_after(ended, rest);
        self.view.now.since(ended) >= rest
    }
}

/// The members with their seats.
struct Placed<'v> {
    members: Vec<(&'v Member<'v>, Seat)>,
    groups: usize,
}

impl<'v> Placed<'v> {
    fn of(turn: &Turn<'_, 'v, '_>) -> Self {
        let primaries: BTreeSet<InstanceId> = turn
            .view
            .roles()
            .into_iter()
            .filter(|(_, role)| *role == Role::Primary)
            .map(|(id, _)| id)
            .collect();
        let seat = |m: &Member<'_>| Seat {
            group: m.instance.group,
            host: m.instance.host,
            primary: primaries.contains(&m.instance.id),
            class: turn.view.class_of(m.instance.group),
        };
        Self {
            members: turn.view.wanted().map(|m| (m, seat(m))).collect(),
            groups: turn.view.data_groups().count(),
        }
    }

    /// All seats, as they would be after `change`.
    fn seats(&self, change: impl Fn(&Member<'_>, &mut Seat)) -> Vec<Seat> {
        let changed = |(member, seat): &(&Member<'_>, Seat)| {
            let mut seat = *seat;
            change(member, &mut seat);
            seat
        };
        self.members.iter().map(changed).collect()
    }

    fn without(&self, id: InstanceId) -> Vec<Seat> {
        self.members.iter().filter(|(m, _)| m.instance.id != id).map(|(_, seat)| *seat).collect()
    }

    fn cost(&self, draft: &Draft<'_>) -> Cost {
        cost(draft, &self.seats(|_, _| {}), self.groups)
    }

    /// The cost when `heir` leads its group.
    fn cost_led_by(&self, draft: &Draft<'_>, heir: &Member<'_>) -> Cost {
        let led = self.seats(|member, seat| {
            if seat.group == heir.instance.group {
                seat.primary = member.instance.id == heir.instance.id;
            }
        });
        cost(draft, &led, self.groups)
    }

    fn replicas(&self) -> impl Iterator<Item = &'v Member<'v>> {
        self.members.iter().filter(|(_, seat)| !seat.primary).map(|(m, _)| *m)
    }

    fn primaries_on(&self, host: HostId) -> usize {
        self.members.iter().filter(|(_, seat)| seat.primary && seat.host == host).count()
    }

    /// How many members of its group, itself included, are where `of` says that this one is.
    fn beside(&self, draft: &Draft<'_>, member: &Member<'_>, of: fn(&Host) -> &str) -> usize {
        let name = |host: HostId| draft.host(host).map(of).unwrap_or_default();
        let mine = name(member.instance.host);
        let own = self.members.iter().filter(|(_, seat)| seat.group == member.instance.group);
        if mine.is_empty() { 0 } else { own.filter(|(_, seat)| name(seat.host) == mine).count() }
    }
}

/// The cheapest step that improves the most important of what can be improved; nothing when there is none.
pub(super) fn plan(turn: &mut Turn<'_, '_, '_>) -> Then {
    let placed = Placed::of(turn);
    let now = placed.cost(turn.draft);
    if now == Cost::default() {
        return Then::Stop;
    }
    if let Some(last) = turn.view.cluster.last_move
        && turn.view.now.since(last) < REST
    {
        turn.plan.again_after(last, REST);
        return Then::Stop;
    }
    let even = switchover(turn, &placed, &now);
    if let Some((heir, after)) = &even
        && (after.beside_primary, after.too_many_primaries) < (now.beside_primary, now.too_many_primaries)
    {
        let cause = "its shard's primary shares a host with a replica, or its host holds too many primaries";
        turn.switch_over(*heir, cause.to_owned());
        return Then::Stop;
    }
    let before = turn.plan.propose.len();
    apart(turn, &placed, &now, Aim::Hosts);
    if turn.plan.propose.len() == before && now.too_many_primaries > 0 {
        majority(turn, &placed, &now);
    }
    if turn.plan.propose.len() == before {
        apart(turn, &placed, &now, Aim::Racks);
    }
    if turn.plan.propose.len() == before
        && let Some((heir, _)) = even
    {
        turn.switch_over(heir, "its host holds more primaries of the cluster than another could".to_owned());
    }
    Then::Stop
}

/// The switch-over that leaves the cluster spread best, when one is worth its pause. An heir is in sync on an open host: one that an
/// operator closed is about to restart or to be emptied.
fn switchover(turn: &mut Turn<'_, '_, '_>, placed: &Placed<'_>, now: &Cost) -> Option<(InstanceId, Cost)> {
    if !now.broken() && now.primaries_together == 0 {
        return None;
    }
    let mut best: Option<(Cost, InstanceId)> = None;
    for heir in placed.replicas() {
        let id = heir.instance.id;
        let old = placed.members.iter().find(|(_, seat)| seat.primary && seat.group == heir.instance.group);
        let Some((_, old)) = old else { continue };
        let lighter = placed.primaries_on(heir.instance.host) + 1 < placed.primaries_on(old.host);
        if !lighter && now.beside_primary == 0 {
            continue;
        }
        let after = placed.cost_led_by(turn.draft, heir);
        let open = turn.draft.open_hosts().any(|host| host.id == heir.instance.host);
        if open
            && now.worth_a_switchover(&after)
            && may_succeed(turn.view, id)
            && best.is_none_or(|(known, _)| after < known)
            && turn.rested(id)
        {
            best = Some((after, id));
        }
    }
    best.map(|(after, id)| (id, after))
}

/// Moves a replica that is crowded by its own group on its host, or in its rack or zone, to a place where it is not.
fn apart(turn: &mut Turn<'_, '_, '_>, placed: &Placed<'_>, now: &Cost, aim: Aim) {
    let rack: fn(&Host) -> &str = |host| &host.facts.rack;
    let zone: fn(&Host) -> &str = |host| &host.facts.zone;
    let shared = |replica: &Member<'_>| {
        let own = replica.instance;
        placed
            .members
            .iter()
            .any(|(m, seat)| m.instance.id != own.id && seat.group == own.group && seat.host == own.host)
    };
    let crowded = |draft: &Draft<'_>, replica: &Member<'_>| match aim {
        Aim::Hosts => now.on_host > 0 && shared(replica),
        // Worth a look only when there is an open host elsewhere: most installations have one rack.
        Aim::Racks => [rack, zone].into_iter().any(|of| {
            let mine = replica.host.map(of).unwrap_or_default();
            placed.beside(draft, replica, of) > 1 && draft.open_elsewhere(of, mine)
        }),
        Aim::Majority => false,
    };
    if aim == Aim::Racks && now.in_rack + now.in_zone == 0 {
        return;
    }
    for replica in placed.replicas() {
        if !crowded(turn.draft, replica) {
            continue;
        }
        let not_on = vec![replica.instance.host];
        let better = |after: &Cost| after < now && !after.breaks_what_holds_in(now);
        let why = match aim {
            Aim::Hosts | Aim::Majority => "shares a host with its own shard",
            Aim::Racks => "shares a rack or zone with its own shard, and another has room",
        };
        let why = format!("instance {} {why}", replica.instance.id);
        if move_replica(turn, placed, replica, (aim, not_on), &better, &why) {
            return;
        }
    }
}

/// Makes a replica elsewhere, when the cluster is better for it and the budget allows. Answers whether that is so, be it that it waits
/// for others.
fn move_replica(
    turn: &mut Turn<'_, '_, '_>,
    placed: &Placed<'_>,
    replica: &Member<'_>,
    (aim, not_on): (Aim, Vec<HostId>),
    better: &dyn Fn(&Cost) -> bool,
    why: &str,
) -> bool {
    let id = replica.instance.id;
    let cause = turn.state.cause_to_move(turn.id);
    if replica.instance.moved.is_some_and(|moved| !moved.allows(aim, cause)) {
        return false;
    }
    let Some(group) = turn.view.groups.iter().find(|g| g.id == replica.instance.group).cloned() else {
        return false;
    };
    let Some(shape) = place::shape(turn.state, turn.view, group.class) else { return false };
    let vacancy = Vacancy { group, primary: false, replaces: Some(id), not_on };
    // The replica that goes does not stand in the way of its heir.
    let mut seats = placed.without(id);
    let Some(host) = choose(turn.view, turn.draft, &seats, &vacancy, &shape).map(|best| best.host) else {
        return false;
    };
    let moved = placed.seats(|member, seat| {
        if member.instance.id == id {
            seat.host = host;
        }
    });
    if !better(&cost(turn.draft, &moved, placed.groups)) {
        return false;
    }
    if !turn.draft.may_move() {
        let text = format!("{why}; it is moved when fewer others are on the move in the installation");
        turn.plan.wait(turn.id, text);
        return true;
    }
    let Ok(mut reservations) =
        place::fill(turn.state, turn.view, turn.draft, &mut seats, &[vacancy], turn.ids)
    else {
        return false;
    };
    for reservation in &mut reservations {
        reservation.instance.moved = Some(Moved { aim, cause });
    }
    turn.draft.begin_move();
    let operation = turn.operation(OperationKind::Move, why.to_owned());
    let (cluster, retire) = (turn.id, Vec::new());
    turn.plan.propose.push(Decision::Place { cluster, reservations, retire, operation });
    true
}

/// One host holds so many primaries that its loss takes the majority, and none of their replicas is where a primary may go: one is made
/// there, and leads its shard in the next step.
fn majority(turn: &mut Turn<'_, '_, '_>, placed: &Placed<'_>, now: &Cost) {
    let most = most_primaries_on_a_host(placed.groups);
    let open: BTreeSet<HostId> = turn.draft.open_hosts().map(|host| host.id).collect();
    let light = |host: HostId| open.contains(&host) && placed.primaries_on(host) < most;
    let heavy = |(_, seat): &&(&Member<'_>, Seat)| seat.primary && placed.primaries_on(seat.host) > most;
    let on_heavy: BTreeSet<GroupId> =
        placed.members.iter().filter(heavy).map(|(_, seat)| seat.group).collect();
    let not_light: Vec<HostId> = open.iter().copied().filter(|host| !light(*host)).collect();
    for group in on_heavy {
        let own: Vec<_> = placed.replicas().filter(|m| m.instance.group == group).collect();
        // One that sits on a light host already only has to catch up, or is asked again after a rest.
        let may_lead = |m: &&Member<'_>| {
            light(m.instance.host) && now.worth_a_switchover(&placed.cost_led_by(turn.draft, m))
        };
        if let Some(heir) = own.iter().copied().find(|m| may_lead(m)) {
            let text = if may_succeed(turn.view, heir.instance.id) {
                "a replica is asked again after a rest before its primary leaves an overfull host"
            } else {
                "a replica catches up before its primary leaves an overfull host"
            };
            turn.plan.wait(turn.id, format!("shard {group}: {text}"));
            return;
        }
        for replica in own {
            let better = |after: &Cost| !after.breaks_what_holds_in(now);
            let mut not_on = not_light.clone();
            not_on.push(replica.instance.host);
            let why = "a primary of an overfull host needs a place to go";
            if move_replica(turn, placed, replica, (Aim::Majority, not_on), &better, why) {
                return;
            }
        }
    }
}

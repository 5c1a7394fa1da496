//! Keeping the spread. In: a whole cluster whose spread is worse than it could be. Out: one switchover or one move at a time, never
//! within [`REST`] of the last one. A replica moves by making the new one first; a primary moves by switching over to a replica.

use std::collections::BTreeMap;

use shardplane_proto::ids::{GroupId, HostId, InstanceId, TaskId};

use super::{
    cluster::{Then, Turn},
    leave::{Leave, may_succeed},
    place::{self, Vacancy, choose},
};
use crate::{
    command::{Decision, NewTask},
    engine::{Member, Role, Step},
    state::OperationKind,
    time::Millis,
    view::spread::most_primaries_on_a_host,
};

/// Between two moves of one cluster: reports show what the last one did, and clients find their new primaries.
pub(super) const REST: Millis = Millis::seconds(15);

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
}

struct Placed<'v> {
    members: Vec<(&'v Member<'v>, Role)>,
}

impl Placed<'_> {
    fn primaries_on(&self, host: HostId) -> usize {
        self.members.iter().filter(|(m, role)| *role == Role::Primary && m.instance.host == host).count()
    }

    fn replicas_of(&self, group: GroupId) -> impl Iterator<Item = &Member<'_>> {
        self.members
            .iter()
            .filter(move |(m, role)| m.instance.group == group && *role != Role::Primary)
            .map(|(m, _)| *m)
    }
}

pub(super) fn plan(turn: &mut Turn<'_, '_, '_>) -> Then {
    if let Some(last) = turn.view.cluster.last_move
        && turn.view.now.since(last) < REST
    {
        turn.plan.again_after(last, REST);
        return Then::Stop;
    }
    let roles: BTreeMap<_, _> = turn.view.roles().into_iter().collect();
    let view = turn.view;
    let placed = Placed {
        members: view
            .wanted()
            .map(|m| (m, roles.get(&m.instance.id).copied().unwrap_or(Role::Unknown)))
            .collect(),
    };
    if let Some((replica, why)) = crowded(&placed) {
        let (group, not_on) = (replica.instance.group, vec![replica.instance.host]);
        return move_replica(turn, replica.instance.id, group, not_on, 0, &why);
    }
    majority(turn, &placed)
}

/// A replica that shares its host with another member of its group.
fn crowded<'v>(placed: &Placed<'v>) -> Option<(&'v Member<'v>, String)> {
    let shares = |member: &Member<'_>| {
        placed.members.iter().any(|(other, _)| {
            other.instance.id != member.instance.id
                && other.instance.group == member.instance.group
                && other.instance.host == member.instance.host
        })
    };
    let replica =
        placed.members.iter().find(|(m, role)| *role != Role::Primary && shares(m)).map(|(m, _)| *m)?;
    Some((replica, format!("instance {} shares a host with its own shard", replica.instance.id)))
}

/// Makes a replica on a host that scores strictly better, when there is one.
fn move_replica(
    turn: &mut Turn<'_, '_, '_>,
    replica: InstanceId,
    group: GroupId,
    not_on: Vec<HostId>,
    most_beside: u32,
    why: &str,
) -> Then {
    let Some(group) = turn.view.groups.iter().find(|g| g.id == group).cloned() else { return Then::Stop };
    let Some(shape) = place::shape(turn.state, turn.view) else { return Then::Stop };
    let vacancy = Vacancy { group, primary: false, replaces: Some(replica), not_on };
    let mut seats = turn.seats(&[]);
    // The replica that goes does not stand in the way of its heir.
    if let Some(own) = turn.view.wanted().find(|m| m.instance.id == replica) {
        let at = seats
            .iter()
            .position(|s| s.group == own.instance.group && s.host == own.instance.host && !s.primary);
        at.map(|at| seats.remove(at));
    }
    let better = choose(turn.view, turn.draft, &seats, &vacancy, &shape)
        .is_some_and(|s| s.own_group_on_host <= most_beside);
    if !better {
        return Then::Stop;
    }
    let moved = place::fill(turn.state, turn.view, turn.draft, &mut seats, &[vacancy], turn.ids);
    if let Ok(reservations) = moved {
        let operation = turn.operation(OperationKind::Move, why.to_owned());
        turn.plan.propose.push(Decision::Place {
            cluster: turn.id,
            reservations,
            retire: Vec::new(),
            operation,
        });
    }
    Then::Stop
}

/// One host holds so many primaries that its loss takes the majority: switch one over, or make a replica where one could go.
fn majority(turn: &mut Turn<'_, '_, '_>, placed: &Placed<'_>) -> Then {
    let groups = turn.view.groups.len();
    let most = most_primaries_on_a_host(groups);
    if groups < 3 {
        return Then::Stop;
    }
    let heavy = placed
        .members
        .iter()
        .find(|(m, role)| *role == Role::Primary && placed.primaries_on(m.instance.host) > most);
    let Some(heavy) = heavy.map(|(m, _)| m.instance.host) else { return Then::Stop };
    let on_heavy: Vec<GroupId> = placed
        .members
        .iter()
        .filter(|(m, role)| *role == Role::Primary && m.instance.host == heavy)
        .map(|(m, _)| m.instance.group)
        .collect();
    // A host that an operator closed is about to restart or to be emptied: no primary goes there.
    let light = |host: HostId| {
        let open = turn.state.hosts.get(&host).is_some_and(|host| host.schedulable());
        host != heavy && open && placed.primaries_on(host) < most
    };
    for group in &on_heavy {
        let heir =
            placed.replicas_of(*group).find(|m| light(m.instance.host) && turn.view.in_sync(m.instance.id));
        if let Some(heir) = heir.map(|m| m.instance.id) {
            turn.switch_over(heir, "its host holds too many primaries of the cluster".to_owned());
            return Then::Stop;
        }
    }
    let not_light: Vec<HostId> =
        turn.draft.open_hosts().map(|host| host.id).filter(|host| !light(*host)).collect();
    for group in on_heavy {
        // One that sits on a light host already only has to catch up.
        if placed.replicas_of(group).any(|m| light(m.instance.host)) {
            turn.plan.wait(
                turn.id,
                format!("shard {group}: a replica catches up before its primary leaves an overfull host"),
            );
            return Then::Stop;
        }
        let Some(replica) = placed.replicas_of(group).next().map(|m| m.instance.id) else { continue };
        let before = turn.plan.propose.len();
        move_replica(
            turn,
            replica,
            group,
            not_light.clone(),
            0,
            "a primary of an overfull host needs a place to go",
        );
        if turn.plan.propose.len() > before {
            return Then::Stop;
        }
    }
    Then::Stop
}

//! Fewer replicas. In: a formed cluster with groups that have more members than the spec wants. Out: one decision that lets a replica of
//! each such group go, never a primary and never one that could still win an election, or what has to be known first.

use shardplane_proto::ids::InstanceId;

use super::{
    cluster::{Then, Turn, lost, seats},
    leave::{Leave, may_succeed},
    listed, place,
    score::{Candidate, score},
};
use crate::{
    command::{Decision, NewOperation},
    engine::{GroupSpec, Member, PeerVerdict, Role},
    state::{OperationKind, OperationState},
};

/// Why replicas go, for people.
pub(super) const FEWER: &str = "replicas are taken away";

impl Turn<'_, '_, '_> {
    /// How many members a group has above what it shall have; a member and its heir count once.
    pub(super) fn too_many(&self, group: &GroupSpec) -> usize {
        let own = self.view.wanted().filter(|m| m.instance.group == group.id);
        let seats = own.filter(|m| m.instance.replaces.is_none()).count();
        seats.saturating_sub(usize::try_from(group.members).unwrap_or(usize::MAX))
    }

    /// Groups with more members than they shall have.
    pub(super) fn surplus(&self) -> impl Iterator<Item = &GroupSpec> {
        self.view.groups.iter().filter(|group| self.too_many(group) > 0)
    }

    /// Comes before lost members are replaced: one that is not wanted any more is not made anew.
    pub(super) fn shrink(&mut self) -> Then {
        if !self.view.cluster.formed || self.surplus().next().is_none() {
            return Then::GoOn;
        }
        if self.view.moves() {
            self.plan.wait(self.id, "a replica goes when no slots are on their way".to_owned());
            return Then::GoOn;
        }
        if !self.view.serves() {
            self.plan.wait(self.id, "the cluster has to serve before a replica goes".to_owned());
            return Then::GoOn;
        }
        let (mut instances, mut waits) = (Vec::new(), Vec::new());
        let groups: Vec<GroupSpec> = self.surplus().cloned().collect();
        for group in groups {
            let leaves = self.spare(&group).map(|(instance, lost)| {
                // Nobody can tell one on a lost host anything, and its host starts nothing before it has heard that it goes.
                (instance, if lost { Leave::Now } else { self.leave(instance) })
            });
            match leaves {
                Ok((instance, Leave::Now)) => instances.push(instance),
                Ok((_, Leave::After(step))) => self.asked.push(step),
                Ok((_, Leave::Wait(why))) | Err(why) => waits.push(format!("shard {}: {why}", group.id)),
            }
        }
        for why in waits {
            self.plan.wait(self.id, why);
        }
        if instances.is_empty() {
            return Then::GoOn;
        }
        // Those that have to be told first go under the operation that told them.
        let under_way = self.state.operations.values().rev().find(|o| {
            o.cluster == self.id && o.kind == OperationKind::Shrink && o.state == OperationState::Running
        });
        let operation = match under_way {
            Some(known) => {
                NewOperation { id: known.id, kind: known.kind, cause: known.cause.clone(), goal: None }
            }
            None => self.operation(OperationKind::Shrink, format!("{FEWER}: {}", listed(&instances))),
        };
        self.plan.propose.push(Decision::Shrink { cluster: self.id, instances, operation });
        Then::Stop
    }

    /// The replica that is missed least, and whether its host is lost: on a lost host, else told to go already, else not in sync, else
    /// on a closed host, else in the worst place. Another one stays that is in sync, when the shard shall have any.
    fn spare(&self, group: &GroupSpec) -> Result<(InstanceId, bool), String> {
        let own: Vec<&Member<'_>> = self.view.wanted().filter(|m| m.instance.group == group.id).collect();
        if own.iter().any(|m| m.instance.replaces.is_some()) {
            return Err("a replica goes when the move under way has ended".to_owned());
        }
        // One that nobody hears may be the primary by now: taking another away would be a guess.
        let failed = |m: &Member<'_>| lost(m) && self.view.peers_about(m.instance.id) == PeerVerdict::Failed;
        if let Some(unheard) = own.iter().find(|m| !m.fresh && !failed(m)) {
            return Err(format!("instance {} has to be heard before a replica goes", unheard.instance.id));
        }
        let roles = self.view.roles();
        let shape = place::shape(self.state, self.view, group.class)
            .ok_or("its offers are no longer in the catalogue")?;
        let candidate = Candidate {
            group: group.id,
            primary: false,
            footprint: shape.footprint,
            groups: self.view.data_groups().count(),
            class: group.class,
        };
        let replica = |m: &&&Member<'_>| {
            let claims = m.fact().is_some_and(|(_, fact)| fact.claims_primary());
            !roles.contains(&(m.instance.id, Role::Primary)) && (failed(m) || !claims)
        };
        let missed_least = own.iter().filter(replica).max_by_key(|m| {
            let seats = seats(self.view, &[m.instance.id]);
            let place = m.host.map(|host| score(self.draft, &seats, host, candidate));
            let closed = m.host.is_some_and(|host| host.cordon.is_some());
            let (told, behind) = (self.view.stands_down(m.instance.id), !self.view.in_sync(m.instance.id));
            (failed(m), told, behind, closed, place)
        });
        let chosen = missed_least
            .ok_or("two members call themselves primary; a replica goes when one has yielded".to_owned())?;
        let stays =
            |m: &&Member<'_>| m.instance.id != chosen.instance.id && may_succeed(self.view, m.instance.id);
        if !failed(chosen) && group.members > 1 && !own.iter().any(stays) {
            return Err("a replica goes when another one is in sync and stays".to_owned());
        }
        Ok((chosen.instance.id, failed(chosen)))
    }
}

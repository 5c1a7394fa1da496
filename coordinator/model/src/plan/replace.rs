//! Members whose place another takes. In: a cluster's view. Out: one decision that reserves the new members and lets the old ones go,
//! or why nothing takes their place: the other members must have dealt with the loss first.

use shardplane_proto::ids::InstanceId;

use super::{
    cluster::{Then, Turn, lost},
    listed,
    place::{self, Vacancy},
};
use crate::{
    command::{Decision, ReplaceCause, Replaced},
    engine::{Member, PeerVerdict},
    state::OperationKind,
    time::Millis,
};

/// Between two replacements of members of one cluster that their hosts cannot run.
const CANNOT_RUN_REST: Millis = Millis::seconds(120);

impl Turn<'_, '_, '_> {
    /// Whether this member's place may be given to another: its host is lost, or says for longer than the grace that it cannot run
    /// it. The second only now and then, so that an image that runs nowhere does not wander over all hosts.
    fn replaceable(&self, member: &Member<'_>) -> Option<ReplaceCause> {
        if lost(member) {
            return Some(ReplaceCause::HostLost);
        }
        let grace = self.state.settings.lost_after;
        let failed = member.report.filter(|_| member.fresh).and_then(|report| report.failed_since)?;
        let rested =
            self.view.cluster.last_move.is_none_or(|last| self.view.now.since(last) > CANNOT_RUN_REST);
        (self.view.now.since(failed) > grace && rested).then_some(ReplaceCause::CannotRun)
    }

    pub(super) fn replace_lost(&mut self) -> Then {
        let formed = self.view.cluster.formed;
        let mut replaced = Vec::new();
        for member in self.view.wanted() {
            let Some(cause) = self.replaceable(member) else { continue };
            let host =
                member.host.map_or_else(|| member.instance.host.to_string(), |host| host.facts.name.clone());
            let what = match cause {
                ReplaceCause::HostLost => format!("instance {} on lost host {host}", member.instance.id),
                ReplaceCause::CannotRun => {
                    format!("instance {}, which host {host} cannot run", member.instance.id)
                }
            };
            let verdict = match self.view.peers_about(member.instance.id) {
                // Nothing of a cluster that never served is worth waiting for.
                PeerVerdict::Unknown if !formed => PeerVerdict::Failed,
                verdict @ (PeerVerdict::Alive | PeerVerdict::Failed | PeerVerdict::Unknown) => verdict,
            };
            match verdict {
                PeerVerdict::Alive => {
                    let why = "the other members still see it working, so nothing takes its place";
                    self.plan.wait(self.id, format!("{what}: {why}"));
                }
                PeerVerdict::Unknown => {
                    let why = "its shard has no other primary that answers, so it may hold the only copy; bring the host back";
                    self.plan.wait(self.id, format!("{what}: {why}"));
                }
                PeerVerdict::Failed => replaced.push((member, cause, what)),
            }
        }
        if replaced.is_empty() {
            return Then::GoOn;
        }
        if formed { self.replace_some(&replaced) } else { self.replace_all(&replaced) }
    }

    /// Neither made to replace another nor being replaced by one that stays.
    fn leaves_a_seat(&self, member: &Member<'_>, leaving: &[InstanceId]) -> bool {
        let heir = |m: &Member<'_>| m.instance.replaces == Some(member.instance.id);
        let has_heir = self.view.wanted().any(|m| heir(m) && !leaving.contains(&m.instance.id));
        member.instance.replaces.is_none() && !has_heir
    }

    /// The seat that a replaced member leaves empty. One on its way to replace another is not missed: its place is planned anew.
    /// One that is being replaced leaves its place to its heir, and one too many of its group is simply let go.
    fn vacancy_of(
        &self,
        member: &Member<'_>,
        cause: ReplaceCause,
        leaving: &[InstanceId],
    ) -> Option<Vacancy> {
        if !self.leaves_a_seat(member, leaving) {
            return None;
        }
        let group = self.view.groups.iter().find(|g| g.id == member.instance.group)?;
        if self.view.goes_at_once(group.id) {
            return None;
        }
        let own = self.view.wanted().filter(|m| m.instance.group == group.id);
        let before = own
            .filter(|m| leaving.contains(&m.instance.id) && m.instance.id < member.instance.id)
            .filter(|m| self.leaves_a_seat(m, leaving));
        if before.count() < self.too_many(group) {
            return None;
        }
        let not_on = match cause {
            ReplaceCause::HostLost => Vec::new(),
            ReplaceCause::CannotRun => vec![member.instance.host],
        };
        let begins = !self.view.cluster.formed || self.view.is_empty(group.id);
        let first_primary = member.instance.first_primary && begins;
        Some(Vacancy { group: group.clone(), primary: first_primary, replaces: None, not_on })
    }

    /// A cluster that never served: all seats at once or none.
    fn replace_all(&mut self, replaced: &[(&Member<'_>, ReplaceCause, String)]) -> Then {
        let leaving: Vec<InstanceId> = replaced.iter().map(|(m, _, _)| m.instance.id).collect();
        let vacancies: Vec<Vacancy> = replaced
            .iter()
            .filter_map(|(member, cause, _)| self.vacancy_of(member, *cause, &leaving))
            .collect();
        let names: Vec<&str> = replaced.iter().map(|(_, _, what)| what.as_str()).collect();
        let cause = format!("replaces {}", listed(&names));
        let mut seats = self.seats(&leaving);
        match place::fill(self.state, self.view, self.draft, &mut seats, &vacancies, self.ids) {
            Ok(reservations) => {
                let retire =
                    replaced.iter().map(|(m, cause, _)| Replaced { instance: m.instance.id, cause: *cause });
                let retire = retire.collect();
                let operation = self.operation(OperationKind::Repair, cause);
                self.plan.propose.push(Decision::Place { cluster: self.id, reservations, retire, operation });
                Then::Stop
            }
            Err(why) => {
                self.plan.wait(self.id, format!("no place for what {cause}: {why}"));
                Then::GoOn
            }
        }
    }

    /// A cluster that serves: each seat for itself, shards with the fewest copies first, so that one that fits does not wait for
    /// one that does not.
    fn replace_some(&mut self, replaced: &[(&Member<'_>, ReplaceCause, String)]) -> Then {
        let leaving: Vec<InstanceId> = replaced.iter().map(|(m, _, _)| m.instance.id).collect();
        let copies = |member: &Member<'_>| {
            let group = member.instance.group;
            self.view
                .wanted()
                .filter(|m| m.instance.group == group && !leaving.contains(&m.instance.id))
                .count()
        };
        let mut order: Vec<_> = replaced.iter().collect();
        order.sort_by_key(|(member, _, _)| (copies(member), member.instance.id));
        let mut seats = self.seats(&leaving);
        let mut reservations = Vec::new();
        let mut retire = Vec::new();
        let mut names = Vec::new();
        for (member, cause, what) in order {
            let vacancies: Vec<Vacancy> = self.vacancy_of(member, *cause, &leaving).into_iter().collect();
            match place::fill(self.state, self.view, self.draft, &mut seats, &vacancies, self.ids) {
                Ok(filled) => {
                    reservations.extend(filled);
                    retire.push(Replaced { instance: member.instance.id, cause: *cause });
                    names.push(what.as_str());
                }
                Err(why) => self.plan.wait(self.id, format!("no place for what replaces {what}: {why}")),
            }
        }
        if retire.is_empty() {
            return Then::GoOn;
        }
        let operation = self.operation(OperationKind::Repair, format!("replaces {}", listed(&names)));
        self.plan.propose.push(Decision::Place { cluster: self.id, reservations, retire, operation });
        Then::Stop
    }
}

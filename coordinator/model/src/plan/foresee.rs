//! What a drain or the loss of hosts would lead to. In: the state, what is observed, hosts and a question. Out: where each of its
//! instances would go or why not, and how well spread the clusters would be then. Placement is the planner's own, on a draft that is
//! thrown away; nothing is decided here.

use std::collections::BTreeSet;

use shardplane_proto::ids::{ClusterId, GroupId, HostId, InstanceId};

use super::{
    NewIds, cluster_view,
    draft::{Draft, Seat},
    drain::{Way, heir_of, held_up, way},
    outlook::{Outlook, outlook},
    place::{self, Vacancy},
    rehearse::Pause,
    takeover::DETACHED,
};
use crate::{
    engine::{ClusterView, Role},
    observed::Observed,
    state::{State, lease_ends_after},
    time::{Millis, Timestamp},
    view::spread::most_primaries_on_a_host,
};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The host is drained.
    Drain {
        /// As the drain's own.
        force: bool,
    },
    /// The host is lost and never returns.
    Loss,
}

/// What becomes of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// The instance.
    pub instance: InstanceId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Where it, or what replaces it, would be; the error says why nowhere.
    pub to: Result<HostId, String>,
}

/// What becomes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeseenCluster {
    /// How well spread it would be.
    pub outlook: Outlook,
    /// What its clients would notice of a loss.
    pub pauses: Vec<Pause>,
}

/// What reports and decisions take from the moment a takeover may begin.
const DECIDED: Millis = Millis::seconds(5);

/// The answer for one host.
pub fn foresee(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    host: HostId,
    question: Question,
) -> (Vec<Foreseen>, Vec<ForeseenCluster>) {
    foresee_all(state, observed, now, &[host].into(), question)
}

/// The answer for hosts at once: instances in order of cluster and id, and the clusters they belong to.
pub fn foresee_all(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    hosts: &BTreeSet<HostId>,
    question: Question,
) -> (Vec<Foreseen>, Vec<ForeseenCluster>) {
    let draft = Draft::new(state, observed, now);
    let mut draft = hosts.iter().fold(draft, |draft, host| draft.without(*host));
    // Nothing is placed here: the ids are for nobody.
    let mut number = 0;
    let mut ids = || {
        number += 1;
        number
    };
    let (mut moves, mut foreseen) = (Vec::new(), Vec::new());
    let here = state.instances.values().filter(|instance| hosts.contains(&instance.host));
    let clusters: BTreeSet<ClusterId> = here.map(|instance| instance.cluster).collect();
    for cluster in clusters {
        let Some(view) = cluster_view(state, observed, cluster, now) else { continue };
        if !view.wanted().any(|m| hosts.contains(&m.instance.host)) {
            continue;
        }
        let roles = view.roles();
        let seat = |m: &crate::engine::Member<'_>| Seat {
            group: m.instance.group,
            host: m.instance.host,
            primary: roles.contains(&(m.instance.id, Role::Primary)),
        };
        let mut trial = Trial {
            state,
            observed,
            view: &view,
            hosts,
            seats: view.wanted().map(|m| (m.instance.id, seat(m))).collect(),
            pauses: Vec::new(),
        };
        let answers = match question {
            Question::Drain { force } => trial.drain(&mut draft, force, &mut ids),
            Question::Loss => trial.lose(&mut draft, &mut ids),
        };
        moves.extend(answers.into_iter().map(|(instance, to)| Foreseen { instance, cluster, to }));
        trial.pauses.sort_by_key(|pause| std::cmp::Reverse(pause.milliseconds));
        foreseen.push(ForeseenCluster { outlook: trial.outlook(cluster), pauses: trial.pauses });
    }
    (moves, foreseen)
}

type Answers = Vec<(InstanceId, Result<HostId, String>)>;

/// One cluster as it would be.
struct Trial<'v> {
    state: &'v State,
    observed: &'v Observed,
    view: &'v ClusterView<'v>,
    hosts: &'v BTreeSet<HostId>,
    seats: Vec<(InstanceId, Seat)>,
    pauses: Vec<Pause>,
}

impl Trial<'_> {
    fn on_host(&self) -> Vec<(InstanceId, Seat)> {
        self.seats.iter().filter(|(_, seat)| self.hosts.contains(&seat.host)).copied().collect()
    }

    fn without(&self, id: InstanceId) -> Vec<Seat> {
        self.seats.iter().filter(|(other, _)| *other != id).map(|(_, seat)| *seat).collect()
    }

    fn set(&mut self, id: InstanceId, change: impl Fn(&mut Seat)) {
        self.seats.iter_mut().filter(|(other, _)| *other == id).for_each(|(_, seat)| change(seat));
    }

    fn drain(&mut self, draft: &mut Draft<'_>, force: bool, ids: NewIds<'_>) -> Answers {
        let mut answers = Vec::new();
        let held_up = held_up(self.state, self.observed, self.view);
        for (id, _) in self.on_host() {
            let Some(member) = self.view.wanted().find(|m| m.instance.id == id) else { continue };
            if let Some(heir) = heir_of(self.view, id) {
                self.seats.retain(|(other, _)| *other != id);
                answers.push((id, Ok(heir.instance.host)));
                continue;
            }
            if let Some((_, why)) = &held_up {
                answers.push((id, Err(why.clone())));
                continue;
            }
            // Twice: a primary that has to yield first moves as a replica then.
            let mut to = Err("it has to yield to a replica first, and then there is no place".to_owned());
            for _ in 0..2 {
                let primary = self.seats.iter().any(|(other, seat)| *other == id && seat.primary);
                match way(self.state, self.view, draft, self.without(id), (member, primary), force, ids) {
                    Ok(Way::Move(reservations)) => {
                        to = reservations.first().map(|r| r.instance.host).ok_or_else(String::new);
                        break;
                    }
                    Ok(Way::SwitchOver(heir)) => {
                        self.set(id, |seat| seat.primary = false);
                        self.set(heir, |seat| seat.primary = true);
                    }
                    Err(why) => {
                        to = Err(why);
                        break;
                    }
                }
            }
            if let Ok(to) = to {
                self.set(id, |seat| seat.host = to);
            }
            answers.push((id, to));
        }
        answers
    }

    fn lose(&mut self, draft: &mut Draft<'_>, ids: NewIds<'_>) -> Answers {
        let gone = self.on_host();
        let groups = self.view.groups.len();
        let primaries = gone.iter().filter(|(_, seat)| seat.primary).count();
        let votes = groups >= 3 && primaries <= most_primaries_on_a_host(groups);
        self.seats.retain(|(_, seat)| !self.hosts.contains(&seat.host));
        let mut down = Vec::new();
        for (id, seat) in gone.iter().filter(|(_, seat)| seat.primary) {
            let heir =
                self.seats.iter().find(|(other, s)| s.group == seat.group && self.view.in_sync(*other));
            match heir.map(|(heir, _)| *heir) {
                None => down.push((*id, "its shard has no other copy: it is down until the host is back")),
                Some(heir) => {
                    self.set(heir, |seat| seat.primary = true);
                    if !self.view.is_empty(seat.group) {
                        let pause = self.pause(seat.group, heir, votes);
                        self.pauses.push(pause);
                    }
                }
            }
        }
        let mut answers = Vec::new();
        for (id, seat) in gone {
            let why = down.iter().find(|(other, _)| *other == id).map(|(_, why)| (*why).to_owned());
            let group = self.view.groups.iter().find(|group| group.id == seat.group);
            let to = match (why, group) {
                (Some(why), _) => Err(why),
                (None, None) => Err("its shard is no longer wanted".to_owned()),
                (None, Some(group)) => {
                    let vacancy =
                        Vacancy { group: group.clone(), primary: false, replaces: None, not_on: Vec::new() };
                    let mut seats: Vec<Seat> = self.seats.iter().map(|(_, seat)| *seat).collect();
                    let filled = place::fill(self.state, self.view, draft, &mut seats, &[vacancy], ids);
                    filled.and_then(|r| r.first().map(|r| r.instance.host).ok_or_else(String::new))
                }
            };
            if let Ok(host) = to {
                self.seats.push((id, Seat { group: seat.group, host, primary: false }));
            }
            answers.push((id, to));
        }
        answers
    }

    /// What clients of a shard notice whose primary is lost and whose replica `heir` leads it then.
    fn pause(&self, group: GroupId, heir: InstanceId, votes: bool) -> Pause {
        let engine = self.view.without_primary(votes);
        if votes {
            let what = format!(
                "shard {group} takes no reads or writes until the others have elected instance {heir}"
            );
            return Pause { what, milliseconds: u32::try_from(engine.0).unwrap_or(u32::MAX) };
        }
        let silence = self.view.notices_silence();
        let lease = lease_ends_after(self.state.longest_lease.max(self.state.settings.lease));
        let what = format!(
            "shard {group} takes no reads or writes: too few primaries are left to vote, so instance {heir} takes over when it is proved that the old primary serves nobody: the lease of its host is over and instance {heir} has noticed the silence for {} s, which takes it {} s (repl-timeout), or somebody says that the host never returns (kc delete host)",
            DETACHED.0 / 1_000,
            silence.0 / 1_000
        );
        let detached = silence.0.saturating_add(DETACHED.0);
        let all = engine.max(lease).0.max(detached).saturating_add(DECIDED.0);
        Pause { what, milliseconds: u32::try_from(all).unwrap_or(u32::MAX) }
    }

    fn outlook(&self, cluster: ClusterId) -> Outlook {
        let seats: Vec<Seat> = self.seats.iter().map(|(_, seat)| *seat).collect();
        outlook(self.state, cluster, &self.view.groups, &seats)
    }
}

//! What a drain or the loss of hosts would lead to. In: the state, what is observed, hosts and a question. Out: where each of its
//! instances would go or why not, what that copies and whom it moves slots to, how well spread the clusters would be and what clients
//! would notice. Placement is the planner's own, on a draft that is
//! thrown away; nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::{ClusterId, GroupId, HostId, InstanceId};

use super::{
    NewIds, cluster_view,
    draft::{Draft, Seat},
    drain::{Way, heir_of, held_up, way},
    outlook::{Outlook, outlook},
    place::{self, Vacancy},
    rehearse::{Pause, SWITCHOVER_MS},
    takeover::DETACHED,
};
use crate::{
    engine::{ClusterView, Held, Role},
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
    /// Slots that it leads now and would lead no longer.
    pub slots: u32,
    /// About so many bytes of memory that what replaces it would copy from the primary of its group.
    pub bytes: u64,
}

/// What becomes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeseenCluster {
    /// How well spread it would be.
    pub outlook: Outlook,
    /// What its clients would notice, longest first.
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
            class: view.class_of(m.instance.group),
        };
        let mut trial = Trial {
            state,
            observed,
            view: &view,
            hosts,
            held: view.held(),
            seats: view.wanted().map(|m| (m.instance.id, seat(m))).collect(),
            pauses: Vec::new(),
        };
        let answers = match question {
            Question::Drain { force } => trial.drain(&mut draft, force, &mut ids),
            Question::Loss => trial.lose(&mut draft, &mut ids),
        };
        moves.extend(answers);
        trial.pauses.sort_by_key(|pause| std::cmp::Reverse(pause.milliseconds));
        foreseen.push(ForeseenCluster { outlook: trial.outlook(cluster), pauses: trial.pauses });
    }
    (moves, foreseen)
}

/// One cluster as it would be.
struct Trial<'v> {
    state: &'v State,
    observed: &'v Observed,
    view: &'v ClusterView<'v>,
    hosts: &'v BTreeSet<HostId>,
    held: BTreeMap<GroupId, Held>,
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

    fn held(&self, group: GroupId) -> Held {
        self.held.get(&group).copied().unwrap_or_default()
    }

    /// What becomes of an instance that gives up so many slots; what replaces it copies all that its group has.
    fn foreseen(
        &self,
        instance: InstanceId,
        group: GroupId,
        to: Result<HostId, String>,
        slots: u32,
    ) -> Foreseen {
        let bytes = if to.is_ok() { self.held(group).bytes } else { 0 };
        Foreseen { instance, cluster: self.view.resource.id.into(), to, slots, bytes }
    }

    /// An instance hands its slots to a member in sync; answers how many.
    fn hands_over(&mut self, group: GroupId, to: &str) -> u32 {
        let slots = self.held(group).slots;
        if slots > 0 {
            let what = format!("writes to shard {group} wait while {to} takes over");
            self.pauses.push(Pause { what, milliseconds: SWITCHOVER_MS });
        }
        slots
    }

    fn host_name(&self, host: HostId) -> String {
        self.state.hosts.get(&host).map_or_else(|| host.to_string(), |host| host.facts.name.clone())
    }

    fn drain(&mut self, draft: &mut Draft<'_>, force: bool, ids: NewIds<'_>) -> Vec<Foreseen> {
        let mut answers = Vec::new();
        let held_up = held_up(self.state, self.observed, self.view);
        for (id, seat) in self.on_host() {
            let Some(member) = self.view.wanted().find(|m| m.instance.id == id) else { continue };
            if let Some(heir) = heir_of(self.view, id) {
                let heir = heir.instance;
                self.seats.retain(|(other, _)| *other != id);
                let mut slots = 0;
                if seat.primary {
                    self.set(heir.id, |seat| seat.primary = true);
                    slots = self.hands_over(seat.group, &format!("instance {}", heir.id));
                }
                let copied = self.view.in_sync(heir.id) || self.view.leads(heir.id);
                let foreseen = self.foreseen(id, seat.group, Ok(heir.host), slots);
                answers.push(Foreseen { bytes: if copied { 0 } else { foreseen.bytes }, ..foreseen });
                continue;
            }
            if let Some((_, why)) = &held_up {
                answers.push(self.foreseen(id, seat.group, Err(why.clone()), 0));
                continue;
            }
            // Twice: a primary that has to yield first moves as a replica then.
            let mut to = Err("it has to yield to a replica first, and then there is no place".to_owned());
            let mut slots = 0;
            for _ in 0..2 {
                let primary = self.seats.iter().any(|(other, seat)| *other == id && seat.primary);
                match way(self.state, self.view, draft, self.without(id), (member, primary), force, ids) {
                    Ok(Way::Move(reservations)) => {
                        to = reservations.first().map(|r| r.instance.host).ok_or_else(String::new);
                        if let (true, Ok(to)) = (primary, &to) {
                            let heir = format!("a new instance on host {}", self.host_name(*to));
                            slots = self.hands_over(seat.group, &heir);
                        }
                        break;
                    }
                    Ok(Way::SwitchOver(heir)) => {
                        self.set(id, |seat| seat.primary = false);
                        self.set(heir, |seat| seat.primary = true);
                        slots = self.hands_over(seat.group, &format!("instance {heir}"));
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
            answers.push(self.foreseen(id, seat.group, to, slots));
        }
        answers
    }

    fn lose(&mut self, draft: &mut Draft<'_>, ids: NewIds<'_>) -> Vec<Foreseen> {
        let gone = self.on_host();
        let groups = self.view.data_groups().count();
        let primaries = gone.iter().filter(|(_, seat)| seat.primary).count();
        let votes = self.view.cluster.engine.has_its_own_lease()
            || (groups >= 3 && primaries <= most_primaries_on_a_host(groups));
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
                self.seats.push((id, Seat { host, primary: false, ..seat }));
            }
            let slots = if seat.primary { self.held(seat.group).slots } else { 0 };
            answers.push(self.foreseen(id, seat.group, to, slots));
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

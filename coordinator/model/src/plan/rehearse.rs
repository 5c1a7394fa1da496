//! What a user's change would lead to. In: the state, what is observed and the change. Out: the refusal that it would meet, or each cluster
//! it concerns as it would be. The change and the planner's own decisions are carried out on a copy of the state, which is thrown away.

use std::collections::BTreeSet;

use shardplane_proto::ids::{ClusterId, GroupId, HostId, InstanceId, ResourceId};

use super::{
    Plan,
    cluster::{self, seats},
    cluster_view,
    draft::{Draft, Seat},
    outlook::{Outlook, outlook},
};
use crate::{
    command::{Command, Decision, Entry, Put},
    engine::{Class, Role, Travel},
    observed::Observed,
    refusal::Refusal,
    resource::{Kind, Outcome, Resource},
    state::{Instance, State},
    time::Timestamp,
};

/// Rounds of decisions that are carried out; each places or takes away what it can at once.
const ROUNDS: usize = 16;

/// What becomes of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It would be made.
    New,
    /// It is there and stays.
    Stays,
    /// It is there and would go.
    Goes,
}

/// How changed parameters reach a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// They are the same, or it starts with them.
    Same,
    /// While it serves.
    Live,
    /// With a restart of its engine.
    Restart,
}

/// Something that clients would notice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// What stands still for whom, and why.
    pub what: String,
    /// About so long; 0 when it is none in general.
    pub milliseconds: u32,
}

/// About how long a shard takes no writes while a replica that is in sync takes over.
pub(super) const SWITCHOVER_MS: u32 = 1_000;

/// About how long an engine with little data is away when it restarts.
const RESTART_MS: u32 = 3_000;

/// An instance as it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsed {
    /// The instance; the id of a new one is nobody's.
    pub instance: InstanceId,
    /// Its group.
    pub group: GroupId,
    /// Position of the group in the spec; none for one that goes.
    pub index: Option<usize>,
    /// Its host.
    pub host: HostId,
    /// What it is, or would be.
    pub role: Role,
    /// What becomes of it.
    pub fate: Fate,
    /// How changed parameters reach it.
    pub parameters: Reach,
    /// About so many bytes of memory that a new one copies from its primary. What travels to a new group reaches its members as it comes.
    pub bytes: u64,
}

/// A cluster as it would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RehearsedCluster {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its instances: by group, those that go last.
    pub instances: Vec<Rehearsed>,
    /// How well spread it would be.
    pub outlook: Outlook,
    /// Data that would travel between its groups.
    pub travels: Vec<Travel>,
    /// What clients would notice, longest first.
    pub pauses: Vec<Pause>,
    /// What it would wait for, for people.
    pub waits: Vec<String>,
}

/// A change as it would be carried out.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    /// The state when everything is accepted and placed; further changes can be rehearsed on it.
    pub state: State,
    /// Whether there is something to do at all.
    pub changes: bool,
    /// The clusters that it concerns.
    pub clusters: Vec<RehearsedCluster>,
}

/// Carries a change out on a copy.
///
/// # Errors
/// What the change itself would be refused with.
pub fn rehearse(state: &State, observed: &Observed, now: Timestamp, put: &Put) -> Result<Rehearsal, Refusal> {
    let mut after = state.clone();
    // Any index will do: nobody is told of this state.
    let index = u64::MAX;
    for answer in after.apply(index, &Entry { at: now, commands: vec![Command::Put(put.clone())] }) {
        answer?;
    }
    let known = |state: &State| state.resources.get(&put.id).map(|resource| resource.change.request);
    let changes = known(&after) != known(state);
    // Nothing is placed for anybody: the ids are nobody's.
    let mut number = 0;
    let mut ids = || {
        number += 1;
        number
    };
    let mut clusters = Vec::new();
    for id in concerned(&after, put.id) {
        let (mut leaving, mut waits) = (BTreeSet::new(), Vec::new());
        for _ in 0..ROUNDS {
            let Some(view) = cluster_view(&after, observed, id, now) else { break };
            let (mut draft, mut plan) = (Draft::new(&after, observed, now), Plan::default());
            let seats = cluster::Extent::Seats;
            leaving.extend(cluster::plan(&after, &view, &mut draft, &mut ids, &mut plan, seats));
            waits = plan.waiting.remove(&id).unwrap_or_default();
            let moves = |d: &Decision| matches!(d, Decision::Place { .. } | Decision::Shrink { .. });
            let commands: Vec<Command> =
                plan.propose.into_iter().filter(moves).map(Command::Decide).collect();
            if commands.is_empty() {
                break;
            }
            if let Some(refused) =
                after.apply(index, &Entry { at: now, commands }).into_iter().find_map(Result::err)
            {
                waits.push(refused.message);
                break;
            }
        }
        clusters.extend(compare(state, &after, observed, now, id, &leaving, waits));
    }
    Ok(Rehearsal { state: after, changes, clusters })
}

/// What clients notice when members restart or go.
fn pauses(instances: &[Rehearsed]) -> Vec<Pause> {
    let stays = |i: &&Rehearsed| i.fate == Fate::Stays;
    let restarts = |i: &&Rehearsed| i.parameters == Reach::Restart && i.role == Role::Primary;
    let followed = |i: &&Rehearsed| {
        instances.iter().filter(stays).any(|other| other.group == i.group && other.instance != i.instance)
    };
    let (led, alone): (Vec<&Rehearsed>, Vec<&Rehearsed>) =
        instances.iter().filter(stays).filter(restarts).partition(followed);
    let mut pauses = Vec::new();
    for primary in &alone {
        let what = format!(
            "shard {} has no replica: it is down while its only member restarts, longer with much data to load",
            primary.group
        );
        pauses.push(Pause { what, milliseconds: RESTART_MS });
    }
    if !led.is_empty() {
        let what = format!(
            "each of {} primaries hands over to a replica in sync before it restarts, one after the other: writes to its shard wait",
            led.len()
        );
        pauses.push(Pause { what, milliseconds: SWITCHOVER_MS });
    }
    if instances.iter().any(|i| i.fate == Fate::Goes && i.index.is_some()) {
        let what = "replicas go and nobody waits; one that leads by then hands over first, which holds writes to its shard for about a second";
        pauses.push(Pause { what: what.to_owned(), milliseconds: 0 });
    }
    pauses
}

/// The cluster that a resource is, or those that hang on it.
fn concerned(state: &State, id: ResourceId) -> Vec<ClusterId> {
    let Some(changed) = state.resources.get(&id) else { return Vec::new() };
    match changed.kind() {
        Kind::Cluster(_) => vec![ClusterId::from(id)],
        Kind::ParametersSet(_) => {
            let uses = |r: &&Resource| r.spec.references().iter().any(|(_, _, target)| *target == id);
            let clusters = state.resources.values().filter(uses).map(|r| ClusterId::from(r.id));
            clusters.filter(|id| state.clusters.contains_key(id)).collect()
        }
        Kind::Folder | Kind::HostingProvider | Kind::Vpc | Kind::VpcSubnet | Kind::Role(_) => Vec::new(),
    }
}

/// What is another after than before; none for a cluster that is not there.
fn compare(
    before: &State,
    after: &State,
    observed: &Observed,
    now: Timestamp,
    id: ClusterId,
    leaving: &BTreeSet<InstanceId>,
    waits: Vec<String>,
) -> Option<RehearsedCluster> {
    let view = cluster_view(after, observed, id, now)?;
    // Those that leave are wanted until they own nothing; the spec says that they go.
    let groups = view.spec.groups();
    let index = |group: GroupId| groups.iter().position(|known| known.id == group);
    let planned = seats(&view, &[]);
    let roles = view.roles();
    let led = |group: GroupId| planned.iter().any(|seat| seat.group == group && seat.primary);
    let held = view.held();
    let role = |instance: &Instance| {
        let known = roles.iter().find(|(known, _)| *known == instance.id).map_or(Role::Unknown, |(_, r)| *r);
        match known {
            Role::Unknown if view.class_of(instance.group) == Class::Quorum => Role::Voter,
            Role::Unknown if instance.first_primary && !led(instance.group) => Role::Primary,
            Role::Unknown if instance.first_primary && !view.cluster.formed => Role::Primary,
            Role::Unknown => Role::Replica,
            Role::Primary | Role::Replica | Role::Voter => known,
        }
    };
    let mut instances: Vec<Rehearsed> = view
        .members
        .iter()
        .map(|member| member.instance)
        .filter(|instance| {
            instance.wanted() || before.instances.get(&instance.id).is_some_and(Instance::wanted)
        })
        .map(|instance| {
            let index = index(instance.group);
            let stays = instance.wanted() && index.is_some() && !leaving.contains(&instance.id);
            let fate = match (before.instances.contains_key(&instance.id), stays) {
                (false, _) => Fate::New,
                (true, true) => Fate::Stays,
                (true, false) => Fate::Goes,
            };
            let newest = &view.cluster.rollout.parameters.values;
            let parameters = match (fate, &instance.parameters.values) {
                (Fate::New | Fate::Goes, _) => Reach::Same,
                (Fate::Stays, values) if values == newest => Reach::Same,
                (Fate::Stays, values) if view.cluster.engine.needs_restart(values, newest) => Reach::Restart,
                (Fate::Stays, _) => Reach::Live,
            };
            let (group, host) = (instance.group, instance.host);
            let bytes = match fate {
                Fate::New => held.get(&group).map_or(0, |held| held.bytes),
                Fate::Stays | Fate::Goes => 0,
            };
            let role = role(instance);
            Rehearsed { instance: instance.id, group, index, host, role, fate, parameters, bytes }
        })
        .collect();
    instances.sort_by_key(|i| (i.fate == Fate::Goes, i.index.unwrap_or(usize::MAX), i.role, i.instance));
    let left = instances.iter().filter(|i| i.fate != Fate::Goes);
    let seats: Vec<Seat> = left
        .map(|i| Seat {
            group: i.group,
            host: i.host,
            primary: i.role == Role::Primary,
            class: view.class_of(i.group),
        })
        .collect();
    let outlook = outlook(after, id, &groups, &seats);
    let failed = match &view.resource.change.outcome {
        Outcome::Failed { message } => Some(message.clone()),
        Outcome::Done | Outcome::InFlight => None,
    };
    let mut pauses = pauses(&instances);
    let mut waits: Vec<String> = waits.into_iter().chain(failed).collect();
    let travels = match if view.cluster.formed { view.layout() } else { Ok(None) } {
        Ok(layout) => layout.map(|(layout, _)| view.travels(&layout)).unwrap_or_default(),
        Err(why) => {
            waits.push(why);
            Vec::new()
        }
    };
    if !travels.is_empty() {
        let what = "slots move key by key while clients are redirected (ASK, MOVED); a key of many MB keeps both primaries busy for as long as it takes to copy";
        pauses.push(Pause { what: what.to_owned(), milliseconds: 0 });
    }
    Some(RehearsedCluster { cluster: id, instances, outlook, travels, pauses, waits })
}

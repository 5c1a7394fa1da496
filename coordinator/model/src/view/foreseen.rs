//! What a drain, the loss of hosts or a user's change would lead to, for people. In: the planner's answer. Out: messages of the API.

use std::collections::BTreeSet;

use shardplane_proto::{
    ids::{ClusterId, HostId, ResourceId},
    v1,
};

use super::operator::host_name;
use crate::{
    engine::{Role, Travel},
    observed::Observed,
    plan::{
        Fate, ForeseenCluster, Pause, Question, Reach, Rehearsal, Rehearsed, RehearsedCluster, foresee_all,
    },
    state::State,
    time::Timestamp,
};

fn cluster_name(state: &State, cluster: ClusterId) -> String {
    let resource = state.resources.get(&ResourceId::from(cluster));
    resource.map(|resource| resource.metadata.name.clone()).unwrap_or_default()
}

/// The answer for hosts at once: one, or those of a rack. Whoever asks names them in it.
pub fn host_plan(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    hosts: &BTreeSet<HostId>,
    question: Question,
) -> v1::HostPlan {
    let name = |cluster: ClusterId| cluster_name(state, cluster);
    let (moves, clusters) = foresee_all(state, observed, now, hosts, question);
    let sums = |cluster: ClusterId| {
        let own = moves.iter().filter(|m| m.cluster == cluster);
        own.fold((0, 0), |(slots, bytes), m| (slots + m.slots, bytes + m.bytes))
    };
    let clusters = clusters.into_iter().map(|ForeseenCluster { outlook, pauses }| {
        let (slots, bytes) = sums(outlook.cluster);
        v1::PlannedCluster {
            id: outlook.cluster.to_string(),
            name: name(outlook.cluster),
            anti_affinity_ok: outlook.anti_affinity_ok,
            primary_spread_ok: outlook.primary_spread_ok,
            anti_affinity_message: outlook.anti_affinity_message,
            primary_spread_message: outlook.primary_spread_message,
            pauses: pauses.iter().map(pause).collect(),
            slots,
            bytes,
        }
    });
    let clusters = clusters.collect();
    let moves = moves.into_iter().map(|foreseen| {
        let (to_host, blocker) = match foreseen.to {
            Ok(to) => (host_name(state, to), String::new()),
            Err(why) => (String::new(), why),
        };
        v1::PlannedMove {
            instance_id: foreseen.instance.to_string(),
            cluster_id: foreseen.cluster.to_string(),
            cluster_name: name(foreseen.cluster),
            to_host,
            blocker,
            from_host: state
                .instances
                .get(&foreseen.instance)
                .map(|instance| host_name(state, instance.host))
                .unwrap_or_default(),
            slots: foreseen.slots,
            bytes: foreseen.bytes,
        }
    });
    v1::HostPlan {
        what: match question {
            Question::Drain { .. } => "drain",
            Question::Loss => "loss",
        }
        .to_owned(),
        host: String::new(),
        rack: String::new(),
        moves: moves.collect(),
        clusters,
    }
}

/// What a change would lead to. `before` is the state it was rehearsed on.
pub fn change_plan(before: &State, id: ResourceId, rehearsal: &Rehearsal) -> v1::ChangePlan {
    let resource = rehearsal.state.resources.get(&id);
    v1::ChangePlan {
        what: match (before.resources.contains_key(&id), rehearsal.changes) {
            (false, _) => "create",
            (true, true) => "update",
            (true, false) => "nothing",
        }
        .to_owned(),
        kind: resource.map(|resource| resource.kind().name().to_owned()).unwrap_or_default(),
        id: id.to_string(),
        name: resource.map(|resource| resource.metadata.name.clone()).unwrap_or_default(),
        clusters: rehearsal.clusters.iter().map(|cluster| changed(&rehearsal.state, cluster)).collect(),
    }
}

fn pause(pause: &Pause) -> v1::PlannedPause {
    v1::PlannedPause { what: pause.what.clone(), milliseconds: pause.milliseconds }
}

fn travel(travel: &Travel) -> v1::PlannedTravel {
    v1::PlannedTravel {
        from_shard_id: travel.from.to_string(),
        to_shard_id: travel.to.to_string(),
        slots: travel.slots,
        keys: travel.keys,
        bytes: travel.bytes,
    }
}

fn changed(state: &State, cluster: &RehearsedCluster) -> v1::PlannedChange {
    let instance = |i: &Rehearsed| v1::PlannedInstance {
        id: if i.fate == Fate::New { String::new() } else { i.instance.to_string() },
        shard_id: i.group.to_string(),
        shard_index: i.index.and_then(|index| i32::try_from(index).ok()).unwrap_or(-1),
        role: match i.role {
            Role::Primary => "primary",
            Role::Replica => "replica",
            Role::Voter => "voter",
            Role::Unknown => "",
        }
        .to_owned(),
        host: host_name(state, i.host),
        change: match i.fate {
            Fate::New => "new",
            Fate::Stays => "stays",
            Fate::Goes => "goes",
        }
        .to_owned(),
        parameters: match i.parameters {
            Reach::Same => "",
            Reach::Live => "live",
            Reach::Restart => "restart",
        }
        .to_owned(),
        bytes: i.bytes,
    };
    let outlook = cluster.outlook.clone();
    v1::PlannedChange {
        id: cluster.cluster.to_string(),
        name: cluster_name(state, cluster.cluster),
        instances: cluster.instances.iter().map(instance).collect(),
        anti_affinity_ok: outlook.anti_affinity_ok,
        anti_affinity_message: outlook.anti_affinity_message,
        primary_spread_ok: outlook.primary_spread_ok,
        primary_spread_message: outlook.primary_spread_message,
        travels: cluster.travels.iter().map(travel).collect(),
        pauses: cluster.pauses.iter().map(pause).collect(),
        waits: cluster.waits.clone(),
    }
}

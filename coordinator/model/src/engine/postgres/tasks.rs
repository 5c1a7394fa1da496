//! The next engine steps of a PostgreSQL cluster. In: what its members report. Out: the steps that may start now, or what is waited for.
//! Patroni forms groups, elects and rebuilds by itself; what is left to us is the quorum's membership, restarts that parameters wait
//! for, and waiting with a reason.

use prost::Message as _;
use shardplane_proto::{
    ids::InstanceId,
    v1::{self, postgres_task::Step as Body},
};

use super::{
    facts::{self, data_of, leader},
    quorum, restarts,
};
use crate::engine::{Class, ClusterView, Member, Next, Step, silence};

pub(super) fn step(instance: InstanceId, name: String, body: Body) -> Step {
    Step { instance, name, payload: v1::PostgresTask { step: Some(body) }.encode_to_vec() }
}

/// The step that makes this in-sync replica the leader of its group.
pub fn switchover(to: InstanceId) -> Step {
    step(to, format!("switch over to {to}"), Body::Switchover(v1::postgres_task::Switchover {}))
}

fn read(payload: &[u8]) -> Option<Body> {
    v1::PostgresTask::decode(payload).ok()?.step
}

/// Whether a member that performs this may lead afterwards.
pub fn raises(payload: &[u8]) -> bool {
    matches!(read(payload), Some(Body::Switchover(_)))
}

/// What a step changes; two steps that change the same are not asked for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changes {
    Membership,
    Leadership,
}

fn changes(payload: &[u8]) -> Option<Changes> {
    match read(payload)? {
        Body::AddLearner(_) | Body::Join(_) | Body::Promote(_) | Body::RemoveVoter(_) => {
            Some(Changes::Membership)
        }
        Body::Switchover(_) | Body::RestartEngine(_) => Some(Changes::Leadership),
    }
}

/// Whether two steps of one cluster must not be asked for at the same time.
pub fn exclude_each_other(one: &[u8], other: &[u8]) -> bool {
    matches!((changes(one), changes(other)), (Some(one), Some(other)) if one == other)
}

/// The next steps, or what is waited for.
pub fn next(view: &ClusterView<'_>) -> Next {
    let mut next = Next::default();
    let silent = view.wanted().filter(|member| member.engine().is_none()).map(|member| silence(view, member));
    next.waiting.extend(silent);
    let needed = quorum::next(view);
    next.steps.extend(needed.steps);
    next.waiting.extend(needed.waiting);
    for group in view.groups.iter().filter(|group| group.class == Class::Data) {
        let Some((primary, report)) = leader(view, group.id) else {
            next.waiting.push(format!("shard {} has no leader{}", group.id, trouble(view, group.id)));
            continue;
        };
        let own =
            view.wanted().filter(|m| m.instance.group == group.id && m.instance.id != primary.instance.id);
        next.waiting.extend(own.filter_map(|m| behind(view, m)));
        if !report.trouble.is_empty() {
            next.waiting.push(format!("shard {}: {}", group.id, report.trouble));
        }
    }
    if next.steps.is_empty() && next.waiting.is_empty() {
        let due = restarts::next(view);
        next.steps.extend(due.steps);
        next.waiting.extend(due.waiting);
    }
    next.whole = next.steps.is_empty() && next.waiting.is_empty();
    next.settled = next.whole;
    next
}

/// Why a group has no leader, in the words of its members.
fn trouble(view: &ClusterView<'_>, group: shardplane_proto::ids::GroupId) -> String {
    let own = view.wanted().filter(|m| m.instance.group == group);
    let said: Vec<String> = own
        .filter_map(|m| {
            let data = data_of(m)?;
            let lag = data
                .peers
                .iter()
                .find(|peer| peer.instance_id == m.instance.id.to_string())
                .and_then(|p| p.lag);
            let lag = lag.map_or(String::new(), |lag| format!(", {lag} bytes behind"));
            let trouble =
                if data.trouble.is_empty() { String::new() } else { format!(" ({})", data.trouble) };
            Some(format!("{} is {}{lag}{trouble}", m.instance.id, data.patroni_state))
        })
        .collect();
    if said.is_empty() { String::new() } else { format!(": {}", said.join(", ")) }
}

/// What keeps a replica from being one that could take over.
fn behind(view: &ClusterView<'_>, member: &Member<'_>) -> Option<String> {
    let data = data_of(member)?;
    let id = member.instance.id;
    if facts::in_sync(view, id) {
        return None;
    }
    Some(match data.patroni_state.as_str() {
        "streaming" | "running" => format!("instance {id} catches up with its leader"),
        state => format!("instance {id} copies the data of its leader: {state}"),
    })
}

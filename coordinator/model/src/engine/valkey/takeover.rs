//! Shards whose primary is dead, who could take over, and when the engine's own vote had its chance. In: what members report and what
//! their hosts say. Out: one [`Headless`] for each such shard, in the order of the spec. Pure; fencing and proof are the planner's.

use std::collections::BTreeSet;

use shardplane_proto::{
    ids::InstanceId,
    v1::{self, valkey_task::Step as Body},
};

use super::{
    config::{self, Timings},
    facts::{NOTHING_COPIED, fact_of, primaries, report_of, works},
    spec::ValkeySpec,
    tasks::step,
};
use crate::{
    engine::{ClusterView, Headless, Heir, Member, Step},
    state::Presence,
    time::{Millis, Timestamp},
};

/// How long an election may take beyond the hold: a replica waits, asks, may lose a round and ask again.
const ELECTION: Millis = Millis::seconds(60);
/// What the supervisor's hold of a dead primary is longer than two node timeouts.
const HOLD_MARGIN: Millis = Millis::seconds(5);

/// The step that promotes this replica without a vote.
pub fn takeover(heir: InstanceId) -> Step {
    step(heir, "take over".to_owned(), Body::Takeover(v1::valkey_task::Takeover {}))
}

/// Whether a member answers and clients can reach it.
fn serves(member: &Member<'_>) -> bool {
    report_of(member).is_some() && !member.report.is_some_and(|report| report.port_cut || report.fenced)
}

/// Since when a member that does not serve is silent, as far as this leader knows.
fn silent_since(view: &ClusterView<'_>, member: &Member<'_>) -> Timestamp {
    match member.report {
        None => view.listens_since,
        Some(report) if member.fresh => report.silent_since.unwrap_or(report.at),
        Some(report) => report.silent_since.unwrap_or(report.at).max(view.listens_since),
    }
}

/// Whether somebody who answers has an opinion, and nobody sees it working. Who is cut off from the coordinator alone goes on serving.
fn given_up(view: &ClusterView<'_>, node_id: &str) -> bool {
    let witnesses = view.wanted().filter(|member| serves(member)).filter_map(report_of);
    let opinions: Vec<bool> = witnesses
        .flat_map(|report| &report.peers)
        .filter(|peer| peer.node_id == node_id)
        .map(works)
        .collect();
    !opinions.is_empty() && !opinions.contains(&true)
}

/// Every shard that owns slots, or keys of a slot on its way to it, and has no working primary.
pub fn headless(view: &ClusterView<'_>, spec: &ValkeySpec, timings: Timings) -> Vec<Headless> {
    let Timings { timeout, valid, link: _ } = timings;
    let primaries = primaries(view);
    let member = |id: &InstanceId| view.members.iter().find(|member| member.instance.id == *id);
    // Who owns no slot has no vote, and the engine elects nobody in its place.
    let owner = |member: &&Member<'_>| fact_of(member).is_some_and(|fact| fact.claims_primary());
    let voters: Vec<&Member<'_>> = primaries.values().filter_map(member).filter(owner).collect();
    let working = voters.iter().filter(|primary| serves(primary)).count();
    let majority = working > voters.len() / 2;
    let mut found = Vec::new();
    for group in &view.groups {
        let Some(old) = primaries.get(&group.id).and_then(member) else { continue };
        let Some(fact) = fact_of(old).filter(|_| !serves(old)) else { continue };
        // Of a shard that is empty another takes the place: nothing is lost with it.
        if !given_up(view, &fact.node_id) || view.is_empty(group.id) {
            continue;
        }
        let slotless = !fact.claims_primary();
        let since = silent_since(view, old);
        let own: Vec<&Member<'_>> = view
            .wanted()
            .filter(|m| m.instance.group == group.id && m.instance.id != old.instance.id)
            .collect();
        let gone = old.host.is_none_or(|host| host.retired);
        // Who follows an older primary lacks what this one has taken since, be it confirmed by others: only when it never comes back.
        let fenced = own.iter().filter(|m| gone && m.instance.fence.is_some()).filter_map(|m| fact_of(m));
        let followed: BTreeSet<String> =
            fenced.map(|fact| fact.node_id).chain([fact.node_id.clone()]).collect();
        let present = |m: &Member<'_>| m.host.is_some_and(|host| host.presence == Presence::Present);
        let candidates = own.iter().filter(|m| m.instance.fence.is_none() && present(m) && serves(m));
        // One that started anew has a file, and no place in its primary's stream: what it lacks is not known. It leads when it was
        // chosen before, as nobody has served since, or when its primary is given up and nobody who may have more is out of sight.
        // One without keys may never have copied anything.
        let chosen = |m: &Member<'_>| {
            own.iter()
                .chain([&old])
                .any(|other| other.instance.fence.as_ref().is_some_and(|f| f.heir == Some(m.instance.id)))
        };
        let accounted = |m: &Member<'_>| m.host.is_none_or(|host| host.retired) || (present(m) && serves(m));
        let given_up = gone && own.iter().all(|m| accounted(m));
        let mut heirs: Vec<(bool, u64, u64, Heir)> = candidates
            .filter_map(|m| Some((m, report_of(m)?)))
            .filter(|(_, r)| r.role == "slave" && followed.contains(&r.primary_node_id))
            .filter(|(m, r)| {
                let last_resort = chosen(m) || (given_up && r.keys > 0);
                r.offset > NOTHING_COPIED || (last_resort && config::persistent(spec, m.instance))
            })
            .map(|(m, r)| {
                let detached_since = m.report.and_then(|report| report.detached_since);
                let heir = Heir { instance: m.instance.id, detached_since };
                (r.primary_node_id == fact.node_id, r.offset, r.keys, heir)
            })
            .collect();
        heirs.sort_by_key(|(follows, offset, keys, heir)| {
            (std::cmp::Reverse((*follows, *offset, *keys)), heir.instance)
        });
        let unheard =
            own.iter().filter(|m| m.instance.fence.is_none() && m.heard && present(m) && !serves(m));
        // One that has been without its primary for longer stands in no election any more.
        let stands = |heir: &Heir| {
            valid.is_none_or(|valid| heir.detached_since.is_none_or(|at| view.now.since(at) <= valid))
        };
        let votes = !slotless && majority && heirs.iter().any(|(_, _, _, heir)| stands(heir));
        let patience =
            if votes { Millis(ELECTION.0 + timeout.0 * 2 + HOLD_MARGIN.0) } else { Millis(timeout.0 * 2) };
        found.push(Headless {
            group: group.id,
            primary: old.instance.id,
            primaries: voters.len(),
            working,
            slotless,
            votes,
            since,
            patience,
            unheard: unheard.map(|m| m.instance.id).collect(),
            heirs: heirs.into_iter().map(|(_, _, _, heir)| heir).collect(),
        });
    }
    found
}

/// The member of each shard that leads it and is seen to.
pub fn leads(view: &ClusterView<'_>, instance: InstanceId) -> bool {
    let member = view.members.iter().find(|member| member.instance.id == instance);
    member.is_some_and(|member| {
        serves(member) && primaries(view).get(&member.instance.group) == Some(&instance)
    })
}

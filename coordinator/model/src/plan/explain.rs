//! Why each instance is where it is. In: the state. Out: for every instance the score of its host and what speaks against each other
//! host, as placing it now would judge. Shown by `kc explain placement`.

use shardplane_proto::{ids::ClusterId, v1};

use super::{
    cluster_view,
    draft::{Draft, Seat},
    score::{Candidate, score},
};
use crate::{
    engine::Role,
    observed::Observed,
    state::{Presence, State},
};

/// The explanation; empty when there is no such cluster or nothing is placed.
pub fn explain(state: &State, cluster: ClusterId) -> v1::Explanation {
    let nothing = Observed::default();
    let explained = cluster_view(state, &nothing, cluster, state.now).map(|view| {
        let draft = Draft::of_all_hosts(state);
        let roles = view.roles();
        let is_primary = |id| roles.contains(&(id, Role::Primary));
        let explain_one = |member: &crate::engine::Member<'_>| {
            let instance = member.instance;
            let others = view.wanted().filter(|m| m.instance.id != instance.id);
            let seats: Vec<Seat> = others
                .map(|m| Seat {
                    group: m.instance.group,
                    host: m.instance.host,
                    primary: is_primary(m.instance.id),
                    class: view.class_of(m.instance.group),
                })
                .collect();
            let candidate = Candidate {
                group: instance.group,
                primary: is_primary(instance.id),
                footprint: instance.footprint,
                groups: view.data_groups().count(),
                class: view.class_of(instance.group),
            };
            let own = state.hosts.get(&instance.host).map(|host| score(&draft, &seats, host, candidate));
            let verdicts = state.hosts.values().filter(|host| host.id != instance.host).map(|host| {
                let short = draft.short(host, instance.footprint);
                let why_not = match host.presence {
                    Presence::Lost { since } => format!("lost since {since}"),
                    Presence::Present if host.cordon.is_some() => {
                        host.cordon.as_ref().map(ToString::to_string).unwrap_or_default()
                    }
                    Presence::Present if !short.is_empty() => format!("short of {}", short.join(", ")),
                    Presence::Present => own.map_or_else(String::new, |own| {
                        score(&draft, &seats, host, candidate).worse_in(&own)
                    }),
                };
                v1::HostVerdict { host: host.facts.name.clone(), why_not }
            });
            v1::InstanceExplanation {
                instance_id: instance.id.to_string(),
                shard_id: instance.group.to_string(),
                chosen_host: state
                    .hosts
                    .get(&instance.host)
                    .map(|host| host.facts.name.clone())
                    .unwrap_or_default(),
                why: own.map(|own| own.to_string()).unwrap_or_default(),
                others: verdicts.collect(),
            }
        };
        view.wanted().map(explain_one).collect()
    });
    v1::Explanation { instances: explained.unwrap_or_default() }
}

//! How well spread a cluster would be. In: its groups and seats as they would be. Out: the two verdicts of the status, foretold, with a
//! message that names shards and hosts. Used by what foresees.

use std::collections::BTreeMap;

use shardplane_proto::ids::{ClusterId, HostId};

use super::draft::Seat;
use crate::{
    engine::{Class, GroupSpec},
    state::State,
    view::spread::most_primaries_on_a_host,
};

/// How a cluster would be afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The cluster.
    pub cluster: ClusterId,
    /// Every shard has a primary, on another host than its replicas.
    pub anti_affinity_ok: bool,
    /// For people.
    pub anti_affinity_message: String,
    /// No host holds so many primaries that its loss takes the majority.
    pub primary_spread_ok: bool,
    /// For people.
    pub primary_spread_message: String,
}

pub(super) fn outlook(state: &State, cluster: ClusterId, groups: &[GroupSpec], seats: &[Seat]) -> Outlook {
    let name = |host: HostId| {
        state.hosts.get(&host).map_or_else(|| host.to_string(), |host| host.facts.name.clone())
    };
    // Voters hold nothing that could be beside its copy.
    let groups: Vec<&GroupSpec> = groups.iter().filter(|group| group.class == Class::Data).collect();
    let mut apart = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let own = || seats.iter().filter(|seat| seat.group == group.id);
        match own().find(|seat| seat.primary) {
            None => apart.push(format!("shard {index} ({}) has no primary", group.id)),
            Some(primary) if own().any(|seat| !seat.primary && seat.host == primary.host) => {
                let host = name(primary.host);
                apart.push(format!("shard {index} ({}): primary and replica share host {host}", group.id));
            }
            Some(_) => {}
        }
    }
    let mut on: BTreeMap<HostId, usize> = BTreeMap::new();
    seats.iter().filter(|seat| seat.primary).for_each(|seat| *on.entry(seat.host).or_default() += 1);
    let most = most_primaries_on_a_host(groups.len());
    let heavy = on.into_iter().filter(|(_, primaries)| groups.len() >= 3 && *primaries > most);
    let heavy: Vec<String> = heavy
        .map(|(host, primaries)| {
            let (host, groups) = (name(host), groups.len());
            format!("host {host} holds {primaries} of {groups} primaries: its loss takes the majority")
        })
        .collect();
    Outlook {
        cluster,
        anti_affinity_ok: apart.is_empty(),
        anti_affinity_message: if apart.is_empty() {
            "every primary is on another host than its replicas".to_owned()
        } else {
            apart.join("; ")
        },
        primary_spread_ok: heavy.is_empty(),
        primary_spread_message: match (heavy.is_empty(), groups.len()) {
            (true, ..3) => "fewer than three shards cannot vote for a lost primary".to_owned(),
            (true, 3..) => "no host holds a majority of the primaries".to_owned(),
            (false, _) => heavy.join("; "),
        },
    }
}

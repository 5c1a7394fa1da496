//! The placement policy as data. In: a host and where the cluster's members are. Out: a [`Score`] whose derived order *is* the
//! policy: least wins, earlier fields outweigh all later ones.

use std::fmt;

use shardplane_proto::ids::{GroupId, HostId};

use super::draft::{Draft, Seat};
use crate::{
    engine::Class,
    state::{Footprint, Host},
    view::spread::most_primaries_on_a_host,
};

/// How well an instance would sit on a host; least wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Members of its own group on the host: anti-affinity, before everything else.
    pub own_group_on_host: u32,
    /// A primary only: the host would hold so many primaries that its loss takes the majority that votes.
    pub majority_on_host: bool,
    /// Members of its own group in the host's rack.
    pub own_group_in_rack: u32,
    /// Members of its own group in the host's zone.
    pub own_group_in_zone: u32,
    /// For a primary: primaries of the cluster on the host. For a replica: all members of the cluster there, since each may
    /// become a primary.
    pub cluster_on_host: u32,
    /// Tenths of the scarcest resource in use after placing; coarse, so that small differences move nothing.
    pub utilisation: u32,
    /// How many hosts further than the group's primary in the ring of ids: replicas of neighbours do not pile up on one host.
    pub ring_distance: usize,
    /// Every member of the coordinator breaks a tie alike.
    pub host: HostId,
}

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Its group.
    pub group: GroupId,
    /// Whether it will be a primary.
    pub primary: bool,
    /// What it takes.
    pub footprint: Footprint,
    /// Groups of its cluster that hold data.
    pub groups: usize,
    /// What it is for.
    pub class: Class,
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The score of `host` for `candidate`, given the cluster's other members.
pub fn score(draft: &Draft<'_>, seats: &[Seat], host: &Host, candidate: Candidate) -> Score {
    let own: Vec<&Seat> = seats.iter().filter(|seat| seat.group == candidate.group).collect();
    let here = |seat: &&&Seat| seat.host == host.id;
    let same = |of: fn(&Host) -> &str| {
        let mine = of(host);
        let shares =
            |seat: &&&Seat| !mine.is_empty() && draft.host(seat.host).is_some_and(|other| of(other) == mine);
        count(own.iter().filter(shares).count())
    };
    let primaries = seats.iter().filter(|seat| seat.primary && seat.host == host.id).count();
    let majority = candidate.primary
        && candidate.groups >= 3
        && primaries + 1 > most_primaries_on_a_host(candidate.groups);
    // A voter costs its host little: only its own kind counts for it, and for others it does not.
    let alike = seats.iter().filter(|seat| seat.host == host.id && seat.class == candidate.class);
    let on_host = if candidate.primary { primaries } else { alike.count() };
    Score {
        own_group_on_host: count(own.iter().filter(here).count()),
        majority_on_host: majority,
        own_group_in_rack: same(|host| &host.facts.rack),
        own_group_in_zone: same(|host| &host.facts.zone),
        cluster_on_host: count(on_host),
        utilisation: utilisation(draft.promised(host.id).plus(candidate.footprint), host.facts.capacity),
        ring_distance: own
            .iter()
            .find(|seat| seat.primary)
            .map_or(0, |seat| draft.ring_distance(seat.host, host.id)),
        host: host.id,
    }
}

fn utilisation(used: Footprint, of: Footprint) -> u32 {
    let tenths = |used: u64, of: u64| u32::try_from(used.saturating_mul(10) / of.max(1)).unwrap_or(u32::MAX);
    [
        tenths(used.vcpu_percent, of.vcpu_percent),
        tenths(used.memory_mib, of.memory_mib),
        tenths(used.disk_gib, of.disk_gib),
        tenths(used.iops, of.iops),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

/// The fields in order, for people.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "own shard on host {}, majority of primaries on host {}, own shard in rack {} and zone {}, cluster on host {}, utilisation {}0%",
            self.own_group_on_host,
            if self.majority_on_host { "yes" } else { "no" },
            self.own_group_in_rack,
            self.own_group_in_zone,
            self.cluster_on_host,
            self.utilisation
        )
    }
}

impl Score {
    /// The first field in which `self` is worse than `better`, for people.
    pub fn worse_in(&self, better: &Score) -> String {
        let fields = [
            ("members of its own shard on the host", self.own_group_on_host, better.own_group_on_host),
            (
                "majority of primaries on the host",
                u32::from(self.majority_on_host),
                u32::from(better.majority_on_host),
            ),
            ("members of its own shard in the rack", self.own_group_in_rack, better.own_group_in_rack),
            ("members of its own shard in the zone", self.own_group_in_zone, better.own_group_in_zone),
            ("members of the cluster on the host", self.cluster_on_host, better.cluster_on_host),
            ("utilisation in tenths", self.utilisation, better.utilisation),
        ];
        match fields.iter().find(|(_, mine, theirs)| mine != theirs) {
            Some((name, mine, theirs)) if mine > theirs => format!("{name}: {mine} against {theirs}"),
            Some((name, mine, theirs)) => {
                format!("better now ({name}: {mine} against {theirs}), but nothing moves for that alone")
            }
            None => "equal; the order of hosts decides".to_owned(),
        }
    }
}

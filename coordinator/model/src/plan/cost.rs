//! How badly a cluster is spread, as data. In: where its members sit. Out: a [`Cost`] whose derived order says what is mended first.
//! Everything the rebalancer does lowers it, so nothing goes back and forth while the world stands still.

use std::collections::BTreeMap;

use shardplane_proto::ids::{GroupId, HostId};

use super::draft::{Draft, Seat};
use crate::{state::Host, view::spread::most_primaries_on_a_host};

/// What is wrong with the spread of a cluster; earlier fields outweigh all later ones. The first two and the third are what users see
/// as `antiAffinityOk` and `primarySpreadOk`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Replicas on the host of their primary.
    pub beside_primary: usize,
    /// Pairs of members of one group on one host.
    pub on_host: usize,
    /// Primaries on a host above those whose loss leaves a majority.
    pub too_many_primaries: usize,
    /// Pairs of members of one group in one rack.
    pub in_rack: usize,
    /// Pairs of members of one group in one zone.
    pub in_zone: usize,
    /// Pairs of primaries of the cluster on one host: mended by switch-overs alone, never by a copy of data.
    pub primaries_together: usize,
}

fn pairs(n: usize) -> usize {
    n * n.saturating_sub(1) / 2
}

fn together<K: Ord>(keys: impl Iterator<Item = K>) -> usize {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    keys.for_each(|key| *counts.entry(key).or_default() += 1);
    counts.into_values().map(pairs).sum()
}

/// The cost of these seats in a cluster of `groups` groups. Hosts without a rack or zone are in none together.
pub fn cost(draft: &Draft<'_>, seats: &[Seat], groups: usize) -> Cost {
    let named = |of: fn(&Host) -> &str| {
        together(seats.iter().filter_map(|seat| {
            let name = draft.host(seat.host).map(of).filter(|name| !name.is_empty())?;
            Some((seat.group, name))
        }))
    };
    let primaries: BTreeMap<GroupId, HostId> =
        seats.iter().filter(|seat| seat.primary).map(|seat| (seat.group, seat.host)).collect();
    let beside = |seat: &&Seat| !seat.primary && primaries.get(&seat.group) == Some(&seat.host);
    let mut on: BTreeMap<HostId, usize> = BTreeMap::new();
    primaries.values().for_each(|host| *on.entry(*host).or_default() += 1);
    let most = most_primaries_on_a_host(groups);
    Cost {
        beside_primary: seats.iter().filter(beside).count(),
        on_host: together(seats.iter().map(|seat| (seat.group, seat.host))),
        too_many_primaries: on.values().map(|n| n.saturating_sub(most)).sum::<usize>()
            * usize::from(groups >= 3),
        in_rack: named(|host| &host.facts.rack),
        in_zone: named(|host| &host.facts.zone),
        primaries_together: on.into_values().map(pairs).sum(),
    }
}

impl Cost {
    /// Whether a switch-over from `self` to `after` is worth its pause: lower, and no verdict that users see gets worse for it.
    pub fn worth_a_switchover(&self, after: &Cost) -> bool {
        after < self && after.too_many_primaries <= self.too_many_primaries
    }

    /// Whether anything that users see, or a host of its own for each member of a group, is worse than `before`.
    pub fn breaks_what_holds_in(&self, before: &Cost) -> bool {
        self.beside_primary > before.beside_primary
            || self.on_host > before.on_host
            || self.too_many_primaries > before.too_many_primaries
    }

    /// Whether one of the verdicts that users see is not true, and a switch-over may change that.
    pub fn broken(&self) -> bool {
        self.beside_primary > 0 || self.too_many_primaries > 0
    }
}

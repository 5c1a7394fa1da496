//! Who owns which slot. In: what members claim, each claim with its config epoch. Out: runs of slots with their owners: of two that
//! claim the same slot the higher epoch is right. Used by roles, by the moving of slots, and by the log's own checks.

use std::collections::BTreeMap;

use shardplane_proto::ids::{GroupId, InstanceId};

use super::{
    SLOTS,
    facts::{ValkeyFact, fact_of, report_of},
};
use crate::{
    engine::{ClusterView, Member},
    state::Fence,
};

/// What one member says that it owns.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The shard it belongs to.
    pub group: GroupId,
    /// The member.
    pub instance: InstanceId,
    /// Its config epoch.
    pub epoch: u64,
    /// Whether it says so now.
    pub fresh: bool,
    /// Whether it is fenced and its heir claims slots: it may have raised its epoch where nobody saw it.
    pub succeeded: bool,
    /// First and last slot of each range.
    pub slots: Vec<(u32, u32)>,
}

/// A run of slots with one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// First slot.
    pub start: u32,
    /// Last slot.
    pub end: u32,
    /// The shard.
    pub group: GroupId,
    /// The member that claims it rightly.
    pub instance: InstanceId,
}

impl Owned {
    /// How many slots.
    pub fn count(&self) -> u32 {
        self.end - self.start + 1
    }
}

/// The claims that hold, by slot. The highest epoch first; of equal ones the one that is heard now, then the first. Who was succeeded has
/// what nobody else claims.
pub fn settle(mut claims: Vec<Claim>) -> Vec<Owned> {
    claims.sort_by_key(|claim| std::cmp::Reverse((!claim.succeeded, claim.epoch, claim.fresh)));
    let mut free: BTreeMap<u32, u32> = [(0, SLOTS - 1)].into();
    let mut owned = Vec::new();
    for claim in claims {
        for (start, end) in &claim.slots {
            let first = free.range(..=*start).next_back().map_or(*start, |(first, _)| *first);
            let touched: Vec<(u32, u32)> = free
                .range(first..=*end)
                .filter(|(_, last)| **last >= *start)
                .map(|(first, last)| (*first, *last))
                .collect();
            for (first, last) in touched {
                let (from, to) = (first.max(*start), last.min(*end));
                free.remove(&first);
                if first < from {
                    free.insert(first, from - 1);
                }
                if last > to {
                    free.insert(to + 1, last);
                }
                owned.push(Owned { start: from, end: to, group: claim.group, instance: claim.instance });
            }
        }
    }
    owned.sort_by_key(|run| run.start);
    owned
}

fn claim(member: &Member<'_>, fact: ValkeyFact) -> Option<Claim> {
    fact.claims_primary().then_some(Claim {
        group: member.instance.group,
        instance: member.instance.id,
        epoch: fact.epoch,
        fresh: member.fresh,
        succeeded: false,
        slots: fact.slots,
    })
}

/// Who owns what by the newest that is known of every member, however old.
pub fn known(view: &ClusterView<'_>) -> Vec<Owned> {
    let claims = view.members.iter().filter_map(|member| claim(member, fact_of(member)?));
    let settled = |claim: Claim| Claim { succeeded: succeeded(view, claim.instance), ..claim };
    settle(claims.map(settled).collect())
}

/// Whether another of its shard claims slots in the place of this member: the heir that was chosen when it was fenced, whoever led when it
/// might serve again, or anybody when it was elected out of sight.
pub fn succeeded(view: &ClusterView<'_>, old: InstanceId) -> bool {
    let member = |id: InstanceId| view.members.iter().find(|member| member.instance.id == id);
    let Some(instance) = member(old).map(|old| old.instance) else { return false };
    let (fence, by) = (instance.fence.as_ref(), instance.succeeded_by.map(|(by, _)| by));
    let heir = fence.and_then(|fence| fence.heir).or(by);
    let anybody = fence.is_some_and(Fence::elected_unseen);
    let leads = |other: &Member<'_>| {
        let own = other.instance.group == instance.group && other.instance.id != old;
        let may = own && other.instance.wanted() && other.instance.fence.is_none();
        may && fact_of(other).is_some_and(|fact| fact.claims_primary())
    };
    view.members.iter().any(|other| (anybody || heir == Some(other.instance.id)) && leads(other))
}

/// Who owns what by the own words of the primaries that answer; slots of others are missing.
pub fn heard(view: &ClusterView<'_>, primaries: &BTreeMap<GroupId, InstanceId>) -> Vec<Owned> {
    let leads = |member: &&Member<'_>| {
        primaries.get(&member.instance.group) == Some(&member.instance.id) && report_of(member).is_some()
    };
    settle(view.members.iter().filter(leads).filter_map(|member| claim(member, fact_of(member)?)).collect())
}

/// Whether `group` owns nothing for certain: the newest primaries of the other shards own every slot. A slot that nobody claims may be
/// its own; so may one that is claimed by a member which another of its shard has succeeded.
pub fn owns_nothing<'f>(
    group: GroupId,
    facts: impl Iterator<Item = (GroupId, InstanceId, &'f ValkeyFact)>,
) -> bool {
    let (mut own, mut others) = (Vec::new(), BTreeMap::<GroupId, Claim>::new());
    for (of, instance, fact) in facts.filter(|(_, _, fact)| fact.claims_primary()) {
        let claim = Claim {
            group: of,
            instance,
            epoch: fact.epoch,
            fresh: true,
            succeeded: false,
            slots: fact.slots.clone(),
        };
        if of == group {
            own.push(claim);
        } else if others.get(&of).is_none_or(|known| known.epoch < claim.epoch) {
            others.insert(of, claim);
        }
    }
    let owned = settle(own.into_iter().chain(others.into_values()).collect());
    owned.iter().filter(|run| run.group != group).map(Owned::count).sum::<u32>() == SLOTS
}

/// What the members of a shard and all primaries that answer say.
fn heard_about(view: &ClusterView<'_>, group: GroupId) -> Vec<(GroupId, InstanceId, ValkeyFact)> {
    view.members
        .iter()
        .filter(|member| member.instance.group == group || report_of(member).is_some())
        .filter_map(|member| Some((member.instance.group, member.instance.id, fact_of(member)?)))
        .collect()
}

/// Whether a shard owns no slot, by all primaries' own words and by the log. One may be on its way to it: then some of its keys are there.
pub fn owns_no_slot(view: &ClusterView<'_>, group: GroupId) -> bool {
    let heard = heard_about(view, group);
    let logged = view.members.iter().filter_map(|member| {
        let fact = member.instance.fact.as_ref()?.1.valkey()?;
        Some((member.instance.group, member.instance.id, fact))
    });
    owns_nothing(group, heard.iter().map(|(of, instance, fact)| (*of, *instance, fact)))
        && owns_nothing(group, logged)
}

/// Whether nothing is lost with a shard: it owns no slot and no slot is on its way to it.
pub fn is_empty(view: &ClusterView<'_>, group: GroupId) -> bool {
    let heard = heard_about(view, group);
    let nodes: Vec<&str> =
        heard.iter().filter(|(of, _, _)| *of == group).map(|(_, _, fact)| fact.node_id.as_str()).collect();
    let open = view.members.iter().any(|member| {
        let marks =
            report_of(member).filter(|report| report.role == "master").map(|report| &report.open_slots);
        let own = member.instance.group == group;
        marks.into_iter().flatten().any(|mark| own || nodes.contains(&super::marks::other(mark)))
    });
    !open && owns_no_slot(view, group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(group: u128, epoch: u64, slots: &[(u32, u32)]) -> Claim {
        Claim {
            group: GroupId::from_u128(group),
            instance: InstanceId::from_u128(group * 10 + u128::from(epoch)),
            epoch,
            fresh: true,
            succeeded: false,
            slots: slots.to_vec(),
        }
    }

    fn runs(claims: Vec<Claim>) -> Vec<(u32, u32, u128)> {
        settle(claims).into_iter().map(|run| (run.start, run.end, run.group.as_u128())).collect()
    }

    #[test]
    fn the_higher_epoch_owns_and_what_is_left_is_split() {
        let claims = vec![claim(1, 1, &[(0, 9)]), claim(2, 3, &[(4, 5), (20, 29)]), claim(3, 2, &[(8, 21)])];
        let owned = [(0, 3, 1), (4, 5, 2), (6, 7, 1), (8, 19, 3), (20, 29, 2)];
        assert_eq!(runs(claims.clone()), owned);
        assert_eq!(runs(claims.into_iter().rev().collect()), owned);
        assert_eq!(runs(vec![claim(1, 1, &[(0, 16_383)]), claim(2, 2, &[(0, 16_383)])]), [(0, 16_383, 2)]);
    }

    fn fact(epoch: u64, slots: &[(u32, u32)]) -> ValkeyFact {
        ValkeyFact {
            node_id: format!("{epoch:040}"),
            role: "master".to_owned(),
            primary_node_id: String::new(),
            slots: slots.to_vec(),
            epoch,
            cluster_state: "ok".to_owned(),
            stands_down: false,
            blank: false,
        }
    }

    fn empty(group: u128, facts: &[(u128, ValkeyFact)]) -> bool {
        let facts = facts.iter().map(|(group, fact)| {
            (GroupId::from_u128(*group), InstanceId::from_u128(fact.epoch.into()), fact)
        });
        owns_nothing(GroupId::from_u128(group), facts)
    }

    #[test]
    fn a_shard_owns_nothing_only_when_the_others_own_everything_now() {
        let rest = [(1, fact(1, &[(0, 8191)])), (2, fact(2, &[(8192, 16_383)]))];
        assert!(empty(3, &rest));
        assert!(!empty(1, &rest));
        let with = |more: (u128, ValkeyFact)| rest.iter().cloned().chain([more]).collect::<Vec<_>>();
        assert!(empty(3, &with((3, fact(0, &[(0, 0)])))), "an old claim of a primary that lost its slots");
        assert!(!empty(3, &with((3, fact(3, &[(0, 0)])))));
        // Its shard has a newer primary, which does not own slot 8191: whoever does has not been heard.
        assert!(!empty(3, &with((1, fact(4, &[(0, 8190)])))));
        assert!(!empty(3, &rest[..1]));
    }
}

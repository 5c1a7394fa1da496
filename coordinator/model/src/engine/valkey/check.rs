//! The rules that need more than the message itself. In: parsed specs and the installation's settings. Out: every
//! violation with its path.

use shardplane_proto::ids::GroupId;

use super::{MOST_REPLICAS, MOST_SHARDS, spec::ValkeySpec};
use crate::{engine::offers, refusal::Violation, state::Settings};

/// Rules of a create: the offers exist, and the installation can give what is asked for.
pub fn create(spec: &ValkeySpec, settings: &Settings) -> Vec<Violation> {
    let mut wrong = offers::check(&spec.vm_offer, &spec.volume_offer, spec.volume_size_gib, settings);
    if spec.use_fqdn {
        wrong.push(Violation::new(
            "spec.useFqdn",
            "is true; this installation serves no DNS zone, so only false is allowed",
        ));
    }
    if spec.create_public_ipv4 {
        let text = "is true; this installation has no public IPv4 pool, so only false is allowed";
        wrong.push(Violation::new("spec.createPublicIpv4", text));
    }
    wrong
}

fn unchangeable<T: PartialEq>(path: &str, old: &T, new: &T, wrong: &mut Vec<Violation>) {
    if old != new {
        let text = "cannot change after creation: spec.parametersSetId changes freely, spec.shards and spec.replicasPerShard by one step; create a new cluster instead";
        wrong.push(Violation::new(path, text));
    }
}

/// Rules of a change.
pub fn modify(old: &ValkeySpec, new: &ValkeySpec) -> Vec<Violation> {
    let mut wrong = Vec::new();
    unchangeable("spec.valkeyVersion", &old.version, &new.version, &mut wrong);
    unchangeable("spec.vmOfferId", &old.vm_offer, &new.vm_offer, &mut wrong);
    unchangeable("spec.volumeOfferId", &old.volume_offer, &new.volume_offer, &mut wrong);
    unchangeable("spec.volumeSizeGiB", &old.volume_size_gib, &new.volume_size_gib, &mut wrong);
    unchangeable("spec.useFqdn", &old.use_fqdn, &new.use_fqdn, &mut wrong);
    unchangeable("spec.createPublicIpv4", &old.create_public_ipv4, &new.create_public_ipv4, &mut wrong);
    unchangeable("spec.rootPassword", &old.root_password, &new.root_password, &mut wrong);
    shards(old, new, &mut wrong);
    replicas(old, new, &mut wrong);
    wrong
}

fn listed(ids: &[GroupId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How many shards a change may lead to, for people: one more, one less, never 2.
fn allowed(before: usize) -> String {
    let counts = [before.saturating_sub(1), before, before + 1];
    let counts: Vec<String> = counts
        .iter()
        .filter(|count| **count != 0 && **count != 2 && **count <= MOST_SHARDS)
        .map(ToString::to_string)
        .collect();
    counts.join(" or ")
}

fn shards(old: &ValkeySpec, new: &ValkeySpec, wrong: &mut Vec<Violation>) {
    for (index, shard) in new.shards.iter().enumerate() {
        if let Some(was) = old.shards.iter().find(|s| s.id == shard.id && s.subnet != shard.subnet) {
            let path = format!("spec.shards[{index}].vpcSubnetId");
            let text = format!(
                "is {}; it cannot change: a shard stays in the subnet it was created in, {}",
                shard.subnet, was.subnet
            );
            wrong.push(Violation::new(path, text));
        }
    }
    let ids = |spec: &ValkeySpec| spec.shards.iter().map(|s| s.id).collect::<Vec<GroupId>>();
    let (before, after) = (ids(old), ids(new));
    let without = |all: &[GroupId], others: &[GroupId]| -> Vec<GroupId> {
        all.iter().filter(|id| !others.contains(id)).copied().collect()
    };
    let (added, removed) = (without(&after, &before), without(&before, &after));
    if without(&before, &removed) != without(&after, &added) {
        let text = format!(
            "has the same shards in another order; keep the order {}",
            listed(&without(&before, &removed))
        );
        wrong.push(Violation::new("spec.shards", text));
    }
    let (from, to) = (before.len(), after.len());
    if !added.is_empty() && !removed.is_empty() {
        let text = format!(
            "replaces a shard by another ({} by {}); keep the ids of existing shards, and add or remove at most one",
            listed(&removed),
            listed(&added)
        );
        wrong.push(Violation::new("spec.shards", text));
    }
    if from.abs_diff(to) > 1 || (from != to && to == 2) {
        let way = if (from, to) == (1, 3) || (from, to) == (3, 1) {
            "; the way between 1 and 3 leads over 2, which is never allowed: create a new cluster with the other number and copy the data"
        } else {
            ""
        };
        let text = format!(
            "goes from {from} to {to} shards; a change adds or removes at most one: allowed is {}{way}",
            allowed(from)
        );
        wrong.push(Violation::new("spec.shards", text));
    }
}

fn replicas(old: &ValkeySpec, new: &ValkeySpec, wrong: &mut Vec<Violation>) {
    let (before, after) = (old.replicas_per_shard, new.replicas_per_shard);
    let path = "spec.replicasPerShard";
    if before.abs_diff(after) > 1 {
        wrong.push(Violation::new(
            path,
            format!(
                "goes from {before} to {after}; a change adds or removes at most one: allowed is {} to {}",
                before.saturating_sub(1),
                (before + 1).min(MOST_REPLICAS.unsigned_abs())
            ),
        ));
    }
    if before != after && old.shards.len() != new.shards.len() {
        wrong.push(Violation::new(path, "changes together with spec.shards; change one, then the other"));
    }
}

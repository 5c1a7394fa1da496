//! The rules that need more than the message itself. In: parsed specs and the installation's settings. Out: every
//! violation with its path.

use std::collections::BTreeSet;

use shardplane_proto::ids::GroupId;

use super::spec::ValkeySpec;
use crate::{refusal::Violation, state::Settings};

/// Rules of a create: the offers exist, and the installation can give what is asked for.
pub fn create(spec: &ValkeySpec, settings: &Settings) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let known = |ids: Vec<&String>| ids.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if !spec.vm_offer.is_empty() && !settings.vm_offers.contains_key(&spec.vm_offer) {
        let offers = known(settings.vm_offers.keys().collect());
        wrong.push(Violation::new(
            "spec.vmOfferId",
            format!("{:?} is not in the catalogue, which has {offers}", spec.vm_offer),
        ));
    }
    match settings.volume_offers.get(&spec.volume_offer) {
        None if spec.volume_offer.is_empty() => {}
        None => {
            let offers = known(settings.volume_offers.keys().collect());
            let text = format!("{:?} is not in the catalogue, which has {offers}", spec.volume_offer);
            wrong.push(Violation::new("spec.volumeOfferId", text));
        }
        Some(offer) if spec.volume_size_gib > offer.max_size_gib => {
            let text = format!(
                "is {}; allowed is 1 to {} for the offer {}",
                spec.volume_size_gib, offer.max_size_gib, spec.volume_offer
            );
            wrong.push(Violation::new("spec.volumeSizeGiB", text));
        }
        Some(_) => {}
    }
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

fn shards(old: &ValkeySpec, new: &ValkeySpec, wrong: &mut Vec<Violation>) {
    let ids = |spec: &ValkeySpec| spec.shards.iter().map(|s| s.id).collect::<BTreeSet<GroupId>>();
    let (before, after) = (ids(old), ids(new));
    for (index, shard) in new.shards.iter().enumerate() {
        let was = old.shards.iter().find(|s| s.id == shard.id);
        if was.is_some_and(|was| was.subnet != shard.subnet) {
            let path = format!("spec.shards[{index}].vpcSubnetId");
            wrong.push(Violation::new(path, "cannot change: a shard stays in the subnet it was created in"));
        }
    }
    if before == after {
        let order = |spec: &ValkeySpec| spec.shards.iter().map(|s| s.id).collect::<Vec<_>>();
        if order(old) != order(new) {
            wrong.push(Violation::new("spec.shards", "has the same shards in another order; keep the order"));
        }
    } else if before.len() == after.len() {
        let text = "replaces a shard by another; keep the ids of existing shards";
        wrong.push(Violation::new("spec.shards", text));
    } else if before.len().abs_diff(after.len()) > 1 {
        let text = format!(
            "goes from {} to {} shards; a change adds or removes at most one",
            before.len(),
            after.len()
        );
        wrong.push(Violation::new("spec.shards", text));
    } else {
        let text = format!(
            "goes from {} to {} shards; this release keeps the number of shards of a running cluster: create a new one",
            before.len(),
            after.len()
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
            format!("goes from {before} to {after}; a change adds or removes at most one"),
        ));
    }
    if before != after && old.shards.len() != new.shards.len() {
        wrong.push(Violation::new(path, "changes together with spec.shards; change one, then the other"));
    }
}

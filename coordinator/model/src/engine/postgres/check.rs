//! The rules that need more than the message itself. In: parsed specs and the installation's settings. Out: every violation with its path. Source
//! of the rules: a change is one step that can be undone, and a group is its name.

use super::{
    MOST_REPLICAS,
    spec::{PostgresSpec, ShardGroup},
};
use crate::{engine::offers, refusal::Violation, state::Settings};

/// Rules of a create: the offers exist, and the installation can give what is asked for.
pub fn create(spec: &PostgresSpec, settings: &Settings) -> Vec<Violation> {
    let mut wrong = offers::check(&spec.vm_offer, &spec.volume_offer, spec.volume_size_gib, settings);
    if spec.create_public_ipv4 {
        let text = "is true; this installation has no public IPv4 pool, so only false is allowed";
        wrong.push(Violation::new("spec.createPublicIpv4", text));
    }
    if spec.restore.is_some() {
        let text = "is set; this installation keeps no backups, so a cluster begins empty: leave it out";
        wrong.push(Violation::new("spec.restoreConfiguration", text));
    }
    if spec.shard_groups.len() > 1 {
        wrong.push(Violation::new("spec.shardGroups", ONE_GROUP));
    }
    wrong
}

/// More need an engine that distributes tables, and orders that it is told of groups.
const ONE_GROUP: &str =
    "has more than one entry; this installation serves clusters of one shard group, the coordinator";

fn unchangeable<T: PartialEq>(path: &str, old: &T, new: &T, wrong: &mut Vec<Violation>) {
    if old != new {
        let text = "cannot change after creation: spec.postgreSqlParametersSetId and spec.backupRetentionDays change freely, spec.shardGroups and spec.replicasPerShardGroup by one step; create a new cluster instead";
        wrong.push(Violation::new(path, text));
    }
}

/// Rules of a change.
pub fn modify(old: &PostgresSpec, new: &PostgresSpec) -> Vec<Violation> {
    let mut wrong = Vec::new();
    if old.version != new.version {
        let text = format!(
            "is {}; the major version of a cluster never changes, and this one has {}",
            new.version, old.version
        );
        wrong.push(Violation::new("spec.version", text));
    }
    if old.restore != new.restore {
        let text = "is for the create alone and cannot change; a restore makes a new cluster";
        wrong.push(Violation::new("spec.restoreConfiguration", text));
    }
    unchangeable("spec.vmOfferId", &old.vm_offer, &new.vm_offer, &mut wrong);
    unchangeable("spec.volumeOfferId", &old.volume_offer, &new.volume_offer, &mut wrong);
    unchangeable("spec.volumeSizeGiB", &old.volume_size_gib, &new.volume_size_gib, &mut wrong);
    unchangeable("spec.tlsMode", &old.tls, &new.tls, &mut wrong);
    unchangeable("spec.createPublicIpv4", &old.create_public_ipv4, &new.create_public_ipv4, &mut wrong);
    groups(old, new, &mut wrong);
    replicas(old, new, &mut wrong);
    wrong
}

fn names(groups: &[&ShardGroup]) -> String {
    groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn groups(old: &PostgresSpec, new: &PostgresSpec, wrong: &mut Vec<Violation>) {
    let path = "spec.shardGroups";
    let known = |group: &&ShardGroup, spec: &PostgresSpec| spec.shard_groups.iter().any(|g| g.id == group.id);
    let removed: Vec<&ShardGroup> = old.shard_groups.iter().filter(|group| !known(group, new)).collect();
    let added: Vec<&ShardGroup> = new.shard_groups.iter().filter(|group| !known(group, old)).collect();
    for (index, group) in new.shard_groups.iter().enumerate() {
        let was = old.shard_groups.iter().find(|was| was.id == group.id);
        if let Some(was) = was.filter(|was| was.subnet != group.subnet) {
            let text = format!(
                "is {}; it cannot change: a shard group stays in the subnet it was created in, {}",
                group.subnet, was.subnet
            );
            wrong.push(Violation::new(format!("{path}[{index}].vpcSubnetId"), text));
        }
    }
    if let Some(coordinator) = removed.iter().find(|group| group.number == 0) {
        let text = format!(
            "does not have {:?}, the coordinator: it can never be removed or renamed; keep it first",
            coordinator.name
        );
        wrong.push(Violation::new(path, text));
        return;
    }
    if !added.is_empty() && !removed.is_empty() {
        let text = format!(
            "has {} and no longer {}: that is the same as a renaming; keep the names, or add and remove in two changes",
            names(&added),
            names(&removed)
        );
        wrong.push(Violation::new(path, text));
    } else if added.len() + removed.len() > 1 {
        let text = format!(
            "goes from {} to {} shard groups; a change adds or removes at most one",
            old.shard_groups.len(),
            new.shard_groups.len()
        );
        wrong.push(Violation::new(path, text));
    } else if !added.is_empty() {
        wrong.push(Violation::new(path, ONE_GROUP));
    }
    let kept = |spec: &PostgresSpec, gone: &[&ShardGroup]| -> Vec<String> {
        let stays = |group: &&ShardGroup| !gone.iter().any(|other| other.id == group.id);
        spec.shard_groups.iter().filter(stays).map(|group| group.name.clone()).collect()
    };
    let (before, after) = (kept(old, &removed), kept(new, &added));
    if before != after {
        let text = format!("has the same groups in another order; keep the order {}", before.join(", "));
        wrong.push(Violation::new(path, text));
    }
}

fn replicas(old: &PostgresSpec, new: &PostgresSpec, wrong: &mut Vec<Violation>) {
    let (before, after) = (old.replicas, new.replicas);
    let path = "spec.replicasPerShardGroup";
    if before.abs_diff(after) > 1 {
        let most = (before + 1).min(MOST_REPLICAS.unsigned_abs());
        let text = format!(
            "goes from {before} to {after}; a change adds or removes at most one: allowed is {} to {most}",
            before.saturating_sub(1)
        );
        wrong.push(Violation::new(path, text));
    }
    if before != after && old.shard_groups.len() != new.shard_groups.len() {
        let text = "changes together with spec.shardGroups; change one, then the other";
        wrong.push(Violation::new(path, text));
    }
}

//! The parsed spec of a Valkey cluster. In: a message that validation has checked. Out: typed fields, groups and needs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{GroupId, ResourceId},
    v1,
};

use super::{MOST_REPLICAS, MOST_SHARDS};
use crate::{
    engine::{Class, EngineKind, GroupSpec, Needs},
    refusal::Violation,
    resource::Kind,
    state::Sealed,
    validate::fields::{count, id_field, required, text_field},
};

/// A shard as the user wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Made by the client.
    pub id: GroupId,
    /// Where its instances live.
    pub subnet: ResourceId,
}

/// A cluster as the user wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValkeySpec {
    /// In the user's order.
    pub shards: Vec<Shard>,
    /// 0 to 5.
    pub replicas_per_shard: u32,
    /// Sealed with the resource's id.
    pub root_password: Sealed,
    /// A tuning profile.
    pub parameters_set: Option<ResourceId>,
    /// Not checked at submit.
    pub version: String,
    /// Compute offer.
    pub vm_offer: String,
    /// Disk offer.
    pub volume_offer: String,
    /// GiB.
    pub volume_size_gib: u32,
    /// Announce names.
    pub use_fqdn: bool,
    /// Give every instance a public address.
    pub create_public_ipv4: bool,
}

/// Longest password in bytes; the engine's protocol would bear more, its clients' URLs would not.
const LONGEST_PASSWORD: usize = 512;

fn check_password(password: &str, wrong: &mut Vec<Violation>) {
    let path = "spec.rootPassword";
    if password.is_empty() {
        wrong.push(Violation::new(path, "is empty; it has 1 to 512 bytes"));
    } else if password.len() > LONGEST_PASSWORD {
        wrong.push(Violation::new(path, format!("has {} bytes; it has 1 to 512 bytes", password.len())));
    }
    if password.chars().any(|c| c.is_control()) {
        wrong.push(Violation::new(
            path,
            "holds a line break or another control character; those are not allowed",
        ));
    }
}

fn shards(given: &[v1::ValkeyShardSpec], wrong: &mut Vec<Violation>) -> Vec<Shard> {
    match given.len() {
        1 => {}
        0 => wrong.push(Violation::new("spec.shards", "is required: one entry a shard, 1 shard or 3 and more")),
        2 => wrong.push(Violation::new(
            "spec.shards",
            "has 2 entries; allowed is 1, or 3 and more: of two primaries neither can win a majority when the other fails",
        )),
        n if n > MOST_SHARDS => {
            wrong.push(Violation::new("spec.shards", format!("has {n} entries; at most {MOST_SHARDS} are allowed")));
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    let mut parsed = Vec::new();
    // Of far too many, a page of mistakes says enough.
    for (index, shard) in given.iter().take(MOST_SHARDS).enumerate() {
        let path = format!("spec.shards[{index}]");
        let id: Option<GroupId> = id_field(&format!("{path}.id"), Some(&shard.id), wrong);
        let subnet = id_field(&format!("{path}.vpcSubnetId"), Some(&shard.vpc_subnet_id), wrong);
        if let Some(id) = id
            && !seen.insert(id)
        {
            wrong.push(Violation::new(
                format!("{path}.id"),
                format!("{id} is given twice; every shard has an id of its own"),
            ));
        }
        // One that did not parse is zero: the shard keeps its place, so that later violations name the right one.
        parsed.push(Shard {
            id: id.unwrap_or(GroupId::from_u128(0)),
            subnet: subnet.unwrap_or(ResourceId::from_u128(0)),
        });
    }
    parsed
}

impl ValkeySpec {
    /// Reads the message, collecting every violation. The password stays outside: it is sealed before it is stored.
    pub fn parse(given: &v1::ValkeySpec, wrong: &mut Vec<Violation>) -> (Self, Option<String>) {
        let password = required("spec.rootPassword", given.root_password.clone(), wrong);
        if let Some(password) = &password {
            check_password(password, wrong);
        }
        let spec = Self {
            shards: shards(&given.shards, wrong),
            replicas_per_shard: count(
                "spec.replicasPerShard",
                given.replicas_per_shard,
                0..=MOST_REPLICAS,
                wrong,
            ),
            root_password: Sealed(Vec::new()),
            parameters_set: given
                .parameters_set_id
                .as_ref()
                .filter(|id| !id.is_empty())
                .and_then(|id| id_field("spec.parametersSetId", Some(id), wrong)),
            version: text_field("spec.valkeyVersion", given.valkey_version.as_deref(), 32, wrong),
            vm_offer: text_field("spec.vmOfferId", given.vm_offer_id.as_deref(), 32, wrong),
            volume_offer: text_field("spec.volumeOfferId", given.volume_offer_id.as_deref(), 32, wrong),
            volume_size_gib: count("spec.volumeSizeGiB", given.volume_size_gib, 1..=i32::MAX, wrong),
            use_fqdn: given.use_fqdn.unwrap_or(false),
            create_public_ipv4: given.create_public_ipv4.unwrap_or(false),
        };
        (spec, password)
    }

    /// The message again, without the password.
    pub fn to_message(&self) -> v1::ValkeySpec {
        v1::ValkeySpec {
            shards: self
                .shards
                .iter()
                .map(|s| v1::ValkeyShardSpec { id: s.id.to_string(), vpc_subnet_id: s.subnet.to_string() })
                .collect(),
            replicas_per_shard: i32::try_from(self.replicas_per_shard).ok(),
            root_password: None,
            parameters_set_id: self.parameters_set.map(|id| id.to_string()),
            valkey_version: Some(self.version.clone()),
            vm_offer_id: Some(self.vm_offer.clone()),
            volume_offer_id: Some(self.volume_offer.clone()),
            volume_size_gib: i32::try_from(self.volume_size_gib).ok(),
            use_fqdn: Some(self.use_fqdn),
            create_public_ipv4: Some(self.create_public_ipv4),
        }
    }

    /// Its groups in order.
    pub fn groups(&self) -> Vec<GroupSpec> {
        let members = self.replicas_per_shard + 1;
        self.shards
            .iter()
            .map(|s| GroupSpec { id: s.id, subnet: s.subnet, members, class: Class::Data })
            .collect()
    }

    /// What each instance needs.
    pub fn needs(&self) -> Needs {
        Needs::Offers {
            vm: self.vm_offer.clone(),
            volume: self.volume_offer.clone(),
            volume_gib: self.volume_size_gib,
        }
    }

    /// The resources it names.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        let subnets = self
            .shards
            .iter()
            .enumerate()
            .map(|(i, s)| (format!("spec.shards[{i}].vpcSubnetId"), Kind::VpcSubnet, s.subnet));
        let set = self
            .parameters_set
            .map(|id| ("spec.parametersSetId".to_owned(), Kind::ParametersSet(EngineKind::Valkey), id));
        subnets.chain(set).collect()
    }
}

//! The parsed spec of a PostgreSQL cluster. In: a message that validation has checked, completed from what the cluster has. Out: typed
//! fields, groups and needs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{GroupId, ResourceId},
    v1,
};

use super::{MOST_GROUPS, MOST_REPLICAS, MOST_RETENTION_DAYS, QUORUM, VERSION, moment};
use crate::{
    engine::{Class, EngineKind, GroupSpec, Needs},
    refusal::Violation,
    resource::Kind,
    state::{Footprint, Sealed, Settings},
    time::Timestamp,
    validate::fields::{count, id_field, text_field},
};

/// A shard group as the user wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardGroup {
    /// Made when its name is first seen; zero until then.
    pub id: GroupId,
    /// Lower case; the group's identity for its user.
    pub name: String,
    /// Where its instances live.
    pub subnet: ResourceId,
    /// Its number in Citus: 0 is the coordinator, no other number is ever used again in the cluster.
    pub number: u32,
}

/// Whether clients may connect without TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsMode {
    /// They may.
    #[default]
    Allow,
    /// They may not.
    Require,
}

impl TlsMode {
    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            TlsMode::Allow => "allow",
            TlsMode::Require => "require",
        }
    }
}

/// Whose backups a cluster begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreFrom {
    /// The source.
    pub source: ResourceId,
    /// Nothing after this moment.
    pub time: Timestamp,
}

/// A cluster as the user wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresSpec {
    /// The coordinator first, then in the user's order.
    pub shard_groups: Vec<ShardGroup>,
    /// 0 to 5.
    pub replicas: u32,
    /// A tuning profile.
    pub parameters_set: Option<ResourceId>,
    /// Major version; empty until completed.
    pub version: String,
    /// 1 to 365.
    pub retention_days: u32,
    /// None: it begins empty.
    pub restore: Option<RestoreFrom>,
    /// Compute offer.
    pub vm_offer: String,
    /// Disk offer.
    pub volume_offer: String,
    /// GiB.
    pub volume_size_gib: u32,
    /// Whether clients may connect without TLS.
    pub tls: TlsMode,
    /// Give every instance a public address.
    pub create_public_ipv4: bool,
    /// The quorum; zero until completed.
    pub quorum: GroupId,
    /// The next number of a new group.
    pub next_number: u32,
    /// The cluster's own secret, sealed with the resource's id; its guests derive passwords and certificates from it.
    pub secret: Sealed,
}

fn fits_a_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn shard_groups(given: &[v1::PostgreSqlShardGroupSpec], wrong: &mut Vec<Violation>) -> Vec<ShardGroup> {
    let path = "spec.shardGroups";
    if given.is_empty() {
        wrong.push(Violation::new(path, "is required: one entry a shard group, the coordinator first"));
    } else if given.len() > MOST_GROUPS {
        wrong.push(Violation::new(
            path,
            format!("has {} entries; at most {MOST_GROUPS} are allowed", given.len()),
        ));
    }
    let mut seen = BTreeSet::new();
    let mut parsed = Vec::new();
    // Of far too many, a page of mistakes says enough.
    for (index, group) in given.iter().take(MOST_GROUPS).enumerate() {
        let path = format!("{path}[{index}]");
        let name = group.name.to_ascii_lowercase();
        if !fits_a_name(&name) {
            let text = format!("is {:?}; a name has 1 to 63 of a-z, 0-9 and hyphen", group.name);
            wrong.push(Violation::new(format!("{path}.name"), text));
        } else if !seen.insert(name.clone()) {
            let text = format!("{:?} is given twice; names are unique, whatever their case", group.name);
            wrong.push(Violation::new(format!("{path}.name"), text));
        }
        let subnet = id_field(&format!("{path}.vpcSubnetId"), Some(&group.vpc_subnet_id), wrong);
        // One that did not parse is zero: the group keeps its place, so that later violations name the right one.
        parsed.push(ShardGroup {
            id: GroupId::from_u128(0),
            name,
            subnet: subnet.unwrap_or(ResourceId::from_u128(0)),
            number: 0,
        });
    }
    parsed
}

fn tls(given: Option<&str>, wrong: &mut Vec<Violation>) -> TlsMode {
    match given.filter(|text| !text.is_empty()) {
        None | Some("allow") => TlsMode::Allow,
        Some("require") => TlsMode::Require,
        Some(other) => {
            wrong.push(Violation::new("spec.tlsMode", format!("is {other:?}; allowed is allow or require")));
            TlsMode::Allow
        }
    }
}

fn version(given: Option<&str>, wrong: &mut Vec<Violation>) -> String {
    let Some(text) = given.filter(|text| !text.is_empty()) else { return String::new() };
    if text.len() > 3 || text.starts_with('0') || !text.bytes().all(|b| b.is_ascii_digit()) {
        let text = format!("is {text:?}; it is a major version alone, for example 17");
        wrong.push(Violation::new("spec.version", text));
    }
    text.to_owned()
}

fn restore(given: &v1::PostgreSqlRestoreConfiguration, wrong: &mut Vec<Violation>) -> Option<RestoreFrom> {
    let path = "spec.restoreConfiguration";
    let source = id_field(&format!("{path}.postgreSqlId"), Some(&given.postgre_sql_id), wrong);
    let time = match moment::parse(&given.restore_time) {
        Ok(time) => Some(time),
        Err(why) => {
            wrong.push(Violation::new(format!("{path}.restoreTime"), why));
            None
        }
    };
    Some(RestoreFrom { source: source?, time: time? })
}

impl PostgresSpec {
    /// Reads the message, collecting every violation. What a user may leave out is left to [`PostgresSpec::complete`].
    pub fn parse(given: &v1::PostgreSqlSpec, wrong: &mut Vec<Violation>) -> Self {
        let tls = tls(given.tls_mode.as_deref(), wrong);
        let create_public_ipv4 = given.create_public_ipv4.unwrap_or(false);
        if create_public_ipv4 && tls == TlsMode::Allow {
            let text = "is allow; it has to be require while spec.createPublicIpv4 is true";
            wrong.push(Violation::new("spec.tlsMode", text));
        }
        let days = MOST_RETENTION_DAYS;
        Self {
            shard_groups: shard_groups(&given.shard_groups, wrong),
            replicas: count(
                "spec.replicasPerShardGroup",
                given.replicas_per_shard_group,
                0..=MOST_REPLICAS,
                wrong,
            ),
            parameters_set: given
                .postgre_sql_parameters_set_id
                .as_ref()
                .filter(|id| !id.is_empty())
                .and_then(|id| id_field("spec.postgreSqlParametersSetId", Some(id), wrong)),
            version: version(given.version.as_deref(), wrong),
            retention_days: count("spec.backupRetentionDays", given.backup_retention_days, 1..=days, wrong),
            restore: given.restore_configuration.as_ref().and_then(|given| restore(given, wrong)),
            vm_offer: text_field("spec.vmOfferId", given.vm_offer_id.as_deref(), 32, wrong),
            volume_offer: text_field("spec.volumeOfferId", given.volume_offer_id.as_deref(), 32, wrong),
            volume_size_gib: count("spec.volumeSizeGiB", given.volume_size_gib, 1..=i32::MAX, wrong),
            tls,
            create_public_ipv4,
            quorum: GroupId::from_u128(0),
            next_number: 0,
            secret: Sealed(Vec::new()),
        }
    }

    /// The same with what `before` has under the same names, with the default version, and with new ids for new groups. The quorum's too.
    #[must_use]
    pub fn complete(
        mut self,
        before: Option<&Self>,
        settings: &Settings,
        ids: &mut dyn FnMut() -> u128,
    ) -> Self {
        if self.version.is_empty() {
            let platform =
                || settings.versions.get(EngineKind::Postgres.name()).map_or(VERSION, String::as_str);
            self.version = before.map_or_else(|| platform().to_owned(), |before| before.version.clone());
        }
        self.quorum = before.map_or_else(|| GroupId::from_u128(ids()), |before| before.quorum);
        self.next_number = before.map_or(0, |before| before.next_number);
        for group in &mut self.shard_groups {
            match before.and_then(|before| before.shard_groups.iter().find(|known| known.name == group.name))
            {
                Some(known) => (group.id, group.number) = (known.id, known.number),
                None => {
                    (group.id, group.number) = (GroupId::from_u128(ids()), self.next_number);
                    self.next_number += 1;
                }
            }
        }
        self
    }

    /// The message again.
    pub fn to_message(&self) -> v1::PostgreSqlSpec {
        let groups = self.shard_groups.iter();
        v1::PostgreSqlSpec {
            shard_groups: groups
                .map(|g| v1::PostgreSqlShardGroupSpec {
                    name: g.name.clone(),
                    vpc_subnet_id: g.subnet.to_string(),
                })
                .collect(),
            replicas_per_shard_group: i32::try_from(self.replicas).ok(),
            postgre_sql_parameters_set_id: self.parameters_set.map(|id| id.to_string()),
            version: Some(self.version.clone()),
            backup_retention_days: i32::try_from(self.retention_days).ok(),
            restore_configuration: self.restore.as_ref().map(|restore| v1::PostgreSqlRestoreConfiguration {
                postgre_sql_id: restore.source.to_string(),
                restore_time: restore.time.to_string(),
            }),
            vm_offer_id: Some(self.vm_offer.clone()),
            volume_offer_id: Some(self.volume_offer.clone()),
            volume_size_gib: i32::try_from(self.volume_size_gib).ok(),
            tls_mode: Some(self.tls.word().to_owned()),
            create_public_ipv4: Some(self.create_public_ipv4),
        }
    }

    /// The groups that hold data in order, then the quorum, which lives in the coordinator's subnet.
    pub fn groups(&self) -> Vec<GroupSpec> {
        let members = self.replicas + 1;
        let data = |g: &ShardGroup| GroupSpec { id: g.id, subnet: g.subnet, members, class: Class::Data };
        let quorum = self.shard_groups.first().map(|coordinator| GroupSpec {
            id: self.quorum,
            subnet: coordinator.subnet,
            members: QUORUM,
            class: Class::Quorum,
        });
        self.shard_groups.iter().map(data).chain(quorum).collect()
    }

    /// What each instance of a class needs. A voter is small: its database is bounded, and its fsyncs need few operations.
    pub fn needs(&self, class: Class) -> Needs {
        match class {
            Class::Data => Needs::Offers {
                vm: self.vm_offer.clone(),
                volume: self.volume_offer.clone(),
                volume_gib: self.volume_size_gib,
            },
            Class::Quorum => Needs::Fixed {
                footprint: Footprint { vcpu_percent: 25, memory_mib: 256, disk_gib: 1, iops: 200 },
                vcpus: 1,
                vcpu_share: 25,
            },
        }
    }

    /// The group with this id.
    pub fn group(&self, id: GroupId) -> Option<&ShardGroup> {
        self.shard_groups.iter().find(|group| group.id == id)
    }

    /// The resources it names. The source of a restore may be gone by the time anybody asks; its rules are checked when the cluster is made.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        let subnets = self
            .shard_groups
            .iter()
            .enumerate()
            .map(|(i, g)| (format!("spec.shardGroups[{i}].vpcSubnetId"), Kind::VpcSubnet, g.subnet));
        let set = self.parameters_set.map(|id| {
            ("spec.postgreSqlParametersSetId".to_owned(), Kind::ParametersSet(EngineKind::Postgres), id)
        });
        subnets.chain(set).collect()
    }
}

//! The columns of each public type. In: resources and what is known of them. Out: a table. Used by `kc get`.

use std::collections::BTreeSet;

use shardplane_model::{
    resource::{Kind, Outcome, Resource, Spec},
    state::Scope,
    view,
};
use shardplane_proto::v1::{self, resource::Body};

use super::{
    super::verbs::Session,
    lookup,
    table::{self, Rows},
};

/// Resources of one type as rows. `qualified` puts the type before the name, for tables of several types.
pub fn rows(session: &Session, kind: Kind, found: &[&Resource], wide: bool, qualified: bool) -> Rows {
    let mut header = [&["NAME", "ID", "STATE"], own_header(kind), &["AGE"]].concat();
    if wide {
        header.push("FOLDER");
        header.extend(wide_header(kind));
    }
    let rows = found.iter().map(|resource| {
        let name = &resource.metadata.name;
        let mut row = vec![
            if qualified { format!("{}/{name}", kind.path()) } else { name.clone() },
            resource.id.to_string(),
            view::state_word(&session.state, resource).to_owned(),
        ];
        let message = session.without_secrets(resource);
        row.extend(own_cells(session, resource, &message));
        row.push(table::age(session.now(), resource.created));
        if wide {
            row.push(
                resource.metadata.folder.map(|id| lookup::name_of(&session.state, id)).unwrap_or_default(),
            );
            row.extend(wide_cells(session, resource, &message));
        }
        (resource.id.to_string(), row)
    });
    Rows { header, rows: rows.collect() }
}

fn own_header(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Folder | Kind::HostingProvider | Kind::Vpc => &[],
        Kind::VpcSubnet => &["VPC", "CIDR"],
        Kind::Cluster(_) => &["CLUSTER", "SHARDS", "REPLICAS", "ANTI-AFFINITY"],
        Kind::ParametersSet(_) => &["PARAMETERS"],
        Kind::Role(_) => &["CLUSTER", "ROLE", "LOGIN", "IN-FORCE"],
    }
}

fn own_cells(session: &Session, resource: &Resource, message: &v1::Resource) -> Vec<String> {
    match (&resource.spec, &message.body) {
        (Spec::VpcSubnet { vpc, cidr }, _) => vec![lookup::name_of(&session.state, *vpc), cidr.to_string()],
        (Spec::ParametersSet { parameters, .. }, _) => vec![parameters.len().to_string()],
        (Spec::Cluster(_), Some(Body::Valkey(cluster))) => {
            let spec = cluster.spec.clone().unwrap_or_default();
            let status = cluster.status.clone().unwrap_or_default();
            vec![
                status.cluster_state.unwrap_or_default(),
                spec.shards.len().to_string(),
                spec.replicas_per_shard.unwrap_or_default().to_string(),
                status.anti_affinity_ok.to_string(),
            ]
        }
        (Spec::Cluster(_), Some(Body::PostgreSql(cluster))) => {
            let spec = cluster.spec.clone().unwrap_or_default();
            let status = cluster.status.clone().unwrap_or_default();
            vec![
                status.cluster_state.unwrap_or_default(),
                spec.shard_groups.len().to_string(),
                spec.replicas_per_shard_group.unwrap_or_default().to_string(),
                status.anti_affinity_ok.to_string(),
            ]
        }
        (Spec::Role { role, .. }, _) => vec![
            lookup::name_of(&session.state, role.cluster),
            role.name.clone(),
            role.login.to_string(),
            (resource.change.outcome == Outcome::Done).to_string(),
        ],
        (Spec::Folder | Spec::HostingProvider | Spec::Vpc { .. } | Spec::Cluster(_), _) => Vec::new(),
    }
}

fn wide_header(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Folder | Kind::HostingProvider | Kind::VpcSubnet | Kind::ParametersSet(_) | Kind::Role(_) => {
            &["DESCRIPTION"]
        }
        Kind::Vpc => &["PROVIDER", "DESCRIPTION"],
        Kind::Cluster(_) => &["SPREAD", "VERSION", "OFFER", "VOLUME", "PRIMARIES", "ENDPOINTS"],
    }
}

fn wide_cells(session: &Session, resource: &Resource, message: &v1::Resource) -> Vec<String> {
    let description = resource.metadata.description.clone().unwrap_or_default();
    match (&resource.spec, &message.body) {
        (Spec::Vpc { provider }, _) => {
            vec![provider.map(|id| lookup::name_of(&session.state, id)).unwrap_or_default(), description]
        }
        (Spec::Cluster(_), Some(Body::Valkey(cluster))) => {
            let spec = cluster.spec.clone().unwrap_or_default();
            let status = cluster.status.clone().unwrap_or_default();
            vec![
                status.primary_spread_ok.to_string(),
                spec.valkey_version.unwrap_or_default(),
                spec.vm_offer_id.unwrap_or_default(),
                format!(
                    "{}Gi {}",
                    spec.volume_size_gib.unwrap_or_default(),
                    spec.volume_offer_id.unwrap_or_default()
                ),
                primaries(session, &status),
                status.primary_endpoints.join(","),
            ]
        }
        (Spec::Cluster(_), Some(Body::PostgreSql(cluster))) => {
            let spec = cluster.spec.clone().unwrap_or_default();
            let status = cluster.status.clone().unwrap_or_default();
            let volume = spec.volume_size_gib.unwrap_or_default();
            vec![
                String::new(),
                spec.version.unwrap_or_default(),
                spec.vm_offer_id.unwrap_or_default(),
                format!("{volume}Gi {}", spec.volume_offer_id.unwrap_or_default()),
                leaders(session, &status),
                status.primary_endpoints.join(","),
            ]
        }
        (
            Spec::Folder
            | Spec::HostingProvider
            | Spec::VpcSubnet { .. }
            | Spec::Role { .. }
            | Spec::ParametersSet { .. }
            | Spec::Cluster(_),
            _,
        ) => {
            vec![description]
        }
    }
}

/// The hosts of the primaries in the order of the shards, for those who may know hosts.
fn primaries(session: &Session, status: &v1::ValkeyStatus) -> String {
    if !session.caller.may(Scope::Operator) {
        return String::new();
    }
    let hosts = status.shards.iter().map(|shard| {
        let id = shard.primary_instance_id.as_ref().and_then(|id| id.parse().ok());
        id.map_or_else(|| "?".to_owned(), |id| host_of(session, id))
    });
    hosts.collect::<Vec<_>>().join(",")
}

/// The hosts of the leaders in the order of the shard groups, for those who may know hosts.
fn leaders(session: &Session, status: &v1::PostgreSqlStatus) -> String {
    if !session.caller.may(Scope::Operator) {
        return String::new();
    }
    let hosts = status.shard_groups.iter().map(|group| {
        let leads = |node: &&v1::PostgreSqlNodeStatus| node.is_primary && node.shard_group_name == group.name;
        let id = status.nodes.iter().find(leads).and_then(|node| node.id.parse().ok());
        id.map_or_else(|| "?".to_owned(), |id| host_of(session, id))
    });
    hosts.collect::<Vec<_>>().join(",")
}

/// The name of the host of an instance.
pub fn host_of(session: &Session, id: shardplane_proto::ids::InstanceId) -> String {
    let host = session.state.instances.get(&id).and_then(|instance| session.state.hosts.get(&instance.host));
    host.map_or_else(|| "?".to_owned(), |host| host.facts.name.clone())
}

/// How many different hosts a cluster uses.
pub fn hosts_used(session: &Session, resource: &Resource) -> usize {
    let instances = session.state.instances_of(resource.id.into());
    instances.map(|instance| instance.host).collect::<BTreeSet<_>>().len()
}

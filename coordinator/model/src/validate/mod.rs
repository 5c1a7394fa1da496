//! Parsing and rules at the border. In: a message from a user and the state. Out: a [`Submission`] in which nothing is left to
//! check, or a refusal that lists every violation. The API calls [`put`] before it proposes; applying calls [`check`] again,
//! because the state may have changed in between.

pub mod fields;

use std::collections::BTreeMap;

use shardplane_proto::{
    ids::{ClusterId, RequestId, ResourceId},
    v1,
};

use crate::{
    command::{Delete, Put},
    engine::{ClusterSpec, EngineKind, postgres, valkey},
    net::Cidr,
    refusal::{Refusal, RefusalCode, Violation},
    resource::{Kind, Metadata, Outcome, Resource, Spec, User},
    state::{Sealed, State},
};

use fields::id_field;

/// A parsed and checked request to create or update.
#[derive(Clone, PartialEq, Eq)]
pub struct Submission {
    /// The resource.
    pub id: ResourceId,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its spec, without its secret.
    pub spec: Spec,
    /// The password in clear; sealed before anything is stored.
    pub secret: Option<String>,
}

impl Submission {
    /// The command to propose, with the sealed password when the type has one.
    pub fn into_put(self, request: RequestId, by: User, sealed: Option<Sealed>) -> Put {
        let spec = match sealed {
            Some(sealed) => self.spec.with_secret(sealed),
            None => self.spec,
        };
        Put { id: self.id, metadata: self.metadata, spec, request, by }
    }
}

/// Longest name and label value, in characters.
const LONGEST_NAME: usize = 255;

/// Most labels of a resource.
const MOST_LABELS: usize = 64;

fn parse_metadata(given: &v1::Metadata, wrong: &mut Vec<Violation>) -> Metadata {
    let name = given.name.clone();
    if name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
        wrong.push(Violation::new(
            "metadata.name",
            format!("has 1 to {LONGEST_NAME} characters and no control characters"),
        ));
    }
    if given.description.as_ref().is_some_and(|text| text.chars().count() > 4096) {
        wrong.push(Violation::new("metadata.description", "has at most 4096 characters"));
    }
    if given.labels.len() > MOST_LABELS {
        wrong.push(Violation::new(
            "metadata.labels",
            format!("has {} labels; at most {MOST_LABELS} are allowed", given.labels.len()),
        ));
    }
    for (key, value) in given.labels.iter().take(MOST_LABELS) {
        if key.is_empty() || key.len() > LONGEST_NAME || value.len() > LONGEST_NAME || value.contains('*') {
            let text = format!(
                "has 1 to {LONGEST_NAME} bytes in its key, at most {LONGEST_NAME} in its value, and no * in its value"
            );
            wrong.push(Violation::new(format!("metadata.labels.{key}"), text));
        }
    }
    let folder = given.folder_id.as_ref().filter(|id| !id.is_empty());
    Metadata {
        name,
        description: given.description.clone(),
        folder: folder.and_then(|id| id_field("metadata.folderId", Some(id), wrong)),
        labels: given.labels.clone(),
        delete_protection: given.delete_protection.unwrap_or(false),
    }
}

/// None when a field without which there is no spec is missing or wrong.
fn parse_spec(body: &v1::resource::Body, wrong: &mut Vec<Violation>) -> (Option<Spec>, Option<String>) {
    use v1::resource::Body;
    let nil = ResourceId::from_u128(0);
    match body {
        Body::Folder(_) => (Some(Spec::Folder), None),
        Body::HostingProvider(_) => (Some(Spec::HostingProvider), None),
        Body::Vpc(vpc) => {
            let given = vpc
                .spec
                .as_ref()
                .and_then(|spec| spec.hosting_provider_id.as_ref())
                .filter(|id| !id.is_empty());
            let provider = given.and_then(|id| id_field("spec.hostingProviderId", Some(id), wrong));
            (Some(Spec::Vpc { provider }), None)
        }
        Body::VpcSubnet(subnet) => {
            let given = subnet.spec.clone().unwrap_or_default();
            let vpc = id_field("spec.vpcId", Some(&given.vpc_id), wrong).unwrap_or(nil);
            let cidr = match given.ipv4_cidr.parse::<Cidr>() {
                Ok(cidr) => Some(cidr),
                Err(_) if given.ipv4_cidr.is_empty() => {
                    wrong.push(Violation::new("spec.ipv4Cidr", "is required, for example 10.20.0.0/24"));
                    None
                }
                Err(error) => {
                    wrong.push(Violation::new("spec.ipv4Cidr", error.to_string()));
                    None
                }
            };
            (cidr.map(|cidr| Spec::VpcSubnet { vpc, cidr }), None)
        }
        Body::ValkeyParametersSet(set) => {
            let parameters: BTreeMap<_, _> = set.spec.clone().unwrap_or_default().parameters;
            wrong.extend(EngineKind::Valkey.check_parameters(&parameters, None));
            (Some(Spec::ParametersSet { engine: EngineKind::Valkey, parameters }), None)
        }
        Body::Valkey(cluster) => {
            let given = cluster.spec.clone().unwrap_or_default();
            let (spec, secret) = valkey::spec::ValkeySpec::parse(&given, wrong);
            (Some(Spec::Cluster(ClusterSpec::Valkey(spec))), secret)
        }
        Body::PostgreSqlParametersSet(set) => {
            let parameters: BTreeMap<_, _> = set.spec.clone().unwrap_or_default().parameters;
            wrong.extend(EngineKind::Postgres.check_parameters(&parameters, None));
            (Some(Spec::ParametersSet { engine: EngineKind::Postgres, parameters }), None)
        }
        Body::PostgreSqlRole(role) => {
            let given = role.spec.clone().unwrap_or_default();
            let name = role.metadata.as_ref().map(|metadata| metadata.name.as_str()).unwrap_or_default();
            let (role, password) = postgres::role::RoleSpec::parse(&given, name, wrong);
            (Some(Spec::Role { engine: EngineKind::Postgres, role }), password)
        }
        Body::PostgreSql(cluster) => {
            let given = cluster.spec.clone().unwrap_or_default();
            let spec = postgres::spec::PostgresSpec::parse(&given, wrong);
            (Some(Spec::Cluster(ClusterSpec::Postgres(Box::new(spec)))), None)
        }
    }
}

fn metadata_of(body: &v1::resource::Body) -> v1::Metadata {
    use v1::resource::Body;
    let metadata = match body {
        Body::Folder(r) => &r.metadata,
        Body::HostingProvider(r) => &r.metadata,
        Body::Vpc(r) => &r.metadata,
        Body::VpcSubnet(r) => &r.metadata,
        Body::ValkeyParametersSet(r) => &r.metadata,
        Body::Valkey(r) => &r.metadata,
        Body::PostgreSql(r) => &r.metadata,
        Body::PostgreSqlParametersSet(r) => &r.metadata,
        Body::PostgreSqlRole(r) => &r.metadata,
    };
    metadata.clone().unwrap_or_default()
}

/// Reads and checks a request to create or update, against the message and against the state. `ids` are for what the platform adds.
///
/// # Errors
/// The first of `MissingIdField` and `MissingNameField`, else `BadData` with every violation, else `ResourceIsScheduling`.
pub fn put(
    state: &State,
    resource: &v1::Resource,
    ids: &mut dyn FnMut() -> u128,
) -> Result<Submission, Refusal> {
    let body =
        resource.body.as_ref().ok_or_else(|| Refusal::new(RefusalCode::BadData, "the resource is empty"))?;
    let given = metadata_of(body);
    if given.id.is_empty() {
        let missing = Violation::new("metadata.id", "is required: a ULID made by the client");
        return Err(Refusal::of(RefusalCode::MissingIdField, vec![missing]));
    }
    if given.name.trim().is_empty() {
        let missing = Violation::new("metadata.name", "is required");
        return Err(Refusal::of(RefusalCode::MissingNameField, vec![missing]));
    }
    let mut wrong = Vec::new();
    let id: Option<ResourceId> = id_field("metadata.id", Some(&given.id), &mut wrong);
    let metadata = parse_metadata(&given, &mut wrong);
    let (spec, secret) = parse_spec(body, &mut wrong);
    if let (Some(id), Some(spec)) = (id, spec) {
        let spec = complete(state, id, spec, ids);
        let known = if secret.is_some() { SecretKnown::Given } else { SecretKnown::No };
        wrong.extend(violations(state, id, &metadata, &spec, known));
        if wrong.is_empty() {
            return Ok(Submission { id, metadata, spec, secret });
        }
    }
    Err(Refusal::bad_data(wrong))
}

/// The spec with what its user may leave out.
fn complete(state: &State, id: ResourceId, spec: Spec, ids: &mut dyn FnMut() -> u128) -> Spec {
    match spec {
        Spec::Cluster(spec) => {
            let before = state.resources.get(&id).and_then(Resource::cluster_spec);
            Spec::Cluster(spec.complete(before, &state.settings, ids))
        }
        spec @ (Spec::Folder
        | Spec::HostingProvider
        | Spec::Vpc { .. }
        | Spec::VpcSubnet { .. }
        | Spec::Role { .. }
        | Spec::ParametersSet { .. }) => spec,
    }
}

/// Whether the spec carries its sealed secret already, so that a changed one can be told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretKnown {
    Yes,
    /// In clear, outside of the spec.
    Given,
    No,
}

fn violations(
    state: &State,
    id: ResourceId,
    metadata: &Metadata,
    spec: &Spec,
    secret: SecretKnown,
) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let folder = metadata.folder.map(|folder| ("metadata.folderId".to_owned(), Kind::Folder, folder));
    for (path, kind, target) in spec.references().into_iter().chain(folder) {
        // An id that did not parse is zero and has its own violation.
        if target.as_u128() != 0 && state.resource(kind, target).is_none_or(Resource::deleting) {
            wrong.push(Violation::new(path, format!("{target} is not the id of an existing {kind}")));
        }
    }
    if *spec == Spec::Folder && inside(state, metadata.folder, id) {
        wrong.push(Violation::new(
            "metadata.folderId",
            "is this folder or one inside it; a folder cannot hold itself",
        ));
    }
    if let Spec::Cluster(new) = spec {
        wrong.extend(unfit_set(state, new));
    }
    let existing = state.resources.get(&id);
    match (existing.map(|r| &r.spec), spec) {
        (Some(old), new) if old.kind() != new.kind() => {
            wrong.push(Violation::new(
                "metadata.id",
                format!("{id} is the id of a {}; make a new ULID", old.kind()),
            ));
        }
        (Some(Spec::Cluster(_)), Spec::Cluster(new)) if never_was(state, id) => {
            wrong.extend(one_vpc(state, new));
            wrong.extend(new.check_create(&state.settings))
        }
        (Some(Spec::Cluster(old)), Spec::Cluster(new)) => {
            let new = match secret {
                SecretKnown::Yes => new.clone(),
                SecretKnown::No | SecretKnown::Given => new.clone().with_secret(old.secret().clone()),
            };
            wrong.extend(old.check_modify(&new));
            wrong.extend(one_vpc(state, &new));
            wrong.extend(still_leaving(state, id, &new));
        }
        (None, Spec::Cluster(new)) => {
            wrong.extend(new.check_create(&state.settings));
            wrong.extend(one_vpc(state, new));
        }
        (Some(Spec::VpcSubnet { vpc: old_vpc, cidr: old_cidr }), Spec::VpcSubnet { vpc, cidr }) => {
            if old_vpc != vpc {
                wrong.push(Violation::new(
                    "spec.vpcId",
                    "cannot change after creation; create a new subnet instead",
                ));
            }
            if old_cidr != cidr {
                wrong.push(Violation::new(
                    "spec.ipv4Cidr",
                    "cannot change after creation; create a new subnet instead",
                ));
            }
        }
        (old, Spec::Role { role, .. }) => {
            let kept = old.and_then(Spec::secret).is_some();
            let password = match secret {
                SecretKnown::Yes => !role.password.0.is_empty(),
                SecretKnown::Given => true,
                SecretKnown::No => kept,
            };
            let old = match old {
                Some(Spec::Role { role, .. }) => Some(role),
                Some(_) | None => None,
            };
            wrong.extend(postgres::role::check(state, id, role, old, password));
        }
        (None, Spec::VpcSubnet { vpc, cidr }) => wrong.extend(overlap(state, *vpc, *cidr)),
        (Some(_), Spec::ParametersSet { engine, parameters }) => {
            wrong.extend(unfit_for_users(state, id, *engine, parameters))
        }
        (
            _,
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Cluster(_)
            | Spec::ParametersSet { .. },
        ) => {}
    }
    wrong
}

/// Whether the parameter set that a cluster names is there and does for its version.
pub(crate) fn set_fits(state: &State, cluster: &ClusterSpec) -> bool {
    let there = |set| state.resources.get(&set).is_some_and(|set| !set.deleting());
    cluster.parameters_set().is_none_or(there) && unfit_set(state, cluster).is_none()
}

/// What of the set that a cluster names its version cannot do.
fn unfit_set(state: &State, cluster: &ClusterSpec) -> Option<Violation> {
    let set = cluster.parameters_set()?;
    let Spec::ParametersSet { engine, parameters } = &state.resources.get(&set)?.spec else { return None };
    let version = cluster.version();
    let wrong: Vec<String> =
        engine.check_parameters(parameters, Some(version)).iter().map(Violation::to_string).collect();
    let text = format!("{set} does not fit version {version}: {}", wrong.join("; "));
    (!wrong.is_empty()).then(|| Violation::new("spec.parametersSetId", text))
}

/// What of an edited set the clusters that use it cannot do.
fn unfit_for_users(
    state: &State,
    set: ResourceId,
    engine: EngineKind,
    parameters: &BTreeMap<String, String>,
) -> Vec<Violation> {
    let everywhere = engine.check_parameters(parameters, None);
    let mut wrong = Vec::new();
    for user in state.attached_to(set).iter().filter_map(|id| state.resources.get(&ResourceId::from(*id))) {
        let version = user.cluster_spec().map(|spec| spec.version().to_owned()).unwrap_or_default();
        let there = engine.check_parameters(parameters, Some(&version));
        for Violation { path, message } in there.into_iter().filter(|one| !everywhere.contains(one)) {
            let whose = format!("{message} ({} {}, {})", user.kind(), user.metadata.name, user.id);
            wrong.push(Violation::new(path, whose));
        }
    }
    wrong
}

/// Whether a folder is this one or somewhere in it.
fn inside(state: &State, folder: Option<ResourceId>, this: ResourceId) -> bool {
    let above = |id: &ResourceId| state.resources.get(id).and_then(|folder| folder.metadata.folder);
    // A ring that an older log holds already is walked once.
    std::iter::successors(folder, above).take(state.resources.len() + 1).any(|id| id == this)
}

/// Whether the cluster's create failed: then a corrected spec is a create again.
fn never_was(state: &State, id: ResourceId) -> bool {
    let failed = state.resources.get(&id).is_some_and(|r| matches!(r.change.outcome, Outcome::Failed { .. }));
    failed && state.clusters.get(&ClusterId::from(id)).is_none_or(|cluster| !cluster.formed)
}

/// A group that leaves and comes back is the same as long as it has members: it stays in its subnet.
fn still_leaving(state: &State, id: ResourceId, spec: &ClusterSpec) -> Vec<Violation> {
    let leaving = state.clusters.get(&ClusterId::from(id)).map(|c| c.leaving.clone()).unwrap_or_default();
    let moved = spec.groups().into_iter().enumerate().filter_map(|(index, group)| {
        let was = leaving.iter().find(|was| was.id == group.id && was.subnet != group.subnet)?;
        let text =
            format!("is {}; shard {} still has instances in subnet {}", group.subnet, group.id, was.subnet);
        Some(Violation::new(format!("spec.shards[{index}].vpcSubnetId"), text))
    });
    moved.collect()
}

/// The groups of a cluster speak with each other, so their subnets are of one VPC.
fn one_vpc(state: &State, spec: &ClusterSpec) -> Option<Violation> {
    let vpc_of = |subnet: &ResourceId| match state.resources.get(subnet).map(|resource| &resource.spec) {
        Some(Spec::VpcSubnet { vpc, .. }) => Some(*vpc),
        Some(
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::Cluster(_)
            | Spec::Role { .. }
            | Spec::ParametersSet { .. },
        )
        | None => None,
    };
    let subnets: Vec<_> =
        spec.references().into_iter().filter(|(_, kind, _)| *kind == Kind::VpcSubnet).collect();
    let first = subnets.iter().find_map(|(_, _, subnet)| vpc_of(subnet))?;
    let (path, _, subnet) =
        subnets.into_iter().find(|(_, _, subnet)| vpc_of(subnet).is_some_and(|vpc| vpc != first))?;
    Some(Violation::new(
        path,
        format!("{subnet} is of another VPC than the first shard's subnet; all are of one VPC"),
    ))
}

fn overlap(state: &State, vpc: ResourceId, cidr: Cidr) -> Option<Violation> {
    state.resources.values().find_map(|other| match &other.spec {
        Spec::VpcSubnet { vpc: theirs, cidr: taken } if *theirs == vpc && taken.overlaps(cidr) => {
            let text = format!("{cidr} overlaps {taken} of subnet {} in the same VPC", other.id);
            Some(Violation::new("spec.ipv4Cidr", text))
        }
        Spec::VpcSubnet { .. }
        | Spec::Folder
        | Spec::HostingProvider
        | Spec::Vpc { .. }
        | Spec::Cluster(_)
        | Spec::Role { .. }
        | Spec::ParametersSet { .. } => None,
    })
}

/// The rules again, against the state the entry is applied to.
///
/// # Errors
/// As [`put`].
pub fn check(state: &State, put: &Put) -> Result<(), Refusal> {
    let wrong = violations(state, put.id, &put.metadata, &put.spec, SecretKnown::Yes);
    if !wrong.is_empty() {
        return Err(Refusal::bad_data(wrong));
    }
    match state.resources.get(&put.id) {
        Some(existing) if existing.change.outcome == Outcome::InFlight => Err(in_flight(existing)),
        Some(_) | None => Ok(()),
    }
}

fn in_flight(existing: &Resource) -> Refusal {
    let text = format!(
        "{} {} still has change {} in flight; wait until it is stable and try again",
        existing.kind(),
        existing.id,
        existing.change.request
    );
    Refusal::new(RefusalCode::ResourceIsScheduling, text)
}

/// Whether the stored resource is already what this asks for.
pub fn unchanged(state: &State, put: &Put) -> bool {
    state.resources.get(&put.id).is_some_and(|existing| {
        existing.metadata == put.metadata
            && existing.spec == put.spec
            && !existing.deleting()
            && !matches!(existing.change.outcome, Outcome::Failed { .. })
    })
}

/// Names of resources that cannot be without this one.
fn used_by(state: &State, id: ResourceId) -> Vec<String> {
    let uses = |resource: &&Resource| {
        let cluster = state.clusters.get(&ClusterId::from(resource.id));
        let leaving = cluster.map(|cluster| cluster.leaving.as_slice()).unwrap_or_default();
        resource.metadata.folder == Some(id)
            || leaving.iter().any(|group| group.subnet == id)
            || resource.spec.references().iter().any(|(_, _, target)| *target == id)
    };
    let goes_along = |resource: &&Resource| !matches!(resource.spec, Spec::Role { .. });
    let needed = match state.resources.get(&id).map(|resource| &resource.spec) {
        Some(Spec::Role { role, .. }) => postgres::role::needed_by(state, id, role),
        Some(_) | None => Vec::new(),
    };
    let name =
        |resource: &Resource| format!("{} {} ({})", resource.kind(), resource.metadata.name, resource.id);
    let users = state.resources.values().filter(uses).filter(goes_along).map(name);
    users.chain(needed).take(5).collect()
}

/// Rules of a delete.
///
/// # Errors
/// `NotFound`, `ResourceIsDeleteProtected`, `ResourceIsScheduling` while a delete runs, `BadData` while others need it.
pub fn check_delete(state: &State, delete: &Delete) -> Result<(), Refusal> {
    let Some(existing) = state.resource(delete.kind, delete.id) else {
        return Err(Refusal::new(
            RefusalCode::NotFound,
            format!("there is no {} {}", delete.kind, delete.id),
        ));
    };
    if existing.metadata.delete_protection {
        let text = format!("{} {} has metadata.deleteProtection set; unset it first", delete.kind, delete.id);
        return Err(Refusal::new(RefusalCode::ResourceIsDeleteProtected, text));
    }
    if existing.deleting() && existing.change.outcome == Outcome::InFlight {
        return Err(in_flight(existing));
    }
    let users = used_by(state, delete.id);
    if !users.is_empty() {
        let text =
            format!("{} {} is still used by {}; delete that first", delete.kind, delete.id, users.join(", "));
        return Err(Refusal::new(RefusalCode::BadData, text));
    }
    Ok(())
}

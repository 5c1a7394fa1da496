//! What users and operators see. In: the state and what is observed. Out: the messages of the API. Called by the API alone; it
//! computes, it decides nothing.

mod foreseen;
mod operations;
mod operator;
pub mod parameters;
pub mod spread;

pub use foreseen::{change_plan, host_plan};
pub use operations::{operation, operations};
pub use operator::{events, hosts, instances};
use shardplane_proto::{ids::ClusterId, v1};

use crate::{
    engine::{ClusterSpec, EngineKind, conditions, postgres, valkey},
    observed::Observed,
    plan::cluster_view,
    resource::{Metadata, Outcome, Resource, Spec, User},
    state::State,
    time::Timestamp,
};

/// The public version of every resource.
pub const API_VERSION: &str = "v1";

fn metadata(resource: &Resource) -> v1::Metadata {
    let Metadata { name, description, folder, labels, delete_protection } = &resource.metadata;
    v1::Metadata {
        id: resource.id.to_string(),
        name: name.clone(),
        description: description.clone(),
        folder_id: folder.map(|id| id.to_string()),
        labels: labels.clone(),
        delete_protection: Some(*delete_protection),
    }
}

fn user(user: &User) -> v1::User {
    v1::User { id: user.id.clone(), name: user.name.clone() }
}

/// The state word: `scheduling` until instances are reserved, `reconciling` until nothing is left to do, then `stable`.
pub fn state_word(state: &State, resource: &Resource) -> &'static str {
    match &resource.change.outcome {
        Outcome::Done => "stable",
        Outcome::Failed { .. } => "schedulingfailed",
        Outcome::InFlight => {
            let cluster = state.clusters.get(&ClusterId::from(resource.id));
            if cluster.is_some_and(|c| c.instances.is_empty()) && !resource.deleting() {
                "scheduling"
            } else {
                "reconciling"
            }
        }
    }
}

fn common(state: &State, resource: &Resource) -> v1::CommonStatus {
    let error = match &resource.change.outcome {
        Outcome::Failed { message } => Some(message.clone()),
        Outcome::Done | Outcome::InFlight => None,
    };
    let word = state_word(state, resource).to_owned();
    v1::CommonStatus {
        state: word.clone(),
        create_time: resource.created.to_string(),
        created_by_user: Some(user(&resource.created_by)),
        last_change_request: Some(v1::LastChangeRequest {
            state: word,
            create_time: resource.change.at.to_string(),
            error_message: error,
            created_by_user: Some(user(&resource.change.by)),
        }),
        pricing: Some(v1::Pricing::default()),
    }
}

/// The message of a resource. `secret` is the password when the reader may see it.
pub fn resource(
    state: &State,
    observed: &Observed,
    resource: &Resource,
    now: Timestamp,
    secret: Option<&str>,
) -> v1::Resource {
    use v1::resource::Body;
    let api_version = API_VERSION.to_owned();
    let kind = resource.kind().name().to_owned();
    let metadata = Some(metadata(resource));
    let common = common(state, resource);
    let status = Some(common.clone());
    let body = match &resource.spec {
        Spec::Folder => {
            Body::Folder(v1::Folder { api_version, kind, metadata, spec: Some(v1::EmptySpec {}), status })
        }
        Spec::HostingProvider => Body::HostingProvider(v1::HostingProvider {
            api_version,
            kind,
            metadata,
            spec: Some(v1::EmptySpec {}),
            status,
        }),
        Spec::Vpc { provider } => {
            let spec = Some(v1::VpcSpec { hosting_provider_id: provider.map(|id| id.to_string()) });
            Body::Vpc(v1::Vpc { api_version, kind, metadata, spec, status })
        }
        Spec::VpcSubnet { vpc, cidr } => {
            let spec = Some(v1::VpcSubnetSpec { vpc_id: vpc.to_string(), ipv4_cidr: cidr.to_string() });
            Body::VpcSubnet(v1::VpcSubnet { api_version, kind, metadata, spec, status })
        }
        Spec::ParametersSet { engine: EngineKind::Valkey, parameters } => {
            let spec = Some(v1::ParametersSpec { parameters: parameters.clone() });
            Body::ValkeyParametersSet(v1::ValkeyParametersSet { api_version, kind, metadata, spec, status })
        }
        Spec::Cluster(ClusterSpec::Valkey(spec)) => {
            let id = ClusterId::from(resource.id);
            let waiting = observed.waiting.get(&id).cloned().unwrap_or_default();
            let status = cluster_view(state, observed, id, now).map(|view| v1::ValkeyStatus {
                state: common.state,
                create_time: common.create_time,
                created_by_user: common.created_by_user,
                last_change_request: common.last_change_request,
                pricing: Some(conditions::pricing(&view, &state.settings)),
                ..valkey::status::render(&view, &waiting, secret)
            });
            let message = v1::ValkeySpec { root_password: secret.map(str::to_owned), ..spec.to_message() };
            Body::Valkey(v1::Valkey { api_version, kind, metadata, spec: Some(message), status })
        }
        Spec::ParametersSet { engine: EngineKind::Postgres, parameters } => {
            let spec = Some(v1::ParametersSpec { parameters: parameters.clone() });
            let set = v1::PostgreSqlParametersSet { api_version, kind, metadata, spec, status };
            Body::PostgreSqlParametersSet(set)
        }
        Spec::Role { role, .. } => {
            let spec = Some(role.to_message(secret));
            let status = Some(role_status(resource, common));
            Body::PostgreSqlRole(v1::PostgreSqlRole { api_version, kind, metadata, spec, status })
        }
        Spec::Cluster(ClusterSpec::Postgres(spec)) => {
            let id = ClusterId::from(resource.id);
            let waiting = observed.waiting.get(&id).cloned().unwrap_or_default();
            let status = cluster_view(state, observed, id, now).map(|view| v1::PostgreSqlStatus {
                state: common.state,
                create_time: common.create_time,
                created_by_user: common.created_by_user,
                last_change_request: common.last_change_request,
                pricing: Some(conditions::pricing(&view, &state.settings)),
                ..postgres::status::render(&view, spec, &waiting)
            });
            let spec = Some(spec.to_message());
            Body::PostgreSql(v1::PostgreSql { api_version, kind, metadata, spec, status })
        }
    };
    v1::Resource { body: Some(body) }
}

fn role_status(resource: &Resource, common: v1::CommonStatus) -> v1::PostgreSqlRoleStatus {
    let message = match &resource.change.outcome {
        Outcome::Done => String::new(),
        Outcome::InFlight => "waits for the leader of the cluster's coordinator group".to_owned(),
        Outcome::Failed { message } => message.clone(),
    };
    v1::PostgreSqlRoleStatus {
        state: common.state,
        create_time: common.create_time,
        created_by_user: common.created_by_user,
        last_change_request: common.last_change_request,
        pricing: common.pricing,
        in_force: resource.change.outcome == Outcome::Done,
        message,
    }
}

/// A machine state as people read it.
pub fn machine_word(state: v1::MachineState) -> &'static str {
    match state {
        v1::MachineState::Unspecified => "unknown",
        v1::MachineState::Preparing => "preparing",
        v1::MachineState::Running => "running",
        v1::MachineState::Stopping => "stopping",
        v1::MachineState::Down => "down",
        v1::MachineState::Failed => "failed",
    }
}

/// An engine state as people read it.
pub fn engine_word(state: v1::EngineState) -> &'static str {
    match state {
        v1::EngineState::Unspecified => "unknown",
        v1::EngineState::Waiting => "waiting for its config",
        v1::EngineState::Starting => "starting",
        v1::EngineState::Running => "running",
        v1::EngineState::Holding => "held back",
        v1::EngineState::Failed => "failed",
        v1::EngineState::Stopped => "stopped",
    }
}

//! gRPC: the same verbs as REST. In: messages of `api.proto` with `authorization: Bearer …` in the metadata. Out: messages, or a
//! status with the `errorCode` beside it. Called by the door.

mod operator;
mod resources;

use axum::Router;
use shardplane_model::state::Scope;
use shardplane_proto::v1::{operator_server::OperatorServer, resources_server::ResourcesServer};
use tokio::sync::watch;
use tonic::{codec::CompressionEncoding, metadata::MetadataMap, server::NamedService, service::Routes};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::{Api, BODY_LIMIT, auth, errors::Problem, store::Standing, verbs::Session};
use operator::Operator;
use resources::Resources;

/// Largest answer, bytes: a page of the largest clusters.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;

/// The services that the leader answers.
pub fn led(api: &Api) -> Router {
    let resources = ResourcesServer::new(Resources(api.clone()))
        .max_decoding_message_size(BODY_LIMIT)
        .max_encoding_message_size(ANSWER_LIMIT)
        .accept_compressed(CompressionEncoding::Gzip);
    let operator = OperatorServer::new(Operator(api.clone()))
        .max_decoding_message_size(BODY_LIMIT)
        .max_encoding_message_size(ANSWER_LIMIT)
        .accept_compressed(CompressionEncoding::Gzip);
    // The door's own fallback answers what is not here.
    Routes::new(resources).add_service(operator).into_axum_router().reset_fallback()
}

/// The services that every member answers itself: health and reflection.
pub fn local(api: &Api) -> Router {
    let reporter = HealthReporter::new();
    tokio::spawn(report_health(reporter.clone(), api.store.standing()));
    let health = HealthServer::new(HealthService::from_health_reporter(reporter));
    let mut routes = Routes::new(health);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(shardplane_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(alpha)) => routes = routes.add_service(v1).add_service(alpha),
        (Err(cause), _) | (_, Err(cause)) => {
            tracing::error!(%cause, "gRPC reflection is off: the descriptors do not load")
        }
    }
    routes.into_axum_router().reset_fallback()
}

/// Keeps the health of this member true: it serves while it leads or knows who does. Ends with the member.
async fn report_health(reporter: HealthReporter, mut standing: watch::Receiver<Standing>) {
    loop {
        let serves = match &*standing.borrow_and_update() {
            Standing::Leads { .. } => true,
            Standing::Follows { leader } => leader.is_some(),
            Standing::Stopped => false,
        };
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in [
            "",
            <ResourcesServer<Resources> as NamedService>::NAME,
            <OperatorServer<Operator> as NamedService>::NAME,
        ] {
            reporter.set_service_status(service, status).await;
        }
        if standing.changed().await.is_err() {
            return;
        }
    }
}

/// Lets the caller of a gRPC request in.
async fn enter(api: &Api, metadata: &MetadataMap, any_of: &[Scope]) -> Result<Session, Problem> {
    let headers = metadata.clone().into_headers();
    api.enter(auth::bearer(&headers), any_of).await
}

//! gRPC: the same verbs as REST. In: messages of `api.proto` with `authorization: Bearer …` in the metadata. Out: messages, or a
//! status with the `errorCode` beside it. Called by the door.

mod operator;
mod resources;
mod watch;

use axum::Router;
use shardplane_model::state::Scope;
use shardplane_proto::v1::{operator_server::OperatorServer, resources_server::ResourcesServer};
use tonic::{
    codec::CompressionEncoding,
    metadata::MetadataMap,
    service::Routes,
};

use super::{Api, BODY_LIMIT, auth, errors::Problem, verbs::Session};

/// Largest answer, bytes: a page of the largest clusters.
const ANSWER_LIMIT: usize = 64 * 1024 * 1024;

/// All gRPC services of the API.
pub fn routes(api: &Api) -> Router {
    let resources = ResourcesServer::new(resources::Resources(api.clone()))
        .max_decoding_message_size(BODY_LIMIT)
        .max_encoding_message_size(ANSWER_LIMIT)
        .accept_compressed(CompressionEncoding::Gzip);
    let operator = OperatorServer::new(operator::Operator(api.clone()))
        .max_decoding_message_size(BODY_LIMIT)
        .max_encoding_message_size(ANSWER_LIMIT)
        .accept_compressed(CompressionEncoding::Gzip);
    let reporter = tonic_health::server::HealthReporter::new();
    let health = tonic_health::pb::health_server::HealthServer::new(
        tonic_health::server::HealthService::from_health_reporter(reporter),
    );
    let mut routes = Routes::new(resources).add_service(operator).add_service(health);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(shardplane_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (reflection().build_v1(), reflection().build_v1alpha()) {
        (Ok(v1), Ok(alpha)) => routes = routes.add_service(v1).add_service(alpha),
        (Err(cause), _) | (_, Err(cause)) => tracing::error!(%cause, "gRPC reflection is off: the descriptors do not load"),
    }
    // The door's own fallback answers what is not here.
    routes.into_axum_router().reset_fallback()
}

/// Lets the caller of a gRPC request in.
async fn enter(api: &Api, metadata: &MetadataMap, any_of: &[Scope]) -> Result<Session, Problem> {
    let headers = metadata.clone().into_headers();
    api.enter(auth::bearer(&headers), any_of).await
}

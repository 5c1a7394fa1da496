//! REST: one file a verb or family. In: HTTP requests for resources and the operator's. Out: their envelopes. Called by the door.

mod change;
mod hosts;
mod list;
mod operator;
mod poll;
mod read;
mod tokens;
mod watch;

use axum::{
    Router,
    routing::{delete, get, post, put},
};
use shardplane_model::resource::Kind;

use super::{Api, cli, errors::Problem, metrics, openapi};

pub use hosts::LONGEST_CORDON;
pub use list::{Page, labels_match, page};
pub use operator::{MAY_CANCEL, catalogue_of, explain};
pub use tokens::tokens as tokens_of;

/// Routes that every member answers itself.
pub fn local(api: &Api) -> Router {
    Router::new()
        .route("/healthz", get(metrics::healthz))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::serve))
        .with_state(api.clone())
}

/// Routes that the leader answers.
pub fn led(api: &Api) -> Router {
    Router::new()
        .route("/api/v1/cli", post(cli::serve))
        .route("/api/v1/hosts", get(operator::hosts))
        .route("/api/v1/instances", get(operator::instances))
        .route("/api/v1/operations", get(operator::operations))
        .route("/api/v1/operations/{id}", get(operator::operation).post(operator::cancel))
        .route("/api/v1/events", get(operator::events))
        .route("/api/v1/catalogue", get(operator::catalogue))
        .route("/api/v1/hosts/{id}", delete(operator::forget_host).post(hosts::act).get(hosts::read_or_plan))
        .route("/api/v1/hosts/{id}/drain", get(hosts::drain))
        .route("/api/v1/racks/{*rack}", get(hosts::plan_rack))
        .route("/api/v1/tokens", get(tokens::list).post(tokens::create))
        .route("/api/v1/tokens/{id}", delete(tokens::revoke))
        .route("/api/v1/{type}", put(change::put).post(change::plan).get(watch::all))
        .route("/api/v1/{type}/get-by-labels", get(list::list))
        .route("/api/v1/{type}/request/{request}", get(poll::poll))
        .route("/api/v1/{type}/{id}", get(read::read).delete(change::delete))
        .route("/api/v1/{type}/{id}/placement", get(operator::placement))
        .with_state(api.clone())
}

/// The type that a path names.
///
/// # Errors
/// `NotFound`, listing the types there are.
pub fn kind(path: &str) -> Result<Kind, Problem> {
    Kind::from_path(path).ok_or_else(|| {
        let known: Vec<&str> = Kind::all().into_iter().map(Kind::path).collect();
        let given: String = path.chars().take(64).collect();
        Problem::not_found(format!("there is no resource type {given:?}: there are {}", known.join(", ")))
    })
}

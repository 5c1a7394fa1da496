//! The door: which routes exist, what holds for all of them, and how requests that no route takes are answered. In: the handlers of
//! the other files. Out: one router. Called by [`super::Api::router`].

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use bytes::Bytes;
use futures::FutureExt as _;
use http::header;
use tokio::time::timeout;

use super::{
    Api, BODY_LIMIT, auth,
    errors::{Problem, Trouble},
    family::Family,
    forward, grpc, rest,
};

/// Largest body of somebody without a token that is known, bytes: commands that need none fit.
pub const STRANGERS_LIMIT: usize = 64 * 1024;

/// A body arrives within this time.
const BODY_TIME: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(30) };

/// Puts all routes together.
pub fn assemble(api: &Api, beside: Router) -> Router {
    let local = rest::local(api).merge(grpc::local(api)).merge(beside);
    let forwarder = forward::Forwarder::new(api.store.clone(), api.dialer.clone());
    let led = rest::led(api)
        .merge(grpc::led(api))
        .fallback(nowhere)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(forwarder, forward::pass_on));
    local
        .fallback_service(led)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(in_envelopes))
}

/// The family of a request.
pub fn family_of(request: &Request) -> Family {
    Family::of(request.method(), request.uri().path(), is_grpc(request))
}

/// Whether a request is gRPC.
pub fn is_grpc(request: &Request) -> bool {
    request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

async fn nowhere(request: Request) -> Response {
    let text = format!(
        "there is nothing at {} {}: resources are at /api/v1/<type>, GET /openapi.json lists everything",
        request.method(),
        request.uri().path()
    );
    let family = family_of(&request);
    if family == Family::Grpc {
        // Clients of older or newer members go by this code.
        return tonic::Status::unimplemented(text).into_http();
    }
    family.refuse(&Problem::not_found(text))
}

async fn wrong_method(request: Request) -> Response {
    let text = format!(
        "{} is not possible at {}: GET /openapi.json lists what is",
        request.method(),
        request.uri().path()
    );
    family_of(&request).refuse(&Problem::bad_data(text))
}

/// Sees to it that every answer is in its route's envelope: a panic of ours becomes one instead of a closed connection, and so does
/// what the router itself refuses in plain text, such as a path that is not UTF-8.
async fn in_envelopes(request: Request, next: Next) -> Response {
    let family = family_of(&request);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Ok(response) = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind().await else {
        tracing::error!(%method, path, "a handler panicked");
        let text = "the coordinator hit a bug of its own; nothing is known about the outcome, look before you try again";
        return family.refuse(&Problem::new(Trouble::Internal, text));
    };
    let kind = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    if family == Family::Grpc || !response.status().is_client_error() || kind == b"application/json" {
        return response;
    }
    family.refuse(&Problem::bad_data(format!(
        "{method} {path} could not be understood ({})",
        response.status()
    )))
}

/// Reads a body of at most [`BODY_LIMIT`] bytes that may be JSON, [`STRANGERS_LIMIT`] when nobody knows the token: strangers must not fill
/// the memory.
///
/// # Errors
/// `BadData` when it is larger, announced as something else, or breaks off; `Unauthenticated` when it is larger than a stranger's may be.
pub async fn body(api: &Api, token: Option<&str>, request: Request) -> Result<Bytes, Problem> {
    if let Some(given) = request.headers().get(header::CONTENT_TYPE) {
        let essence = given
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        if !matches!(essence.as_str(), "application/json" | "application/json-patch+json" | "") {
            return Err(Problem::bad_data(format!(
                "the Content-Type is {essence:?}: send application/json or application/json-patch+json"
            )));
        }
    }
    if auth::caller(&api.store.local(), token).is_ok() {
        return whole(request.into_body(), BODY_LIMIT).await;
    }
    match whole(request.into_body(), STRANGERS_LIMIT).await {
        Ok(body) => Ok(body),
        // Let in after all, it is a token that was made this moment, and the body is too large to be read twice.
        Err(problem) => api.enter(token, &[]).await.and(Err(problem)),
    }
}

/// Reads a body of at most this many bytes.
///
/// # Errors
/// `BadData` when it is larger, breaks off, or does not arrive in time.
pub async fn whole(body: Body, limit: usize) -> Result<Bytes, Problem> {
    match timeout(BODY_TIME, axum::body::to_bytes(body, limit)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(cause)) => Err(Problem::bad_data(format!(
            "the body could not be read; it may have at most {limit} bytes: {cause}"
        ))),
        Err(_) => Err(Problem::bad_data(format!(
            "the body did not arrive within {} s; send it whole",
            BODY_TIME.as_secs()
        ))),
    }
}

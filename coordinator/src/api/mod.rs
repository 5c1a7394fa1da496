//! The public API: REST, gRPC and the command line on one port. In: requests of users and operators. Out: proposals to the log and
//! views of the state. A member that does not lead passes requests on to the one that does. Called by `serve`.

pub mod auth;
mod cli;
pub use cli::OUR_CLIENT;
mod door;
pub mod errors;
mod family;
mod forward;
mod grpc;
pub mod json;
mod metrics;
mod openapi;
mod rest;
pub mod store;
mod verbs;
mod watching;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use shardplane_model::command::Timestamp;
use ulid::Ulid;

use crate::{clock::Clock, dial::Dialer, secrets::Sealer};
use store::{Reports, Store};

/// Largest request body, bytes.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// Everything a handler needs; cheap to clone.
#[derive(Clone)]
pub struct Api {
    store: Arc<dyn Store>,
    reports: Arc<dyn Reports>,
    sealer: Sealer,
    clock: Clock,
    dialer: Dialer,
}

impl Api {
    /// An API over this state and these reports.
    pub fn new(store: Arc<dyn Store>, reports: Arc<dyn Reports>, sealer: Sealer, clock: Clock) -> Self {
        Self { store, reports, sealer, clock, dialer: Dialer::tcp() }
    }

    /// Reaches the leader by `dialer` instead of TCP.
    pub fn reaching(self, dialer: Dialer) -> Self {
        Self { dialer, ..self }
    }

    /// All routes. `beside` holds the services that every member answers itself: the members' own calls and host sessions.
    pub fn router(&self, beside: Router) -> Router {
        door::assemble(self, beside)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// An id nobody had before.
    fn fresh_id(&self) -> Ulid {
        Ulid::from_parts(self.now().0, rand::random())
    }
}

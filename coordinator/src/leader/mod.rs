//! What only the leader does: listen to hosts, plan, and deliver. In: host sessions and the log. Out: proposals, desired states for
//! hosts, and what is observed, for the API. Started by `run` on every member; it sleeps while the member does not lead.
//!
//! `ear` owns what is observed · `session` is one host's stream · `hello` parses what a host says about itself · `facts` turns
//! what is observed into notices · `executor` runs the planner and proposes.

mod ear;
mod executor;
mod facts;
mod hello;
mod session;

use std::sync::Arc;

use shardplane_model::{observed::Observed, state::Settings};
use shardplane_proto::v1::host_session_server::HostSessionServer;
use tokio::{sync::watch, task::JoinHandle};

use crate::{clock::Clock, raft::Raft, secrets::Sealer};

pub use session::SessionService;

/// What the rest of the coordinator may ask the leader's part; cheap to clone.
#[derive(Clone)]
pub struct Leader {
    ear: ear::Ear,
    sessions: SessionService,
}

impl Leader {
    /// Starts listening and planning. The task ends when the member stops.
    pub fn start(raft: Raft, sealer: Sealer, clock: Clock, settings: Settings) -> (Self, JoinHandle<()>) {
        let wanted = watch::channel(executor::ForHosts::default()).0;
        let ear = ear::Ear::start(clock.clone());
        let sessions =
            SessionService::new(raft.clone(), sealer, clock.clone(), ear.clone(), wanted.subscribe());
        let executor = executor::Executor { raft, clock, ear: ear.clone(), wanted, settings };
        let task = tokio::spawn(executor.run());
        (Self { ear, sessions }, task)
    }

    /// What was heard from hosts since this member leads; empty on a member that does not.
    pub fn observed(&self) -> Arc<Observed> {
        self.ear.observed()
    }

    /// Wakes whenever something new was heard.
    pub fn observed_changed(&self) -> watch::Receiver<u64> {
        self.ear.changed()
    }

    /// The service that host agents call.
    pub fn service(&self) -> HostSessionServer<SessionService> {
        HostSessionServer::new(self.sessions.clone()).max_decoding_message_size(session::LARGEST_MESSAGE)
    }
}

#[cfg(test)]
mod tests;

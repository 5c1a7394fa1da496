//! Putting a running member together. In: its log, its settings, its clock. Out: everything that it serves on its one port, and what
//! the API needs of log and leader as the API's own small traits. Called by `run`.

use std::sync::Arc;

use axum::Router;
use futures::future::BoxFuture;
use shardplane_model::{
    command::{Applied, Command},
    observed::Observed,
    refusal::Refusal,
    state::{Settings, State},
};
use tokio::{sync::watch, task::JoinHandle};
use tonic::service::Routes;

use crate::{
    api::{
        Api,
        store::{Reports, Standing, Store, Unavailable},
    },
    clock::Clock,
    dial::Dialer,
    leader::Leader,
    raft::{Raft, Role},
    secrets::Sealer,
};

/// Starts the leader's part of a member; answers the routes of everything that the member serves, and the task that ends with it.
pub fn start(
    raft: Raft,
    settings: Settings,
    sealer: Sealer,
    clock: Clock,
    dialer: Dialer,
) -> (Router, JoinHandle<()>) {
    let (leader, planning) = Leader::start(raft.clone(), sealer.clone(), clock.clone(), settings);
    let own = Routes::new(raft.service()).add_service(leader.service()).prepare().into_axum_router();
    let api = Api::new(Arc::new(RaftStore::new(raft)), Arc::new(leader), sealer, clock);
    (api.reaching(dialer).router(own), planning)
}

/// The log as the API sees it.
pub struct RaftStore {
    raft: Raft,
    standing: watch::Receiver<Standing>,
    applied: watch::Receiver<u64>,
}

fn standing_of(role: &Role) -> Standing {
    match role {
        Role::Leader { term } => Standing::Leads { term: *term },
        Role::Follower { leader } => {
            Standing::Follows { leader: leader.as_ref().map(|leader| leader.address.clone()) }
        }
        Role::Stopped => Standing::Stopped,
    }
}

/// A receiver of what `from` holds, translated; it ends with `from`.
fn translated<A, B>(mut from: watch::Receiver<A>, translate: fn(&A) -> B) -> watch::Receiver<B>
where
    A: Send + Sync + 'static,
    B: Send + Sync + 'static,
{
    let (to, receiver) = watch::channel(translate(&from.borrow_and_update()));
    tokio::spawn(async move {
        while from.changed().await.is_ok() {
            let next = translate(&from.borrow_and_update());
            if to.send(next).is_err() {
                return;
            }
        }
    });
    receiver
}

impl RaftStore {
    /// The API's view of this log.
    pub fn new(raft: Raft) -> Self {
        let standing = translated(raft.role(), standing_of);
        let applied = translated(raft.applied(), |revision| revision.0);
        Self { raft, standing, applied }
    }
}

impl Store for RaftStore {
    fn propose(
        &self,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Result<Vec<Result<Applied, Refusal>>, Unavailable>> {
        Box::pin(
            async move { self.raft.propose(commands).await.map_err(|error| Unavailable(error.to_string())) },
        )
    }

    fn read(&self) -> BoxFuture<'_, Result<State, Unavailable>> {
        Box::pin(async move { self.raft.read().await.map_err(|error| Unavailable(error.to_string())) })
    }

    fn local(&self) -> State {
        self.raft.local()
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    fn applied(&self) -> watch::Receiver<u64> {
        self.applied.clone()
    }

    fn members(&self) -> Vec<String> {
        self.raft.members().into_iter().map(|member| member.address).collect()
    }
}

impl Reports for Leader {
    fn observed(&self) -> Arc<Observed> {
        Leader::observed(self)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.observed_changed()
    }
}

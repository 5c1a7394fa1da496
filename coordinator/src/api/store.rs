//! What the API needs from the rest of the coordinator, so that its tests need no disk and no network. In: commands. Out: the
//! replicated state, who leads, and what hosts report. Implemented by the consensus and the leader; called by every verb.

use std::sync::Arc;

use futures::future::BoxFuture;
use shardplane_model::{
    command::{Applied, Command},
    observed::Observed,
    refusal::Refusal,
    state::State,
};
use tokio::sync::watch;

/// Who leads, as this member knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// This member leads.
    Leads {
        /// The consensus term.
        term: u64,
    },
    /// Another one leads, or nobody.
    Follows {
        /// host:port of the leader, when there is one.
        leader: Option<String>,
    },
    /// This member has stopped taking part.
    Stopped,
}

/// Neither a change nor a current read is possible right now; trying again is safe.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// The replicated state.
pub trait Store: Send + Sync {
    /// Records commands and answers what applying each did.
    fn propose(
        &self,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Result<Vec<Result<Applied, Refusal>>, Unavailable>>;

    /// The state with everything that was accepted before the call.
    fn read(&self) -> BoxFuture<'_, Result<State, Unavailable>>;

    /// The state as this member has it.
    fn local(&self) -> State;

    /// Who leads, now and later.
    fn standing(&self) -> watch::Receiver<Standing>;

    /// Number of the newest applied entry, now and later.
    fn applied(&self) -> watch::Receiver<u64>;

    /// host:port of every member.
    fn members(&self) -> Vec<String>;
}

/// What hosts report.
pub trait Reports: Send + Sync {
    /// Everything heard since this member leads.
    fn observed(&self) -> Arc<Observed>;

    /// Rises whenever something else was heard.
    fn changed(&self) -> watch::Receiver<u64>;
}

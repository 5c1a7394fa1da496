//! The seam between the loop and the engines: what an engine must be able to do.
//!
//! In: a [`GuestConfig`] with the engine's own config message. Out: an [`Engine`]. Called by `run`. An engine value is
//! one config and does not change; a new config makes a new value.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use shardplane_proto::v1::GuestConfig;

use crate::bounded::bounded;

mod files;
mod postgres;
mod valkey;

/// The engine's user and group. A number is enough: no program in the image looks up its name.
pub const ENGINE_UID: u32 = 999;

/// Why something with an engine did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The config or task cannot be followed.
    #[error("{0}")]
    Refused(String),
    /// A file or process step failed.
    #[error("{action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The engine answered with an error, or not at all; its own text.
    #[error("{0}")]
    Engine(String),
    /// The engine answered that it still loads its data; its own text.
    #[error("{0}")]
    Loading(String),
}

/// For `map_err` on a file step.
pub fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EngineError {
    move |source| EngineError::File { action, path: path.to_owned(), source }
}

/// How to start the engine's process.
pub struct Launch {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Its arguments; nothing secret.
    pub arguments: Vec<String>,
    /// User and group it runs as.
    pub uid: u32,
    /// Where its output goes.
    pub log: PathBuf,
    /// Lines of its output that must not be kept.
    pub is_secret: fn(&str) -> bool,
}

/// What the engine says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The engine's own report message.
    pub message: Vec<u8>,
    /// The same without the members that change all the time: when it differs, the host is told at once.
    pub meaning: Vec<u8>,
    /// How many other members hold a live copy of this member's data; 0 for one that takes no writes.
    pub live_copies: u32,
    /// It takes no writes now: it follows another member.
    pub read_only: bool,
}

/// What a task did so far. It outlives a task that fails or is broken off.
#[derive(Debug, Default)]
pub struct Done {
    /// Which task.
    pub task_id: String,
    /// Counted, by what: for example slots and keys.
    pub counts: BTreeMap<String, u64>,
    /// For people, although it may have gone well.
    pub notes: Vec<String>,
}

impl Done {
    const MAX_NOTES: usize = 8;

    /// Counts `more` of `what`.
    pub fn count(&mut self, what: &str, more: u64) {
        *self.counts.entry(what.to_owned()).or_default() += more;
    }

    /// Notes something once; past eight notes only the log has it.
    pub fn note(&mut self, text: String) {
        let text = bounded(text);
        if self.notes.contains(&text) {
            return;
        }
        tracing::warn!("{text}");
        if self.notes.len() < Self::MAX_NOTES {
            self.notes.push(text);
        }
    }
}

/// Why a start has to wait. A newer config may lift it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// So long after the last sign of life; None: until a newer config.
    pub length: Option<Duration>,
    /// For people.
    pub why: &'static str,
}

/// What was asked of an engine that shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It was told by its own protocol, and ends.
    Told,
    /// It is ready to end, and does at SIGTERM.
    AtSignal,
}

/// One engine under one config.
pub trait Engine: Send + Sync {
    /// Writes the files the engine needs, before each start. Some: the start must wait.
    fn prepare(&self) -> Result<Option<Hold>, EngineError>;
    /// How to start it.
    fn start(&self) -> Launch;
    /// Asks the running engine about itself. An error while it is still loading or does not answer.
    fn report(&self) -> BoxFuture<'_, Result<Report, EngineError>>;
    /// How long this task may take.
    fn deadline(&self, payload: &[u8]) -> Duration;
    /// Performs one task, idempotently, and writes down what it did as it goes. The caller keeps the deadline.
    fn perform<'a>(&'a self, payload: &'a [u8], done: &'a mut Done)
    -> BoxFuture<'a, Result<(), EngineError>>;
    /// Brings the running engine from this config to `next`, as far as it goes without a restart. Answers the engine under `next`, which
    /// knows what the running one refused of it.
    fn apply<'a>(&'a self, next: &'a GuestConfig) -> BoxFuture<'a, Result<Arc<dyn Engine>, EngineError>>;
    /// Lets no client write for that long, or until [`Engine::release_writes`]. Asked again it holds for longer.
    fn hold_writes(&self, length: Duration) -> BoxFuture<'_, Result<(), EngineError>>;
    /// Lets clients write again.
    fn release_writes(&self) -> BoxFuture<'_, Result<(), EngineError>>;
    /// Asks the engine to end in order. The caller watches the process and kills it past the deadline.
    fn stop(&self) -> BoxFuture<'_, Result<Stop, EngineError>>;
    /// Why a restart that was ordered has to wait, as the engine's last report shows it.
    fn restart_waits(&self, latest: &Report) -> Option<&'static str>;
    /// Asks the engine to end in order with its data on disk, whatever the config says, so that it starts again with them.
    fn stop_for_restart(&self) -> BoxFuture<'_, Result<Stop, EngineError>>;
    /// The same without the part that kept the engine from starting, by what it wrote last; none when it was something else.
    fn without_what_failed(&self, last_words: &str) -> Option<Arc<dyn Engine>>;
}

/// The engine called `name` under this config.
pub fn open(name: &str, config: &GuestConfig) -> Result<Arc<dyn Engine>, EngineError> {
    match name {
        "valkey" => Ok(Arc::new(valkey::Valkey::new(config)?)),
        "postgres" => postgres::open(config),
        other => Err(EngineError::Refused(format!("this supervisor has no engine called {other:?}"))),
    }
}

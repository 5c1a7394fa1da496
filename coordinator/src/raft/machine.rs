//! The replicated state in memory. In: committed entries and snapshots. Out: the answers, and after every batch a cheap
//! clone of the state for all readers of this member. It is rebuilt from the snapshot and the log at each start.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, RwLock},
};

use openraft::{
    AnyError, EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageIOError, storage::RaftStateMachine,
};
use shardplane_model::state::State;
use tokio::sync::watch;

use super::{
    Revision,
    disk::{self, AnyFile},
    snapshot::{self, SnapshotDir, SnapshotError},
    types::{Answers, LogEntry, LogId, Snapshot, SnapshotMeta, StorageError, StoredMembership, TypeConfig},
};

/// What this member has applied, for everybody to read.
#[derive(Debug)]
pub(crate) struct Published {
    state: RwLock<State>,
    applied: watch::Sender<Revision>,
}

impl Published {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: RwLock::default(), applied: watch::channel(Revision(0)).0 })
    }

    pub(crate) fn state(&self) -> State {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn applied(&self) -> watch::Receiver<Revision> {
        self.applied.subscribe()
    }

    fn publish(&self, state: State, index: u64) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.applied.send_replace(Revision(index));
    }
}

/// The state machine of one member.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    last: Option<LogId>,
    membership: StoredMembership,
    snapshots: Arc<SnapshotDir>,
    published: Arc<Published>,
}

impl Machine {
    /// The state of the current snapshot, or the empty one.
    pub(crate) fn load(
        snapshots: Arc<SnapshotDir>,
        published: Arc<Published>,
    ) -> Result<Self, SnapshotError> {
        let mut machine = Self {
            state: State::default(),
            last: None,
            membership: StoredMembership::default(),
            snapshots,
            published,
        };
        if let Some((_, mut file)) = machine.snapshots.current()? {
            let (meta, state) = snapshot::read(&mut file)?;
            machine.adopt(&meta, state);
        }
        Ok(machine)
    }

    /// The last entry that is in the state.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.last
    }

    fn adopt(&mut self, meta: &SnapshotMeta, state: State) {
        self.state = state;
        self.last = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.publish();
    }

    fn publish(&self) {
        self.published.publish(self.state.clone(), self.last.map_or(0, |last| last.index));
    }

    fn apply_one(&mut self, entry: LogEntry) -> Result<Answers, Box<StorageError>> {
        let answers = match entry.payload {
            EntryPayload::Blank => Answers::new(),
            EntryPayload::Normal(commands) => {
                // A panic would end the worker silently; as an error it stops the member at once. The half-applied
                // state is never published.
                let state = &mut self.state;
                let apply = AssertUnwindSafe(|| state.apply(entry.log_id.index, &commands));
                catch_unwind(apply).map_err(|_| {
                    let text =
                        format!("applying entry {} panicked: a defect of this program", entry.log_id.index);
                    Box::new(StorageIOError::apply(entry.log_id, AnyError::error(text)).into())
                })?
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
                Answers::new()
            }
        };
        self.last = Some(entry.log_id);
        Ok(answers)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Answers>, StorageError>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let applied: Result<_, Box<StorageError>> =
            entries.into_iter().map(|entry| self.apply_one(entry)).collect();
        let answers = applied.map_err(|error| *error)?;
        self.publish();
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let position = self.last.map_or_else(|| "empty".to_owned(), |last| last.to_string());
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.membership.clone(),
            snapshot_id: format!("{position}-{:08x}", rand::random::<u32>()),
        };
        Builder { meta, state: self.state.clone(), snapshots: self.snapshots.clone() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<AnyFile>, StorageError> {
        let file = self.snapshots.scratch();
        Ok(Box::new(file.map_err(|e| StorageIOError::write_snapshot(None, AnyError::new(&e)))?))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        mut received: Box<AnyFile>,
    ) -> Result<(), StorageError> {
        let (snapshots, covered) = (self.snapshots.clone(), meta.clone());
        let installed =
            disk::run(&self.snapshots.disk, move || snapshots.install(&covered, &mut received)).await;
        let state = installed
            .map_err(SnapshotError::from)
            .and_then(|state| state)
            .map_err(|e| StorageIOError::write_snapshot(Some(meta.signature()), AnyError::new(&e)))?;
        self.adopt(meta, state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        let current = self.snapshots.current();
        let current = current.map_err(|e| StorageIOError::read_snapshot(None, AnyError::new(&e)))?;
        Ok(current.map(|(meta, file)| Snapshot { meta, snapshot: Box::new(file) }))
    }
}

/// Writes a snapshot of the state as it was when the builder was made, beside the entries that go on being applied.
pub(crate) struct Builder {
    meta: SnapshotMeta,
    state: State,
    snapshots: Arc<SnapshotDir>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let (snapshots, meta, state) = (self.snapshots.clone(), self.meta.clone(), self.state.clone());
        let built = disk::run(&self.snapshots.disk, move || snapshots.build(&meta, &state)).await;
        let file = built
            .map_err(SnapshotError::from)
            .and_then(|file| file)
            .map_err(|e| StorageIOError::write_snapshot(Some(self.meta.signature()), AnyError::new(&e)))?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: Box::new(file) })
    }
}

//! The log and the vote on disk, in one redb file. In: what the consensus core appends, votes, truncates and purges. Out: the
//! same after any crash. Every change but the committed position is synced before it is reported; an error of the disk
//! ends the core, for nobody knows what a disk that failed once has kept.

use std::{
    fmt::Debug,
    ops::{Bound, Range, RangeBounds},
    sync::{Arc, Mutex, PoisonError},
};

use openraft::{
    AnyError, LogState, OptionalSend, RaftLogReader, StorageIOError,
    storage::{LogFlushed, RaftLogStorage},
};
use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use tokio::sync::watch;

use super::{
    Storage,
    disk::{self, Disk},
    record::{self, EntryRecord, Position, RecordError, VoteRecord},
    tail::Tail,
    types::{LogEntry, LogId, StorageError, TypeConfig, Vote},
};

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const NODE: &str = "node";
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";

/// Page cache of redb, bytes; the tail in memory serves almost every read.
const CACHE: usize = 32 << 20;
/// Entries kept in memory.
pub(crate) const TAIL_ENTRIES: usize = 1024;
/// Bytes of entries in one AppendEntries: it has to arrive and be synced within a heartbeat.
const BATCH_BYTES: usize = 512 << 10;

/// Why the log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("redb failed")]
    Storage(#[source] Box<redb::Error>),
    #[error("a record of the log cannot be read")]
    Record(#[from] RecordError),
    #[error(transparent)]
    Task(#[from] disk::Ended),
    #[error("it belongs to node {found}, not to node {expected}")]
    OtherNode { found: u64, expected: u64 },
    #[error("it belongs to no node: it was never initialised")]
    NoNode,
}

macro_rules! from_redb {
    ($($error:ident)*) => {$(
        impl From<redb::$error> for LogError {
            fn from(error: redb::$error) -> Self {
                Self::Storage(Box::new(error.into()))
            }
        }
    )*};
}
from_redb!(DatabaseError TransactionError TableError StorageError CommitError SetDurabilityError);

/// How the file is opened.
fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// The open file. Its fields end in this order: who waits for `closed` may open the file again.
#[derive(Debug)]
struct OpenFile {
    db: Database,
    closed: watch::Sender<()>,
}

/// The log of one member.
#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    file: Arc<OpenFile>,
    disk: Arc<dyn Disk>,
    tail: Arc<Mutex<Tail>>,
}

impl LogStore {
    /// The log of `node` on a disk; it keeps about so many entries in memory.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        node: u64,
        storage: Storage,
        tail_entries: usize,
    ) -> Result<Self, LogError> {
        let db = disk.log(&builder(), storage)?;
        let txn = db.begin_write()?;
        txn.open_table(ENTRIES)?;
        {
            let mut facts = txn.open_table(FACTS)?;
            let found = facts.get(NODE)?.map(|bytes| record::decode::<u64>(bytes.value())).transpose()?;
            match found {
                Some(found) if found != node => return Err(LogError::OtherNode { found, expected: node }),
                Some(_) => {}
                None if storage == Storage::New => {
                    facts.insert(NODE, record::encode(&node)?.as_slice())?;
                }
                None => return Err(LogError::NoNode),
            }
        }
        txn.commit()?;
        let file = OpenFile { db, closed: watch::channel(()).0 };
        Ok(Self { file: Arc::new(file), disk, tail: Arc::new(Mutex::new(Tail::new(tail_entries))) })
    }

    /// The position up to which entries were purged.
    pub(crate) fn purged(&self) -> Result<Option<LogId>, LogError> {
        Ok(fact::<Position>(&self.file.db, PURGED)?.map(Into::into))
    }

    /// Errs once the file is closed.
    pub(crate) fn closed(&self) -> watch::Receiver<()> {
        self.file.closed.subscribe()
    }

    fn tail<T>(&self, with: impl FnOnce(&mut Tail) -> T) -> T {
        with(&mut self.tail.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `work` where blocking is allowed. The core awaits each call before the next: writes keep their order.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let file = self.file.clone();
        disk::run(&self.disk, move || work(&file.db)).await?
    }

    async fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<LogEntry>, StorageError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(entries) = self.tail(|tail| tail.read(range.clone(), max_bytes)) {
            return Ok(entries);
        }
        self.blocking(move |db| read_entries(db, range, max_bytes))
            .await
            .map_err(|e| StorageIOError::read_logs(AnyError::new(&e)).into())
    }
}

fn fact<T: serde::de::DeserializeOwned>(db: &Database, key: &str) -> Result<Option<T>, LogError> {
    let txn = db.begin_read()?;
    let facts = txn.open_table(FACTS)?;
    Ok(facts.get(key)?.map(|bytes| record::decode(bytes.value())).transpose()?)
}

fn set_fact(db: &Database, key: &str, value: &[u8], durability: Durability) -> Result<(), LogError> {
    let mut txn = db.begin_write()?;
    txn.set_durability(durability)?;
    txn.open_table(FACTS)?.insert(key, value)?;
    txn.commit()?;
    Ok(())
}

fn read_entries(db: &Database, range: Range<u64>, max_bytes: usize) -> Result<Vec<LogEntry>, LogError> {
    let txn = db.begin_read()?;
    let table = txn.open_table(ENTRIES)?;
    let mut entries = Vec::new();
    let mut bytes = 0;
    for item in table.range(range)? {
        let (_, value) = item?;
        let value = value.value();
        if !entries.is_empty() && bytes + value.len() > max_bytes {
            break;
        }
        bytes += value.len();
        entries.push(record::decode::<EntryRecord<'_>>(value)?.into());
    }
    Ok(entries)
}

/// Writes the entries in one synced transaction; hands them back with their sizes.
fn write_entries(db: &Database, entries: Vec<LogEntry>) -> Result<Vec<(LogEntry, usize)>, LogError> {
    let txn = db.begin_write()?;
    let mut written = Vec::with_capacity(entries.len());
    {
        let mut table = txn.open_table(ENTRIES)?;
        for entry in entries {
            let bytes = record::encode(&EntryRecord::from(&entry))?;
            table.insert(entry.log_id.index, bytes.as_slice())?;
            written.push((entry, bytes.len()));
        }
    }
    txn.commit()?;
    Ok(written)
}

fn last_entry(db: &Database) -> Result<Option<LogId>, LogError> {
    let txn = db.begin_read()?;
    let table = txn.open_table(ENTRIES)?;
    let Some((_, value)) = table.last()? else { return Ok(None) };
    Ok(Some(LogEntry::from(record::decode::<EntryRecord<'_>>(value.value())?).log_id))
}

fn delete(db: &Database, range: Range<u64>, purged: Option<&[u8]>) -> Result<(), LogError> {
    let txn = db.begin_write()?;
    txn.open_table(ENTRIES)?.retain_in(range, |_, _| false)?;
    if let Some(purged) = purged {
        txn.open_table(FACTS)?.insert(PURGED, purged)?;
    }
    txn.commit()?;
    Ok(())
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<LogEntry>, StorageError> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start..end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<LogEntry>, StorageError> {
        self.read(start..end, BATCH_BYTES).await
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let state = self.blocking(|db| {
            let purged = fact::<Position>(db, PURGED)?.map(LogId::from);
            Ok(LogState { last_purged_log_id: purged, last_log_id: last_entry(db)?.or(purged) })
        });
        state.await.map_err(|e| StorageIOError::read_logs(AnyError::new(&e)).into())
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let vote = VoteRecord::from(*vote);
        self.blocking(move |db| set_fact(db, VOTE, &record::encode(&vote)?, Durability::Immediate))
            .await
            .map_err(|e| StorageIOError::write_vote(AnyError::new(&e)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let vote = self.blocking(|db| fact::<VoteRecord>(db, VOTE));
        let vote = vote.await.map_err(|e| StorageIOError::read_vote(AnyError::new(&e)))?;
        Ok(vote.map(Into::into))
    }

    /// Not synced: it rides on the next append, and an older position only means that more entries wait for the leader
    /// to say again that they are committed.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        let committed = committed.map(Position::from);
        self.blocking(move |db| set_fact(db, COMMITTED, &record::encode(&committed)?, Durability::None))
            .await
            .map_err(|e| StorageIOError::write(AnyError::new(&e)).into())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        let committed = self.blocking(|db| fact::<Option<Position>>(db, COMMITTED));
        let committed = committed.await.map_err(|e| StorageIOError::read(AnyError::new(&e)))?;
        Ok(committed.flatten().map(Into::into))
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        let written = self.blocking(move |db| write_entries(db, entries)).await;
        let written = written.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)))?;
        self.tail(|tail| written.into_iter().for_each(|(entry, bytes)| tail.push(entry, bytes)));
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, since: LogId) -> Result<(), StorageError> {
        self.tail(|tail| tail.truncate(since.index));
        self.blocking(move |db| delete(db, since.index..u64::MAX, None))
            .await
            .map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        self.tail(|tail| tail.purge(upto.index));
        let work = move |db: &Database| {
            let purged = record::encode(&Position::from(upto))?;
            delete(db, 0..upto.index + 1, Some(&purged))
        };
        self.blocking(work).await.map_err(|e| StorageIOError::write_logs(AnyError::new(&e)).into())
    }
}

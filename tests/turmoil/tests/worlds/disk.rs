//! A disk that forgets. In: the coordinator's reads and writes. Out: what it wrote; after a power cut what it synced, and of the rest
//! whatever the seed says. Slow, failing and cut at any single operation when a test wants it so.

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use redb::{Builder, Database, DatabaseError, StorageBackend};
use shardplane_coordinator::raft::{
    Storage,
    disk::{AnyFile, Disk},
};

use crate::files::{Contents, Open};

/// What a power cut may tear: the unit in which a disk writes.
const SECTOR: usize = 4096;

/// A disk and the machine that it is in: handles of an earlier boot are dead.
#[derive(Clone)]
pub struct Platter(Arc<Mutex<State>>);

pub struct State {
    pub rng: StdRng,
    /// Counts boots; rises with each power cut.
    pub boot: u64,
    /// Set when the power failed in the middle of something and the machine does not know yet.
    pub died: bool,
    /// Operations until that happens.
    cut_after: Option<u32>,
    /// The next sync of the log fails.
    fail_sync: bool,
    /// Syncs that failed in this boot.
    pub failed: u32,
    /// Longest wait for one piece of work.
    pub latency: Duration,
    log: Contents,
    /// By name, as the running machine sees it and as it survives.
    pub names: BTreeMap<String, Arc<Mutex<Contents>>>,
    pub kept_names: BTreeMap<String, Arc<Mutex<Contents>>>,
    /// Pieces of work so far.
    pub work: u64,
    /// Writes that were dropped by cuts and failed syncs.
    pub lost: u64,
}

impl State {
    /// Refuses everything of machines that have no power any more; counts towards the cut in the middle.
    pub fn operation(&mut self, boot: u64) -> io::Result<()> {
        if let Some(left) = &mut self.cut_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.cut_after = None;
                self.died = true;
            }
        }
        if self.died || self.boot != boot {
            return Err(io::Error::other("the power is off"));
        }
        Ok(())
    }
}

impl fmt::Debug for Platter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Platter")
    }
}

impl Platter {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: StdRng::seed_from_u64(seed),
            boot: 1,
            died: false,
            cut_after: None,
            fail_sync: false,
            failed: 0,
            latency: Duration::from_millis(1),
            log: Contents::default(),
            names: BTreeMap::new(),
            kept_names: BTreeMap::new(),
            work: 0,
            lost: 0,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk as the machine of this boot has it.
    pub fn mounted(&self) -> Mounted {
        Mounted { boot: self.state().boot, platter: self.clone() }
    }

    /// The power fails in the middle of the work, so many operations from now.
    pub fn cut_after(&self, operations: u32) {
        self.state().cut_after = Some(operations);
    }

    /// The next sync of the log fails, and some of what it should have kept is lost though reads still show it.
    pub fn fail_next_sync(&self) {
        self.state().fail_sync = true;
    }

    /// The power fails now: what was not synced is kept in part or not at all.
    pub fn cut(&self) {
        let state = &mut *self.state();
        state.boot += 1;
        state.died = false;
        state.cut_after = None;
        state.fail_sync = false;
        state.failed = 0;
        state.lost += state.log.cut(&mut state.rng, SECTOR);
        // Names reach the disk in the order in which they were made or not at all; here: none or all of them.
        if state.rng.random_bool(0.5) {
            state.kept_names = state.names.clone();
        }
        for contents in state.kept_names.values() {
            let mut contents = contents.lock().unwrap_or_else(PoisonError::into_inner);
            state.lost += contents.cut(&mut state.rng, SECTOR);
        }
        state.names = state.kept_names.clone();
    }
}

/// A disk in one boot of its machine.
#[derive(Debug, Clone)]
pub struct Mounted {
    pub boot: u64,
    pub platter: Platter,
}

impl Mounted {
    /// Runs one operation, when there is power.
    pub fn with<T>(&self, operation: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.platter.state();
        state.operation(self.boot)?;
        operation(&mut state)
    }
}

impl StorageBackend for Mounted {
    fn len(&self) -> io::Result<u64> {
        self.with(|state| Ok(state.log.now.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|state| state.log.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|state| state.log.resize(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|state| {
            if std::mem::take(&mut state.fail_sync) {
                state.failed += 1;
                state.lost += state.log.lose(&mut state.rng, SECTOR);
                return Err(io::Error::other("the disk lost a write"));
            }
            state.log.sync();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state| state.log.write(offset, data))
    }
}

impl Disk for Mounted {
    fn log(&self, builder: &Builder, _: Storage) -> Result<Database, DatabaseError> {
        builder.create_with_backend(self.clone())
    }

    fn open(&self, name: &str) -> io::Result<AnyFile> {
        let contents = self.with(|state| state.names.get(name).cloned().ok_or_else(missing))?;
        Ok(Box::new(Open::new(self.clone(), contents)))
    }

    fn create(&self, name: &str) -> io::Result<AnyFile> {
        let contents = Arc::new(Mutex::new(Contents::default()));
        self.with(|state| match state.names.insert(name.to_owned(), contents.clone()) {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => Ok(()),
        })?;
        Ok(Box::new(Open::new(self.clone(), contents)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|state| {
            let contents = state.names.remove(from).ok_or_else(missing)?;
            state.names.insert(to.to_owned(), contents);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|state| state.names.remove(name).map(drop).ok_or_else(missing))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.with(|state| Ok(state.names.keys().cloned().collect()))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.with(|state| {
            state.kept_names = state.names.clone();
            Ok(())
        })
    }

    /// On this thread, after a wait: time stands still while it works, and the order of things is the seed's.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let wait = {
            let state = &mut *self.platter.state();
            state.work += 1;
            let most = u64::try_from(state.latency.as_micros()).unwrap_or(u64::MAX);
            Duration::from_micros(state.rng.next_u64() % (most + 1))
        };
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            work();
        })
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

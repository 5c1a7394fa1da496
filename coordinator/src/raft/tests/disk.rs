//! SCH-10: what was answered is on disk; a disk that fails stops the member; damaged or missing files are refused.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::future::BoxFuture;
use openraft::storage::RaftLogStorage as _;
use redb::{Builder, Database, DatabaseError, StorageBackend, backends::InMemoryBackend};

use super::{
    Machine, PATIENCE, add_token, config, has_token, leads, outcome_is_known, single, timing, until,
};
use crate::raft::{
    Raft, Role, Storage, Timing,
    disk::{AnyFile, Directory, Disk},
    log::{LogStore, TAIL_ENTRIES},
    types::Vote,
};

/// A disk whose fsync fails from some moment on, and which knows what it would have kept in a power cut.
#[derive(Debug)]
struct Failing {
    disk: InMemoryBackend,
    broken: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<u8>>>,
}

impl StorageBackend for Failing {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.broken.load(Ordering::Acquire) {
            return Err(io::Error::other("the disk lost a write"));
        }
        let mut now = vec![0; usize::try_from(self.disk.len()?).unwrap()];
        self.disk.read(0, &mut now)?;
        *self.kept.lock().unwrap() = now;
        self.disk.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.write(offset, data)
    }
}

/// A directory whose log lies on such a disk.
#[derive(Debug)]
struct FailingLog {
    files: Directory,
    broken: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<u8>>>,
}

impl FailingLog {
    fn new(dir: &Path) -> Self {
        let files = Directory::new(dir.to_owned());
        Self { files, broken: Arc::default(), kept: Arc::default() }
    }
}

impl Disk for FailingLog {
    fn log(&self, builder: &Builder, _: Storage) -> Result<Database, DatabaseError> {
        let (broken, kept) = (self.broken.clone(), self.kept.clone());
        let disk = InMemoryBackend::new();
        let before = kept.lock().unwrap().clone();
        disk.set_len(before.len() as u64)?;
        disk.write(0, &before)?;
        builder.create_with_backend(Failing { disk, broken, kept })
    }

    fn open(&self, name: &str) -> io::Result<AnyFile> {
        self.files.open(name)
    }

    fn create(&self, name: &str) -> io::Result<AnyFile> {
        self.files.create(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.files.names()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.files.sync_names()
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        self.files.run(work)
    }
}

#[tokio::test]
async fn sch_10_a_failed_fsync_stops_the_member_before_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(1, dir.path(), "127.0.0.1:1", Storage::New);
    let disk = Arc::new(FailingLog::new(dir.path()));
    let broken = disk.broken.clone();
    config.disk = disk;
    let raft = Raft::open(config).await.unwrap();
    raft.initialize().await.unwrap();
    until("it leads", || leads(&raft)).await;
    raft.propose(vec![add_token(1)]).await.unwrap();

    broken.store(true, Ordering::Release);
    let error = raft.propose(vec![add_token(2)]).await.unwrap_err();
    assert!(!outcome_is_known(&error), "{error}");
    assert!(!has_token(&raft, 2), "an entry that may not be on disk was applied");
    let mut role = raft.role();
    tokio::time::timeout(PATIENCE, role.wait_for(|role| *role == Role::Stopped)).await.unwrap().unwrap();
    let reason = raft.stop_reason().unwrap();
    assert!(reason.contains("the disk lost a write"), "{reason}");
    assert!(raft.propose(vec![add_token(3)]).await.is_err());
    raft.stop().await;
}

#[tokio::test]
async fn sch_10_a_vote_that_was_given_is_given_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FailingLog::new(dir.path()));
    for term in 1..=3 {
        let storage = if term == 1 { Storage::New } else { Storage::Existing };
        let mut log = LogStore::open(disk.clone(), 1, storage, TAIL_ENTRIES).unwrap();
        let before = (term > 1).then(|| Vote::new(term - 1, 7));
        assert_eq!(log.read_vote().await.unwrap(), before, "it could vote again in the same term");
        log.save_vote(&Vote::new(term, 7)).await.unwrap();
        // The power fails: what is not synced is gone; closing the file comes too late.
        let kept = disk.kept.lock().unwrap().clone();
        drop(log);
        *disk.kept.lock().unwrap() = kept;
    }
}

#[tokio::test]
async fn sch_10_what_was_answered_survives_an_end_without_warning() {
    let mut machine = single(timing()).await;
    for number in 1..=20 {
        machine.raft().propose(vec![add_token(number)]).await.unwrap();
    }
    // A copy of the file while it is open is what a crash leaves.
    let copy = tempfile::tempdir().unwrap();
    fs::copy(machine.dir.path().join("log.redb"), copy.path().join("log.redb")).unwrap();
    machine.kill().await;
    let mut config = config(1, copy.path(), &machine.address.to_string(), Storage::Existing);
    config.timing = timing();
    let raft = Raft::open(config).await.unwrap();
    until("it leads again", || leads(&raft)).await;
    let state = raft.read().await.unwrap();
    assert_eq!(state.tokens.len(), 20);
    raft.stop().await;
}

#[tokio::test]
async fn a_snapshot_takes_the_place_of_old_entries_and_of_a_replay() {
    let timing = Timing { snapshot_every: 20, entries_kept: 5, ..timing() };
    let mut machine = single(timing).await;
    for number in 1..=60 {
        machine.raft().propose(vec![add_token(number)]).await.unwrap();
    }
    let purged = || async { machine.raft().core.metrics().borrow().purged.is_some_and(|at| at.index >= 40) };
    until("old entries are purged", purged).await;
    machine.kill().await;
    machine.restart().await;
    until("it leads again", || leads(machine.raft())).await;
    assert_eq!(machine.raft().read().await.unwrap().tokens.len(), 60);

    machine.kill().await;
    fs::remove_file(machine.dir.path().join("snapshot.jsonl")).unwrap();
    let address = machine.address.to_string();
    let lost = Raft::open(config(1, machine.dir.path(), &address, Storage::Existing)).await.unwrap_err();
    assert!(lost.to_string().contains("the snapshot file is missing"), "{lost}");
}

#[tokio::test]
async fn a_wiped_or_foreign_log_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let wiped = Raft::open(config(1, empty.path(), "127.0.0.1:1", Storage::Existing)).await;
    assert!(wiped.is_err());
    let mut machine = Machine::start_new(1, timing()).await;
    let twice =
        Raft::open(config(1, machine.dir.path(), "127.0.0.1:1", Storage::Existing)).await.unwrap_err();
    assert!(twice.to_string().contains("open"), "{twice}");
    machine.kill().await;
    let foreign =
        Raft::open(config(2, machine.dir.path(), "127.0.0.1:1", Storage::Existing)).await.unwrap_err();
    assert!(foreign.to_string().contains("belongs to node 1"), "{foreign}");
}

#[tokio::test]
async fn a_cluster_is_initialised_once() {
    let mut machine = single(timing()).await;
    assert!(machine.raft().initialize().await.is_err());
    machine.kill().await;
    machine.restart().await;
    assert!(machine.raft().initialize().await.is_err());
    machine.kill().await;
}

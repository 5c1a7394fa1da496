//! The consensus library's own suite of what a store must do, with and without entries in memory.

use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

use crate::raft::{
    Storage,
    disk::{Directory, Disk},
    log::{LogStore, TAIL_ENTRIES},
    machine::{Machine, Published},
    snapshot::SnapshotDir,
    types::{StorageError, TypeConfig},
};

struct Stores {
    tail: usize,
}

impl StoreBuilder<TypeConfig, LogStore, Machine, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError> {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(Directory::new(dir.path().to_owned()));
        let log = LogStore::open(disk.clone(), 1, Storage::New, self.tail).unwrap();
        let machine = Machine::load(Arc::new(SnapshotDir::new(disk)), Published::new()).unwrap();
        Ok((dir, log, machine))
    }
}

#[test]
fn the_stores_do_what_the_library_asks() {
    Suite::test_all(Stores { tail: TAIL_ENTRIES }).unwrap();
}

#[test]
fn the_stores_do_it_from_disk_too() {
    Suite::test_all(Stores { tail: 1 }).unwrap();
}

//! The consensus library's own suite of what a store must do, with and without entries in memory.

use std::sync::Arc;

use openraft::testing::{StoreBuilder, Suite};
use redb::backends::InMemoryBackend;
use tempfile::TempDir;

use super::open_log;
use crate::raft::{
    log::{LogStore, TAIL_ENTRIES, builder},
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
        let log = open_log(builder().create_with_backend(InMemoryBackend::new()).unwrap(), self.tail);
        let machine = Machine::load(Arc::new(SnapshotDir::new(dir.path())), Published::new()).unwrap();
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

//! The directory of a member. In: names and contents of its log and snapshots. Out: the same after a crash, as far as it was synced.
//! [`Directory`] is the file system; whoever opens a member may bring another one.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::Arc,
};

use futures::future::BoxFuture;
use redb::{Builder, Database, DatabaseError};
use tokio::sync::oneshot;

use super::Storage;

const LOG: &str = "log.redb";

/// An open file. It stays whole when its name is removed or given to another one.
pub trait DiskFile: Read + Write + Seek + fmt::Debug + Send + Sync {
    /// Bytes in it.
    ///
    /// # Errors
    /// When the disk refuses.
    fn length(&self) -> io::Result<u64>;

    /// Until its contents survive a crash.
    ///
    /// # Errors
    /// When the disk refuses; then nobody knows what it has kept.
    fn sync(&mut self) -> io::Result<()>;
}

/// An open file of any kind.
pub type AnyFile = Box<dyn DiskFile>;

/// Files of one member.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Opens the log, or makes an empty one.
    ///
    /// # Errors
    /// When it is missing, in use or damaged.
    fn log(&self, builder: &Builder, storage: Storage) -> Result<Database, DatabaseError>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When there is none of this name.
    fn open(&self, name: &str) -> io::Result<AnyFile>;

    /// Makes a file for writing and reading.
    ///
    /// # Errors
    /// When there is one of this name.
    fn create(&self, name: &str) -> io::Result<AnyFile>;

    /// Gives a file another name; who had it loses it.
    ///
    /// # Errors
    /// When there is none of this name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// When there is none of this name.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// All names.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Until names made, changed and removed survive a crash.
    ///
    /// # Errors
    /// When the disk refuses.
    fn sync_names(&self) -> io::Result<()>;

    /// Does work that waits for the disk where that holds up nobody.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
}

/// The work for a disk ended early.
#[derive(Debug, thiserror::Error)]
#[error("the task that works on the disk ended early")]
pub(crate) struct Ended;

/// Does `work` as [`Disk::run`] says and answers its result.
pub(crate) async fn run<T: Send + 'static>(
    disk: &Arc<dyn Disk>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Ended> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Who does not wait any more has no use for the result.
        let _ = done.send(work());
    };
    disk.run(Box::new(work)).await;
    result.await.map_err(|_| Ended)
}

/// A directory of the file system; files are for the owner only.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// This directory, which exists.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }
}

impl Disk for Directory {
    fn log(&self, builder: &Builder, storage: Storage) -> Result<Database, DatabaseError> {
        match storage {
            Storage::New => builder.create(self.0.join(LOG)),
            Storage::Existing => builder.open(self.0.join(LOG)),
        }
    }

    fn open(&self, name: &str) -> io::Result<AnyFile> {
        Ok(Box::new(File::open(self.0.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<AnyFile> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(Box::new(options.open(self.0.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let working = tokio::task::spawn_blocking(work);
        Box::pin(async move {
            // Work that panicked has left no result; who waits for it sees that.
            let _ = working.await;
        })
    }
}

impl DiskFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

//! Files that are either wholly old or wholly new, whatever happens in between.
//!
//! In: a path and bytes. Out: the file with these bytes, on disk. Called by the ledger, the host id and the image cache.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// The points between which a crash can fall; the tests of the ledger fail at each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing was written yet.
    Begin,
    /// The temporary file holds half of the bytes.
    HalfWritten,
    /// The temporary file is whole and on disk.
    Synced,
    /// The new file has its name; the folder is not yet synced.
    Renamed,
}

/// Replaces `path` with `bytes`: temporary file, fsync, rename, fsync of the folder.
///
/// # Errors
/// Any error of the file system; the old file is then still whole, or the new one is.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, &|_| Ok(()))
}

/// As [`replace`]; `at` is asked at every [`Step`] and may end it there, as a crash or a full disk would.
///
/// # Errors
/// As [`replace`], and what `at` returns.
pub fn replace_with(path: &Path, bytes: &[u8], at: &dyn Fn(Step) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary_name(path);
    at(Step::Begin)?;
    let mut file = File::create(&temporary)?;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    file.write_all(first)?;
    at(Step::HalfWritten)?;
    file.write_all(second)?;
    file.sync_all()?;
    at(Step::Synced)?;
    fs::rename(&temporary, path)?;
    at(Step::Renamed)?;
    sync_folder_of(path)
}

/// Makes a rename or a removal inside the folder of `path` durable.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    path.with_file_name(name)
}

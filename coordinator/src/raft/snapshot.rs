//! The snapshot file: three lines of JSON (envelope with what it covers, the state, the SHA-256 of both). In: a state to
//! write or a file to read. Out: the one current snapshot of a member, replaced by rename after a sync, so that a crash
//! leaves the old one or the new one. Called by the state machine and the receiver of snapshots.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize as _, Serialize as _};
use sha2::{Digest as _, Sha256};
use shardplane_model::state::State;

use super::{
    record::{self, RecordError, SnapshotRecord},
    types::SnapshotMeta,
};

/// `{"sha256":"` + 64 digits + `"}` + newline.
const TRAILER: u64 = 11 + 64 + 2 + 1;

/// Why a snapshot could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("reading or writing the snapshot failed")]
    Io(#[from] io::Error),
    #[error("the head of the snapshot cannot be read")]
    Head(#[from] RecordError),
    #[error("the state cannot be turned into JSON or back")]
    State(#[from] serde_json::Error),
    #[error("the snapshot is damaged: its SHA-256 is not the one it was written with")]
    Damaged,
    #[error("the snapshot covers something else than its sender said")]
    Mismatch,
    #[error("the task that works on the snapshot ended early")]
    Task(#[from] tokio::task::JoinError),
}

/// The folder that holds the current snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotDir {
    dir: PathBuf,
    /// Held while the current snapshot is replaced.
    replacing: Mutex<()>,
}

impl SnapshotDir {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), replacing: Mutex::new(()) }
    }

    fn path(&self) -> PathBuf {
        self.dir.join("snapshot.jsonl")
    }

    /// An unnamed file in the same folder, for a snapshot that is being received.
    pub(crate) fn scratch(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.dir)
    }

    /// The current snapshot, if there is one. The file stays whole while it is read, even when it is replaced.
    pub(crate) fn current(&self) -> Result<Option<(SnapshotMeta, File)>, SnapshotError> {
        match File::open(self.path()) {
            Ok(mut file) => Ok(Some((head(&mut file)?, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a snapshot of `state`; it becomes the current one unless a newer one came in the meantime.
    pub(crate) fn build(&self, meta: &SnapshotMeta, state: &State) -> Result<File, SnapshotError> {
        self.replace(meta, |out| {
            let mut out = Hashing { out, hash: Sha256::new() };
            out.write_all(&record::encode(&SnapshotRecord::from(meta))?)?;
            out.write_all(b"\n")?;
            state.serialize(&mut serde_json::Serializer::new(&mut out))?;
            out.write_all(b"\n")?;
            let Hashing { out, hash } = out;
            writeln!(out, "{{\"sha256\":\"{}\"}}", hex::encode(hash.finalize()))?;
            Ok(())
        })
    }

    /// Makes a received snapshot the current one and reads its state.
    pub(crate) fn install(&self, meta: &SnapshotMeta, received: &mut File) -> Result<State, SnapshotError> {
        let (found, state) = read(received)?;
        if found.last_log_id != meta.last_log_id {
            return Err(SnapshotError::Mismatch);
        }
        received.seek(SeekFrom::Start(0))?;
        self.replace(meta, |out| Ok(io::copy(received, out).map(drop)?))?;
        Ok(state)
    }

    fn replace(
        &self,
        meta: &SnapshotMeta,
        write: impl FnOnce(&mut BufWriter<File>) -> Result<(), SnapshotError>,
    ) -> Result<File, SnapshotError> {
        let (file, next) = tempfile::Builder::new()
            .prefix("snapshot.next-")
            .make_in(&self.dir, |path| {
                File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
            })?
            .into_parts();
        let mut out = BufWriter::with_capacity(1 << 16, file);
        write(&mut out)?;
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;

        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = self.current()?.is_some_and(|(current, _)| current.last_log_id > meta.last_log_id);
        if !newer {
            next.persist(self.path()).map_err(|e| e.error)?;
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(file)
    }

    /// Removes what a crash left behind.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("snapshot.next-") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// What the file covers; the file is rewound.
fn head(file: &mut File) -> Result<SnapshotMeta, SnapshotError> {
    let mut line = Vec::new();
    BufReader::new(&mut *file).read_until(b'\n', &mut line)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(record::decode::<SnapshotRecord>(&line)?.into())
}

/// Checks the whole file, then reads it.
pub(crate) fn read(file: &mut File) -> Result<(SnapshotMeta, State), SnapshotError> {
    let body = file.metadata()?.len().checked_sub(TRAILER).ok_or(SnapshotError::Damaged)?;
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Hashing { out: &mut io::sink(), hash: Sha256::new() };
    io::copy(&mut BufReader::with_capacity(1 << 16, &mut *file).take(body), &mut hash)?;
    let expected = format!("{{\"sha256\":\"{}\"}}\n", hex::encode(hash.hash.finalize()));
    let mut trailer = String::new();
    file.seek(SeekFrom::Start(body))?;
    file.take(TRAILER).read_to_string(&mut trailer)?;
    if trailer != expected {
        return Err(SnapshotError::Damaged);
    }
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::with_capacity(1 << 16, &mut *file);
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    let meta = record::decode::<SnapshotRecord>(&line)?.into();
    let state = State::deserialize(&mut serde_json::Deserializer::from_reader(reader))?;
    Ok((meta, state))
}

/// Hashes what passes through.
struct Hashing<'a, W> {
    out: &'a mut W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buf)?;
        self.hash.update(&buf[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[path = "tests/snapshot.rs"]
mod tests;

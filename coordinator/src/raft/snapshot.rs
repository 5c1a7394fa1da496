//! The snapshot file: three lines of JSON (envelope with what it covers, the state, the SHA-256 of both). In: a state to
//! write or a file to read. Out: the one current snapshot of a member, replaced by rename after a sync, so that a crash
//! leaves the old one or the new one. Called by the state machine and the receiver of snapshots.

use std::{
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize as _, Serialize as _};
use sha2::{Digest as _, Sha256};
use shardplane_model::state::State;

use super::{
    disk::{self, AnyFile, Disk},
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
    #[error(transparent)]
    Task(#[from] disk::Ended),
}

const CURRENT: &str = "snapshot.jsonl";
/// How names of snapshots that are not whole yet begin.
const NEXT: &str = "snapshot.next-";

/// The disk that holds the current snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotDir {
    pub(crate) disk: Arc<dyn Disk>,
    /// Held while the current snapshot is replaced.
    replacing: Mutex<()>,
}

impl SnapshotDir {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, replacing: Mutex::new(()) }
    }

    /// A file without a name, for a snapshot that is being received.
    pub(crate) fn scratch(&self) -> io::Result<AnyFile> {
        let name = next();
        let file = self.disk.create(&name)?;
        self.disk.remove(&name)?;
        Ok(file)
    }

    /// The current snapshot, if there is one. The file stays whole while it is read, even when it is replaced.
    pub(crate) fn current(&self) -> Result<Option<(SnapshotMeta, AnyFile)>, SnapshotError> {
        match self.disk.open(CURRENT) {
            Ok(mut file) => Ok(Some((head(&mut file)?, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a snapshot of `state`; it becomes the current one unless a newer one came in the meantime.
    pub(crate) fn build(&self, meta: &SnapshotMeta, state: &State) -> Result<AnyFile, SnapshotError> {
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
    pub(crate) fn install(
        &self,
        meta: &SnapshotMeta,
        received: &mut AnyFile,
    ) -> Result<State, SnapshotError> {
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
        write: impl FnOnce(&mut BufWriter<AnyFile>) -> Result<(), SnapshotError>,
    ) -> Result<AnyFile, SnapshotError> {
        let name = next();
        let written = self.write_and_name(&name, meta, write);
        if written.is_err() {
            // What cannot be removed now is removed at the next start; why the snapshot failed is told.
            let _ = self.disk.remove(&name);
        }
        written
    }

    fn write_and_name(
        &self,
        name: &str,
        meta: &SnapshotMeta,
        write: impl FnOnce(&mut BufWriter<AnyFile>) -> Result<(), SnapshotError>,
    ) -> Result<AnyFile, SnapshotError> {
        let mut out = BufWriter::with_capacity(1 << 16, self.disk.create(name)?);
        write(&mut out)?;
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync()?;
        file.seek(SeekFrom::Start(0))?;

        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = self.current()?.is_some_and(|(current, _)| current.last_log_id > meta.last_log_id);
        if newer {
            self.disk.remove(name)?;
        } else {
            self.disk.rename(name, CURRENT)?;
            self.disk.sync_names()?;
        }
        Ok(file)
    }

    /// Removes what a crash left behind.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for name in self.disk.names()?.into_iter().filter(|name| name.starts_with(NEXT)) {
            self.disk.remove(&name)?;
        }
        Ok(())
    }
}

fn next() -> String {
    format!("{NEXT}{:016x}", rand::random::<u64>())
}

/// What the file covers; the file is rewound.
fn head(file: &mut AnyFile) -> Result<SnapshotMeta, SnapshotError> {
    let mut line = Vec::new();
    BufReader::new(&mut *file).read_until(b'\n', &mut line)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(record::decode::<SnapshotRecord>(&line)?.into())
}

/// Checks the whole file, then reads it.
pub(crate) fn read(file: &mut AnyFile) -> Result<(SnapshotMeta, State), SnapshotError> {
    let body = file.length()?.checked_sub(TRAILER).ok_or(SnapshotError::Damaged)?;
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

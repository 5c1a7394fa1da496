//! The bytes of a file, as its machine sees them and as they survive a power cut; and an open file over them. Used by the disk.

use std::{
    io::{self, Read, Seek, SeekFrom, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rand::{RngExt as _, rngs::StdRng};
use shardplane_coordinator::raft::disk::DiskFile;

use crate::disk::Mounted;

/// What has not been synced yet.
#[derive(Debug)]
enum Pending {
    Resize(usize),
    Write(usize, Vec<u8>),
}

/// The bytes of a file.
#[derive(Debug, Default)]
pub struct Contents {
    pub now: Vec<u8>,
    kept: Vec<u8>,
    pending: Vec<Pending>,
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    let end = at + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(data);
}

impl Contents {
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = self.now.get(start..start + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        put(&mut self.now, at, data);
        self.pending.push(Pending::Write(at, data.to_owned()));
        Ok(())
    }

    pub fn resize(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.now.resize(len, 0);
        self.pending.push(Pending::Resize(len));
        Ok(())
    }

    pub fn sync(&mut self) {
        for pending in self.pending.drain(..) {
            match pending {
                Pending::Resize(len) => self.kept.resize(len, 0),
                Pending::Write(at, data) => put(&mut self.kept, at, &data),
            }
        }
    }

    /// The disk takes of each pending write the sectors that the dice say, and forgets the others for good. Answers how many
    /// writes lost something. Reads still show all of it.
    pub fn lose(&mut self, rng: &mut StdRng, sector: usize) -> u64 {
        // Some cuts come before anything was taken, some when nearly all was.
        let share = [0.0, 0.5, 0.9, 1.0][rng.random_range(0..4)];
        let mut lost = 0;
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Resize(len) => self.kept.resize(len, 0),
                Pending::Write(at, data) => {
                    let mut whole = true;
                    let first = sector - at % sector;
                    let (head, rest) = data.split_at(first.min(data.len()));
                    let mut from = at;
                    for piece in std::iter::once(head).chain(rest.chunks(sector)) {
                        if rng.random_bool(share) {
                            put(&mut self.kept, from, piece);
                        } else {
                            whole = false;
                        }
                        from += piece.len();
                    }
                    lost += u64::from(!whole);
                }
            }
        }
        lost
    }

    /// After a power cut only what the disk took is there.
    pub fn cut(&mut self, rng: &mut StdRng, sector: usize) -> u64 {
        let lost = self.lose(rng, sector);
        self.now = self.kept.clone();
        lost
    }
}

/// An open file.
#[derive(Debug)]
pub struct Open {
    disk: Mounted,
    contents: Arc<Mutex<Contents>>,
    at: u64,
}

impl Open {
    pub fn new(disk: Mounted, contents: Arc<Mutex<Contents>>) -> Self {
        Self { disk, contents, at: 0 }
    }

    fn contents(&self) -> io::Result<MutexGuard<'_, Contents>> {
        self.disk.with(|_| Ok(()))?;
        Ok(self.contents.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Read for Open {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let at = self.at;
        let contents = self.contents()?;
        let left = contents.now.len().saturating_sub(usize::try_from(at).map_err(io::Error::other)?);
        let count = left.min(out.len());
        if count > 0 {
            contents.read(at, &mut out[..count])?;
        }
        drop(contents);
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Open {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let at = self.at;
        self.contents()?.write(at, data)?;
        self.at += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Open {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let end = self.length()?;
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => end.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl DiskFile for Open {
    fn length(&self) -> io::Result<u64> {
        Ok(self.contents()?.now.len() as u64)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.contents()?.sync();
        Ok(())
    }
}

//! One block device: whose it is, whether anything is on it, and how it is made blank.
//!
//! In: its path. Out: answers from its bytes and from the kernel; zeros. Called by [`super::devices`], which decides.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use rustix::fs::FallocateFlags;
use shardplane_proto::ids::InstanceId;

use super::{VolumeError, io_error};

/// Bytes.
pub(super) const MIB: u64 = 1 << 20;
/// How much is wiped at once.
const CHUNK: u64 = 64 * MIB;
/// How long a device may be busy that its machine had.
const BUSY_DEADLINE: Duration = Duration::from_secs(2);
const BUSY_POLL: Duration = Duration::from_millis(20);
/// Where an ext4 file system has its magic number and its UUID.
const MAGIC_AT: u64 = 0x438;
const MAGIC: [u8; 2] = [0x53, 0xef];
const UUID_AT: u64 = 0x468;

/// One device, open.
pub(super) struct Device {
    /// Where it is.
    pub(super) path: PathBuf,
    /// For reading: who closes a device that he could have written has the whole host look at it anew.
    pub(super) file: File,
    /// Bytes.
    pub(super) size: u64,
}

impl Device {
    /// Opens and measures it.
    pub(super) fn open(path: PathBuf) -> Result<Self, VolumeError> {
        let mut file = File::open(&path).map_err(io_error("open", &path))?;
        let size = file.seek(SeekFrom::End(0)).map_err(io_error("measure", &path))?;
        Ok(Self { path, file, size })
    }

    /// The kernel gives a device that is mounted, or part of something else, to nobody for himself.
    pub(super) fn is_unused(&self) -> Result<(), VolumeError> {
        let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(&self.path);
        opened.map(drop).map_err(io_error("have for itself", &self.path))
    }

    /// The same, of one whose machine may have died only just: the kernel takes its mounts away a moment later.
    pub(super) fn becomes_unused(&self) -> Result<(), VolumeError> {
        let deadline = Instant::now() + BUSY_DEADLINE;
        loop {
            match self.is_unused() {
                Err(_) if Instant::now() < deadline => thread::sleep(BUSY_POLL),
                result => return result,
            }
        }
    }

    /// Whether it has the file system that was made for an instance.
    pub(super) fn holds(&self, id: InstanceId) -> io::Result<bool> {
        let (mut magic, mut uuid) = ([0; 2], [0; 16]);
        self.file.read_exact_at(&mut magic, MAGIC_AT)?;
        self.file.read_exact_at(&mut uuid, UUID_AT)?;
        Ok(magic == MAGIC && u128::from_be_bytes(uuid) == id.as_u128())
    }

    /// Whether there are zeros where anything that is something has other bytes: at both ends.
    pub(super) fn is_blank(&self) -> io::Result<bool> {
        let mut bytes = Vec::new();
        for start in [0, self.size.saturating_sub(MIB)] {
            (&self.file).seek(SeekFrom::Start(start))?;
            (&self.file).take(MIB).read_to_end(&mut bytes)?;
        }
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// From the end; the first MiB, which says whose it is, goes when all else is gone for good.
    pub(super) fn wipe(&self) -> io::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let mut end = self.size;
        while end > MIB {
            let start = end.saturating_sub(CHUNK).max(MIB);
            zero(&file, start, end - start)?;
            end = start;
        }
        file.sync_all()?;
        zero(&file, 0, end)?;
        file.sync_all()
    }
}

fn zero(mut file: &File, start: u64, length: u64) -> io::Result<()> {
    // Gives the room back where the device can; what is then read is zeros.
    for flags in [FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE] {
        match rustix::fs::fallocate(file, flags, start, length) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    file.seek(SeekFrom::Start(start))?;
    io::copy(&mut io::repeat(0).take(length), &mut file).map(drop)
}

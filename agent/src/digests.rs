//! Which bytes a file holds, without reading them each time.
//!
//! In: a file. Out: its sha256, hashed again whenever size, inode or one of its times is another than when it was hashed last. Kept in
//! `state_dir/image-digests.json`, which is only a cache. Asked by the images at start, and before every boot for all that a machine
//! boots: a start then costs a look at each file. What rots on a disk without a write is not seen, as its times stay.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::durable;

/// What tells whether a file is still the one that was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    inode: u64,
    modified_ns: i128,
    /// Of the inode itself: a copy may keep the other time.
    changed_ns: i128,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hashed {
    stamp: Stamp,
    digest: String,
}

type Cache = BTreeMap<PathBuf, Hashed>;

/// A file is not what it shall be.
#[derive(Debug, thiserror::Error)]
pub enum NotAsNamed {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds other bytes.
    #[error("{} has the digest {found} and not {named}: it is damaged, or was replaced by another", .file.display())]
    Differs {
        /// Which.
        file: PathBuf,
        /// Its sha256.
        found: String,
        /// What its manifest names.
        named: String,
    },
}

/// The digests known so far.
#[derive(Debug)]
pub struct Digests {
    path: PathBuf,
    known: Mutex<Cache>,
}

impl Digests {
    /// With what earlier lives of the agent have found out; a cache that cannot be read is empty.
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("image-digests.json");
        let bytes = fs::read(&path).ok();
        let known = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { path, known: Mutex::new(known) }
    }

    /// The sha256 of a file, in hex. Blocks as long as it takes to read it, when it is news.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(&self, file: &Path) -> io::Result<String> {
        // Held while a file is read: whoever wants the same one next need not read it again.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(file)?;
        if let Some(hashed) = known.get(file).filter(|hashed| hashed.stamp == stamp) {
            return Ok(hashed.digest.clone());
        }
        let digest = hash(file)?;
        known.retain(|path, _| path.exists());
        known.insert(file.to_owned(), Hashed { stamp, digest: digest.clone() });
        let stored = serde_json::to_vec(&*known).map_err(io::Error::from);
        if let Err(error) = stored.and_then(|bytes| durable::replace(&self.path, &bytes)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot keep the digests of images");
        }
        Ok(digest)
    }

    /// Makes sure that a file has the digest that its manifest names. Blocks as [`Digests::of`].
    ///
    /// # Errors
    /// When it has another, or cannot be read.
    pub fn verify(&self, file: &Path, named: &str) -> Result<(), NotAsNamed> {
        let named = plain(named);
        match self.of(file) {
            Ok(found) if found == named => Ok(()),
            Ok(found) => Err(NotAsNamed::Differs { file: file.into(), found, named }),
            Err(source) => Err(NotAsNamed::Unreadable { file: file.into(), source }),
        }
    }
}

/// A digest as it is written in manifests, without the name of its kind.
pub fn plain(named: &str) -> String {
    named.strip_prefix("sha256:").unwrap_or(named).to_ascii_lowercase()
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(file)?;
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    Ok(Stamp {
        size: meta.size(),
        inode: meta.ino(),
        modified_ns: ns(meta.mtime(), meta.mtime_nsec()),
        changed_ns: ns(meta.ctime(), meta.ctime_nsec()),
    })
}

fn hash(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(buffer.get(..n).unwrap_or_default()),
        }
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    const OF_A: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

    #[test]
    fn a_file_is_read_again_when_it_was_written_also_with_its_old_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "a").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let age = || File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        age();
        let digests = Digests::open(dir.path());
        digests.verify(&file, &format!("sha256:{}", OF_A.to_uppercase())).unwrap();
        fs::write(&file, "b").unwrap();
        age();
        let error = digests.verify(&file, OF_A).unwrap_err().to_string();
        assert!(error.contains("file has the digest 3e23e816") && error.contains(OF_A), "{error}");
        // Another life of the agent asks the cache: a word that it cannot have hashed comes back.
        drop(digests);
        let cache = dir.path().join("image-digests.json");
        let text = fs::read_to_string(&cache).unwrap().replace("3e23e816", "00000000");
        fs::write(&cache, text).unwrap();
        assert!(Digests::open(dir.path()).of(&file).unwrap().starts_with("00000000"));
        fs::write(&cache, "{ damaged").unwrap();
        assert!(Digests::open(dir.path()).of(&file).unwrap().starts_with("3e23e816"));
        fs::remove_file(&file).unwrap();
        assert!(
            Digests::open(dir.path()).verify(&file, OF_A).unwrap_err().to_string().contains("cannot read")
        );
    }
}

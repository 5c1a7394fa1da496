//! Who this member is, across restarts. In: the data directory. Out: its node id and whether it is a member. A node id is
//! made once and never used again: a member that lost its data must not vote under the id under which it voted before.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shardplane_model::command::Timestamp;

use super::record::{self, RecordError};

const FILE: &str = "member.json";

/// How far this member has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// `init` or `join` has begun and not ended.
    Starting,
    /// It is a member.
    Member,
    /// It was taken out; its id is used up.
    Left,
}

/// Who this member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its node id.
    pub node_id: u64,
    /// How far it has come.
    pub standing: Standing,
}

/// Why the identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Reading or writing failed.
    #[error("cannot use the data directory {path}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not ours.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Identity {
    /// A new identity; its id begins with the time and ends in 22 random bits, and fits a JSON number.
    pub fn new(now: Timestamp) -> Self {
        let seconds = (now.0 / 1000) & 0x7fff_ffff;
        let random = u64::from(rand::random::<u32>() & 0x3f_ffff);
        Self { node_id: (seconds << 22 | random).max(1), standing: Standing::Starting }
    }

    /// The identity in the data directory, if there is one.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, IdentityError> {
        let path = data_dir.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => record::decode(&bytes).map(Some).map_err(|e: RecordError| {
                let reason = e.to_string();
                IdentityError::Unreadable { path, reason }
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::Io { path: data_dir.to_owned(), source }),
        }
    }

    /// Writes the identity; makes the data directory (mode 0700) when it is missing.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save(&self, data_dir: &Path) -> Result<(), IdentityError> {
        let io = |source| IdentityError::Io { path: data_dir.to_owned(), source };
        let bytes = record::encode(self).map_err(|e| io(io::Error::other(e)))?;
        let write = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
            let next = data_dir.join("member.json.next");
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&next, data_dir.join(FILE))?;
            File::open(data_dir)?.sync_all()
        };
        write().map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_and_fits_a_json_number() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        assert_eq!(Identity::load(&data).unwrap(), None);
        let made = Identity::new(Timestamp(4_102_444_800_000));
        assert!(made.node_id < 1 << 53);
        made.save(&data).unwrap();
        let member = Identity { standing: Standing::Member, ..made };
        member.save(&data).unwrap();
        assert_eq!(Identity::load(&data).unwrap(), Some(member));
        assert_ne!(made.node_id, Identity::new(Timestamp(4_102_444_800_000)).node_id);
    }
}

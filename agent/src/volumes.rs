//! The data volumes of machines: one ext4 file system in a sparse raw file each.
//!
//! In: an instance and a size. Out: `state_dir/volumes/<instance>/data.raw`, whole or not there. Called by the machine
//! owners, who alone decide that a volume may go; no check at start ever removes one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

use shardplane_proto::ids::InstanceId;

use crate::durable;

/// What went wrong with a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A program of e2fsprogs failed.
    #[error("{program} on {path} failed: {text}")]
    Program {
        /// mkfs.ext4, e2fsck or resize2fs.
        program: &'static str,
        /// The file.
        path: String,
        /// Its words.
        text: String,
    },
}

/// All volumes of this host.
#[derive(Debug, Clone)]
pub struct Volumes {
    root: PathBuf,
}

impl Volumes {
    /// Volumes below `state_dir/volumes`.
    pub fn new(state_dir: &Path) -> Self {
        Self { root: state_dir.join("volumes") }
    }

    /// Makes the volume when there is none, and grows it when it is smaller than wanted. Never shrinks. No machine may have
    /// it mounted. Blocks for up to a few seconds.
    ///
    /// # Errors
    /// When it cannot be made; an existing volume is then as before.
    pub fn ensure(&self, id: InstanceId, gib: u64) -> Result<PathBuf, VolumeError> {
        let dir = self.root.join(id.to_string());
        let (raw, new) = (dir.join("data.raw"), dir.join("data.raw.new"));
        let wanted = gib.max(1) << 30;
        fs::create_dir_all(&dir).map_err(io_error("make", &dir))?;
        match fs::metadata(&raw) {
            Ok(meta) if meta.len() >= wanted => return Ok(raw),
            Ok(_) => return grow(&raw, wanted).map(|()| raw),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("look at", &raw)(error)),
        }
        let file = File::create(&new).map_err(io_error("make", &new))?;
        file.set_len(wanted).map_err(io_error("size", &new))?;
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-L", "data"], &new, &[0])?;
        file.sync_all().map_err(io_error("sync", &new))?;
        fs::rename(&new, &raw).map_err(io_error("name", &raw))?;
        durable::sync_folder_of(&raw).map_err(io_error("sync the folder of", &raw))?;
        durable::sync_folder_of(&dir).map_err(io_error("sync the folder of", &dir))?;
        Ok(raw)
    }

    /// Removes the volume with its data. None there is success.
    ///
    /// # Errors
    /// When something of it is left.
    pub fn remove(&self, id: InstanceId) -> Result<(), VolumeError> {
        let dir = self.root.join(id.to_string());
        match fs::remove_dir_all(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("remove", &dir)(error)),
        }
        durable::sync_folder_of(&dir).map_err(io_error("sync the folder of", &dir))
    }

    /// The instances that have something here, also what is not whole.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<InstanceId>, VolumeError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("list", &self.root)(error)),
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
        let names: Vec<_> = names.collect::<io::Result<_>>().map_err(io_error("list", &self.root))?;
        Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
    }
}

fn grow(raw: &Path, wanted: u64) -> Result<(), VolumeError> {
    let file = File::options().write(true).open(raw).map_err(io_error("open", raw))?;
    // Exit 1: errors were corrected. The check is resize2fs's own demand.
    run("e2fsck", &["-f", "-p"], raw, &[0, 1])?;
    file.set_len(wanted).map_err(io_error("grow", raw))?;
    run("resize2fs", &[], raw, &[0])?;
    file.sync_all().map_err(io_error("sync", raw))
}

fn run(program: &'static str, arguments: &[&str], path: &Path, fine: &[i32]) -> Result<(), VolumeError> {
    let failed = |text: String| VolumeError::Program { program, path: path.display().to_string(), text };
    let output = Command::new(program).args(arguments).arg(path).output();
    let output = output.map_err(|error| failed(format!("{error}; install e2fsprogs")))?;
    if output.status.code().is_some_and(|code| fine.contains(&code)) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    Err(failed(format!("{} ({text})", output.status)))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.display().to_string();
    move |source| VolumeError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const ID: InstanceId = InstanceId::from_u128(1);

    #[test]
    fn a_volume_is_made_once_grown_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(dir.path());
        assert!(volumes.list().unwrap().is_empty());
        // Left over from a crash in the middle.
        fs::create_dir_all(dir.path().join("volumes").join(ID.to_string())).unwrap();
        fs::write(dir.path().join("volumes").join(ID.to_string()).join("data.raw.new"), "half").unwrap();

        let path = volumes.ensure(ID, 1).unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.len(), 1 << 30);
        assert_eq!(volumes.ensure(ID, 1).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        volumes.ensure(ID, 2).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 30);
        volumes.ensure(ID, 1).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 2 << 30, "never shrinks");
        assert_eq!(volumes.list().unwrap(), [ID]);
        volumes.remove(ID).unwrap();
        volumes.remove(ID).unwrap();
        assert!(!path.exists());
    }
}

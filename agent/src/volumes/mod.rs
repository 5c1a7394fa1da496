//! The data volumes of machines: one ext4 file system each, in a file or on a block device of its own.
//!
//! In: an instance and a size. Out: `state_dir/volumes/<instance>/data.raw`, whole or not there ([`files`]), or, where the configuration
//! names a folder of devices, one of those ([`devices`]). A volume stays where it was made, whatever the configuration says later. Called
//! by the machine owners, who alone decide that a volume may go; no check at start ever removes one.

mod device;
pub mod devices;
mod files;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use shardplane_proto::ids::InstanceId;

use self::devices::Devices;
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
    /// No device can be the volume.
    #[error("no device in {folder} is free for a volume of {gib} GiB: {devices}")]
    NoDevice {
        /// `volume_devices` of the configuration.
        folder: String,
        /// What was asked for.
        gib: u64,
        /// Each device and why not.
        devices: String,
    },
    /// The device of a volume is smaller than the spec wants by now.
    #[error(
        "the volume is on {device} with {has} GiB, and {gib} GiB are wanted: volumes on devices do not grow"
    )]
    TooSmall {
        /// Which.
        device: String,
        /// What it has.
        has: u64,
        /// What was asked for.
        gib: u64,
    },
    /// The name stands for another device than when the volume was made, or the file system is damaged.
    #[error(
        "{device} does not hold the volume of {instance}, which was made on it: it is left alone; if another device has the name \
         now, give it back; if the volume may go, remove {record} and wipe the device"
    )]
    NotTheVolume {
        /// Which.
        device: String,
        /// Whose it was.
        instance: InstanceId,
        /// The record that says so.
        record: String,
    },
    /// The volume is on a device, and the configuration names none any more.
    #[error(
        "the volume is on the device {device}, and the configuration has no volume_devices: set it again"
    )]
    NoFolder {
        /// Its name in the folder of devices.
        device: String,
    },
}

/// All volumes of this host.
#[derive(Debug, Clone)]
pub struct Volumes {
    root: PathBuf,
    devices: Option<Arc<Devices>>,
}

impl Volumes {
    /// Volumes below `state_dir/volumes`; new ones on devices where a folder of those is named.
    pub fn new(state_dir: &Path, devices: Option<&Path>) -> Self {
        let root = state_dir.join("volumes");
        let devices = devices.map(|folder| Arc::new(Devices::new(folder, &root)));
        Self { root, devices }
    }

    /// Makes the volume when there is none, and grows it when it is smaller than wanted and a file. Never shrinks. No machine
    /// may have it mounted. Blocks for up to a few seconds.
    ///
    /// # Errors
    /// When it cannot be made; an existing volume is then as before.
    pub fn ensure(&self, id: InstanceId, gib: u64) -> Result<PathBuf, VolumeError> {
        let dir = self.root.join(id.to_string());
        fs::create_dir_all(&dir).map_err(io_error("make", &dir))?;
        let gib = gib.max(1);
        if files::path(&dir).exists() {
            return files::ensure(&dir, gib);
        }
        match &self.devices {
            Some(devices) => devices.ensure(id, gib),
            None => match devices::record_in(&dir)? {
                Some(device) => Err(VolumeError::NoFolder { device }),
                None => files::ensure(&dir, gib),
            },
        }
    }

    /// Removes the volume with its data; a device is overwritten with zeros, which may take minutes. None there is success.
    ///
    /// # Errors
    /// When something of it is left.
    pub fn remove(&self, id: InstanceId) -> Result<(), VolumeError> {
        let dir = self.root.join(id.to_string());
        match (&self.devices, devices::record_in(&dir)?) {
            (Some(devices), Some(_)) => devices.wipe(id)?,
            (None, Some(device)) => return Err(VolumeError::NoFolder { device }),
            (Some(_) | None, None) => {}
        }
        match fs::remove_dir_all(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("remove", &dir)(error)),
        }
        durable::sync_folder_of(&dir).map_err(io_error("sync the folder of", &dir))
    }

    /// The devices that can be volumes, where there are such.
    pub fn devices(&self) -> Option<&Devices> {
        self.devices.as_deref()
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

fn run(
    program: &'static str,
    options: &[&str],
    path: &Path,
    more: &[&str],
    fine: &[i32],
) -> Result<(), VolumeError> {
    let failed = |text: String| VolumeError::Program { program, path: path.display().to_string(), text };
    let output = Command::new(program).args(options).arg(path).args(more).output();
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
        let volumes = Volumes::new(dir.path(), None);
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

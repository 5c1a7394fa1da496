//! Volumes on block devices: each on a whole device of its own, which the operator has set aside for it.
//!
//! In: a folder of links to devices (`volume_devices` of the configuration), for example to logical volumes. Out: the smallest free one that
//! is big enough, with an ext4 file system whose UUID is the instance's. Called by [`super::Volumes`].
//!
//! Which instance has which device stands in `state_dir/volumes/<instance>/device`, nowhere on the device: a guest can write all of that.
//! A device is free only when nobody has it and its first and last MiB are zeros: what holds anything else, whoever wrote it, is never
//! formatted. It is handed to a machine, or wiped, only when it has the UUID of its instance: a name that by now stands for another
//! device does no harm. It is wiped from its end, so that its UUID is the last to go, and a wipe that was cut off is done anew.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use shardplane_proto::ids::InstanceId;

use super::{VolumeError, device::Device, io_error, run};
use crate::{durable, identity::uuid_text};

/// One device as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// How large a volume it can be, in GiB; 0 when that is not known.
    pub gib: u64,
    /// Whether it can be one.
    pub standing: Standing,
}

/// What a device is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It can become a volume.
    Free,
    /// It is the volume of an instance, or is about to be.
    Volume(InstanceId),
    /// It can be none, for this reason.
    Unfit(String),
}

/// The devices of this host.
#[derive(Debug)]
pub struct Devices {
    folder: PathBuf,
    root: PathBuf,
    /// Two starts at once must not choose the same device.
    choosing: Mutex<()>,
    /// Regular files stand for devices.
    #[cfg(test)]
    files: bool,
}

/// The name of the device that a volume's folder records, also of one that is not whole.
///
/// # Errors
/// When a record cannot be read.
pub fn record_in(dir: &Path) -> Result<Option<String>, VolumeError> {
    for name in ["device", "device.new"] {
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => return Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("read", &path)(error)),
        }
    }
    Ok(None)
}

impl Devices {
    /// The devices that `folder` names; `root` has a folder a volume.
    pub fn new(folder: &Path, root: &Path) -> Self {
        Self {
            folder: folder.into(),
            root: root.into(),
            choosing: Mutex::default(),
            #[cfg(test)]
            files: false,
        }
    }

    /// The device that is the volume of an instance; one is chosen and formatted when it has none. Its folder is there.
    ///
    /// # Errors
    /// When no device is free, or the recorded one is not that volume any more. No device is then changed.
    pub fn ensure(&self, id: InstanceId, gib: u64) -> Result<PathBuf, VolumeError> {
        let _turn = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.root.join(id.to_string());
        let (whole, new) = (dir.join("device"), dir.join("device.new"));
        if whole.exists() {
            return self.of(id, gib);
        }
        let name = match self.begun(id, &new)? {
            Some(name) => name,
            None => self.choose(gib)?,
        };
        let device = self.open(&name)?;
        write_record(&new, &name)?;
        let size = format!("{gib}G");
        let options = ["-q", "-F", "-m", "0", "-L", "data", "-U", &uuid_text(id.as_u128())];
        run("mkfs.ext4", &options, &device.path, &[&size], &[0])?;
        device.file.sync_all().map_err(io_error("sync", &device.path))?;
        fs::rename(&new, &whole).map_err(io_error("name", &whole))?;
        durable::sync_folder_of(&whole).map_err(io_error("sync the folder of", &whole))?;
        Ok(device.path)
    }

    /// The device on which an earlier life of the agent began the volume, when it has the instance's UUID. Half of a file system cannot be told
    /// from somebody else's: such a device is left alone, and another one is taken.
    fn begun(&self, id: InstanceId, new: &Path) -> Result<Option<String>, VolumeError> {
        if !new.exists() {
            return Ok(None);
        }
        let name = record_in(&self.root.join(id.to_string()))?;
        let ours = |name: &String| {
            let device = self.open(name)?;
            device.is_unused()?;
            device.holds(id).map_err(io_error("read", &device.path))
        };
        match name.filter(|name| ours(name).unwrap_or(false)) {
            Some(name) => Ok(Some(name)),
            None => self.drop_record(new).map(|()| None),
        }
    }

    /// Overwrites the device of an instance, and forgets that it has one. Blocks as long as the device takes.
    ///
    /// # Errors
    /// When that device is not its volume, or cannot be written. The record then stays.
    pub fn wipe(&self, id: InstanceId) -> Result<(), VolumeError> {
        let dir = self.root.join(id.to_string());
        let (whole, new) = (dir.join("device"), dir.join("device.new"));
        if whole.exists() {
            let Some(name) = record_in(&dir)? else { return Ok(()) };
            let device = self.open(&name)?;
            device.becomes_unused()?;
            let ours = device.holds(id).and_then(|holds| Ok(holds || device.is_blank()?));
            if !ours.map_err(io_error("read", &device.path))? {
                let (device, record) = (device.path.display().to_string(), whole.display().to_string());
                return Err(VolumeError::NotTheVolume { device, instance: id, record });
            }
            device.wipe().map_err(io_error("wipe", &device.path))?;
            tracing::info!(instance = %id, device = %device.path.display(), "the volume's device is wiped");
            self.drop_record(&whole)?;
        }
        if new.exists() { self.drop_record(&new) } else { Ok(()) }
    }

    /// What each device is, by its name in the folder.
    ///
    /// # Errors
    /// When the folder or a record cannot be read.
    pub fn survey(&self) -> Result<BTreeMap<String, Found>, VolumeError> {
        let recorded = self.recorded()?;
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).map_err(io_error("list", &self.folder))? {
            let entry = entry.map_err(io_error("list", &self.folder))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let device = self.open(&name);
            let gib = device.as_ref().map_or(0, |device| device.size >> 30);
            let standing = match (recorded.get(&name), device) {
                (Some(id), _) => Standing::Volume(*id),
                (None, Ok(device)) => look_at(&device).unwrap_or_else(|why| Standing::Unfit(why.to_string())),
                (None, Err(why)) => Standing::Unfit(why.to_string()),
            };
            found.insert(name, Found { gib, standing });
        }
        Ok(found)
    }

    fn recorded(&self) -> Result<BTreeMap<String, InstanceId>, VolumeError> {
        let mut recorded = BTreeMap::new();
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(recorded),
            Err(error) => return Err(io_error("list", &self.root)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(io_error("list", &self.root))?;
            let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let (Some(id), Some(name)) = (id, record_in(&entry.path())?) {
                recorded.insert(name, id);
            }
        }
        Ok(recorded)
    }

    /// The smallest that is free and big enough.
    fn choose(&self, gib: u64) -> Result<String, VolumeError> {
        let all = self.survey()?;
        let fit = all.iter().filter(|(_, found)| found.standing == Standing::Free && found.gib >= gib);
        if let Some((name, _)) = fit.min_by_key(|(_, found)| found.gib) {
            return Ok(name.clone());
        }
        let said = all.iter().map(|(name, found)| match &found.standing {
            Standing::Free => format!("{name} has {} GiB", found.gib),
            Standing::Volume(id) => format!("{name} is the volume of {id}"),
            Standing::Unfit(why) => format!("{name}: {why}"),
        });
        let devices: Vec<_> = said.collect();
        let devices = if devices.is_empty() { "it is empty".into() } else { devices.join("; ") };
        Err(VolumeError::NoDevice { folder: self.folder.display().to_string(), gib, devices })
    }

    /// The device that a whole record names.
    fn of(&self, id: InstanceId, gib: u64) -> Result<PathBuf, VolumeError> {
        let dir = self.root.join(id.to_string());
        let Some(name) = record_in(&dir)? else {
            return Err(io_error("read", &dir.join("device"))(io::ErrorKind::NotFound.into()));
        };
        let device = self.open(&name)?;
        device.becomes_unused()?;
        if !device.holds(id).map_err(io_error("read", &device.path))? {
            let (device, record) =
                (device.path.display().to_string(), dir.join("device").display().to_string());
            return Err(VolumeError::NotTheVolume { device, instance: id, record });
        }
        let has = device.size >> 30;
        if has < gib {
            return Err(VolumeError::TooSmall { device: device.path.display().to_string(), has, gib });
        }
        Ok(device.path)
    }

    fn open(&self, name: &str) -> Result<Device, VolumeError> {
        let link = self.folder.join(name);
        let path = fs::canonicalize(&link).map_err(io_error("find the device", &link))?;
        let kind = fs::metadata(&path).map_err(io_error("look at", &path))?.file_type();
        #[cfg(not(test))]
        let is_device = kind.is_block_device();
        #[cfg(test)]
        let is_device = kind.is_block_device() || self.files;
        if !is_device {
            return Err(io_error("use as a volume", &path)(io::Error::other("it is no block device")));
        }
        Device::open(path)
    }

    fn drop_record(&self, record: &Path) -> Result<(), VolumeError> {
        fs::remove_file(record).map_err(io_error("remove", record))?;
        durable::sync_folder_of(record).map_err(io_error("sync the folder of", record))
    }
}

fn look_at(device: &Device) -> Result<Standing, VolumeError> {
    if device.size < 1 << 30 {
        return Ok(Standing::Unfit("has less than 1 GiB".into()));
    }
    device.is_unused()?;
    if !device.is_blank().map_err(io_error("read", &device.path))? {
        let text = "holds something: if that may go, wipe all of it with blkdiscard --zeroout";
        return Ok(Standing::Unfit(text.into()));
    }
    Ok(Standing::Free)
}

fn write_record(path: &Path, name: &str) -> Result<(), VolumeError> {
    durable::replace(path, name.as_bytes()).map_err(io_error("write", path))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt as _};

    use super::*;
    use crate::volumes::device::MIB;

    struct Lab {
        dir: tempfile::TempDir,
        devices: Devices,
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (folder, root) = (dir.path().join("devices"), dir.path().join("volumes"));
            fs::create_dir_all(&folder).unwrap();
            fs::create_dir_all(&root).unwrap();
            let devices = Devices { files: true, ..Devices::new(&folder, &root) };
            Self { dir, devices }
        }

        fn device(&self, name: &str, mib: u64) -> File {
            let path = self.dir.path().join("devices").join(name);
            let file =
                File::options().create(true).truncate(false).read(true).write(true).open(path).unwrap();
            file.set_len(mib * MIB).unwrap();
            file
        }

        fn ensure(&self, number: u128, gib: u64) -> Result<String, String> {
            let id = InstanceId::from_u128(number);
            fs::create_dir_all(self.devices.root.join(id.to_string())).unwrap();
            let made = self.devices.ensure(id, gib).map_err(|error| error.to_string())?;
            Ok(made.file_name().unwrap().to_str().unwrap().to_owned())
        }

        fn standing(&self, name: &str) -> Standing {
            self.devices.survey().unwrap().remove(name).unwrap().standing
        }
    }

    #[test]
    fn the_smallest_free_device_becomes_the_volume_and_is_blank_when_that_is_gone() {
        let lab = Lab::new();
        for (name, gib) in [("big", 3), ("fits", 2), ("small", 1)] {
            lab.device(name, gib * 1024);
        }
        assert_eq!(lab.ensure(1, 2).unwrap(), "fits");
        assert_eq!(lab.ensure(1, 2).unwrap(), "fits", "the same again");
        assert_eq!(lab.standing("fits"), Standing::Volume(InstanceId::from_u128(1)));
        assert_eq!(lab.ensure(2, 2).unwrap(), "big");
        let refused = lab.ensure(3, 2).unwrap_err();
        assert!(
            refused.contains("small has 1 GiB") && refused.contains("fits is the volume of"),
            "{refused}"
        );
        let grown = lab.ensure(1, 3).unwrap_err();
        assert!(grown.contains("do not grow"), "{grown}");
        // A guest wrote somewhere in the middle: nothing of it is left for the next.
        let fits = lab.device("fits", 2048);
        fits.write_all_at(b"secret", 777 * MIB).unwrap();
        lab.devices.wipe(InstanceId::from_u128(1)).unwrap();
        lab.devices.wipe(InstanceId::from_u128(1)).unwrap();
        let mut bytes = [1; 6];
        fits.read_exact_at(&mut bytes, 777 * MIB).unwrap();
        assert_eq!(bytes, [0; 6]);
        assert_eq!(lab.standing("fits"), Standing::Free);
    }

    #[test]
    fn what_holds_anything_is_never_formatted() {
        let lab = Lab::new();
        for at in [0, 1, MIB - 1, 1023 * MIB, 1024 * MIB - 1] {
            let file = lab.device("other", 1024);
            file.write_all_at(b"x", at).unwrap();
            let refused = lab.ensure(1, 1).unwrap_err();
            assert!(refused.contains("other: holds something"), "{at}: {refused}");
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            assert_eq!(byte, *b"x");
            file.write_all_at(&[0], at).unwrap();
        }
        // A volume of ours that the state no longer knows is somebody's.
        assert_eq!(lab.ensure(1, 1).unwrap(), "other");
        fs::remove_dir_all(lab.devices.root.join(InstanceId::from_u128(1).to_string())).unwrap();
        assert!(lab.ensure(2, 1).unwrap_err().contains("holds something"));
    }

    #[test]
    fn a_name_that_stands_for_another_device_does_no_harm() {
        let lab = Lab::new();
        lab.device("a", 1024);
        lab.ensure(1, 1).unwrap();
        let path = |name: &str| lab.dir.path().join("devices").join(name);
        fs::rename(path("a"), lab.dir.path().join("unplugged")).unwrap();
        lab.device("a", 1024).write_all_at(b"somebody's", 5 * MIB).unwrap();
        lab.device("a", 1024).write_all_at(b"somebody's", 4096).unwrap();
        for refused in [
            lab.ensure(1, 1).unwrap_err(),
            lab.devices.wipe(InstanceId::from_u128(1)).unwrap_err().to_string(),
        ] {
            assert!(refused.contains("does not hold the volume of"), "{refused}");
        }
        let mut bytes = [0; 10];
        lab.device("a", 1024).read_exact_at(&mut bytes, 5 * MIB).unwrap();
        assert_eq!(&bytes, b"somebody's");
        fs::rename(lab.dir.path().join("unplugged"), path("a")).unwrap();
        lab.ensure(1, 1).unwrap();
    }

    #[test]
    fn an_agent_that_died_while_it_made_a_volume_takes_what_is_blank_and_leaves_what_is_not() {
        let lab = Lab::new();
        let half = lab.device("a", 1024);
        let new = lab.devices.root.join(InstanceId::from_u128(1).to_string()).join("device.new");
        fs::create_dir_all(new.parent().unwrap()).unwrap();
        fs::write(&new, "a").unwrap();
        assert_eq!(lab.ensure(1, 1).unwrap(), "a", "it had not begun");
        assert!(!new.exists());
        // It had only not yet said that it was done.
        fs::rename(new.with_file_name("device"), &new).unwrap();
        assert_eq!(lab.ensure(1, 1).unwrap(), "a");
        lab.devices.wipe(InstanceId::from_u128(1)).unwrap();
        half.write_all_at(b"half of a file system", 4096).unwrap();
        fs::write(&new, "a").unwrap();
        assert!(lab.ensure(1, 1).unwrap_err().contains("a: holds something"));
        lab.device("b", 1024);
        assert_eq!(lab.ensure(1, 1).unwrap(), "b");
    }

    #[test]
    fn only_devices_count() {
        let lab = Lab::new();
        lab.device("file", 1024);
        let devices = Devices::new(&lab.dir.path().join("devices"), &lab.devices.root);
        let found = devices.survey().unwrap().remove("file").unwrap();
        let Standing::Unfit(why) = found.standing else { panic!("{found:?}") };
        assert!(why.contains("no block device"), "{why}");
        lab.device("tiny", 1);
        assert_eq!(lab.standing("tiny"), Standing::Unfit("has less than 1 GiB".into()));
    }
}

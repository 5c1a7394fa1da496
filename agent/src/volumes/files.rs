//! Volumes in raw files: one ext4 file system in a sparse file each.
//!
//! In: a volume's folder and a size. Out: `data.raw` in it, whole or not there. Called by [`super::Volumes`].

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{VolumeError, io_error, run};
use crate::durable;

/// The volume's file.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("data.raw")
}

/// Makes the file when there is none, and grows it when it is smaller than wanted. Never shrinks.
///
/// # Errors
/// When it cannot be made; an existing volume is then as before.
pub fn ensure(dir: &Path, gib: u64) -> Result<PathBuf, VolumeError> {
    let (raw, new) = (path(dir), dir.join("data.raw.new"));
    let wanted = gib << 30;
    match fs::metadata(&raw) {
        Ok(meta) if meta.len() >= wanted => return Ok(raw),
        Ok(_) => return grow(&raw, wanted).map(|()| raw),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("look at", &raw)(error)),
    }
    let file = File::create(&new).map_err(io_error("make", &new))?;
    file.set_len(wanted).map_err(io_error("size", &new))?;
    run("mkfs.ext4", &["-q", "-F", "-m", "0", "-L", "data"], &new, &[], &[0])?;
    file.sync_all().map_err(io_error("sync", &new))?;
    fs::rename(&new, &raw).map_err(io_error("name", &raw))?;
    durable::sync_folder_of(&raw).map_err(io_error("sync the folder of", &raw))?;
    durable::sync_folder_of(dir).map_err(io_error("sync the folder of", dir))?;
    Ok(raw)
}

fn grow(raw: &Path, wanted: u64) -> Result<(), VolumeError> {
    let file = File::options().write(true).open(raw).map_err(io_error("open", raw))?;
    // Exit 1: errors were corrected. The check is resize2fs's own demand.
    run("e2fsck", &["-f", "-p"], raw, &[], &[0, 1])?;
    file.set_len(wanted).map_err(io_error("grow", raw))?;
    run("resize2fs", &[], raw, &[], &[0])?;
    file.sync_all().map_err(io_error("sync", raw))
}

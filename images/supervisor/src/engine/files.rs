//! Files and directories that engines need. In: paths and contents. Out: files in place, whole or not at all. Used by the engines before a start
//! and when their config changes.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown},
    path::Path,
};

use super::{ENGINE_UID, EngineError, file_error};

/// What is in a file; nothing when it is not there.
pub fn read(path: &str) -> Result<String, EngineError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(file_error("read", Path::new(path))),
    }
}

/// Puts a file of the engine's in place, for the engine's user alone. Written beside and renamed: the engine never reads half a file.
pub fn replace(path: &Path, contents: &str) -> Result<(), EngineError> {
    let fresh = path.with_added_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(file_error("remove", &fresh)(error));
        }
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .map_err(file_error("create", &fresh))?;
    file.write_all(contents.as_bytes()).map_err(file_error("write", &fresh))?;
    file.sync_all().map_err(file_error("sync", &fresh))?;
    chown(&fresh, Some(ENGINE_UID), Some(ENGINE_UID)).map_err(file_error("give the engine", &fresh))?;
    fs::rename(&fresh, path).map_err(file_error("rename to", path))
}

/// Makes a directory, or makes it so.
pub fn directory(path: &Path, mode: u32, owner: u32) -> Result<(), EngineError> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(file_error("create", path)(error));
        }
        Ok(()) | Err(_) => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(file_error("set the mode of", path))?;
    chown(path, Some(owner), Some(owner)).map_err(file_error("set the owner of", path))
}

//! Whether this node stands in elections, over restarts of its engine and its machine.
//!
//! In: what a task said last. Out: a mark on the volume, and the line of valkey.conf that follows from it. Used by `perform` and by `mod`
//! before each start.
//!
//! Why a file: the engine forgets what it was told when it starts anew, and a member that is let go because it wins no election could
//! win one after all, and take the writes of that moment with it.

use std::{fs, io, path::Path};

use crate::engine::EngineError;

const MARK: &str = "/data/stands-down";

/// The directive in force from the next start on.
pub fn line() -> String {
    let on = Path::new(MARK).exists();
    format!("cluster-replica-no-failover {}\n", if on { "yes" } else { "no" })
}

/// Makes it outlast restarts; twice is as good as once.
pub fn note(on: bool) -> Result<(), EngineError> {
    let done = if on { set(Path::new(MARK)) } else { unset(Path::new(MARK)) };
    done.map_err(|error| EngineError::Engine(format!("note on {MARK} that this node stands down: {error}")))
}

fn set(mark: &Path) -> io::Result<()> {
    fs::File::create(mark)?.sync_all()?;
    sync_directory(mark)
}

fn unset(mark: &Path) -> io::Result<()> {
    match fs::remove_file(mark) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_directory(mark),
    }
}

fn sync_directory(of: &Path) -> io::Result<()> {
    fs::File::open(of.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_twice_is_as_good_as_once() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        for _ in 0..2 {
            set(&mark).unwrap();
            assert!(mark.exists());
        }
        for _ in 0..2 {
            unset(&mark).unwrap();
            assert!(!mark.exists());
        }
        assert!(set(&dir.path().join("missing/mark")).is_err());
    }
}

//! User ids for VMMs: each machine's process is a user of its own, who owns nothing but the machine's folder and volume.
//!
//! In: a range from the configuration. Out: a number that no living process and no other machine of this host has. Kept in
//! `run_dir/vm-uids/<uid>`, a file that holds the instance: like the machines, it is gone after a reboot.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use shardplane_proto::ids::InstanceId;

/// The numbers of one host.
#[derive(Debug)]
pub struct Uids {
    dir: PathBuf,
    first: u32,
    count: u32,
}

impl Uids {
    /// The numbers from `first` on.
    ///
    /// # Errors
    /// When the folder of records cannot be made.
    pub fn open(run_dir: &Path, first: u32, count: u32) -> io::Result<Self> {
        let dir = run_dir.join("vm-uids");
        fs::create_dir_all(&dir)?;
        Ok(Self { dir, first, count })
    }

    /// The number of an instance; the same until it is released. Blocks briefly.
    ///
    /// # Errors
    /// When all are taken, or a record cannot be read or written.
    pub fn ensure(&self, instance: InstanceId) -> io::Result<u32> {
        let taken = self.taken()?;
        if let Some((uid, _)) = taken.iter().find(|(_, owner)| *owner == Some(instance)) {
            return Ok(*uid);
        }
        // A record may be lost; a living process is not: its number is not given again.
        let living = living_uids()?;
        let taken: BTreeSet<u32> = taken.into_iter().map(|(uid, _)| uid).collect();
        let free = (self.first..self.first.saturating_add(self.count))
            .filter(|uid| !taken.contains(uid) && !living.contains(uid));
        for uid in free {
            let path = self.dir.join(uid.to_string());
            match File::create_new(&path) {
                Ok(mut file) => {
                    // Whole or, after a crash here, a record without owner, which only costs its number until the reboot.
                    file.write_all(instance.to_string().as_bytes())?;
                    return Ok(uid);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let last = u64::from(self.first) + u64::from(self.count) - 1;
        Err(io::Error::other(format!(
            "no user id from {} to {last} is free; set uids in [cloud_hypervisor] higher",
            self.first
        )))
    }

    /// Gives the number of an instance back; its process must be gone.
    ///
    /// # Errors
    /// When a record cannot be removed.
    pub fn release(&self, instance: InstanceId) -> io::Result<()> {
        for (uid, owner) in self.taken()? {
            if owner == Some(instance) {
                fs::remove_file(self.dir.join(uid.to_string()))?;
            }
        }
        Ok(())
    }

    /// Removes all records; every machine must be gone.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn release_all(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn taken(&self) -> io::Result<Vec<(u32, Option<InstanceId>)>> {
        let mut taken = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let Some(uid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match fs::read_to_string(entry.path()) {
                Ok(text) => taken.push((uid, text.trim().parse().ok())),
                // Released by another task meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }
}

/// Users of all processes of this kernel that the agent can see.
fn living_uids() -> io::Result<BTreeSet<u32>> {
    let mut living = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            // The folder of a process that does not dump, as a VMM, belongs to root; its status names the user.
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
            living.extend(uid.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u32>().ok()));
            living.extend(entry.metadata().map(|meta| meta.uid()));
        }
    }
    Ok(living)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_never_share_a_number_and_one_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let uids = Uids::open(dir.path(), 700_000, 2).unwrap();
        let [a, b, c] = [1, 2, 3].map(InstanceId::from_u128);
        let (of_a, of_b) = (uids.ensure(a).unwrap(), uids.ensure(b).unwrap());
        assert_ne!(of_a, of_b);
        let again = Uids::open(dir.path(), 700_000, 2).unwrap();
        assert_eq!(again.ensure(a).unwrap(), of_a, "also after a restart of the agent");
        let full = again.ensure(c).unwrap_err().to_string();
        assert!(full.contains("700000 to 700001"), "{full}");
        again.release(a).unwrap();
        again.release(a).unwrap();
        assert_eq!(again.ensure(c).unwrap(), of_a);
    }

    #[test]
    fn the_number_of_a_living_process_is_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let own = nix::unistd::getuid().as_raw();
        let uids = Uids::open(dir.path(), own, 1).unwrap();
        assert!(uids.ensure(InstanceId::from_u128(1)).is_err());
    }
}

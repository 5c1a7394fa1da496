//! Whether kernel and initramfs are those that were built together.
//!
//! In: both files, and `kernel.json` beside them, which `images/build kernel` makes and which names their digests. Out: an error that
//! says which one is another. Asked by the host's check, and before each boot: a guest that starts half would be harder to explain.

use std::{fs, io, path::Path};

use serde::Deserialize;

use crate::{config::CloudHypervisor, digests::Digests};

/// What of the manifest is of use here; it also names the package and the modules.
#[derive(Debug, Deserialize)]
struct Manifest {
    vmlinuz: String,
    initramfs: String,
}

/// What could be said of kernel and initramfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Both are what the manifest names.
    Verified,
    /// There is no manifest beside the kernel: it is one of the operator's own.
    Unnamed,
}

/// Compares both with the manifest. Blocks as long as it takes to read what was not yet read.
///
/// # Errors
/// What is not as it should be, and what to do.
pub fn verify(config: &CloudHypervisor, digests: &Digests) -> Result<Payload, String> {
    let path = config.kernel.with_file_name("kernel.json");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Payload::Unnamed),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let named: Manifest = serde_json::from_slice(&text).map_err(|error| {
        format!(
            "{} names no digests ({error}): remove it, or put both files and it there anew",
            path.display()
        )
    })?;
    let beside = |file: &Path| file.parent() == path.parent();
    for (file, digest) in [(&config.kernel, &named.vmlinuz), (&config.initramfs, &named.initramfs)] {
        // One of the operator's own may lie elsewhere.
        if beside(file) {
            digests.verify(file, digest).map_err(|error| {
                format!(
                    "{error}; copy the folder that images/build kernel made to {} again",
                    path.with_file_name("").display()
                )
            })?;
        }
    }
    Ok(Payload::Verified)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOST-14: what a machine boots is what was built, or it is said which file is not.
    #[test]
    fn host_14_a_kernel_or_initramfs_that_is_not_what_was_built_is_named() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| dir.path().join(name);
        let config = CloudHypervisor {
            binary: "/none".into(),
            kernel: path("vmlinuz"),
            initramfs: path("initramfs"),
            first_uid: 4_000_000,
            uids: 1,
            hugepages: false,
        };
        let digests = Digests::open(state.path());
        let look = |config: &CloudHypervisor| verify(config, &digests);
        fs::write(path("vmlinuz"), "a").unwrap();
        fs::write(path("initramfs"), "b").unwrap();
        assert_eq!(look(&config), Ok(Payload::Unnamed));
        let (a, b) = (digests.of(&path("vmlinuz")).unwrap(), digests.of(&path("initramfs")).unwrap());
        let manifest = format!(r#"{{"package": "p", "vmlinuz": "sha256:{a}", "initramfs": "sha256:{b}"}}"#);
        fs::write(path("kernel.json"), &manifest).unwrap();
        assert_eq!(look(&config), Ok(Payload::Verified));
        fs::write(path("initramfs"), "c").unwrap();
        let error = look(&config).unwrap_err();
        assert!(
            error.contains("initramfs has the digest") && error.contains("images/build kernel"),
            "{error}"
        );
        let elsewhere = CloudHypervisor { initramfs: "/elsewhere/initramfs".into(), ..config.clone() };
        assert_eq!(look(&elsewhere), Ok(Payload::Verified), "one of the operator's own");
        fs::write(path("initramfs"), "b").unwrap();
        fs::write(path("vmlinuz"), "A").unwrap();
        assert!(look(&config).unwrap_err().contains("vmlinuz has the digest"));
        fs::write(path("kernel.json"), "{}").unwrap();
        assert!(look(&config).unwrap_err().contains("kernel.json names no digests"));
    }
}

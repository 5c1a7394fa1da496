//! The kernel modules of the initramfs, in the order that `images/kernel/steps` worked out.
//!
//! In: `/modules/order` and the files beside it. Out: their drivers. Called by `boot`; there is no udev and no modprobe.

use std::{fs::File, path::Path};

use anyhow::Context as _;
use rustix::io::Errno;

/// Where the initramfs has them.
pub const FOLDER: &str = "/modules";
/// A guest without these runs all the same: without the host's clock it keeps its own, without a button it is stopped by its link.
const DISPENSABLE: [&str; 3] = ["ptp_kvm", "button", "evdev"];

/// Loads all. Disks and cards that the machine has are there when this returns: their drivers look for them as they load.
pub fn load(folder: &Path) -> anyhow::Result<()> {
    let order = folder.join("order");
    let order = std::fs::read_to_string(&order).with_context(|| format!("read {}", order.display()))?;
    for name in order.lines() {
        match load_one(&folder.join(name).with_extension("ko")) {
            Ok(()) => {}
            Err(error) if DISPENSABLE.contains(&name) => {
                tracing::warn!("goes on without module {name}: {error:#}");
            }
            Err(error) => return Err(error.context(format!("load module {name}"))),
        }
    }
    Ok(())
}

fn load_one(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    match rustix::system::finit_module(&file, c"", 0) {
        // Built in, or loaded already.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_missing_is_named_unless_it_can_be_missed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("order"), "ptp_kvm\nbutton\n").unwrap();
        load(dir.path()).unwrap();
        std::fs::write(dir.path().join("order"), "ptp_kvm\nvirtio_blk\n").unwrap();
        let error = format!("{:#}", load(dir.path()).unwrap_err());
        assert!(error.starts_with("load module virtio_blk: open /"), "{error}");
    }
}

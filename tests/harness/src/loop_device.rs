//! A block device for a test. In: a file to be made. Out: the path of a device over it, which is gone when the value is dropped.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// A loop device over a file of zeros.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Makes the file with so many GiB, sparse, and a device over it. Needs root.
    ///
    /// # Errors
    /// When the file cannot be made, or the kernel has no loop device.
    pub fn over(file: &Path, gib: u64) -> Result<Self> {
        let shown = file.display();
        let made = File::create(file).and_then(|made| made.set_len(gib << 30));
        made.with_context(|| format!("cannot make {shown}"))?;
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let output = output.context("cannot run losetup")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "no loop device over {shown}: {said}");
        Ok(Self(String::from_utf8(output.stdout)?.trim().into()))
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

//! The file systems of a virtual machine, the same as a namespace machine has.
//!
//! In: the disks `/dev/vda` (the image, read-only) and `/dev/vdb` (the volume, ext4). Out: they and what lives in memory, mounted under
//! one folder; later that folder as `/`. Called by `boot`.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::Path,
};

use anyhow::{Context as _, bail};
use nix::{
    errno::Errno,
    mount::MsFlags,
    unistd::{chdir, chroot},
};

use super::modules;

/// Where the image is mounted until it is the root.
pub const STAGE: &str = "/root";
const IMAGE: &str = "/dev/vda";
const VOLUME: &str = "/dev/vdb";
const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// What the initramfs itself works with.
pub fn mount_kernel() -> anyhow::Result<()> {
    for folder in ["/proc", "/sys", "/dev", STAGE] {
        make(Path::new(folder))?;
    }
    mount("proc", "/proc", "proc", SAFE, "")?;
    mount("sysfs", "/sys", "sysfs", SAFE, "")?;
    mount("devtmpfs", "/dev", "devtmpfs", MsFlags::MS_NOSUID.union(MsFlags::MS_NOEXEC), "mode=0755")
}

/// Mounts the machine's file systems under the stage.
pub fn mount_machine() -> anyhow::Result<()> {
    let at = |folder: &str| format!("{STAGE}{folder}");
    mount_image()?;
    for folder in ["/data", "/run", "/tmp", "/dev", "/proc", "/sys"] {
        if !Path::new(&at(folder)).is_dir() {
            bail!("the image on {IMAGE} has no folder {folder}; build it anew with images/build");
        }
    }
    mount(VOLUME, &at("/data"), "ext4", SAFE, "")
        .context("the volume holds no ext4 that this kernel takes; nothing was changed on it")?;
    // The rooms of a namespace machine, so that what fits into one fits into the other.
    mount("tmpfs", &at("/run"), "tmpfs", SAFE, "mode=755,size=32m,nr_inodes=4096")?;
    mount("tmpfs", &at("/tmp"), "tmpfs", SAFE, "mode=1777,size=64m,nr_inodes=16384")?;
    make(Path::new("/dev/shm"))?;
    mount("tmpfs", "/dev/shm", "tmpfs", SAFE, "mode=1777,size=64m,nr_inodes=4096")?;
    for (name, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, name).with_context(|| format!("make {name}"))?;
    }
    for folder in ["/dev", "/proc", "/sys"] {
        mount(folder, &at(folder), "", MsFlags::MS_MOVE, "")?;
    }
    Ok(())
}

/// The image says by its kind what it is: the kernel refuses the other.
fn mount_image() -> anyhow::Result<()> {
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let image = |kind| nix::mount::mount(Some(IMAGE), STAGE, Some(kind), flags, None::<&str>);
    let mounted = match image("erofs") {
        Err(Errno::EINVAL) => image("squashfs"),
        other => other,
    };
    mounted.with_context(|| format!("mount {IMAGE}, the image, as erofs or squashfs"))
}

/// Makes the stage the root. What the initramfs held is deleted first: it lives in memory.
pub fn switch() -> anyhow::Result<()> {
    fs::remove_file("/init").context("delete /init of the initramfs")?;
    fs::remove_dir_all(modules::FOLDER).context("delete the modules of the initramfs")?;
    chdir(STAGE).with_context(|| format!("enter {STAGE}"))?;
    // The initramfs cannot be unmounted or pivoted away from, so it is covered.
    mount(".", "/", "", MsFlags::MS_MOVE, "")?;
    chroot(".").context("make the image the root")?;
    chdir("/").context("enter /")
}

fn make(folder: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    made.with_context(|| format!("make {}", folder.display()))
}

fn mount(source: &str, target: &str, kind: &str, flags: MsFlags, data: &str) -> anyhow::Result<()> {
    let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
    nix::mount::mount(Some(source), target, some(kind), flags, some(data))
        .with_context(|| format!("mount {source} at {target}"))
}

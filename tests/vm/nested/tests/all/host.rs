//! The emulated host: its root, its kernel, the disk with what its stories need, and QEMU.
//!
//! In: this tree, built by `images/build`. Out: [`Host`], and what it said. Called by the tests. Root and kernel are kept in
//! `target/nested`, the first by what it is made from, the second by `images/build` itself; the disk is made anew each time.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sha2::{Digest as _, Sha256};

/// This tree.
pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
const OWN: &str = env!("CARGO_MANIFEST_DIR");
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Nobody waits for longer: the host and its machines have no more.
const SECONDS: &str = "3600";
/// Few enough for an emulated machine on a busy computer; the story `iops` expects it.
const OFFER: &str =
    "\n[[volume_offer]]\nid = \"load-100\"\niops = 100\nmax_size_gib = 8\nprice_gib_hour = 0.0001\n";

/// Why there can be no such host here.
pub fn cannot_run() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".into());
    }
    if vmm().is_none() {
        return Err("there is no cloud-hypervisor on PATH or at CLOUD_HYPERVISOR".into());
    }
    if on_path("qemu-system-x86_64").is_none() {
        return Err("qemu-system-x86_64 is not installed".into());
    }
    if !repository("images/out/kernel/vmlinuz").is_file() {
        return Err("there is no kernel for virtual machines; run images/build kernel".into());
    }
    Ok(())
}

fn vmm() -> Option<PathBuf> {
    let named = env::var_os("CLOUD_HYPERVISOR").map(PathBuf::from);
    named.or_else(|| on_path("cloud-hypervisor")).filter(|path| path.is_file())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn repository(path: &str) -> PathBuf {
    fs::canonicalize(REPOSITORY).unwrap().join(path)
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A host that has not been booted yet. Its disks go when it goes.
pub struct Host {
    dir: tempfile::TempDir,
    root: PathBuf,
    kernel: PathBuf,
}

impl Host {
    /// Builds what is not there yet.
    pub fn build() -> Self {
        let target = repository("target/nested");
        let recipe = Path::new(OWN).join("host/root");
        let digest = hex::encode(&Sha256::digest(fs::read(&recipe).unwrap())[..8]);
        let root = target.join(format!("root-{digest}.erofs"));
        run(Command::new(&recipe).arg(&root));
        let modules = Path::new(OWN).join("modules");
        run(Command::new(repository("images/build"))
            .arg("kernel")
            .arg("--out")
            .arg(&target)
            .arg("--also")
            .arg(modules));
        let dir = tempfile::tempdir().unwrap();
        story_disk(dir.path());
        Self { dir, root, kernel: target.join("kernel") }
    }

    /// Boots it and waits until it turns itself off; answers all that its console got.
    pub fn tell(&self, story: &str, memory_mib: u32) -> String {
        let data = self.dir.path().join("data");
        // Sparse: room for the volumes of a demo.
        fs::File::create(&data).unwrap().set_len(24 << 30).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&data));
        let words = fs::read_to_string(self.kernel.join("cmdline")).unwrap();
        let words = format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off shardplane.hostname=host nested.story={story} {}",
            words.trim()
        );
        // What is on its disks need not outlive this computer.
        let drive = |id: &str, file: &Path, more: &str| {
            let drive = format!("id={id},file={},format=raw,if=none,cache=unsafe{more}", file.display());
            ["-drive".to_owned(), drive, "-device".to_owned(), format!("virtio-blk-pci,drive={id}")]
        };
        // One processor: kernels that change their own code while another runs it are not for an emulator.
        let output = Command::new("timeout")
            .args([
                SECONDS,
                "qemu-system-x86_64",
                "-accel",
                "tcg,tb-size=1024,thread=single",
                "-machine",
                "q35",
            ])
            .args([
                "-cpu",
                "max",
                "-smp",
                "1",
                "-m",
                &memory_mib.to_string(),
                "-nodefaults",
                "-no-user-config",
            ])
            .args(["-display", "none", "-no-reboot", "-serial", "stdio", "-kernel"])
            .arg(self.kernel.join("vmlinuz"))
            .arg("-initrd")
            .arg(self.kernel.join("initramfs"))
            .args(["-append", &words])
            .args(drive("root", &self.root, ",readonly=on"))
            .args(drive("data", &data, ""))
            .args(drive("host", &self.dir.path().join("host.erofs"), ",readonly=on"))
            .args(["-netdev", "user,id=card,restrict=on", "-device", "virtio-net-pci,netdev=card,romfile="])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    }
}

/// The disk with what is told: programs, images, `deploy`, and how it begins.
fn story_disk(dir: &Path) {
    let disk = dir.join("host");
    let programs = programs();
    for name in ["shardplane-coordinator", "shardplane-agent", "kc"] {
        install(&programs.join(name), &disk.join("bin").join(name));
    }
    // Where `World` looks for programs: beside its own folder.
    install(&programs.join("nested-host"), &disk.join("bin/deps/nested-host"));
    install(&vmm().unwrap(), &disk.join("bin/cloud-hypervisor"));
    install(&Path::new(OWN).join("host/begin"), &disk.join("begin"));
    run(Command::new("cp").arg("-r").arg(repository("deploy")).arg(&disk));
    let offers = disk.join("deploy/samples/coordinator.toml");
    let text = fs::read_to_string(&offers).unwrap();
    fs::write(&offers, text + OFFER).unwrap();
    images(&disk.join("images"));
    load_images(dir, &disk, &programs);
    // Packed a little: the emulated machine reads it once.
    run(Command::new("mkfs.erofs").args(["--quiet", "-zlz4"]).arg(dir.join("host.erofs")).arg(&disk));
}

/// The programs as they are released, static, so that they run on any root; compiled once with the supervisor's crates.
fn programs() -> PathBuf {
    let repository = repository("");
    let repository = repository.display().to_string();
    let repository = repository.trim_end_matches('/');
    let target = format!("{repository}/target/image");
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo");
    let registry = env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from);
    let flags = [
        "-C".to_owned(),
        "target-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={repository}=/src"),
        format!("--remap-path-prefix={}=/cargo", registry.display()),
    ];
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--profile", "image", "--target", TARGET, "--bins"])
        .args(["-p", "shardplane-coordinator", "-p", "shardplane-agent", "-p", "shardplane-nested"])
        .current_dir(repository)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")));
    Path::new(&target).join(TARGET).join("image")
}

fn images(to: &Path) {
    for entry in fs::read_dir(repository("images/out")).unwrap() {
        let path = entry.unwrap().path();
        if ["erofs", "json"].map(OsStr::new).into_iter().any(|kind| path.extension() == Some(kind)) {
            install(&path, &to.join(path.file_name().unwrap()));
        }
    }
    for file in ["vmlinuz", "initramfs", "cmdline"] {
        install(&repository("images/out/kernel").join(file), &to.join("kernel").join(file));
    }
}

/// The same images, whose machines start a program that only keeps their volume busy: a later part of an initramfs replaces what an
/// earlier one holds.
fn load_images(dir: &Path, disk: &Path, programs: &Path) {
    let load = disk.join("load");
    fs::create_dir_all(load.join("kernel")).unwrap();
    for entry in fs::read_dir(disk.join("images")).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "kernel" {
            symlink(Path::new("../images").join(&name), load.join(&name)).unwrap();
        }
    }
    for name in ["vmlinuz", "cmdline"] {
        symlink(Path::new("../../images/kernel").join(name), load.join("kernel").join(name)).unwrap();
    }
    let init = dir.join("load");
    install(&programs.join("disk-load"), &init.join("init"));
    let initramfs = load.join("kernel/initramfs");
    install(&disk.join("images/kernel/initramfs"), &initramfs);
    let script = "cd \"$1\" && echo init | cpio --quiet --create --format=newc >>\"$2\"";
    run(Command::new("sh").args(["-c", script, "-"]).arg(&init).arg(&initramfs));
}

fn install(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap_or_else(|error| panic!("copy {}: {error}", from.display()));
}

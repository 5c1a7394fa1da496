//! Boots the emulated host and reads its story off its console.
//!
//! In: what `images/build` makes, qemu-system-x86_64 and a cloud-hypervisor binary (on PATH, or named by `CLOUD_HYPERVISOR`). Out: the
//! host's own verdict, and the volume as the machine left it. Needs root, as images/build does.

#![allow(clippy::unwrap_used)]

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
/// Both machines have no more; nobody waits for longer.
const SECONDS: &str = "1500";

fn on_path(program: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn format(disk: &Path, size: u64) {
    fs::File::create(disk).unwrap().set_len(size).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk));
}

/// The program of the host, linked as images/build links the supervisor, so that what both need is compiled once.
fn host_program() -> PathBuf {
    let repository = fs::canonicalize(REPOSITORY).unwrap();
    let target = repository.join("target/image");
    let registry = env::var_os("CARGO_HOME")
        .map_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo"), PathBuf::from);
    let flags = [
        "-C".to_owned(),
        "target-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=/src", repository.display()),
        format!("--remap-path-prefix={}=/cargo", registry.display()),
    ];
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--profile", "image", "--target", "x86_64-unknown-linux-gnu"])
        .args(["-p", "shardplane-nested", "--bin", "nested-host"])
        .current_dir(&repository)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")));
    target.join("x86_64-unknown-linux-gnu/image/nested-host")
}

/// Copies a program with the libraries that it is linked with, each where the program looks for it.
fn copy_linked(program: &Path, root: &Path) {
    install(program, &root.join("usr/bin/cloud-hypervisor"));
    // A static program has none; ldd then says so and fails.
    let told = Command::new("ldd").arg(program).output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    for library in told.split_whitespace().filter(|word| word.starts_with('/')) {
        install(Path::new(library), &root.join(library.trim_start_matches('/')));
    }
}

fn install(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(from, to).unwrap();
}

/// The host's disk: a root as an image has one, whose supervisor is the host's program.
fn host_disk(dir: &Path, vmm: &Path) -> PathBuf {
    let root = dir.join("root");
    for folder in ["data", "run", "tmp", "dev", "proc", "sys"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    install(&host_program(), &root.join("sbin/shardplane-supervisor"));
    copy_linked(vmm, &root);
    let built = Path::new(REPOSITORY).join("images/out");
    for file in ["kernel/vmlinuz", "kernel/initramfs", "kernel/cmdline"] {
        install(&built.join(file), &root.join("machine").join(file));
    }
    let image = fs::read_dir(&built).unwrap().map(|entry| entry.unwrap().path());
    let image = image.filter(|path| path.extension().is_some_and(|extension| extension == "erofs")).max();
    install(&image.unwrap(), &root.join("machine/image.erofs"));
    let disk = dir.join("host.erofs");
    run(Command::new("mkfs.erofs").arg("--quiet").arg(&disk).arg(&root));
    disk
}

#[test]
fn a_virtual_machine_under_cloud_hypervisor_serves_and_turns_itself_off() {
    let vmm = env::var_os("CLOUD_HYPERVISOR")
        .map_or_else(|| on_path("cloud-hypervisor"), |path: OsString| Some(path.into()));
    let Some(vmm) = vmm.filter(|path| path.is_file()) else {
        return println!("skipped: there is no cloud-hypervisor on PATH or at CLOUD_HYPERVISOR");
    };
    if on_path("qemu-system-x86_64").is_none() {
        return println!("skipped: qemu-system-x86_64 is not installed");
    }
    if !Path::new(REPOSITORY).join("images/out/kernel/vmlinuz").is_file() {
        return println!("skipped: there is no kernel for virtual machines; run images/build kernel");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let host_kernel = Path::new(REPOSITORY).join("target/nested");
    run(Command::new(Path::new(REPOSITORY).join("images/build"))
        .arg("kernel")
        .arg("--out")
        .arg(&host_kernel)
        .arg("--also")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/modules")));
    let disk = host_disk(dir, &vmm);
    let (data, volume) = (dir.join("data"), dir.join("volume"));
    format(&data, 64 << 20);
    format(&volume, 128 << 20);
    let drive = |id: &str, file: &Path, more: &str| {
        let drive = format!("id={id},file={},format=raw,if=none{more}", file.display());
        ["-drive".to_owned(), drive, "-device".to_owned(), format!("virtio-blk-pci,drive={id}")]
    };
    let words = fs::read_to_string(host_kernel.join("kernel/cmdline")).unwrap();
    let words =
        format!("console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off shardplane.hostname=host {words}");
    let output = Command::new("timeout")
        .args([SECONDS, "qemu-system-x86_64", "-accel", "tcg,tb-size=512", "-machine", "q35", "-cpu", "max"])
        .args(["-smp", "1", "-m", "1024", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-kernel"])
        .arg(host_kernel.join("kernel/vmlinuz"))
        .arg("-initrd")
        .arg(host_kernel.join("kernel/initramfs"))
        .args(["-append", words.trim()])
        .args(drive("root", &disk, ",readonly=on"))
        .args(drive("data", &data, ""))
        .args(drive("volume", &volume, ""))
        .args(["-netdev", "user,id=card", "-device", "virtio-net-pci,netdev=card,romfile="])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("nested: all is well"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in said.lines().filter(|line| line.starts_with("measured: ") || line.starts_with("nested: ")) {
        println!("{line}");
    }
    run(Command::new("e2fsck").args(["-fn"]).arg(&volume));
}

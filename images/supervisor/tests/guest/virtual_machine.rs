//! The kernel and initramfs of `images/build kernel` with the built image, in QEMU's software emulation.
//!
//! In: both, and qemu-system-x86_64. Out: assertions about the machine as a host sees it: its console, its exit, its volume; and with
//! vhost-device-vsock, which carries a vsock without the host's kernel, everything that a supervisor says.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

use nix::sys::signal::Signal;
use shardplane_proto::v1::EngineState;

use crate::{
    host::{Guest, client, ip, until, until_within},
    isolated, signal,
};

/// An emulated boot on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
const EMULATOR: &str = "qemu-system-x86_64";
const VSOCK: &str = "vhost-device-vsock";

fn on_path(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).is_file())
}

fn kernel() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../out/kernel"))
}

/// Runs a test when all it needs is there.
fn emulated(name: &str, needs: &[&str], test: impl AsyncFnOnce(PathBuf)) {
    if !kernel().join("vmlinuz").is_file() {
        return println!("skipped: there is no kernel for virtual machines; run images/build kernel");
    }
    if let Some(missing) = needs.iter().find(|program| !on_path(program)) {
        return println!("skipped: {missing} is not installed");
    }
    isolated(&format!("virtual_machine::{name}"), test);
}

fn format(volume: &Path) {
    let file = std::fs::File::create(volume).unwrap();
    file.set_len(64 << 20).unwrap();
    let status = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(volume).status().unwrap();
    assert!(status.success());
}

/// Whether the volume was unmounted: nothing of its journal is left to be done.
fn is_clean(volume: &Path) -> bool {
    let told = Command::new("dumpe2fs").arg("-h").arg(volume).stderr(Stdio::null()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("Filesystem state:         clean"), "{told}");
    !told.contains("needs_recovery")
}

/// A machine's command line, with the disks and the card that an agent gives it.
fn machine(image: &Path, dir: &Path, number: u8) -> Command {
    let port = format!("port{number}");
    let _ = Command::new("ip").args(["link", "del", &port]).stderr(Stdio::null()).status();
    ip(&format!("tuntap add {port} mode tap"));
    ip(&format!("link set {port} master br0 up"));
    let disk = |id: &str, file: &Path, more: &str| {
        let drive = format!("id={id},file={},format=raw,if=none{more}", file.display());
        ["-drive".to_owned(), drive, "-device".to_owned(), format!("virtio-blk-pci,drive={id},serial={id}")]
    };
    let words = std::fs::read_to_string(kernel().join("cmdline")).unwrap();
    let words = format!("console=ttyS0 quiet loglevel=4 panic=-1 shardplane.hostname=before-config {words}");
    let mut machine = Command::new(EMULATOR);
    machine
        .args([
            "-accel",
            "tcg",
            "-machine",
            "q35,memory-backend=mem",
            "-cpu",
            "max",
            "-m",
            "256",
            "-nodefaults",
        ])
        .args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on"])
        .args(["-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", &format!("file:{}", dir.join("console").display())])
        .args(["-monitor", &format!("unix:{},server=on,wait=off", dir.join("monitor").display())])
        .arg("-kernel")
        .arg(kernel().join("vmlinuz"))
        .arg("-initrd")
        .arg(kernel().join("initramfs"))
        .args(["-append", words.trim()])
        .args(disk("root", image, ",readonly=on"))
        .args(disk("data", &dir.join("volume"), ""))
        .args(["-netdev", &format!("tap,id=card,ifname={port},script=no,downscript=no")])
        .args(["-device", &format!("virtio-net-pci,netdev=card,romfile=,mac=52:54:00:00:00:{number:02x}")]);
    machine
}

fn press_power_button(dir: &Path) {
    let mut monitor = UnixStream::connect(dir.join("monitor")).unwrap();
    monitor.write_all(b"system_powerdown\n").unwrap();
    // It prompts at first and after each command. One that is left alone before forgets the command.
    let (mut said, mut byte) = (Vec::new(), [0]);
    while said.windows(6).filter(|window| window == b"(qemu)").count() < 2 {
        monitor.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
}

fn console(dir: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(dir.join("console")).unwrap_or_default()).into_owned()
}

/// A process that ends with the test.
struct Kept(Child);

impl Kept {
    async fn power_off(&mut self, dir: &Path) {
        let status = until_within(PATIENCE, "the end of the machine", || self.0.try_wait().unwrap()).await;
        assert!(status.success(), "{status}: {}", console(dir));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What carries the machine's vsock: connections to the host's port 1024 arrive at `dir/vsock_1024`.
fn vsock(dir: &Path) -> Kept {
    for stale in ["vsock", "vsock-device"] {
        let _ = std::fs::remove_file(dir.join(stale));
    }
    let carrier = Command::new(VSOCK)
        .args(["--guest-cid", "4"])
        .arg("--socket")
        .arg(dir.join("vsock-device"))
        .arg("--uds-path")
        .arg(dir.join("vsock"))
        .spawn();
    Kept(carrier.unwrap())
}

/// Boots a machine whose supervisor speaks with this test.
async fn boot(image: &Path, dir: &Path, number: u8) -> (Guest, Kept) {
    let carrier = vsock(dir);
    until("the vsock's device", || dir.join("vsock-device").exists().then_some(())).await;
    let mut launch = machine(image, dir, number);
    launch
        .args([
            "-chardev",
            &format!("socket,id=link,reconnect=0,path={}", dir.join("vsock-device").display()),
        ])
        .args(["-device", "vhost-user-vsock-pci,chardev=link"]);
    let guest = Guest::launch(launch, &dir.join("vsock_1024"), dir, number);
    until_within(PATIENCE, "hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
    (guest, carrier)
}

#[test]
fn a_machine_that_nobody_speaks_to_ends_by_its_power_button() {
    emulated("a_machine_that_nobody_speaks_to_ends_by_its_power_button", &[EMULATOR], async |image| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        format(&dir.join("volume"));
        let mut qemu = Kept(machine(&image, dir, 11).spawn().unwrap());
        let up = || console(dir).contains("host=vsock port 1024").then_some(());
        until_within(PATIENCE, "the supervisor", up).await;
        assert!(!is_clean(&dir.join("volume")), "the volume is mounted");
        press_power_button(dir);
        qemu.power_off(dir).await;
        assert!(console(dir).contains("power button pressed"), "{}", console(dir));
        assert!(is_clean(&dir.join("volume")), "{}", console(dir));
    });
}

#[test]
fn a_machine_without_a_volume_says_so_and_turns_itself_off() {
    emulated("a_machine_without_a_volume_says_so_and_turns_itself_off", &[EMULATOR], async |image| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let volume = vec![0x5a; 8 << 20];
        std::fs::write(dir.join("volume"), &volume).unwrap();
        let mut qemu = Kept(machine(&image, dir, 11).spawn().unwrap());
        qemu.power_off(dir).await;
        let said = console(dir);
        assert!(said.contains("cannot start and turns itself off: the volume holds no ext4"), "{said}");
        assert!(std::fs::read(dir.join("volume")).unwrap() == volume, "nothing was written to it");
    });
}

#[test]
fn a_virtual_machine_is_a_guest_like_any_other() {
    emulated("a_virtual_machine_is_a_guest_like_any_other", &[EMULATOR, VSOCK], async |image| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        format(&dir.join("volume"));
        let (mut guest, carrier) = boot(&image, dir, 11).await;
        guest.configure(1, |_| ()).await;
        until_within(PATIENCE, "a primary", || {
            let said = guest.said.lock().unwrap();
            said.reports.last().filter(|report| report.state() == EngineState::Running).map(|_| ())
        })
        .await;
        // Over the card, which has the address of the config.
        let pong: String = redis::cmd("PING").query_async(&mut client(&guest).await).await.unwrap();
        assert_eq!(pong, "PONG");
        assert!(console(dir).contains("boot, since the kernel's start: init "), "{}", console(dir));

        // An agent that restarts is dialled again.
        let connections = guest.said.lock().unwrap().connections;
        guest.restart_host().await;
        until("the link again", || (guest.said.lock().unwrap().connections > connections).then_some(()))
            .await;

        // A VMM that stood still: writes are held until the host confirms.
        guest.confirms.store(false, Ordering::Relaxed);
        let qemu = guest.launcher.id().cast_signed();
        signal(qemu, Signal::SIGSTOP);
        // The pause itself is what is tested.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        signal(qemu, Signal::SIGCONT);
        let newest = || guest.said.lock().unwrap().reports.last().cloned().unwrap();
        until("a report of it", || (newest().held_wake > 0).then_some(())).await;
        guest.confirms.store(true, Ordering::Relaxed);
        until("no more of it", || (newest().held_wake == 0).then_some(())).await;

        guest.stop().await;
        assert!(is_clean(&dir.join("volume")), "{}", console(dir));
        drop(carrier);
    });
}

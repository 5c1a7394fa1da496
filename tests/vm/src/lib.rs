//! What the tests with real virtual machines are made of.
//!
//! In: a cloud-hypervisor binary on `PATH` or named by `CLOUD_HYPERVISOR`, `/dev/kvm`, a C compiler. Out: [`host::Host`], a host
//! of its own with the real agent program, and [`guest`], which builds the tiny guest that its machines boot.

pub mod guest;
pub mod host;
pub mod vm;

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// The VMM's program.
pub fn binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CLOUD_HYPERVISOR") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("cloud-hypervisor")).find(|file| file.is_file())
}

/// Why the tests cannot run here.
pub fn cannot_run() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("needs root".into());
    }
    let Some(binary) = binary() else {
        return Some("no cloud-hypervisor is on PATH and CLOUD_HYPERVISOR names none".into());
    };
    if !binary.is_file() {
        return Some(format!("CLOUD_HYPERVISOR names {}, which is no file", binary.display()));
    }
    let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm");
    kvm.err().map(|error| format!("/dev/kvm cannot be opened: {error}"))
}

/// As [`eventually`], and returns at most a millisecond later: for a death at a chosen moment.
pub fn promptly(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Polls until `holds`, for at most a minute: a busy machine is slow, and nothing here is measured.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

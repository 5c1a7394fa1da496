//! The steps of one machine's start around its VMM's own.
//!
//! In: a [`MachineSpec`]. Out: a process whose machine runs, or why not; then nothing of it is left running. What the steps took
//! is told each time. Called by the driver, within its deadline.

use std::{
    fs, io,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{
    CloudHypervisorVmm, boot, cmdline,
    config::{GUEST_PORT, NetConfig, VmConfig, files},
    kernel,
    launch::LaunchSpec,
};
use crate::{
    ledger::ProcessId,
    network::tap,
    vmm::{MachineSpec, StartError, Vmm as _, launching},
};

/// How long a VMM that has failed may take to end.
const END_DEADLINE: Duration = Duration::from_secs(5);

impl CloudHypervisorVmm {
    /// From a specification to a machine that runs; after an error nothing of it runs.
    pub(super) async fn start_machine(&self, spec: &MachineSpec) -> Result<ProcessId, StartError> {
        let instance = spec.tag.instance;
        let began = Instant::now();
        let (files, digests) = (self.config.clone(), Arc::clone(&self.digests));
        let verified = tokio::task::spawn_blocking(move || kernel::verify(&files, &digests)).await;
        let verified = verified.unwrap_or_else(|error| Err(error.to_string()));
        verified.map_err(|error| step("use the kernel", error))?;
        let words = cmdline::words_of(&self.config.kernel)
            .map_err(|error| step("read the words for the kernel's command line", error))?;
        let config = VmConfig::new(spec, self.config.hugepages, &words)
            .map_err(|error| step("describe the machine to its VMM", error))?;
        let (dir, uid) = self.own_dir(instance).map_err(|error| step("make the machine's folder", error))?;
        remove_leftovers(&dir, &self.booted(instance))
            .map_err(|error| step("remove what an earlier start left", error))?;
        readable(&spec.image).map_err(|error| step("use the image", error))?;
        give_volume(&spec.volume, uid)
            .map_err(|error| step("give the volume to the machine's user", error))?;
        let overhead = overhead_mib(spec.limits.memory_mib);
        let cgroup = self.cgroups.prepare(instance, &spec.limits, overhead);
        let cgroup = cgroup.map_err(|error| step("set the limits of the machine", error))?;
        // Before the VMM runs: it is busy as long as the last one's files are not closed.
        let (netns, interface) = (spec.nic.netns.clone(), spec.nic.interface.clone());
        let tap = tokio::task::spawn_blocking(move || tap::attach(&netns, &interface)).await;
        let tap = tap.unwrap_or_else(|error| Err(io::Error::other(error)));
        let tap = tap.map_err(|error| step(&format!("attach to the tap {}", spec.nic.interface), error))?;
        let launch = LaunchSpec {
            tag: spec.tag,
            binary: self.config.binary.clone(),
            dir,
            netns: spec.nic.netns.clone(),
            cgroup,
            uid,
            files: vec![
                (files::ROOT.into(), spec.image.clone()),
                (files::DATA.into(), spec.volume.clone()),
                (files::KERNEL.into(), self.config.kernel.clone()),
                (files::INITRAMFS.into(), self.config.initramfs.clone()),
            ],
        };
        let prepared = Instant::now();
        let process = launching::run("launch-vm", spec.tag, &launch).await?;
        let launched = Instant::now();
        let api = self.api(instance);
        let booted = async {
            boot::describe(&api, process, &config, &NetConfig::new(spec), tap).await?;
            // From before the boot on: what a guest says that dies at once is not lost.
            self.attach_serial(instance).await;
            boot::boot(&api).await
        };
        let booted = booted.await.and_then(|()| {
            fs::write(self.booted(instance), spec.tag.uuid.to_string())
                .map_err(|error| step("note that the machine runs", error))
        });
        match booted {
            Ok(()) => {
                let ms = |time: Duration| time.as_secs_f32() * 1000.0;
                tracing::info!(
                    %instance,
                    "the VMM has booted: prepared in {:.1} ms, launched in {:.1} ms, booted in {:.1} ms; for its answers it was waited {:.1} ms",
                    ms(prepared - began), ms(launched - prepared), ms(launched.elapsed()), ms(api.waited())
                );
                Ok(process)
            }
            Err(error) => {
                let words = self.words_of_vmm(process);
                self.end(process).await;
                Err(with_words(error, &words))
            }
        }
    }

    /// Ends the process of a start that failed.
    async fn end(&self, process: ProcessId) {
        if let Err(error) = self.kill(process) {
            tracing::error!(pid = process.pid, %error, "cannot end a VMM whose start failed");
        }
        if timeout(END_DEADLINE, self.death(process)).await.is_err() {
            tracing::error!(pid = process.pid, "a VMM whose start failed was killed but does not end");
        }
    }

    fn words_of_vmm(&self, process: ProcessId) -> String {
        let mut bytes = Vec::new();
        let read = self.log_of(process).map(|log| log.take(2000).read_to_end(&mut bytes));
        match read {
            Some(Ok(_)) => String::from_utf8_lossy(&bytes).trim().replace(char::is_control, " "),
            Some(Err(_)) | None => String::new(),
        }
    }
}

/// What VMM and kernel need for a machine beside its own memory, in MiB; the machine's group may use so much more than the machine has.
///
/// 128 for the process (11 were seen with a guest that does nothing), its buffers (a disk's queue of 128 requests) and those pages of its
/// files that the kernel cannot give up at once. A 64th of the memory for page tables: those of the guest's memory, once for the VMM and once
/// for KVM, are a 256th at most, with pages of 4 KiB. Page cache of the volume counts in the group too, but goes first when room is short. Memory
/// on huge pages does not count in it, and the group then has room that it does not need.
fn overhead_mib(memory_mib: u64) -> u64 {
    128 + memory_mib / 64
}

/// The volume is the one file of the host that the VMM may write, and no other user can even read it. A device's node belongs to the host;
/// the launcher makes another one.
fn give_volume(volume: &Path, uid: u32) -> io::Result<()> {
    if fs::metadata(volume)?.file_type().is_block_device() {
        return Ok(());
    }
    fs::set_permissions(volume, fs::Permissions::from_mode(0o600))?;
    chown(volume, Some(uid), Some(uid))
}

fn step(what: &str, error: impl ToString) -> StartError {
    StartError::Step { step: what.into(), cause: error.to_string() }
}

fn with_words(error: StartError, words: &str) -> StartError {
    match error {
        StartError::Step { step, cause } if !words.is_empty() => {
            StartError::Step { step, cause: format!("{cause}; the VMM wrote: {words}") }
        }
        StartError::Step { .. } | StartError::Launcher(_) => error,
    }
}

/// Files and sockets of a VMM that is dead, which would keep the next one from making its own: a killed VMM leaves them all.
/// Not the guest's way to the agent, which listens already.
fn remove_leftovers(dir: &Path, booted: &Path) -> io::Result<()> {
    let keep = format!("{}_{GUEST_PORT}", files::VSOCK);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == *keep {
            continue;
        }
        let path = entry.path();
        if entry.file_type()?.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    match fs::remove_file(booted) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Files that all VMMs of the host share must be readable by their users.
pub fn readable(path: &Path) -> Result<(), String> {
    let mode =
        fs::metadata(path).map_err(|error| format!("cannot look at {}: {error}", path.display()))?.mode();
    if mode & 0o004 == 0 {
        let path = path.display();
        return Err(format!("{path} is not readable by the users that VMMs run as: chmod o+r {path}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_vmm_left_goes_and_the_way_to_the_agent_stays() {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path().join("vm");
        fs::create_dir_all(vm.join("log")).unwrap();
        for name in ["api", "api.lock", "vsock", "serial", "root", "vsock_1024"] {
            fs::write(vm.join(name), "").unwrap();
        }
        let booted = dir.path().join("booted");
        fs::write(&booted, "old").unwrap();
        for _ in 0..2 {
            remove_leftovers(&vm, &booted).unwrap();
            let left: Vec<_> = fs::read_dir(&vm).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["vsock_1024"]);
            assert!(!booted.exists());
        }
    }

    #[test]
    fn a_file_that_only_root_can_read_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(readable(file.path()).unwrap_err().contains("chmod o+r"));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        readable(file.path()).unwrap();
    }
}

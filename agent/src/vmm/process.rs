//! Processes that are not children of the agent: seen, waited for and killed without ever meeting a stranger.
//!
//! In: a [`ProcessId`] from the ledger or a search. Out: its death as a future, and kills by descriptor. Used by every VMM:
//! a number alone may belong to somebody else by now, a descriptor never does.

use std::{io, os::fd::OwnedFd, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::{Interest, unix::AsyncFd};

use super::procfs::Procfs;
use crate::ledger::ProcessId;

/// How often a process is looked at when the kernel gives no descriptor for it.
const FALLBACK_POLL: Duration = Duration::from_millis(500);

/// The descriptor of a process that still is the recorded one; `None` when it is gone.
///
/// # Errors
/// When the kernel refuses.
pub fn open(procfs: &Procfs, process: ProcessId) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(None) };
    let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Looked at after opening: the descriptor cannot change its process any more.
    let same = procfs.see(process.pid)?.is_some_and(|seen| seen.start_ticks == process.start_ticks);
    Ok(same.then_some(fd))
}

/// Resolves when the process is dead; at once when it already is.
pub fn death(procfs: Procfs, process: ProcessId) -> BoxFuture<'static, ()> {
    async move {
        match open(&procfs, process).and_then(|fd| fd.map(watched).transpose()) {
            Ok(None) => return,
            Ok(Some(fd)) => {
                if fd.readable().await.is_ok() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(pid = process.pid, %error, "no descriptor for a machine; polling it")
            }
        }
        while matches!(procfs.see(process.pid),
            Ok(Some(seen)) if seen.start_ticks == process.start_ticks && !seen.zombie)
        {
            tokio::time::sleep(FALLBACK_POLL).await;
        }
    }
    .boxed()
}

/// Kills it and returns without waiting. A process that is dead, or whose number another process has now, is success.
///
/// # Errors
/// When the kernel refuses.
pub fn kill(procfs: &Procfs, process: ProcessId) -> io::Result<()> {
    match open(procfs, process)? {
        Some(fd) => match pidfd_send_signal(fd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        },
        None => Ok(()),
    }
}

/// Registers a pidfd: it becomes readable when its process has ended.
#[allow(unsafe_code)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value handed over, which neither closes nor replaces it before it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

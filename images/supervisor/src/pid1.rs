//! The duties of PID 1: mounts that are missing, signals, the end of every child, the host name.
//!
//! In: the kernel's tables. Out: signal streams and the children that ended. Called by `run`. Every wait of the program
//! happens here: a second place that waits would steal an exit status from the first.

use std::{fmt, os::unix::fs::MetadataExt as _, path::Path};

use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::{
        prctl::set_no_new_privs,
        stat::{Mode, umask},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, gethostname, getpid, sethostname},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Its own exit status.
    Status(i32),
    /// The signal that ended it.
    Signal(nix::sys::signal::Signal),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The signals PID 1 acts upon.
pub struct Signals {
    /// Stop in order.
    pub terminate: Signal,
    /// The same, from a terminal.
    pub interrupt: Signal,
    /// A child ended.
    pub child: Signal,
}

/// Installs the handlers. Without one, the kernel drops SIGTERM to PID 1.
pub fn signals() -> std::io::Result<Signals> {
    Ok(Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        child: signal(SignalKind::child())?,
    })
}

/// Nothing started from here on gains privileges by executing a file, and files are private unless said otherwise.
pub fn confine() -> nix::Result<()> {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
    set_no_new_privs()
}

/// Takes every child that ended, the engine and orphans alike.
pub fn reap() -> Vec<(Pid, Exit)> {
    let mut ended = Vec::new();
    // Bounded by the number of zombies: each turn takes one away.
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => ended.push((pid, Exit::Status(code))),
            Ok(WaitStatus::Signaled(pid, signal, _core)) => ended.push((pid, Exit::Signal(signal))),
            Ok(
                WaitStatus::Stopped(..)
                | WaitStatus::PtraceEvent(..)
                | WaitStatus::PtraceSyscall(_)
                | WaitStatus::Continued(_),
            )
            | Err(Errno::EINTR) => {}
            Ok(WaitStatus::StillAlive) | Err(_) => return ended,
        }
    }
}

struct Mount {
    target: &'static str,
    kind: &'static str,
    options: &'static str,
}

/// What a bare kernel leaves to us; the launcher of a namespace machine has done all of it.
const MOUNTS: [Mount; 5] = [
    Mount { target: "/proc", kind: "proc", options: "" },
    Mount { target: "/dev", kind: "devtmpfs", options: "mode=0755" },
    Mount { target: "/dev/shm", kind: "tmpfs", options: "mode=1777" },
    Mount { target: "/run", kind: "tmpfs", options: "mode=0755" },
    Mount { target: "/tmp", kind: "tmpfs", options: "mode=1777" },
];

/// Mounts what is not mounted yet, when this process is PID 1. A failure is a warning: what needs it will say so.
pub fn mount_missing() {
    if getpid() != Pid::from_raw(1) {
        return;
    }
    for Mount { target, kind, options } in MOUNTS {
        if is_mount_point(Path::new(target)) {
            continue;
        }
        let flags =
            MsFlags::MS_NOSUID | if kind == "devtmpfs" { MsFlags::empty() } else { MsFlags::MS_NODEV };
        // devtmpfs hides the /dev/shm of the image, so the directory may have to be made again.
        let made = std::fs::create_dir_all(target).map_err(|error| error.to_string());
        let mounted = made.and_then(|()| {
            mount(Some(kind), target, Some(kind), flags, Some(options)).map_err(|errno| errno.to_string())
        });
        if let Err(error) = mounted {
            tracing::warn!(target, kind, error, "not mounted");
        }
    }
}

/// A directory on another device than its parent is a mount point. /proc/mounts cannot be asked: /proc may be missing.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev());
    let parent = path.parent().unwrap_or(path);
    matches!((device(path), device(parent)), (Ok(own), Ok(above)) if own != above)
}

/// Sets the host name. Only a nicety, so a failure (no CAP_SYS_ADMIN) is a warning.
pub fn set_hostname(name: &str) {
    if gethostname().is_ok_and(|current| current == name) {
        return;
    }
    if let Err(error) = sethostname(name) {
        tracing::warn!(name, %error, "host name not set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_a_mount_point_and_a_plain_directory_is_not() {
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/usr/bin")));
        assert!(!is_mount_point(Path::new("/there-is-no-such-path")));
    }
}

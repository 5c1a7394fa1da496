//! The duties of PID 1: signals, the end of every child, the host name.
//!
//! In: the kernel's tables. Out: signal streams and the children that ended. Called by `run`. Every wait of the program
//! happens here: a second place that waits would steal an exit status from the first.

use std::fmt;

use nix::{
    errno::Errno,
    sys::{
        prctl::set_no_new_privs,
        stat::{Mode, umask},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, gethostname, sethostname},
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

/// Sets the host name. Only a nicety, so a failure (no CAP_SYS_ADMIN) is a warning.
pub fn set_hostname(name: &str) {
    if gethostname().is_ok_and(|current| current == name) {
        return;
    }
    if let Err(error) = sethostname(name) {
        tracing::warn!(name, %error, "host name not set");
    }
}

//! The end of a virtual machine.
//!
//! In: an engine that was stopped, or a boot that failed. Out: the power is off, with everything on the volume. Called by `main` and
//! `boot`, as the last thing they do.

use std::{thread::sleep, time::Duration};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::{Pid, getpid},
};
use rustix::system::RebootCommand;

use crate::pid1;

/// Attempts to unmount the volume, a moment apart: what was killed lets go of its files as it ends.
const ATTEMPTS: u32 = 100;
const MOMENT: Duration = Duration::from_millis(10);

/// Turns the machine off. Returns only when the kernel refuses; PID 1 that ends then makes it start over (`panic=-1`).
pub fn off() {
    if getpid() != Pid::from_raw(1) {
        // By hand on somebody's computer: what follows would end it.
        return tracing::error!("this process is not the first of a machine, so it turns none off");
    }
    // All but this process: what an engine left behind.
    let _nobody_left = kill(Pid::from_raw(-1), Signal::SIGKILL);
    for _ in 0..ATTEMPTS {
        pid1::reap();
        // An error besides "busy" means that it is not mounted, and then there is nothing to wait for.
        match umount2("/data", MntFlags::empty()) {
            Err(nix::errno::Errno::EBUSY) => sleep(MOMENT),
            Ok(()) | Err(_) => break,
        }
    }
    rustix::fs::sync();
    // The console's last line leaves before the power does.
    let _no_terminal = rustix::termios::tcdrain(std::io::stderr());
    if let Err(error) = rustix::system::reboot(RebootCommand::PowerOff) {
        tracing::error!(%error, "the kernel does not turn the machine off");
    }
}

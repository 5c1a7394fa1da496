//! Taps: the ports of virtual machines.
//!
//! In: a name, on a thread that is in the VPC's namespace. Out: a persistent tap ([`make`]), or one's open end to hand to a
//! VMM ([`attach`]). Netlink cannot make taps, so `/dev/net/tun` does. `run` makes them, the VMM's start attaches.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns};

/// How long a tap may be busy: a VMM that has just died still holds it until the kernel has closed its files.
const BUSY_DEADLINE: Duration = Duration::from_secs(2);
const BUSY_POLL: Duration = Duration::from_millis(10);

/// Makes a tap where the thread is, single-queue and with virtio's header, as the machine's card is described to its VMM ([`NetConfig`]), that
/// only root may attach to. The name has at most 15 bytes.
///
/// [`NetConfig`]: crate::vmm::cloud_hypervisor::config::NetConfig
///
/// # Errors
/// When the kernel refuses, for example without the module tun.
pub(super) fn make(name: &str) -> io::Result<()> {
    let tap = open(name)?;
    set(&tap, libc::TUNSETOWNER, 0)?;
    set(&tap, libc::TUNSETPERSIST, 1)
}

#[allow(unsafe_code)]
fn set(tap: &File, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the descriptor is open and these requests take a plain number.
    let done = unsafe { libc::ioctl(tap.as_raw_fd(), request, value) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a tap in that network namespace. Waits a moment for one that is still held; blocks meanwhile.
///
/// # Errors
/// When there is none, or it stays busy: another process has it.
pub fn attach(netns: &Path, name: &str) -> io::Result<OwnedFd> {
    let namespace = File::open(netns)?;
    // On a thread of its own: one that goes on must not be in the namespace.
    let attached = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
            // Opening a name that is not there would make an interface that nobody filters.
            nix::net::if_::if_nametoindex(name)?;
            let deadline = Instant::now() + BUSY_DEADLINE;
            loop {
                match open(name) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                        thread::sleep(BUSY_POLL);
                    }
                    other => return other,
                }
            }
        });
        thread.join()
    });
    attached.unwrap_or_else(|_| Err(io::Error::other("the thread panicked"))).map(OwnedFd::from)
}

#[allow(unsafe_code)]
fn open(name: &str) -> io::Result<File> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is longer than 15 bytes")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open and the request outlives the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

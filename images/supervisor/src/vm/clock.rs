//! The host's clock, as a virtual machine sees it, and its own wall clock kept with it.
//!
//! In: the device of `ptp_kvm`. Out: the host's time for `wake`, and corrections of the own clock. Started by `run`.
//!
//! A guest takes the host's time once, at its boot. From then on it counts by itself: it drifts from a host that is kept right by
//! NTP, and it may miss time in which the machine stood still. Keys expire by this clock on
//! every member of a cluster, so the members must agree. What the host's clock is steered by is the host's matter.

use std::{fs::File, path::Path, time::Duration};

use clock_steering::{Clock as _, TimeOffset, unix::UnixClock};
use nix::libc;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use tokio::time::interval;

const CLASS: &str = "/sys/class/ptp";
/// The name that `ptp_kvm` gives its device.
const NAME: &str = "KVM virtual PTP";
/// How often the clocks are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// More than that is not caught up with but jumped over: expiry of keys would be wrong for minutes.
const JUMP: i128 = 500_000_000;
/// A difference is made up for in this time, so that small errors of reading do not move the clock to and fro.
const CATCH_UP: Duration = Duration::from_secs(60);
/// The kernel runs a clock faster or slower by so much at most, in millionths.
const FASTEST: f64 = 500.0;
/// A reading that took longer (the vCPU had to wait) says too little.
const READING: Duration = Duration::from_millis(1);

/// The clock of the host.
#[derive(Debug)]
pub struct HostClock(File);

impl HostClock {
    /// None where there is none: on a host whose own clock is not the processor's counter, and in a namespace machine.
    pub fn open() -> Option<Self> {
        let clocks = std::fs::read_dir(CLASS).into_iter().flatten().flatten();
        let is_host = |path: &Path| {
            std::fs::read_to_string(path.join("clock_name")).is_ok_and(|name| name.trim() == NAME)
        };
        let found = clocks.map(|clock| clock.path()).find(|path| is_host(path))?;
        let device = Path::new("/dev").join(found.file_name()?);
        match File::open(&device) {
            Ok(file) => Some(Self(file)),
            Err(error) => {
                tracing::warn!(device = %device.display(), %error, "the host's clock does not open");
                None
            }
        }
    }

    /// The host's wall clock, since 1970.
    pub fn now(&self) -> Option<Duration> {
        use std::os::fd::AsFd as _;
        let time = clock_gettime_dynamic(DynamicClockId::Dynamic(self.0.as_fd())).ok()?;
        Some(since_1970(time))
    }
}

fn since_1970(time: rustix::time::Timespec) -> Duration {
    // A clock before 1970 is as wrong as one at 1970.
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// What is done about a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Correction {
    /// Jump by nanoseconds, then run at its own pace.
    Jump(i128),
    /// Run faster by millionths (slower when negative).
    Pace(f64),
}

/// `ahead`: nanoseconds that the host is ahead of this clock.
fn correction(ahead: i128) -> Correction {
    if ahead.abs() > JUMP {
        return Correction::Jump(ahead);
    }
    // Below JUMP, so nothing is lost.
    let pace = ahead as f64 / 1e3 / CATCH_UP.as_secs_f64();
    Correction::Pace(pace.clamp(-FASTEST, FASTEST))
}

/// Keeps the wall clock with the host's for ever.
pub async fn keep(host: HostClock) {
    let mut ticks = interval(COMPARE_EVERY);
    loop {
        ticks.tick().await;
        let own = || since_1970(clock_gettime(ClockId::Realtime));
        let (before, there, after) = (own(), host.now(), own());
        let (Some(there), true) = (there, after.saturating_sub(before) < READING) else { continue };
        let nanos = |time: Duration| time.as_nanos().cast_signed();
        let ahead = nanos(there) - (nanos(before) + nanos(after)) / 2;
        if let Err(error) = correct(correction(ahead)) {
            tracing::warn!(%error, "the wall clock cannot be set and drifts");
            return;
        }
    }
}

fn correct(correction: Correction) -> Result<(), clock_steering::unix::Error> {
    let clock = UnixClock::CLOCK_REALTIME;
    match correction {
        Correction::Pace(pace) => clock.set_frequency(pace)?,
        Correction::Jump(ahead) => {
            tracing::warn!("wall clock set by {} ms to the host's", ahead / 1_000_000);
            clock.set_frequency(0.0)?;
            clock.step_clock(offset(ahead))?
        }
    };
    Ok(())
}

fn offset(nanos: i128) -> TimeOffset {
    const SECOND: i128 = 1_000_000_000;
    let seconds = libc::time_t::try_from(nanos.div_euclid(SECOND)).unwrap_or_default();
    // Below a second, so it fits.
    TimeOffset { seconds, nanos: u32::try_from(nanos.rem_euclid(SECOND)).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_difference_changes_the_pace_and_a_large_one_jumps() {
        assert_eq!(correction(0), Correction::Pace(0.0));
        assert_eq!(correction(-6_000_000), Correction::Pace(-100.0), "6 ms in a minute");
        assert_eq!(correction(400_000_000), Correction::Pace(500.0), "as fast as the kernel can");
        assert_eq!(correction(-600_000_000), Correction::Jump(-600_000_000));
        assert_eq!(offset(-600_000_000), TimeOffset { seconds: -1, nanos: 400_000_000 });
        assert_eq!(offset(3_000_000_001), TimeOffset { seconds: 3, nanos: 1 });
    }
}

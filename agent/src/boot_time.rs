//! A clock that goes on while the host is suspended.
//!
//! In: the kernel's `CLOCK_BOOTTIME`. Out: moments to compare. For everything that depends on how long the coordinator was not
//! heard: to the coordinator, a host that sleeps is a host that is silent. [`std::time::Instant`] stands still meanwhile.

use std::{ops::Add, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// A moment since the host's boot, suspension included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// This moment.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        // Neither is ever negative: the clock starts at the boot.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
    }

    /// The moment that long after the boot.
    pub const fn after(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// As nanoseconds, to be kept over a restart of the agent within one boot.
    pub fn nanos(self) -> u128 {
        self.0.as_nanos()
    }

    /// From `earlier` to this moment; zero when that is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_kernels_uptime() {
        let before = BootTime::now();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let uptime: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let after = BootTime::now();
        // The file has hundredths of a second.
        assert!(before.0.as_secs_f64() - 0.01 <= uptime && uptime <= after.0.as_secs_f64());
    }
}

//! The clock that starts with the kernel and goes on while it is suspended.
//!
//! In: the kernel's clock. Out: a duration. Called by `wake` and `vm::timeline`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the boot, suspensions included.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is ever negative: the clock starts at the boot.
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on() {
        assert!(boot_time() > Duration::ZERO);
    }
}

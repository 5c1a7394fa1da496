//! Where the time of a boot went.
//!
//! In: the moments of the steps, by the clock that starts with the kernel. Out: one line for the log. `boot` hands its part to the
//! supervisor of the image on the command line; `run` adds its own at the first hello.

use std::{fmt, time::Duration};

use crate::boot_time::boot_time;

/// The argument before a timeline, which also says that the machine is a virtual one.
pub const ARGUMENT: &str = "--booted";

/// Steps and when each was done, the earliest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline(Vec<(String, Duration)>);

impl Timeline {
    /// A step is done now.
    pub fn reached(&mut self, step: &str) {
        self.0.push((step.to_owned(), boot_time()));
    }

    /// For a command line: microseconds, as [`Timeline::parse`] takes them.
    pub fn argument(&self) -> String {
        let steps = self.0.iter().map(|(step, at)| format!("{step}={}", at.as_micros()));
        steps.collect::<Vec<_>>().join(",")
    }

    /// The way back. What makes no sense is left out: it is only told to people.
    pub fn parse(text: &str) -> Self {
        let steps = text.split(',').filter_map(|step| {
            let (name, at) = step.split_once('=')?;
            Some((name.to_owned(), Duration::from_micros(at.parse().ok()?)))
        });
        Self(steps.collect())
    }
}

/// Each step with its moment since the kernel's start.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (step, at)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{step} {} ms", at.as_millis())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_survives_the_command_line() {
        let mut boot = Timeline::parse("init=131072,modules=150999,nonsense,disks=x");
        assert_eq!(boot.to_string(), "init 131 ms, modules 150 ms");
        boot.reached("hello");
        assert_eq!(Timeline::parse(&boot.argument()).to_string(), boot.to_string());
    }
}

//! Time as an input. In: the leader's stamps. Out: ordered milliseconds and RFC 3339 text. Used everywhere in the model.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Milliseconds since the Unix epoch, as the leader stamped them; never read from a clock here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A span in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Timestamp {
    /// How long `self` is after `earlier`; zero when it is not.
    pub fn since(self, earlier: Timestamp) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` later.
    pub fn plus(self, span: Millis) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }
}

impl Millis {
    /// A span of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }

    /// Whether it is no time at all.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

/// RFC 3339 in UTC with milliseconds and a `Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .ok()
            .and_then(|at| at.format(&Rfc3339).ok());
        match text {
            Some(text) => f.write_str(&text),
            None => write!(f, "{} ms after 1970", self.0),
        }
    }
}

/// For people: `12 s`, `3 min`.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..=999 => write!(f, "{} ms", self.0),
            1_000..=119_999 => write!(f, "{} s", self.0 / 1000),
            _ => write!(f, "{} min", self.0 / 60_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_in_utc_with_a_z() {
        assert_eq!(Timestamp(1_764_000_000_250).to_string(), "2025-11-24T16:00:00.25Z");
    }
}

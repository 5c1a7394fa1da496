//! Hosts that are closed. In: an operator's word. Out: read by placement, which passes them over, by the drain, and by the views.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    resource::User,
    time::{Millis, Timestamp},
};

/// An operator's word that a host gets no new instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// Who said so.
    pub by: User,
    /// When.
    pub at: Timestamp,
    /// Why, for people; empty when nothing was said.
    pub reason: String,
    /// When it ends by itself; none when it stands until somebody lifts it.
    pub until: Option<Timestamp>,
    /// When people were last told that it stands.
    pub told: Timestamp,
    /// Set while what runs there is moved away, and after.
    pub drain: Option<Drain>,
}

impl Cordon {
    /// One without an end is brought to mind that often.
    pub const REMINDS: Millis = Millis::seconds(24 * 3600);
}

/// For people: who, since when, until when and why.
impl fmt::Display for Cordon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cordoned by {} since {}", self.by.name, self.at)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

/// An operator's word that everything on a host moves away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Whether a move may put members of a shard together, or most primaries of a cluster on one host, or concern a shard's only
    /// copy. Once given, it stays until the host is opened.
    pub force: bool,
    /// When nothing was left on the host.
    pub done: Option<Timestamp>,
}

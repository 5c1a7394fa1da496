//! Why the system says no to a user. In: broken rules. Out: an error code of the API and every violation with its field
//! path. Made by validation and apply; the API turns it into its envelopes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The error codes of the API that a user's own request can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// No such resource or request.
    NotFound,
    /// No `metadata.id`.
    MissingIdField,
    /// No `metadata.name`.
    MissingNameField,
    /// A change of the resource is still in flight.
    ResourceIsScheduling,
    /// `metadata.deleteProtection` is set.
    ResourceIsDeleteProtected,
    /// A rule of the resource is broken.
    BadData,
    /// The decision no longer fits the state it was made for: the planner decides again.
    Outdated,
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Violation {
    /// Where, for example `spec.shards[1].vpcSubnetId`.
    pub path: String,
    /// Which rule, what was given and what is allowed.
    pub message: String,
}

impl Violation {
    /// A violation of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A refusal that the user caused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The code for programs.
    pub code: RefusalCode,
    /// The text for people; all violations, one after another.
    pub message: String,
    /// The broken rules of the resource, when that is the reason.
    pub violations: Vec<Violation>,
}

impl Refusal {
    /// A refusal with a text of its own.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), violations: Vec::new() }
    }

    /// A refusal that lists every violation.
    pub fn of(code: RefusalCode, violations: Vec<Violation>) -> Self {
        let lines: Vec<String> = violations.iter().map(Violation::to_string).collect();
        Self { code, message: lines.join("; "), violations }
    }

    /// `BadData` that lists every violation.
    pub fn bad_data(violations: Vec<Violation>) -> Self {
        Self::of(RefusalCode::BadData, violations)
    }

    /// A decision that was made for an older state.
    pub fn outdated(message: impl Into<String>) -> Self {
        Self::new(RefusalCode::Outdated, message)
    }
}

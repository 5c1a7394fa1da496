//! What `kc` is told. In: the outcome of a verb. Out: the JSON body of the answer to `POST /api/v1/cli`. Used by every verb.

use std::fmt::Write as _;

use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use shardplane_model::refusal::RefusalCode;

use super::super::{
    errors::{Problem, Trouble},
    family,
    json::Node,
};

/// A change to wait for; `kc` echoes it. Lists of several are joined with commas, which neither ids nor types contain.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Type path of each resource.
    #[serde(rename = "type")]
    pub kind: String,
    /// Change request of each.
    pub change_request_id: String,
    /// Each resource.
    pub resource_id: String,
    /// `apply` or `delete`, and the names.
    #[serde(default)]
    pub operation: String,
}

/// An edited text, sent back.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EditApply {
    /// Type path.
    #[serde(rename = "type")]
    pub kind: String,
    /// The resource.
    pub resource_id: String,
    /// The manifest as the user left it.
    pub content: String,
}

/// A text to edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The manifest.
    pub content: String,
    /// Type path.
    pub kind: String,
    /// The resource.
    pub resource_id: String,
    /// Why the last attempt was refused; empty at first.
    pub error: String,
}

/// A change of the client's profiles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// `write`, `use`, `read` or `list`.
    pub action: &'static str,
    /// Which profile; none for the active one.
    pub profile: Option<String>,
    /// New server.
    pub server: Option<String>,
    /// New token.
    pub token: Option<String>,
}

/// What `kc` is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Printed as it is.
    pub stdout: String,
    /// Printed as it is.
    pub stderr: String,
    /// Exit code.
    pub rc: u8,
    /// A file to read and send.
    pub read_file: Option<String>,
    /// A change to wait for.
    pub retry: Option<Retry>,
    /// A text to edit.
    pub edit: Option<Edit>,
    /// A change of profiles.
    pub config: Option<Config>,
    /// Offer to forget the saved token.
    pub sign_out: bool,
}

impl Answer {
    /// Success with this on standard output.
    pub fn printed(stdout: impl Into<String>) -> Self {
        Self { stdout: ended(stdout.into()), ..Self::default() }
    }

    /// Failure with this on standard error.
    pub fn failed(text: &str) -> Self {
        Self { stderr: ended(format!("error: {text}")), rc: 1, ..Self::default() }
    }

    /// The JSON.
    pub fn node(&self) -> Node {
        let retry = self.retry.as_ref().map_or(Node::Null, |retry| {
            Node::object([
                ("type", Node::from(retry.kind.as_str())),
                ("changeRequestId", Node::from(retry.change_request_id.as_str())),
                ("resourceId", Node::from(retry.resource_id.as_str())),
                ("operation", Node::from(retry.operation.as_str())),
            ])
        });
        let edit = self.edit.as_ref().map_or(Node::Null, |edit| {
            Node::object([
                ("content", Node::from(edit.content.as_str())),
                ("type", Node::from(edit.kind.as_str())),
                ("resourceId", Node::from(edit.resource_id.as_str())),
                ("error", Node::from(edit.error.as_str())),
            ])
        });
        let config = self.config.as_ref().map_or(Node::Null, |config| {
            let members = [
                ("action", Some(config.action.to_owned())),
                ("profile", config.profile.clone()),
                ("server", config.server.clone()),
                ("token", config.token.clone()),
            ];
            Node::Object(
                members.into_iter().filter_map(|(n, v)| Some((n.to_owned(), Node::Text(v?)))).collect(),
            )
        });
        let read_file = self
            .read_file
            .as_ref()
            .map_or(Node::Null, |path| Node::object([("path", Node::from(path.as_str()))]));
        Node::object([
            ("stdout", Node::from(self.stdout.as_str())),
            ("stderr", Node::from(self.stderr.as_str())),
            ("rc", Node::Integer(self.rc.into())),
            ("file", Node::Null),
            ("config", config),
            ("retryParams", retry),
            ("edit", edit),
            ("readFile", read_file),
        ])
    }
}

fn ended(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// The API refused.
    Problem(Problem),
    /// The command itself is not right, or its outcome is not what was wanted.
    Text(String),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::Problem(problem)
    }
}

impl Failure {
    /// The text for people.
    pub fn text(&self) -> String {
        match self {
            Failure::Problem(problem) => told(problem),
            Failure::Text(text) => text.clone(),
        }
    }
}

/// A problem on a terminal: every violation on a line of its own.
fn told(problem: &Problem) -> String {
    if problem.violations.len() < 2 {
        return problem.message.clone();
    }
    let mut text = format!("{} things are not right:", problem.violations.len());
    for violation in &problem.violations {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {violation}");
    }
    text
}

/// A problem in this family's envelope: only what `kc` must act on by itself has a status of its own.
pub fn refuse(problem: &Problem) -> Response {
    let status = match problem.trouble {
        Trouble::Unauthenticated | Trouble::Unavailable | Trouble::Internal => problem.status(),
        Trouble::Refused(RefusalCode::Outdated) => problem.status(),
        Trouble::Refused(_)
        | Trouble::Forbidden
        | Trouble::PageSizeTooBig
        | Trouble::EnumeratorNotFound
        | Trouble::UnableToReconcile
        | Trouble::Uncertain => StatusCode::OK,
    };
    family::json(status, &Answer::failed(&told(problem)).node())
}

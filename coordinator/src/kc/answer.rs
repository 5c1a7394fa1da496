//! What `kc` and the server say to each other. In and out: the JSON bodies of `POST /api/v1/cli`.

use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    /// The words after `kc`.
    pub args: Vec<String>,
    /// A change to look at again, as the server gave it.
    pub retry_params: Option<serde_json::Value>,
    /// An edited text.
    pub edit_apply: Option<Edited>,
    /// A file the server asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_content: Option<String>,
}

impl Ask {
    /// A command as it was typed.
    pub fn first(args: &[String]) -> Self {
        Self { args: args.to_vec(), retry_params: None, edit_apply: None, file_content: None }
    }
}

/// An edited text.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Edited {
    /// Type of the resource, as the server said.
    #[serde(rename = "type")]
    pub kind: String,
    /// The resource, as the server said.
    pub resource_id: String,
    /// The text.
    pub content: String,
}

/// What the server says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    /// Printed as it is.
    pub stdout: String,
    /// Printed as it is.
    pub stderr: String,
    /// Exit code.
    pub rc: i32,
    /// A file to write.
    pub file: Option<File>,
    /// A change of profiles.
    pub config: Option<Config>,
    /// A change to look at again; echoed as it is.
    pub retry_params: Option<serde_json::Value>,
    /// A text to edit.
    pub edit: Option<Edit>,
    /// A file to read and send.
    pub read_file: Option<ReadFile>,
}

/// A file to read and send.
#[derive(Debug, Clone, Deserialize)]
pub struct ReadFile {
    /// `-` is standard input.
    pub path: String,
}

/// A text to edit.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edit {
    /// The text.
    pub content: String,
    /// Type of the resource.
    #[serde(rename = "type")]
    pub kind: String,
    /// The resource.
    pub resource_id: String,
    /// Why the last attempt was refused.
    pub error: String,
}

/// A file to write.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct File {
    /// Base64.
    pub content: String,
    /// Name when there is no destination.
    pub filename: String,
    /// Where to.
    pub destination: String,
}

/// A change of profiles.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `write`, `use`, `read` or `list`.
    pub action: String,
    /// Which; empty for the current one.
    pub profile: Option<String>,
    /// New server.
    pub server: Option<String>,
    /// New token.
    pub token: Option<String>,
}

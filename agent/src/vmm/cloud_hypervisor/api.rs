//! The API of one VMM process: typed calls over its unix socket.
//!
//! In: a socket and a [`Call`]. Out: the answer's JSON, or [`ApiError`] with the VMM's own words. Every call has a deadline:
//! the VMM serves one at a time, so a slow one holds up all others. Called by `boot`, by adoption and by the stop.

use std::{
    fmt,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, StatusCode, header};
use serde::Serialize;
use tokio::time::timeout;

use super::wire::Wire;

/// An answer longer than this is not read: what answers is a process that a guest may have taken over.
const LONGEST_ANSWER: usize = 1 << 20;

/// What a VMM is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Is it there, and which version is it?
    Ping,
    /// Take a configuration.
    Create,
    /// Take a network card.
    AddNet,
    /// What is the machine?
    Info,
    /// Start it.
    Boot,
    /// Forget the machine.
    Delete,
    /// Let it run on.
    Resume,
    /// Press its power button.
    PowerButton,
    /// End the VMM.
    Shutdown,
}

impl Call {
    fn route(self) -> (Method, &'static str) {
        match self {
            Self::Ping => (Method::GET, "vmm.ping"),
            Self::Create => (Method::PUT, "vm.create"),
            Self::AddNet => (Method::PUT, "vm.add-net"),
            Self::Info => (Method::GET, "vm.info"),
            Self::Boot => (Method::PUT, "vm.boot"),
            Self::Delete => (Method::PUT, "vm.delete"),
            Self::Resume => (Method::PUT, "vm.resume"),
            Self::PowerButton => (Method::PUT, "vm.power-button"),
            Self::Shutdown => (Method::PUT, "vmm.shutdown"),
        }
    }

    /// How long it may take. All are done in milliseconds on a machine that is not overloaded.
    fn deadline(self) -> Duration {
        match self {
            Self::Boot => Duration::from_secs(20),
            Self::Create | Self::AddNet | Self::Ping => Duration::from_secs(10),
            Self::Info | Self::Delete | Self::Resume | Self::PowerButton | Self::Shutdown => {
                Duration::from_secs(3)
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.route().1)
    }
}

/// Why a call had no success. What it means is for the caller to judge, by what became of the process.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nobody listens.
    #[error("cannot call {call} of the VMM: {source}")]
    Unreachable {
        /// What was asked.
        call: Call,
        /// Why not.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("the VMM did not answer {call} within {} s", .limit.as_secs())]
    Deadline {
        /// What was asked.
        call: Call,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The answer broke off or is none.
    #[error("the VMM's answer to {call} broke off: {text}")]
    Broken {
        /// What was asked.
        call: Call,
        /// What is wrong.
        text: String,
    },
    /// It refused.
    #[error("the VMM refused {call} ({}): {text}", .status.as_u16())]
    Refused {
        /// What was asked.
        call: Call,
        /// The HTTP status.
        status: StatusCode,
        /// Its words, outermost first.
        text: String,
    },
}

/// A VMM's API.
#[derive(Debug)]
pub struct Api {
    socket: PathBuf,
    /// Microseconds that its answers were waited for.
    waited: AtomicU64,
}

impl Api {
    /// The API at a socket, which need not be there yet.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), waited: AtomicU64::new(0) }
    }

    /// How long its answers were waited for until now.
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.waited.load(Ordering::Relaxed))
    }

    /// Asks without a body.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn call(&self, call: Call) -> Result<serde_json::Value, ApiError> {
        self.send(call, Bytes::new(), Vec::new()).await
    }

    /// Asks with a body, and with descriptors that the VMM takes over.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn give(
        &self,
        call: Call,
        body: &impl Serialize,
        fds: Vec<OwnedFd>,
    ) -> Result<serde_json::Value, ApiError> {
        let broken = |error: serde_json::Error| ApiError::Broken { call, text: error.to_string() };
        let body = serde_json::to_vec(body).map_err(broken)?;
        self.send(call, body.into(), fds).await
    }

    /// Ends the VMM. It may end before it has answered: then the end of the connection is the answer.
    ///
    /// # Errors
    /// When it refuses or does not answer in time.
    pub async fn shutdown(&self) -> Result<(), ApiError> {
        match self.call(Call::Shutdown).await {
            // 200 and not the 204 of its own description (notes, section 7).
            Ok(_) | Err(ApiError::Broken { .. } | ApiError::Unreachable { .. }) => Ok(()),
            Err(error @ (ApiError::Deadline { .. } | ApiError::Refused { .. })) => Err(error),
        }
    }

    async fn send(&self, call: Call, body: Bytes, fds: Vec<OwnedFd>) -> Result<serde_json::Value, ApiError> {
        let (limit, asked) = (call.deadline(), Instant::now());
        let answer = timeout(limit, self.exchange(call, body, fds)).await;
        let waited = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.waited.fetch_add(waited, Ordering::Relaxed);
        answer.unwrap_or(Err(ApiError::Deadline { call, limit }))
    }

    async fn exchange(
        &self,
        call: Call,
        body: Bytes,
        fds: Vec<OwnedFd>,
    ) -> Result<serde_json::Value, ApiError> {
        let broken = |error: &dyn fmt::Display| ApiError::Broken { call, text: error.to_string() };
        let wire = Wire::connect(&self.socket, fds)
            .await
            .map_err(|source| ApiError::Unreachable { call, source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(wire).await.map_err(|error| broken(&error))?;
        let (method, path) = call.route();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/{path}"))
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, "application/json");
        if !body.is_empty() {
            // With its length, which hyper sends for a body that is known: chunks are refused with 400.
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body)).map_err(|error| broken(&error))?;
        let asked = async {
            let response = sender.send_request(request).await?;
            Ok::<_, hyper::Error>(response)
        };
        // The connection is driven beside the request and ends with it.
        let talk = async {
            let response = asked.await.map_err(|error| broken(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LONGEST_ANSWER);
            let bytes = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
            judge(call, status, &bytes)
        };
        tokio::pin!(talk);
        tokio::select! {
            answer = &mut talk => answer,
            // An answer that came with the end of the connection is still an answer.
            _ended = connection => talk.await,
        }
    }
}

fn judge(call: Call, status: StatusCode, body: &[u8]) -> Result<serde_json::Value, ApiError> {
    if !status.is_success() {
        return Err(ApiError::Refused { call, status, text: refusal(body) });
    }
    if body.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| ApiError::Broken { call, text: error.to_string() })
}

/// A refusal is an array of texts, outermost first; from the HTTP layer below an object; and sometimes nothing.
fn refusal(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Shape {
        Texts(Vec<String>),
        Object { error: String },
    }
    let text = match serde_json::from_slice(body) {
        Ok(Shape::Texts(texts)) => texts.join(": "),
        Ok(Shape::Object { error }) => error,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let text = text.replace(char::is_control, " ");
    let shown: String = text.trim().chars().take(600).collect();
    if shown.is_empty() { "it gave no reason".into() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_of_a_refusal_and_none_at_all_become_words() {
        for (body, expected) in [
            (
                &br#"["Error from API","The VM could not be created","VM is already created"]"#[..],
                "Error from API: The VM could not be created: VM is already created",
            ),
            (br#"{ "error": "Invalid HTTP Method" }"#, "Invalid HTTP Method"),
            (b"", "it gave no reason"),
            (b"plain\nwords", "plain words"),
        ] {
            let error = judge(Call::Create, StatusCode::INTERNAL_SERVER_ERROR, body).unwrap_err();
            assert_eq!(error.to_string(), format!("the VMM refused vm.create (500): {expected}"));
        }
    }
}

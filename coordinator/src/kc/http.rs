//! The connection to the server. In: a question. Out: a reply. What looks like a passing trouble is tried four times.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, Uri, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use shardplane_proto::causes::innermost;
use tokio::time::{sleep, timeout};

use super::answer::{Answer, Ask};
use crate::api::OUR_CLIENT;

/// Attempts for one question.
const ATTEMPTS: u32 = 4;

/// Wait after the first attempt; it doubles.
const BACKOFF: Duration = Duration::from_millis(500);

/// Longest wait for a whole reply.
const DEADLINE: Duration = Duration::from_secs(60);

/// Largest reply, bytes.
const LARGEST: usize = 64 * 1024 * 1024;

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    body: Bytes,
}

impl Reply {
    /// The answer in it.
    ///
    /// # Errors
    /// When it is not JSON of the contract.
    pub fn answer(&self) -> Result<Answer, String> {
        let answer: Answer = serde_json::from_slice(&self.body).map_err(|cause| {
            format!("the server answered {} with something else than JSON: {cause}", self.status)
        })?;
        if self.status >= 400 && answer.rc == 0 {
            return Err(format!("the server answered {}", self.status));
        }
        Ok(answer)
    }

    /// What it says on standard error.
    pub fn text(&self) -> String {
        let said =
            serde_json::from_slice::<Answer>(&self.body).map(|answer| answer.stderr).unwrap_or_default();
        let said = said.trim().trim_start_matches("error: ").to_owned();
        if said.is_empty() { format!("the server answered {}", self.status) } else { said }
    }

    fn passing_trouble(&self) -> bool {
        let json = || serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).is_ok();
        self.status >= 500 || (self.status != 205 && self.body.is_empty()) || (self.status == 200 && !json())
    }
}

/// A server to ask.
pub struct Server {
    uri: Uri,
    token: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Server {
    /// A server at a URL like `http://host:port`.
    ///
    /// # Errors
    /// When there is no URL, or one that this client cannot speak to.
    pub fn new(url: &str, token: String) -> Result<Self, String> {
        let url = url.trim_end_matches('/');
        if url.is_empty() {
            return Err("no server is set: export KC_API_URL=http://host:port, or write server: to ~/.kc/config/default.yaml".to_owned());
        }
        let uri: Uri = format!("{url}/api/v1/cli")
            .parse()
            .map_err(|cause| format!("the server {url:?} is not a URL like http://host:port: {cause}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                let text = "this kc speaks plain http only; put a TLS proxy on this machine and point KC_API_URL to it";
                return Err(format!("{url}: {text}"));
            }
            Some(_) | None => return Err(format!("the server {url:?} is not a URL like http://host:port")),
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        Ok(Self { uri, token, client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// From now on asks with this token.
    pub fn set_token(&mut self, token: String) {
        self.token = token;
    }

    /// Asks.
    ///
    /// # Errors
    /// When there is no reply, after four attempts.
    pub async fn post(&self, ask: &Ask) -> Result<Reply, String> {
        let (mut last, mut told) = (String::new(), String::new());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // A member without a leader answers late: who waits shall know why.
                if told != last {
                    eprintln!("{last}\nkc asks up to {} times more", ATTEMPTS - attempt);
                    told.clone_from(&last);
                }
                sleep(BACKOFF * 2_u32.pow(attempt - 1)).await;
            }
            match self.once(ask).await {
                Ok(reply) if !reply.passing_trouble() => return Ok(reply),
                Ok(reply) => last = reply.text(),
                Err(text) => last = text,
            }
        }
        Err(last)
    }

    async fn once(&self, ask: &Ask) -> Result<Reply, String> {
        let body = serde_json::to_vec(ask)
            .map_err(|cause| format!("the question cannot be written as JSON: {cause}"))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, format!("{OUR_CLIENT}{}", env!("CARGO_PKG_VERSION")));
        if !self.token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|_| "the token has characters that no token has; check KC_TOKEN".to_owned())?;
        let asked = async {
            let response = self.client.request(request).await.map_err(|error| {
                let server = self.uri.authority().map_or("the server", |a| a.as_str());
                format!(
                    "cannot reach {server}: {}; every member of the coordinator answers: set KC_API_URL to another one",
                    innermost(&error)
                )
            })?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), LARGEST)
                .collect()
                .await
                .map_err(|cause| format!("the reply broke off: {cause}"))?;
            Ok(Reply { status, body: body.to_bytes() })
        };
        timeout(DEADLINE, asked)
            .await
            .unwrap_or_else(|_| Err(format!("no reply within {} s", DEADLINE.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_urls_are_servers() {
        assert!(Server::new("http://127.0.0.1:1", String::new()).is_ok());
        for (url, part) in [
            ("", "no server is set"),
            ("https://x", "plain http only"),
            ("x:1", "not a URL"),
            ("ftp://x", "not a URL"),
        ] {
            let refused = Server::new(url, String::new()).err().unwrap();
            assert!(refused.contains(part), "{url}: {refused}");
        }
    }

    #[test]
    fn what_passes_is_told_from_what_stays() {
        let reply = |status, body: &'static str| Reply { status, body: Bytes::from_static(body.as_bytes()) };
        assert!(!reply(200, "{}").passing_trouble());
        assert!(!reply(401, "{}").passing_trouble());
        assert!(!reply(205, "").passing_trouble());
        for (status, body) in [(503, "{}"), (200, ""), (200, "<html>")] {
            assert!(reply(status, body).passing_trouble(), "{status} {body}");
        }
        assert_eq!(reply(503, r#"{"stderr":"error: no leader\n","rc":1}"#).text(), "no leader");
    }
}

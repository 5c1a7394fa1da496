//! HTTPS to the cluster's own services: etcd's gateway and Patroni's REST API. In: a method, a path, a body. Out: status and JSON. Every call has
//! a deadline; certificates are the cluster's own.

use std::time::Duration;

use reqwest::{Certificate, Client, Identity, Method};
use serde_json::Value;

use super::secrets;
use crate::engine::EngineError;

/// Longest for a question; an order may have a longer one.
const DEADLINE: Duration = Duration::from_secs(2);

/// A client of one service.
#[derive(Clone)]
pub struct Service {
    client: Client,
    base: String,
    user: Option<(String, String)>,
}

/// What a service answered.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body when it is JSON, else its text.
    pub body: Value,
}

impl Answer {
    /// The body of a success.
    ///
    /// # Errors
    /// The service's own text.
    pub fn ok(self) -> Result<Value, EngineError> {
        if (200..300).contains(&self.status) { Ok(self.body) } else { Err(EngineError::Engine(self.text())) }
    }

    /// The body as people read it.
    pub fn text(&self) -> String {
        match (self.body.as_str(), self.body.get("error").and_then(Value::as_str)) {
            (Some(text), _) | (None, Some(text)) => text.trim().to_owned(),
            (None, None) => self.body.to_string(),
        }
    }
}

impl Service {
    /// A client that shows the member's certificate and trusts its cluster's CA alone.
    ///
    /// # Errors
    /// When the certificate is not one.
    pub fn new(
        base: String,
        certificate: &secrets::Certificate,
        user: Option<(String, String)>,
    ) -> Result<Self, EngineError> {
        let refused =
            |error: reqwest::Error| EngineError::Refused(format!("no client can be made for {error}"));
        // Whoever was first has installed the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identity = Identity::from_pem(format!("{}{}", certificate.key, certificate.chain).as_bytes());
        let ca = Certificate::from_pem(certificate.ca.as_bytes()).map_err(refused)?;
        let client = Client::builder()
            .tls_certs_only([ca])
            .identity(identity.map_err(refused)?)
            .connect_timeout(DEADLINE)
            .no_proxy()
            .build()
            .map_err(refused)?;
        Ok(Self { client, base, user })
    }

    /// Asks within two seconds.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer, EngineError> {
        self.ask_within(DEADLINE, method, path, body).await
    }

    /// Asks.
    ///
    /// # Errors
    /// When there is no answer in time.
    pub async fn ask_within(
        &self,
        deadline: Duration,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<Answer, EngineError> {
        let url = format!("{}{path}", self.base);
        let unanswered = |error: reqwest::Error| {
            EngineError::Engine(format!(
                "{path} is not answered: {}",
                shardplane_proto::causes::with_causes(&error)
            ))
        };
        let mut request = self.client.request(method, url).timeout(deadline);
        if let Some((user, password)) = &self.user {
            request = request.basic_auth(user, Some(password));
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(unanswered)?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer { status, body })
    }
}

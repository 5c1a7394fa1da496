//! The REST API as a client sees it. In: paths and JSON. Out: status and JSON. Any member is asked; one that is down is passed over.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::wait_until;

/// Longest time for one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Body; `Null` when it is not JSON.
    pub body: Value,
}

/// A client with a token.
#[derive(Debug, Clone)]
pub struct Api {
    members: Vec<String>,
    token: String,
    agent: ureq::Agent,
}

impl Api {
    /// A client of these members (`http://host:port`), tried in this order.
    pub fn new(members: Vec<String>, token: impl Into<String>) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).http_status_as_error(false);
        Self { members, token: token.into(), agent: config.build().into() }
    }

    /// The token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// `GET`
    ///
    /// # Errors
    /// When no member answers.
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.call("GET", path, None)
    }

    /// `PUT`
    ///
    /// # Errors
    /// When no member answers.
    pub fn put(&self, path: &str, body: &Value) -> Result<Reply> {
        self.call("PUT", path, Some(body))
    }

    /// `POST`
    ///
    /// # Errors
    /// When no member answers.
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.call("POST", path, Some(body))
    }

    /// `DELETE`
    ///
    /// # Errors
    /// When no member answers.
    pub fn delete(&self, path: &str) -> Result<Reply> {
        self.call("DELETE", path, None)
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Reply> {
        let mut last = None;
        for member in &self.members {
            // Every call of this API may be repeated: PUT and DELETE name their resource.
            match self.call_one(member, method, path, body) {
                Ok(reply) if reply.status != 503 => return Ok(reply),
                Ok(reply) => last = Some(anyhow::anyhow!("{member} answered 503: {}", reply.body)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("there are no members to ask")))
            .with_context(|| format!("no member answers {method} {path}"))
    }

    fn call_one(&self, member: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Reply> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{member}{path}"))
            .header("Authorization", format!("Bearer {}", self.token));
        let response = match body {
            Some(body) => {
                self.agent.run(request.header("Content-Type", "application/json").body(body.to_string())?)
            }
            None => self.agent.run(request.body(())?),
        };
        let mut response = response.with_context(|| format!("cannot ask {member}"))?;
        let text = response.body_mut().read_to_string().with_context(|| format!("{member} broke off"))?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Reply { status: response.status().as_u16(), body })
    }

    /// Creates or updates a resource of a type (`valkey`, `vpc-subnet`, …) and answers its change request.
    ///
    /// # Errors
    /// When it is refused, with the answer.
    pub fn submit(&self, kind: &str, resource: &Value) -> Result<String> {
        let reply = self.put(&format!("/api/v1/{kind}"), resource)?;
        Self::request_of(kind, &reply)
    }

    /// Deletes a resource and answers the change request.
    ///
    /// # Errors
    /// When it is refused, with the answer.
    pub fn submit_delete(&self, kind: &str, id: &str) -> Result<String> {
        let reply = self.delete(&format!("/api/v1/{kind}/{id}"))?;
        Self::request_of(kind, &reply)
    }

    fn request_of(kind: &str, reply: &Reply) -> Result<String> {
        match reply.body["requestId"].as_str() {
            Some(request) if reply.status == 200 => Ok(request.to_owned()),
            Some(_) | None => bail!("the change of a {kind} was refused: {reply:?}"),
        }
    }

    /// Waits until a change request has succeeded, and answers how long that took.
    ///
    /// # Errors
    /// When it fails, or has not ended in time.
    pub fn settle(&self, kind: &str, request: &str, deadline: Duration) -> Result<Duration> {
        let path = format!("/api/v1/{kind}/request/{request}");
        let (reply, took) =
            wait_until(&format!("the change {request} of a {kind}"), deadline, || match self.get(&path) {
                Ok(reply) if reply.body["succeeded"] == true || reply.body["errorCode"].is_string() => {
                    Ok(reply)
                }
                Ok(reply) => Err(format!("{reply:?}")),
                Err(error) => Err(format!("{error:#}")),
            })?;
        ensure!(reply.body["succeeded"] == true, "the change {request} of a {kind} failed: {reply:?}");
        Ok(took)
    }

    /// Creates or updates and waits.
    ///
    /// # Errors
    /// As [`Api::submit`] and [`Api::settle`].
    pub fn apply(&self, kind: &str, resource: &Value, deadline: Duration) -> Result<Duration> {
        self.settle(kind, &self.submit(kind, resource)?, deadline)
    }

    /// One resource, whole.
    ///
    /// # Errors
    /// When there is none.
    pub fn resource(&self, kind: &str, id: &str) -> Result<Value> {
        let mut reply = self.get(&format!("/api/v1/{kind}/{id}"))?;
        ensure!(reply.body["resource"].is_object(), "there is no {kind} {id}: {reply:?}");
        Ok(reply.body["resource"].take())
    }

    /// The items of an operator's list: `hosts`, `instances`, `operations` or `events`, narrowed by `filter` (may be empty).
    ///
    /// # Errors
    /// When it is refused.
    pub fn items(&self, list: &str, filter: &str) -> Result<Vec<Value>> {
        let reply = self.get(&format!("/api/v1/{list}?filter={filter}"))?;
        ensure!(reply.status == 200, "the list of {list} was refused: {reply:?}");
        Ok(reply.body["items"].as_array().cloned().unwrap_or_default())
    }
}

//! Patroni's own words. In: questions and orders to the member's REST API. Out: its state, its group as the DCS has it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{client::Service, conf::TTL};
use crate::engine::EngineError;

/// One member's Patroni.
#[derive(Clone)]
pub struct Patroni {
    service: Service,
}

/// What a member says about itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Own {
    /// Raw state.
    pub state: String,
    /// Raw role.
    pub role: String,
    /// It holds the leader key and takes writes.
    pub leads: bool,
    pub timeline: u64,
    /// Write position of a leader, replay position of a replica.
    pub lsn: u64,
    pub received: u64,
    pub system: String,
    pub version: u64,
    pub pending_restart: bool,
    pub dcs_answers: bool,
    pub paused: bool,
    pub failsafe: bool,
}

/// A member of the group as the DCS has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// Its instance id.
    pub name: String,
    /// Raw: `leader`, `replica`, `sync_standby`, `quorum_standby`.
    pub role: String,
    pub state: String,
    pub timeline: u64,
    /// Bytes; none when Patroni does not know.
    pub lag: Option<u64>,
}

impl Peer {
    /// Whether commits may wait for it, so that it may be elected.
    pub fn counts(&self) -> bool {
        self.role == "sync_standby" || self.role == "quorum_standby"
    }

    /// Whether it leads by the DCS.
    pub fn leads(&self) -> bool {
        self.role == "leader"
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Reads what `GET /patroni` says; `leads` is asked for apart.
pub fn own(said: &Value, leads: bool, now: u64) -> Own {
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    let position = &said["xlog"];
    let failsafe = said["failsafe_mode_is_active"].as_bool().unwrap_or(false);
    Own {
        state: text("state"),
        role: text("role"),
        leads: leads && said["state"] == "running",
        timeline: number(&said["timeline"]),
        lsn: number(&position["location"]).max(number(&position["replayed_location"])),
        received: number(&position["received_location"]),
        system: text("database_system_identifier"),
        version: number(&said["server_version"]),
        pending_restart: said["pending_restart"].as_bool().unwrap_or(false),
        // A voter that has lost the others still answers some questions; failsafe mode says that the key cannot be renewed.
        dcs_answers: now.saturating_sub(number(&said["dcs_last_seen"])) < TTL / 2 && !failsafe,
        paused: said["pause"].as_bool().unwrap_or(false),
        failsafe,
    }
}

fn peer(value: &Value) -> Peer {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Peer {
        name: text("name"),
        role: text("role"),
        state: text("state"),
        timeline: number(&value["timeline"]),
        lag: value["lag"].as_u64(),
    }
}

impl Patroni {
    /// The Patroni that this service reaches.
    pub fn new(service: Service) -> Self {
        Self { service }
    }

    /// What it says about itself. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn own(&self, now: u64) -> Result<Own, EngineError> {
        // 200 for the holder of the leader key alone.
        let leads = self.service.ask(Method::GET, "/primary", None).await?.status == 200;
        let said = self.service.ask(Method::GET, "/patroni", None).await?.body;
        Ok(own(&said, leads, now))
    }

    /// The group's members.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn peers(&self) -> Result<Vec<Peer>, EngineError> {
        let said = self.service.ask(Method::GET, "/cluster", None).await?.body;
        Ok(said["members"].as_array().into_iter().flatten().map(peer).collect())
    }

    /// The settings in the DCS.
    ///
    /// # Errors
    /// When the DCS has none, or nobody answers.
    pub async fn shared(&self) -> Result<Value, EngineError> {
        self.service.ask(Method::GET, "/config", None).await?.ok()
    }

    /// Changes settings in the DCS; null takes one away.
    ///
    /// # Errors
    /// Patroni's own text.
    pub async fn share(&self, changes: Value) -> Result<(), EngineError> {
        self.service.ask(Method::PATCH, "/config", Some(changes)).await?.ok().map(drop)
    }

    /// Reads its file again.
    ///
    /// # Errors
    /// Patroni's own text.
    pub async fn reload(&self) -> Result<(), EngineError> {
        self.service.ask(Method::POST, "/reload", Some(json!({}))).await?.ok().map(drop)
    }

    /// Hands over from one member to another, or to whoever is best; answered when it is done.
    ///
    /// # Errors
    /// Patroni's own text.
    pub async fn switchover(
        &self,
        leader: &str,
        to: Option<&str>,
        within: Duration,
    ) -> Result<(), EngineError> {
        let body = json!({"leader": leader, "candidate": to});
        self.service.ask_within(within, Method::POST, "/switchover", Some(body)).await?.ok().map(drop)
    }

    /// Restarts PostgreSQL in place when settings wait for it.
    ///
    /// # Errors
    /// Patroni's own text.
    pub async fn restart_pending(&self, within: Duration) -> Result<(), EngineError> {
        let body = json!({"restart_pending": true});
        self.service.ask_within(within, Method::POST, "/restart", Some(body)).await?.ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_and_its_group_are_read_as_patroni_writes_them() {
        let said = json!({
            "state": "running", "role": "primary", "server_version": 170012, "timeline": 3,
            "xlog": {"location": 100_663_296}, "database_system_identifier": "7512", "dcs_last_seen": 1_000,
            "pending_restart": true,
        });
        let read = own(&said, true, 1_003);
        assert!(read.leads && read.dcs_answers && read.pending_restart && !read.failsafe);
        assert_eq!((read.timeline, read.lsn, read.system.as_str()), (3, 100_663_296, "7512"));
        assert!(!own(&said, true, 1_100).dcs_answers);
        let mut failsafe = said.clone();
        failsafe["failsafe_mode_is_active"] = true.into();
        assert!(!own(&failsafe, true, 1_003).dcs_answers && own(&failsafe, true, 1_003).failsafe);
        let group =
            json!({"name": "a", "role": "quorum_standby", "state": "streaming", "timeline": 3, "lag": 0});
        let read = peer(&group);
        assert!(read.counts() && !read.leads() && read.lag == Some(0));
        assert_eq!(peer(&json!({"name": "a", "role": "replica", "lag": "unknown"})).lag, None);
    }
}

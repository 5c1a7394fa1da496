//! etcd's own words. In: questions and orders. Out: what it answers through its JSON gateway, where 64-bit numbers are texts.

use reqwest::Method;
use serde_json::{Value, json};
use shardplane_proto::v1::{PostgresQuorumMember, PostgresQuorumReport};

use super::client::Service;
use crate::engine::EngineError;

/// Client port.
pub const PORT: u16 = 2_379;
/// Peer port.
pub const PEER_PORT: u16 = 2_380;

/// One voter's etcd.
pub struct Etcd {
    service: Service,
}

fn number(value: &Value, name: &str) -> u64 {
    let value = &value[name];
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// `https://10.0.0.1:2380` → `10.0.0.1`.
fn host(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    Some(rest.rsplit_once(':')?.0.to_owned())
}

fn member(value: &Value) -> PostgresQuorumMember {
    PostgresQuorumMember {
        member_id: format!("{:x}", number(value, "ID")),
        instance_id: value["name"].as_str().unwrap_or_default().to_owned(),
        ip: value["peerURLs"][0].as_str().and_then(host).unwrap_or_default(),
        learner: value["isLearner"].as_bool().unwrap_or(false),
    }
}

impl Etcd {
    /// The etcd that this service reaches.
    pub fn new(service: Service) -> Self {
        Self { service }
    }

    /// What is reported before there is one.
    pub fn blank() -> PostgresQuorumReport {
        PostgresQuorumReport { blank: true, ..PostgresQuorumReport::default() }
    }

    async fn post(&self, path: &str, body: Value) -> Result<Value, EngineError> {
        self.service.ask(Method::POST, path, Some(body)).await?.ok()
    }

    /// What it says about itself and its quorum.
    ///
    /// # Errors
    /// When it does not answer at all; one without a quorum does.
    pub async fn report(&self) -> Result<PostgresQuorumReport, EngineError> {
        let status = self.post("/v3/maintenance/status", json!({})).await?;
        let id = number(&status["header"], "member_id");
        let learner = status["isLearner"].as_bool().unwrap_or(false);
        let mut report = PostgresQuorumReport {
            member_id: format!("{id:x}"),
            leads: number(&status, "leader") == id,
            learner,
            version: status["version"].as_str().unwrap_or_default().to_owned(),
            db_bytes: number(&status, "dbSize"),
            ..PostgresQuorumReport::default()
        };
        if learner {
            return Ok(report);
        }
        // Answered only when a majority confirms it.
        if let Ok(list) = self.post("/v3/cluster/member/list", json!({"linearizable": true})).await {
            report.serves = true;
            report.members = list["members"].as_array().into_iter().flatten().map(member).collect();
            let alarms = self.post("/v3/maintenance/alarm", json!({"action": "GET"})).await?;
            let own = |alarm: &&Value| number(alarm, "memberID") == id;
            let raised = alarms["alarms"].as_array().into_iter().flatten().filter(own);
            report.alarms = raised.filter_map(|alarm| alarm["alarm"].as_str().map(str::to_owned)).collect();
        }
        Ok(report)
    }

    async fn members(&self) -> Result<Vec<PostgresQuorumMember>, EngineError> {
        let list = self.post("/v3/cluster/member/list", json!({"linearizable": true})).await?;
        Ok(list["members"].as_array().into_iter().flatten().map(member).collect())
    }

    /// Adds a learner at this address; being there is success.
    ///
    /// # Errors
    /// etcd's own text.
    pub async fn add_learner(&self, ip: &str) -> Result<(), EngineError> {
        if self.members().await?.iter().any(|member| member.ip == ip) {
            return Ok(());
        }
        let body = json!({"peerURLs": [format!("https://{ip}:{PEER_PORT}")], "isLearner": true});
        self.post("/v3/cluster/member/add", body).await.map(drop)
    }

    /// Lets a learner vote; voting is success.
    ///
    /// # Errors
    /// etcd's own text: it may lag.
    pub async fn promote(&self, id: &str) -> Result<(), EngineError> {
        if self.members().await?.iter().any(|member| member.member_id == id && !member.learner) {
            return Ok(());
        }
        self.post("/v3/cluster/member/promote", json!({"ID": decimal(id)?})).await.map(drop)
    }

    /// Removes a member; not being there is success.
    ///
    /// # Errors
    /// etcd's own text: too few others may be there.
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        if !self.members().await?.iter().any(|member| member.member_id == id) {
            return Ok(());
        }
        self.post("/v3/cluster/member/remove", json!({"ID": decimal(id)?})).await.map(drop)
    }
}

fn decimal(id: &str) -> Result<String, EngineError> {
    let number = u64::from_str_radix(id, 16);
    number.map(|id| id.to_string()).map_err(|_| EngineError::Refused(format!("{id:?} is no member id")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_as_the_gateway_writes_it() {
        let value =
            json!({"ID": "9372538179322589801", "peerURLs": ["https://10.1.2.3:2380"], "isLearner": true});
        let read = member(&value);
        assert_eq!((read.member_id.as_str(), read.ip.as_str()), ("8211f1d0f64f3269", "10.1.2.3"));
        assert!(read.learner && read.instance_id.is_empty());
        assert_eq!(decimal("8211f1d0f64f3269").unwrap(), "9372538179322589801");
        assert!(decimal("x").is_err());
    }
}

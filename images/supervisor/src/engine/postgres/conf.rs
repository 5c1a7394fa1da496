//! What Patroni is configured with. In: the config and derived secrets. Out: the text of its file (JSON is YAML) and the part that all members share
//! in the DCS. Callers write it before a start and when a config changes.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};
use shardplane_proto::v1::{PostgresConfig, PostgresData};

use super::{
    CERTIFICATE, RUN_DIR, etcd,
    secrets::{Purpose, Secrets},
};
use crate::engine::EngineError;

/// PostgreSQL's client port.
pub const PORT: u16 = 5_432;
/// Patroni's REST API.
pub const REST_PORT: u16 = 8_008;
/// The superuser of the platform alone.
pub const SUPERUSER: &str = "postgres";
const REPLICATION: &str = "shardplane_replication";
const REWIND: &str = "shardplane_rewind";
/// The user of Patroni's REST API.
pub const REST_USER: &str = "shardplane";
/// Where the engine's data are.
pub const DATA_DIR: &str = "/data/postgres/data";
/// The engine's programs.
pub const BIN_DIR: &str = "/usr/lib/postgresql/17/bin";
const WATCHDOG: &str = "/dev/watchdog";

/// Seconds the leader key lives without being renewed: Patroni's least. Another member leads that long after a leader fell silent.
pub const TTL: u64 = 20;
/// Seconds between two turns of Patroni's loop, and longest for one try of an answer from the DCS: together at most the ttl.
const LOOP_WAIT: u64 = 2;
const RETRY_TIMEOUT: u64 = 5;

/// Parameters of the platform, which no set can change.
fn fixed() -> BTreeMap<&'static str, String> {
    [
        ("hot_standby", "on".to_owned()),
        ("max_prepared_transactions", "0".to_owned()),
        ("max_replication_slots", "16".to_owned()),
        ("max_wal_senders", "16".to_owned()),
        ("password_encryption", "scram-sha-256".to_owned()),
        ("ssl", "on".to_owned()),
        ("ssl_ca_file", CERTIFICATE.ca.to_owned()),
        ("ssl_cert_file", CERTIFICATE.chain.to_owned()),
        ("ssl_key_file", CERTIFICATE.key.to_owned()),
        ("ssl_min_protocol_version", "TLSv1.2".to_owned()),
        ("unix_socket_directories", RUN_DIR.to_owned()),
        ("wal_level", "logical".to_owned()),
        ("wal_log_hints", "on".to_owned()),
        ("logging_collector", "off".to_owned()),
        ("log_destination", "stderr".to_owned()),
    ]
    .into_iter()
    .collect()
}

/// All parameters: the platform's over the set's.
pub fn parameters(data: &PostgresData, refused: &[String]) -> Map<String, Value> {
    let given = data.parameters.iter().filter(|(name, _)| !refused.contains(name));
    let given = given.map(|(name, value)| (name.clone(), Value::String(value.clone())));
    let fixed = fixed().into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
    given.chain(fixed).collect()
}

/// Who may connect, and how. Internal users come from the group's subnet over TLS; the rest are roles with a password.
fn hba(data: &PostgresData) -> Vec<String> {
    let mut lines = vec![
        "local all all scram-sha-256".to_owned(),
        format!("hostssl replication {REPLICATION} samenet scram-sha-256"),
        format!("hostssl postgres {REWIND} samenet scram-sha-256"),
        format!("hostssl all {SUPERUSER} samenet scram-sha-256"),
        format!("host all {SUPERUSER},{REWIND},{REPLICATION} all reject"),
        "hostssl all all all scram-sha-256".to_owned(),
    ];
    let without_tls = if data.require_tls { "reject" } else { "scram-sha-256" };
    lines.push(format!("hostnossl all all all {without_tls}"));
    lines
}

/// What all members of the group share: timings, the rules of elections, parameters.
///
/// Commits wait for one replica of those that follow (quorum commit), so a failover loses none that was acknowledged, and Patroni elects
/// only who can have all of them. With no replica left they do not wait: a group with a lost replica goes on, and its next failover waits
/// until a replica has caught up.
pub fn shared(data: &PostgresData, refused: &[String]) -> Value {
    json!({
        "ttl": TTL, "loop_wait": LOOP_WAIT, "retry_timeout": RETRY_TIMEOUT,
        "maximum_lag_on_failover": 16 << 20,
        "primary_start_timeout": 0,
        "failsafe_mode": true,
        "synchronous_mode": "quorum", "synchronous_mode_strict": false, "synchronous_node_count": 1,
        "postgresql": {"use_pg_rewind": true, "use_slots": true, "parameters": parameters(data, refused)},
    })
}

/// Patroni's own file.
///
/// # Errors
/// When a secret cannot be derived.
pub fn patroni(
    config: &PostgresConfig,
    data: &PostgresData,
    secrets: &Secrets,
) -> Result<String, EngineError> {
    let ip = &config.ip;
    let hosts: Vec<String> =
        config.voters.iter().map(|voter| format!("{}:{}", voter.ip, etcd::PORT)).collect();
    let login = |user: &str, purpose| -> Result<Value, EngineError> {
        Ok(
            json!({"username": user, "password": secrets.password(purpose)?, "sslmode": "verify-ca", "sslrootcert": CERTIFICATE.ca}),
        )
    };
    let watchdog = if Path::new(WATCHDOG).exists() { "automatic" } else { "off" };
    let mut file = json!({
        "scope": data.group_id,
        "namespace": format!("/shardplane/{}/", config.cluster_id),
        "name": config.instance_id,
        "log": {"level": "INFO", "format": "%(asctime)s %(levelname)s: %(message)s"},
        "restapi": {
            "listen": format!("{ip}:{REST_PORT}"), "connect_address": format!("{ip}:{REST_PORT}"),
            "certfile": CERTIFICATE.chain, "keyfile": CERTIFICATE.key, "cafile": CERTIFICATE.ca,
            "authentication": {"username": REST_USER, "password": secrets.password(Purpose::Rest)?},
        },
        "ctl": {"cacert": CERTIFICATE.ca, "certfile": CERTIFICATE.chain, "keyfile": CERTIFICATE.key},
        "etcd3": {
            "hosts": hosts, "protocol": "https",
            "cacert": CERTIFICATE.ca, "cert": CERTIFICATE.chain, "key": CERTIFICATE.key,
        },
        "postgresql": {
            "listen": format!("{ip}:{PORT}"), "connect_address": format!("{ip}:{PORT}"),
            "use_unix_socket": true, "use_unix_socket_repl": false,
            "data_dir": DATA_DIR, "bin_dir": BIN_DIR, "pgpass": format!("{RUN_DIR}/pgpass"),
            "authentication": {
                "superuser": login(SUPERUSER, Purpose::Superuser)?,
                "replication": login(REPLICATION, Purpose::Replication)?,
                "rewind": login(REWIND, Purpose::Rewind)?,
            },
            "pg_hba": hba(data),
            // Without it a copy waits for a spread checkpoint, minutes long.
            "basebackup": [{"checkpoint": "fast"}],
            "remove_data_directory_on_rewind_failure": true,
            "remove_data_directory_on_diverged_timelines": true,
        },
        "watchdog": {"mode": watchdog, "device": WATCHDOG, "safety_margin": 5},
        "tags": {},
    });
    // A member without this section makes no database, whatever the DCS has lost.
    if data.initialises {
        file["bootstrap"] = json!({
            "dcs": shared(data, &[]),
            "initdb": [
                {"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums",
                {"auth-local": "scram-sha-256"}, {"auth-host": "scram-sha-256"},
            ],
        });
    }
    Ok(file.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_obey_patronis_rule_and_only_one_that_initialises_can() {
        const { assert!(LOOP_WAIT + 2 * RETRY_TIMEOUT <= TTL) };
        let secrets = Secrets::new(&"s".repeat(32), "c").unwrap();
        let config = PostgresConfig { ip: "10.0.0.1".into(), ..PostgresConfig::default() };
        let parameters =
            [("work_mem".to_owned(), "8MB".to_owned()), ("ssl".to_owned(), "off".to_owned())].into();
        let data = PostgresData { initialises: true, parameters, ..PostgresData::default() };
        let file: Value = serde_json::from_str(&patroni(&config, &data, &secrets).unwrap()).unwrap();
        let shared = &file["bootstrap"]["dcs"]["postgresql"]["parameters"];
        assert_eq!((shared["work_mem"].as_str(), shared["ssl"].as_str()), (Some("8MB"), Some("on")));
        let data = PostgresData { initialises: false, ..data };
        let file: Value = serde_json::from_str(&patroni(&config, &data, &secrets).unwrap()).unwrap();
        assert!(file.get("bootstrap").is_none());
    }

    #[test]
    fn without_tls_only_where_that_is_allowed() {
        let last = |require_tls| hba(&PostgresData { require_tls, ..PostgresData::default() }).pop().unwrap();
        assert!(last(true).starts_with("hostnossl") && last(true).ends_with("reject"));
        assert!(last(false).ends_with("scram-sha-256"));
    }
}

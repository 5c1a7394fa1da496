//! Parameters: looked at by the leader, shared in the DCS, in force in each member. In: the wanted ones. Out: what the engine refuses in its own
//! words, what the DCS has to be told, what is not in force here. Called with every report; asks little when nothing changed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use shardplane_proto::v1::{PostgresData, PostgresRefusal};
use tokio_postgres::Client;

use super::sql::{SqlError, engine_error, identifier, literal};
use crate::engine::EngineError;

/// Patroni hands these to PostgreSQL on its command line: they are in no file.
const ON_COMMAND_LINE: [&str; 9] = [
    "hot_standby",
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_replication_slots",
    "max_wal_senders",
    "max_worker_processes",
    "track_commit_timestamp",
    "wal_level",
];

/// A standby does not start with less of these than its leader has.
const STANDBY_BOUNDS: [&str; 5] = [
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
];

/// What the engine refuses of these. It judges a value when it is to be written to a file of its own, which nobody reads and which is emptied
/// again: users cannot write there, as that takes a superuser.
///
/// # Errors
/// When it does not answer.
pub async fn refused(client: &Client, data: &PostgresData) -> Result<Vec<PostgresRefusal>, EngineError> {
    // Whoever was broken off in the middle has left something there.
    client.batch_execute("ALTER SYSTEM RESET ALL").await.map_err(engine_error)?;
    let mut refused = Vec::new();
    for (name, value) in &data.parameters {
        let name_in_sql = name.split('.').map(identifier).collect::<Vec<_>>().join(".");
        let set = format!("ALTER SYSTEM SET {name_in_sql} = {}", literal(value));
        match client.batch_execute(&set).await.map_err(SqlError::from) {
            Ok(()) => {}
            Err(SqlError::Refused(error)) => refused.push(PostgresRefusal { name: name.clone(), error }),
            Err(error @ SqlError::Passes(_)) => return Err(error.into()),
        }
    }
    client.batch_execute("ALTER SYSTEM RESET ALL").await.map_err(engine_error)?;
    Ok(refused)
}

/// What has to change in the DCS so that it has what is wanted; none when it has.
pub fn changes(known: &Value, wanted: &Value) -> Option<Value> {
    let mut changes = Map::new();
    for (name, value) in wanted.as_object().into_iter().flatten() {
        if name != "postgresql" && known.get(name) != Some(value) {
            changes.insert(name.clone(), value.clone());
        }
    }
    let empty = Map::new();
    let of = |config: &'_ Value| config["postgresql"]["parameters"].as_object().cloned();
    let (has, shall) = (of(known).unwrap_or_else(|| empty.clone()), of(wanted).unwrap_or(empty));
    let mut parameters: Map<String, Value> = shall
        .iter()
        .filter(|(name, value)| has.get(*name) != Some(value))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    parameters
        .extend(has.keys().filter(|name| !shall.contains_key(*name)).map(|name| (name.clone(), Value::Null)));
    if !parameters.is_empty() {
        changes.insert("postgresql".to_owned(), json!({"parameters": parameters}));
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// What is not in force here.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Shortfall {
    /// Names.
    pub unapplied: Vec<String>,
    /// One of those that hot standby compares is to be lowered.
    pub lowers_standby_bound: bool,
}

struct Known {
    setting: String,
    in_file: Option<String>,
    pending: bool,
}

/// Compares what is wanted, but for what is refused, with what runs.
///
/// # Errors
/// When the engine does not answer.
pub async fn shortfall(
    client: &Client,
    data: &PostgresData,
    refused: &[PostgresRefusal],
) -> Result<Shortfall, EngineError> {
    let query = "SELECT s.name, s.setting, s.pending_restart, \
        (SELECT f.setting FROM pg_file_settings f WHERE lower(f.name) = lower(s.name) ORDER BY f.seqno DESC LIMIT 1) \
        FROM pg_settings s WHERE s.name = ANY($1)";
    let names: Vec<&String> = data.parameters.keys().collect();
    let rows = client.query(query, &[&names]).await.map_err(engine_error)?;
    let known: BTreeMap<String, Known> = rows
        .iter()
        .map(|row| (row.get(0), Known { setting: row.get(1), pending: row.get(2), in_file: row.get(3) }))
        .collect();
    let mut shortfall = Shortfall::default();
    for (name, value) in &data.parameters {
        if refused.iter().any(|refusal| refusal.name == *name) {
            continue;
        }
        let known = known.get(name);
        if !known.is_some_and(|known| in_force(name, value, known)) {
            shortfall.unapplied.push(name.clone());
            let lower =
                known.and_then(|known| Some(value.parse::<u64>().ok()? < known.setting.parse().ok()?));
            shortfall.lowers_standby_bound |= STANDBY_BOUNDS.contains(&name.as_str()) && lower == Some(true);
        }
    }
    Ok(shortfall)
}

fn in_force(name: &str, value: &str, known: &Known) -> bool {
    if ON_COMMAND_LINE.contains(&name) {
        return known.setting == value;
    }
    known.in_file.as_deref() == Some(value) && !known.pending
}

#[cfg(test)]
mod tests {
    use super::{super::conf, *};

    #[test]
    fn the_dcs_is_told_what_differs_and_what_goes() {
        let wanted = json!({"ttl": 20, "postgresql": {"parameters": {"work_mem": "8MB", "jit": "off"}}});
        let known =
            json!({"ttl": 30, "x": 1, "postgresql": {"parameters": {"work_mem": "8MB", "geqo": "off"}}});
        let told = changes(&known, &wanted).unwrap();
        assert_eq!(told, json!({"ttl": 20, "postgresql": {"parameters": {"jit": "off", "geqo": null}}}));
        assert_eq!(changes(&wanted, &wanted), None);
    }

    #[test]
    fn a_value_is_in_force_when_the_file_has_it_and_nothing_waits() {
        let known = |setting: &str, in_file: Option<&str>, pending| Known {
            setting: setting.to_owned(),
            in_file: in_file.map(str::to_owned),
            pending,
        };
        assert!(in_force("work_mem", "8MB", &known("8192", Some("8MB"), false)));
        assert!(!in_force("shared_buffers", "1GB", &known("16384", Some("1GB"), true)));
        assert!(!in_force("work_mem", "8MB", &known("4096", None, false)));
        assert!(in_force("max_connections", "100", &known("100", None, false)));
    }

    #[test]
    fn what_the_platform_sets_is_told_too() {
        let data = PostgresData {
            parameters: [("jit".to_owned(), "off".to_owned())].into(),
            ..PostgresData::default()
        };
        let shared = conf::shared(&data, &["jit".to_owned()]);
        assert!(shared["postgresql"]["parameters"].get("jit").is_none());
        assert_eq!(shared["postgresql"]["parameters"]["ssl"], "on");
    }
}

//! Connections to the member's own PostgreSQL, as the platform's superuser over its socket. In: the password. Out: a client that lives as long as
//! it is used, and errors told apart: a refusal that stays one, and what passes.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, error::SqlState};

use super::{
    RUN_DIR,
    conf::{PORT, SUPERUSER},
};
use crate::engine::EngineError;

/// The server is on this machine.
const DEADLINE: Duration = Duration::from_secs(2);

/// How long statements may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// A question of a report.
    Asks,
    /// A change: it waits for users' locks, and, as every commit, for a replica, longer than Patroni needs to do without a lost one.
    Waits,
}

impl Patience {
    fn options(self) -> &'static str {
        match self {
            Patience::Asks => "-c statement_timeout=2s -c default_transaction_read_only=on",
            Patience::Waits => "-c statement_timeout=120s -c lock_timeout=20s",
        }
    }
}

/// Why a statement was not carried out.
#[derive(Debug)]
pub enum SqlError {
    /// The engine's own words; again it would say the same.
    Refused(String),
    /// Another time it may go: somebody held a lock, the member led no longer, the connection ended.
    Passes(String),
}

impl From<tokio_postgres::Error> for SqlError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return SqlError::Passes(shardplane_proto::causes::with_causes(&error));
        };
        let text = match db.detail() {
            Some(detail) => format!("{} ({})", db.message(), detail.replace('\n', "; ")),
            None => db.message().to_owned(),
        };
        let passes = [
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::QUERY_CANCELED,
            SqlState::READ_ONLY_SQL_TRANSACTION,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::DISK_FULL,
        ];
        if passes.contains(db.code()) { SqlError::Passes(text) } else { SqlError::Refused(text) }
    }
}

impl From<SqlError> for EngineError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Refused(text) | SqlError::Passes(text) => EngineError::Engine(text),
        }
    }
}

/// The engine's own text of an error, without what libraries wrap around it.
pub fn engine_error(error: tokio_postgres::Error) -> EngineError {
    SqlError::from(error).into()
}

/// Connects to a database.
///
/// # Errors
/// The engine's own text, or that it does not answer.
pub async fn connect(password: &str, database: &str, patience: Patience) -> Result<Client, EngineError> {
    let mut config = Config::new();
    config.host_path(RUN_DIR).port(PORT).user(SUPERUSER).password(password).dbname(database);
    config.application_name("shardplane").options(patience.options());
    let connected = timeout(DEADLINE, config.connect(NoTls)).await;
    let (client, connection) = connected
        .map_err(|_| EngineError::Engine("PostgreSQL does not answer".to_owned()))?
        .map_err(engine_error)?;
    tokio::spawn(connection);
    Ok(client)
}

/// A name as SQL has it.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL has it.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_are_quoted() {
        assert_eq!(identifier(r#"a"b"#), r#""a""b""#);
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\b"), r"E'a\\b'");
    }
}

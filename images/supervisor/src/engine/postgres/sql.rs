//! One connection to the member's own PostgreSQL, as the platform's superuser over its socket. In: the password. Out: a client that lives as
//! long as it is used.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls};

use super::{
    RUN_DIR,
    conf::{PORT, SUPERUSER},
};
use crate::engine::EngineError;

/// The server is on this machine.
const DEADLINE: Duration = Duration::from_secs(2);
/// No statement of ours may take longer; clients' locks end it, not us.
const STATEMENT: &str = "-c statement_timeout=4s -c lock_timeout=3s -c synchronous_commit=local";

/// The engine's own text of an error, without what libraries wrap around it.
pub fn engine_error(error: tokio_postgres::Error) -> EngineError {
    match error.as_db_error() {
        Some(db) => EngineError::Engine(db.message().to_owned()),
        None => EngineError::Engine(shardplane_proto::causes::with_causes(&error)),
    }
}

/// Connects to a database.
///
/// # Errors
/// The engine's own text, or that it does not answer.
pub async fn connect(password: &str, database: &str) -> Result<Client, EngineError> {
    let mut config = Config::new();
    config.host_path(RUN_DIR).port(PORT).user(SUPERUSER).password(password).dbname(database);
    config.application_name("shardplane").options(STATEMENT);
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

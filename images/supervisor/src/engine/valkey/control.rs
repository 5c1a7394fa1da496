//! Control connections to the engine in the same guest, and to those of other members.
//!
//! In: port and password. Out: answers, or the engine's own text as an error. Used by `report`, `perform`, `directives`, `slots`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo as _, Pipeline, RedisConnectionInfo,
    RedisError, aio::MultiplexedConnection,
};
use shardplane_proto::v1::ValkeyConfig;

use crate::engine::EngineError;

const CONNECT_DEADLINE: Duration = Duration::from_secs(1);
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Access to one engine.
pub struct Control {
    client: Client,
    /// Kept from one report to the next, so that an engine whose client slots are all taken can still be asked.
    kept: Mutex<Option<MultiplexedConnection>>,
}

impl Control {
    /// Access with this config's port and password. Nothing is dialled yet.
    pub fn new(config: &ValkeyConfig) -> Result<Self, EngineError> {
        let port = u16::try_from(config.port)
            .map_err(|_| EngineError::Refused(format!("port {} is too large", config.port)))?;
        Ok(Self { client: client("127.0.0.1", port, Some(&config.password))?, kept: Mutex::new(None) })
    }

    /// A connection of its own; each answer may take `answer`.
    pub async fn connect(&self, answer: Duration) -> Result<MultiplexedConnection, EngineError> {
        connect(&self.client, answer).await
    }

    /// A connection for one task.
    pub async fn for_task(&self) -> Result<MultiplexedConnection, EngineError> {
        self.connect(ANSWER_DEADLINE).await
    }

    /// Asks over the kept connection, dialling when there is none; an error drops it.
    pub async fn ask<T: FromRedisValue>(&self, question: &Pipeline) -> Result<T, EngineError> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect(ANSWER_DEADLINE).await?,
        };
        let answer = question.query_async(&mut connection).await.map_err(engine_error)?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        Ok(answer)
    }
}

/// A connection to another member's engine, which has the same password.
pub async fn dial(
    ip: &str,
    port: u32,
    password: &str,
    answer: Duration,
) -> Result<MultiplexedConnection, EngineError> {
    let port = u16::try_from(port).map_err(|_| EngineError::Refused(format!("port {port} is too large")))?;
    let mut connection = connect(&client(ip, port, None)?, answer).await?;
    // Not left to the library, which has words of its own for what the engine says to a wrong password.
    redis::cmd("AUTH").arg(password).exec_async(&mut connection).await.map_err(engine_error)?;
    Ok(connection)
}

fn client(host: &str, port: u16, password: Option<&str>) -> Result<Client, EngineError> {
    let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
    let settings = match password {
        Some(password) => settings.set_password(password),
        None => settings,
    };
    let info = (host, port).into_connection_info().map_err(engine_error)?.set_redis_settings(settings);
    Client::open(info).map_err(engine_error)
}

async fn connect(client: &Client, answer: Duration) -> Result<MultiplexedConnection, EngineError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_DEADLINE))
        .set_response_timeout(Some(answer));
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(engine_error)
}

/// The engine's text where it has one (`ERR Unknown node …`), else what happened to the connection.
pub fn engine_error(error: RedisError) -> EngineError {
    let kind = if error.code() == Some("LOADING") { EngineError::Loading } else { EngineError::Engine };
    kind(match (error.code(), error.detail()) {
        (Some("ResponseError"), Some(detail)) => format!("ERR {detail}"),
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(_) | None, _) => error.to_string(),
    })
}

/// The engine's text about a directive, without the words around it.
pub fn bare(error: &EngineError) -> String {
    let text = error.to_string();
    match text.split_once("') - ") {
        Some((before, why)) if before.contains("CONFIG SET failed") => why.to_owned(),
        Some(_) | None => text,
    }
}

/// Whether the engine said this, in any case of letters.
pub fn says(error: &EngineError, text: &str) -> bool {
    matches!(error, EngineError::Engine(said) if said.to_ascii_lowercase().contains(&text.to_ascii_lowercase()))
}

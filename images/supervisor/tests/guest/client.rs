//! A client that follows the cluster where it sends it, as users' clients do.
//!
//! In: commands with one key. Out: the answer of whoever serves the key.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use redis::{Cmd, FromRedisValue, RedisError, Value, aio::MultiplexedConnection};

use crate::host::password;

/// Longer than a failover takes.
const PATIENCE: Duration = Duration::from_secs(40);

/// CRC16/XMODEM of the key, or of its part in braces, modulo the number of slots.
pub fn slot_of(key: &str) -> u32 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    u32::from(crc % 16384)
}

/// A tag whose keys are in this slot.
pub fn tag(slot: u32) -> String {
    (0..).map(|n| n.to_string()).find(|tag| slot_of(tag) == slot).unwrap()
}

/// A client of the cluster.
#[derive(Default)]
pub struct Client {
    connections: BTreeMap<String, MultiplexedConnection>,
    owners: BTreeMap<u32, String>,
    seeds: Vec<String>,
    /// How often it was sent elsewhere for one command.
    pub asked: u64,
}

impl Client {
    pub fn new(seeds: Vec<String>) -> Self {
        Self { seeds, ..Self::default() }
    }

    async fn connection(&mut self, address: &str) -> Result<MultiplexedConnection, RedisError> {
        if let Some(connection) = self.connections.get(address) {
            return Ok(connection.clone());
        }
        use redis::IntoConnectionInfo as _;
        let (host, port) = address.split_once(':').unwrap();
        let settings = redis::RedisConnectionInfo::default().set_password(password());
        let info = (host, port.parse().unwrap()).into_connection_info()?.set_redis_settings(settings);
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_millis(500)))
            .set_response_timeout(Some(Duration::from_secs(5)));
        let connection =
            redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        self.connections.insert(address.to_owned(), connection.clone());
        Ok(connection)
    }

    /// One try at one node: the answer, and for a write how many replicas confirmed it.
    async fn once(
        &mut self,
        address: &str,
        asking: bool,
        command: &Cmd,
        wait: bool,
    ) -> Result<(Value, u64), RedisError> {
        let mut connection = self.connection(address).await?;
        let mut pipe = redis::pipe();
        if asking {
            pipe.cmd("ASKING");
        }
        pipe.add_command(command.clone());
        if wait {
            pipe.cmd("WAIT").arg(1).arg(1000);
        }
        let mut answers: Vec<Result<Value, RedisError>> =
            pipe.ignore_errors().query_async(&mut connection).await?;
        let confirmed = if wait { redis::from_redis_value(answers.pop().unwrap()?)? } else { 0 };
        Ok((answers.pop().unwrap()?, confirmed))
    }

    /// The answer of whoever serves the key, and how many replicas confirmed it.
    pub async fn ask<T: FromRedisValue>(&mut self, key: &str, command: &Cmd, wait: bool) -> (T, u64) {
        let (slot, deadline, mut seed) = (slot_of(key), Instant::now() + PATIENCE, 0);
        let (mut asked, mut last) = (None, String::new());
        loop {
            assert!(Instant::now() < deadline, "no answer for {key}: {last}");
            let (address, asking) = match asked.take() {
                Some(address) => (address, true),
                None => {
                    (self.owners.get(&slot).unwrap_or(&self.seeds[seed % self.seeds.len()]).clone(), false)
                }
            };
            match self.once(&address, asking, command, wait).await {
                Ok((value, confirmed)) => {
                    return (redis::from_redis_value(value).unwrap(), confirmed);
                }
                Err(error) => {
                    last = format!("{address}: {error}");
                    match (error.code(), error.redirect_node()) {
                        (Some("ASK"), Some((address, _))) => {
                            self.asked += 1;
                            asked = Some(address.to_owned());
                        }
                        (Some("MOVED"), Some((address, _))) => {
                            self.owners.insert(slot, address.to_owned());
                        }
                        _ => {
                            if error.code().is_none() || error.is_io_error() {
                                self.connections.remove(&address);
                            }
                            self.owners.remove(&slot);
                            seed += 1;
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            }
        }
    }
}

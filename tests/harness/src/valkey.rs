//! A Valkey client inside a cluster's own network. In: commands for keys. Out: replies, after following redirects. Used by the
//! writer and by tests.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use redis::{
    Client, Cmd, Connection, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _, RedisConnectionInfo,
};

use crate::inside;

/// A node that does not answer for that long is passed over. Shorter than a failover, longer than a busy machine's pauses.
const PATIENCE: Duration = Duration::from_secs(1);
/// Redirects of one command: a slot that moves may answer twice, a third time is a loop.
const MOST_REDIRECTS: usize = 5;

/// Where a client speaks from, and whom it may ask.
#[derive(Debug, Clone)]
pub struct Stand {
    /// The network namespace of a machine of the cluster.
    pub netns: PathBuf,
    /// Its nodes, `host:port`.
    pub nodes: Vec<String>,
    /// The namespaces of nodes that are not reached from there: a virtual machine has none to stand in, and the gateway of its host
    /// reaches the machines of that host alone.
    pub doors: BTreeMap<String, PathBuf>,
}

/// Finds a stand. Asked again when the machine of the last one is gone: machines move.
pub type FindStand = Arc<dyn Fn() -> Result<Stand> + Send + Sync>;

/// A client.
pub struct ValkeyClient {
    find: FindStand,
    stand: Stand,
    password: String,
    open: BTreeMap<String, Connection>,
    /// The node that answered last, tried first.
    favourite: usize,
}

impl ValkeyClient {
    /// A client that stands where `find` says.
    ///
    /// # Errors
    /// When there is no place to stand.
    pub fn new(find: FindStand, password: impl Into<String>) -> Result<Self> {
        let stand = find()?;
        Ok(Self { find, stand, password: password.into(), open: BTreeMap::new(), favourite: 0 })
    }

    /// A second client of the same kind.
    pub fn another(&self) -> Self {
        Self {
            find: Arc::clone(&self.find),
            stand: self.stand.clone(),
            password: self.password.clone(),
            open: BTreeMap::new(),
            favourite: 0,
        }
    }

    /// Moves on when the machine it stands in is gone: connections from there lead nowhere.
    fn keep_standing(&mut self) -> Result<()> {
        if !self.stand.netns.exists() {
            self.open.clear();
            self.favourite = 0;
            self.stand = (self.find)()?;
        }
        Ok(())
    }

    fn connect(&mut self, node: &str) -> Result<&mut Connection> {
        if !self.open.contains_key(node) {
            let (host, port) = node.rsplit_once(':').with_context(|| format!("{node:?} is not host:port"))?;
            let info = ConnectionAddr::Tcp(host.to_owned(), port.parse()?).into_connection_info()?;
            let info = info.set_redis_settings(RedisConnectionInfo::default().set_password(&self.password));
            // Connecting is all that has to happen inside; the socket stays there.
            let netns = self.stand.doors.get(node).unwrap_or(&self.stand.netns);
            let connection =
                inside(netns, move || Client::open(info)?.get_connection_with_timeout(PATIENCE))?
                    .with_context(|| format!("cannot connect to {node}"))?;
            connection.set_read_timeout(Some(PATIENCE))?;
            connection.set_write_timeout(Some(PATIENCE))?;
            self.open.insert(node.to_owned(), connection);
        }
        self.open.get_mut(node).with_context(|| format!("no connection to {node}"))
    }

    /// Asks one node.
    ///
    /// # Errors
    /// When it does not answer, or answers with an error.
    pub fn ask<T: FromRedisValue>(&mut self, node: &str, command: &Cmd) -> Result<T> {
        let result = command.query::<T>(self.connect(node)?);
        if let Err(error) = &result
            && (error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error())
        {
            // What comes next on this connection may be the answer to this.
            self.open.remove(node);
        }
        result.with_context(|| format!("{node} does not do it"))
    }

    /// Sends a command to the node that owns its key and answers that node's name too.
    ///
    /// # Errors
    /// When no node does it. A command that was sent may have been done all the same.
    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<(T, String)> {
        self.keep_standing()?;
        let mut node = self.stand.nodes.get(self.favourite).cloned().context("the client knows no node")?;
        let mut asking = false;
        for _ in 0..=MOST_REDIRECTS {
            if asking {
                self.ask::<()>(&node, &redis::cmd("ASKING"))?;
            }
            let error = match self.ask(&node, command) {
                Ok(reply) => return Ok((reply, node)),
                Err(error) => error,
            };
            let cause = error.downcast_ref::<redis::RedisError>();
            let redirect = cause
                .and_then(|cause| Some((cause.redirect_node()?.0.to_owned(), cause.code() == Some("ASK"))));
            match redirect {
                Some((to, ask)) => (node, asking) = (to, ask),
                None => {
                    // The next command begins elsewhere: this node may be dead or cut off.
                    self.favourite = (self.favourite + 1) % self.stand.nodes.len();
                    return Err(error);
                }
            }
        }
        bail!("redirected more than {MOST_REDIRECTS} times; the last was to {node}")
    }

    /// Sets a key and waits until one replica has it; whether that is so.
    ///
    /// # Errors
    /// As [`ValkeyClient::query`].
    pub fn set_durably(&mut self, key: &str, value: &str, wait: Duration) -> Result<bool> {
        let ((), node) = self.query::<()>(redis::cmd("SET").arg(key).arg(value))?;
        let wait = u64::try_from(wait.as_millis())?;
        let replicas: u32 = self.ask(&node, redis::cmd("WAIT").arg(1).arg(wait))?;
        Ok(replicas >= 1)
    }

    /// Gets a key.
    ///
    /// # Errors
    /// As [`ValkeyClient::query`].
    pub fn get(&mut self, key: &str) -> Result<Option<String>> {
        Ok(self.query(redis::cmd("GET").arg(key))?.0)
    }
}

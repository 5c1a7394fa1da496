//! One engine as a party of a move: the commands about slots and their keys.
//!
//! In: a connection to the engine of this guest or of a peer. Out: its answers, or its text with what was asked and where. Used by
//! the other files of this folder.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use shardplane_proto::v1::{ValkeyAddress, ValkeyConfig};

use super::{batch::Sized, view::Side};
use crate::engine::{
    EngineError,
    valkey::{
        control::{self, Control, engine_error},
        parse,
    },
};

/// For everything but MIGRATE. An engine that loads a large value is silent for a while.
const ANSWER: Duration = Duration::from_secs(5);
/// SETSLOT is answered when every replica has it, or NOREPLICAS after this time.
const REPLICAS: Duration = Duration::from_secs(1);

/// What SETSLOT says about a slot. The id is another node's.
#[derive(Debug, Clone, Copy)]
pub enum Slot<'a> {
    /// On its way to that node.
    Migrating(&'a str),
    /// On its way from that node.
    Importing(&'a str),
    /// No mark.
    Stable,
    /// Owned by that node.
    Owned(&'a str),
}

/// Of a MIGRATE.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// For each wait on the target.
    pub timeout: Duration,
    /// The cluster's.
    pub password: &'a str,
    /// For how long the source takes no writes when the keys have not gone.
    pub freeze: Option<Duration>,
}

/// An engine.
pub struct Node {
    /// Its node id.
    pub id: String,
    /// Where the other engines reach it.
    pub ip: String,
    /// Its client port.
    pub port: u32,
    connection: MultiplexedConnection,
}

impl Node {
    /// The engine of this guest.
    pub async fn local(control: &Control, config: &ValkeyConfig) -> Result<Self, EngineError> {
        let connection = control.connect(ANSWER).await?;
        Self { id: String::new(), ip: config.announce_ip.clone(), port: config.port, connection }
            .named()
            .await
    }

    /// The engine of a peer. Refused when another node answers at its address.
    pub async fn peer(id: &str, at: &ValkeyAddress, password: &str) -> Result<Self, EngineError> {
        let connection = control::dial(&at.ip, at.port, password, ANSWER).await.map_err(|error| {
            EngineError::Engine(format!("node {id} at {}:{} cannot be asked: {error}", at.ip, at.port))
        })?;
        let node = Self { id: String::new(), ip: at.ip.clone(), port: at.port, connection }.named().await?;
        match node.id == id {
            true => Ok(node),
            false => Err(EngineError::Refused(format!(
                "at {}:{} answers node {}, not node {id}",
                at.ip, at.port, node.id
            ))),
        }
    }

    async fn named(mut self) -> Result<Self, EngineError> {
        self.id = self.ask("CLUSTER MYID", redis::cmd("CLUSTER").arg("MYID")).await?;
        Ok(self)
    }

    fn failed(&self, what: &str) -> impl FnOnce(RedisError) -> EngineError {
        let what = format!("{what} at {}:{}", self.ip, self.port);
        move |error| EngineError::Engine(format!("{what}: {}", engine_error(error)))
    }

    async fn ask<T: FromRedisValue>(&mut self, what: &str, command: &Cmd) -> Result<T, EngineError> {
        command.query_async(&mut self.connection).await.map_err(self.failed(what))
    }

    /// Every answer of its own; an error is about the connection.
    async fn ask_all<T: FromRedisValue>(
        &mut self,
        what: &str,
        commands: &mut Pipeline,
    ) -> Result<Vec<RedisResult<T>>, EngineError> {
        commands.ignore_errors().query_async(&mut self.connection).await.map_err(self.failed(what))
    }

    /// What it says about a slot.
    pub async fn side(&mut self, slot: u32) -> Result<Side, EngineError> {
        let text: String = self.ask("CLUSTER NODES", redis::cmd("CLUSTER").arg("NODES")).await?;
        Side::read(&parse::nodes(&text), slot).ok_or_else(|| {
            EngineError::Engine(format!(
                "CLUSTER NODES at {}:{} does not list the node itself",
                self.ip, self.port
            ))
        })
    }

    /// SETSLOT. NOREPLICAS is an error although replicas may have followed.
    pub async fn set(&mut self, slot: u32, to: Slot<'_>) -> Result<(), EngineError> {
        let (state, id) = match to {
            Slot::Migrating(id) => ("MIGRATING", Some(id)),
            Slot::Importing(id) => ("IMPORTING", Some(id)),
            Slot::Owned(id) => ("NODE", Some(id)),
            Slot::Stable => ("STABLE", None),
        };
        let timeout = millis(REPLICAS);
        let mut command = redis::cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(state).arg(id).arg("TIMEOUT").arg(timeout);
        self.ask(&format!("CLUSTER SETSLOT {slot} {state}"), &command).await
    }

    /// How many keys it has in a slot.
    pub async fn count(&mut self, slot: u32) -> Result<u64, EngineError> {
        self.ask("CLUSTER COUNTKEYSINSLOT", redis::cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(slot)).await
    }

    /// At most `most` keys of a slot.
    pub async fn keys(&mut self, slot: u32, most: usize) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("GETKEYSINSLOT").arg(slot).arg(most);
        self.ask("CLUSTER GETKEYSINSLOT", &command).await
    }

    /// The keys with their size; one that went meanwhile counts nothing.
    pub async fn sizes(&mut self, keys: Vec<Vec<u8>>) -> Result<Vec<Sized>, EngineError> {
        let mut question = redis::pipe();
        for key in &keys {
            // Five of a collection's members are weighed, the rest is taken to be alike.
            question.cmd("ASKING").ignore().cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(5);
        }
        let sizes = self.ask_all::<Option<u64>>("MEMORY USAGE", &mut question).await?;
        Ok(keys.into_iter().zip(sizes.into_iter().map(|size| size.ok().flatten().unwrap_or(0))).collect())
    }

    /// MIGRATE of these keys to another node, in one breath as often as `replace` says, with REPLACE where it says so. The
    /// answers of all; an error besides is about the connection to this node. With `freeze`: when the last key has not gone, this
    /// node performs no write of anybody's from then on, for that long or until the next call or `thaw`; true says that it is so.
    pub async fn migrate(
        &mut self,
        to: &Self,
        keys: &[Sized],
        replace: &[bool],
        limits: Limits<'_>,
    ) -> Result<(Vec<Result<(), EngineError>>, bool), EngineError> {
        let mut commands = redis::pipe();
        if let (Some(_), Some((key, _))) = (limits.freeze, keys.last()) {
            commands.cmd("CLIENT").arg("UNPAUSE").ignore();
            commands.cmd("WATCH").arg(key).ignore();
        }
        for replace in replace {
            commands.add_command(migrate(to, keys, limits.timeout, limits.password, *replace));
        }
        if let Some(freeze) = limits.freeze {
            // A key that went is a watched key that changed: then the pause is not performed.
            commands.cmd("MULTI").ignore();
            commands.cmd("CLIENT").arg("PAUSE").arg(millis(freeze)).arg("WRITE").ignore();
            commands.cmd("EXEC");
        }
        // The timeout is for each wait of MIGRATE's, of which there are several.
        self.connection.set_response_timeout(limits.timeout * 4 + ANSWER);
        let answers = self.ask_all::<Value>("MIGRATE", &mut commands).await;
        self.connection.set_response_timeout(ANSWER);
        let mut answers = answers?;
        let frozen = limits.freeze.is_some() && !matches!(answers.pop(), Some(Ok(Value::Nil)));
        Ok((
            answers.into_iter().map(|answer| answer.map(drop).map_err(self.failed("MIGRATE"))).collect(),
            frozen,
        ))
    }

    /// Ends what `freeze` of `migrate` began.
    pub async fn thaw(&mut self) -> Result<(), EngineError> {
        self.ask("CLIENT UNPAUSE", redis::cmd("CLIENT").arg("UNPAUSE")).await
    }

    /// Which of these keys it has.
    pub async fn has(&mut self, keys: &[Sized]) -> Result<Vec<bool>, EngineError> {
        let mut question = redis::pipe();
        for (key, _) in keys {
            question.cmd("ASKING").ignore().cmd("EXISTS").arg(key);
        }
        let answers = self.ask_all::<u64>("EXISTS", &mut question).await?;
        Ok(answers.into_iter().map(|answer| answer.is_ok_and(|count| count > 0)).collect())
    }

    /// Removes keys of a slot that it owns or imports; how many there were.
    pub async fn unlink(&mut self, keys: &[Sized]) -> Result<u64, EngineError> {
        let mut commands = redis::pipe();
        for (key, _) in keys {
            commands.cmd("ASKING").ignore().cmd("UNLINK").arg(key);
        }
        let answers = self.ask_all::<u64>("UNLINK", &mut commands).await?;
        Ok(answers.into_iter().filter_map(Result::ok).sum())
    }

    /// From here on `unlink_watched` fails when somebody else touched the key.
    pub async fn watch(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let mut commands = redis::pipe();
        commands.cmd("ASKING").cmd("WATCH").arg(key);
        commands.exec_async(&mut self.connection).await.map_err(self.failed("WATCH"))
    }

    /// Removes the watched key unless somebody touched it since, or takes the watch away.
    pub async fn unlink_watched(&mut self, key: &[u8], unlink: bool) -> Result<(), EngineError> {
        let mut commands = redis::pipe();
        match unlink {
            true => commands.cmd("ASKING").cmd("MULTI").cmd("UNLINK").arg(key).cmd("EXEC"),
            false => commands.cmd("UNWATCH"),
        };
        self.ask_all::<Value>("UNLINK", &mut commands).await.map(drop)
    }

    /// Closes what MIGRATE of another node has left open here, so that nothing sent over it is performed any more.
    pub async fn cut_off(&mut self, other: &Self) -> Result<(), EngineError> {
        let mut list = redis::cmd("CLIENT");
        let list: String = self.ask("CLIENT LIST", list.arg("LIST").arg("TYPE").arg("normal")).await?;
        for id in of_migrate(&list, &other.ip) {
            let mut kill = redis::cmd("CLIENT");
            // 0 when it is gone already.
            let _: u64 = self.ask("CLIENT KILL", kill.arg("KILL").arg("ID").arg(id)).await?;
        }
        Ok(())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn migrate(to: &Node, keys: &[Sized], timeout: Duration, password: &str, replace: bool) -> Cmd {
    let mut command = redis::cmd("MIGRATE");
    command.arg(&to.ip).arg(to.port).arg("").arg(0).arg(millis(timeout));
    if replace {
        command.arg("REPLACE");
    }
    command.arg("AUTH2").arg("default").arg(password).arg("KEYS");
    for (key, _) in keys {
        command.arg(key);
    }
    command
}

/// Ids of the connections from `ip` whose last command is one that MIGRATE sends, or that have sent none.
fn of_migrate(list: &str, ip: &str) -> Vec<u64> {
    let field = |line: &str, name: &str| -> Option<String> {
        line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    list.lines()
        .filter(|line| {
            let from = field(line, "addr");
            from.as_deref().and_then(|from| from.rsplit_once(':')).is_some_and(|(host, _)| host == ip)
        })
        .filter(|line| {
            let command = field(line, "cmd").unwrap_or_default();
            ["restore-asking", "restore", "select", "auth", "NULL"].contains(&command.as_str())
        })
        .filter_map(|line| field(line, "id")?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::of_migrate;

    #[test]
    fn only_connections_of_migrate_from_that_node_are_found() {
        let line = |id: u32, addr: &str, cmd: &str| {
            format!("id={id} addr={addr} laddr=10.0.0.2:6379 fd=8 name= age=1 db=0 cmd={cmd} user=default\n")
        };
        let list = [
            line(1, "10.0.0.1:40000", "restore-asking"),
            line(2, "10.0.0.1:40001", "NULL"),
            line(3, "10.0.0.1:40002", "client|list"),
            line(4, "10.0.0.11:40003", "restore-asking"),
            line(5, "10.0.0.1:40004", "set"),
        ]
        .concat();
        assert_eq!(of_migrate(&list, "10.0.0.1"), [1, 2]);
        assert_eq!(of_migrate("", "10.0.0.1"), [0; 0]);
    }
}

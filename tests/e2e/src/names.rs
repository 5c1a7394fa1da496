//! Whom engines name to their clients. In: a client and a node's endpoint. Out: each address that `CLUSTER SLOTS` and `CLUSTER SHARDS`
//! send clients to, and a reader that looks at all members' answers for as long as a story lasts.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail, ensure};
use redis::Value as Reply;
use shardplane_harness::ValkeyClient;

use crate::Cluster;

/// Whom a node names.
#[derive(Debug, Clone)]
pub struct Named {
    /// Each address that a client would be sent to, as often as it is named.
    pub endpoints: Vec<String>,
    /// How many slots it says have an owner.
    pub slots: i64,
}

impl Named {
    /// Checks that nobody is named by nothing.
    ///
    /// # Errors
    /// Says by whom who is.
    pub fn check(&self, by: &str) -> Result<()> {
        let sound = |endpoint: &String| !endpoint.is_empty() && !endpoint.contains('?');
        ensure!(self.endpoints.iter().all(sound), "{by} names {:?}", self.endpoints);
        Ok(())
    }
}

/// A null endpoint would mean: the address you asked. None of ours says that.
fn text(reply: &Reply) -> String {
    if let Reply::BulkString(bytes) = reply {
        String::from_utf8_lossy(bytes).into_owned()
    } else {
        String::new()
    }
}

fn list(reply: &Reply) -> &[Reply] {
    if let Reply::Array(items) = reply { items } else { &[] }
}

/// What a flat list of names and values has for a name.
fn member<'r>(reply: &'r Reply, name: &str) -> Option<&'r Reply> {
    list(reply).chunks(2).find(|pair| text(&pair[0]) == name)?.get(1)
}

/// `CLUSTER SLOTS` and `CLUSTER SHARDS` of one node.
///
/// # Errors
/// When it does not answer, or with something else.
pub fn named_by(client: &mut ValkeyClient, endpoint: &str) -> Result<Named> {
    let slots: Reply = client.ask(endpoint, redis::cmd("CLUSTER").arg("SLOTS"))?;
    let shards: Reply = client.ask(endpoint, redis::cmd("CLUSTER").arg("SHARDS"))?;
    let mut named = Named { endpoints: Vec::new(), slots: 0 };
    for range in list(&slots) {
        let [Reply::Int(start), Reply::Int(end), nodes @ ..] = list(range) else {
            bail!("{endpoint} says {range:?}");
        };
        named.slots += end - start + 1;
        named.endpoints.extend(nodes.iter().map(|node| list(node).first().map_or_else(String::new, text)));
    }
    for shard in list(&shards) {
        for node in member(shard, "nodes").map(list).unwrap_or_default() {
            for key in ["ip", "endpoint"] {
                named.endpoints.push(member(node, key).map_or_else(String::new, text));
            }
        }
    }
    Ok(named)
}

/// What a reader saw.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Answers that were looked at.
    pub answers: u64,
    /// Members that did not answer, by look: those that are down or not there yet.
    pub silences: u64,
    /// What was wrong with answers.
    pub unsound: Vec<String>,
}

/// Asks all members, those that come and those that go too, whom they name, again and again until `end`.
///
/// # Errors
/// When there is no place to ask from.
pub fn read_until(cluster: &Cluster<'_>, end: &AtomicBool, avoid: &[u32]) -> Result<Seen> {
    let mut client = cluster.client(avoid)?;
    let mut seen = Seen::default();
    while !end.load(Ordering::Relaxed) {
        // The coordinators may be away; who was a member before is asked in the next look.
        for member in cluster.all_instances().unwrap_or_default() {
            match named_by(&mut client, &member.endpoint) {
                Ok(named) => {
                    seen.answers += 1;
                    seen.unsound.extend(named.check(&member.endpoint).err().map(|e| format!("{e:#}")));
                }
                Err(_) => seen.silences += 1,
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(250));
    }
    Ok(seen)
}

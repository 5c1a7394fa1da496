//! What engines say themselves, past the product. In: a client and the members' endpoints. Out: roles and each node's table, and
//! whether all tables say the same sound thing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use shardplane_harness::ValkeyClient;

/// Number of slots of a cluster.
pub const SLOTS: u32 = 16_384;

/// A line of `CLUSTER NODES`.
#[derive(Debug, Clone)]
pub struct Node {
    /// The engine's own id.
    pub id: String,
    /// `host:port`.
    pub endpoint: String,
    /// `master`, `slave`, `fail`, …
    pub flags: BTreeSet<String>,
    /// Whom a replica follows.
    pub primary: Option<String>,
    /// Config epoch.
    pub epoch: u64,
    /// Whether the bus has a link to it.
    pub connected: bool,
    /// First and last slot of each range.
    pub slots: Vec<(u32, u32)>,
    /// Slots that it marks as on their way, as it writes them; of the node that was asked only.
    pub open: Vec<String>,
}

fn node(line: &str) -> Option<Node> {
    let mut words = line.split_whitespace();
    let (id, address, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (epoch, link) = (words.nth(2)?, words.next()?);
    let (open, ranges): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('['));
    let slots = ranges.into_iter().map(|range| {
        let (start, end) = range.split_once('-').unwrap_or((range, range));
        Some((start.parse().ok()?, end.parse().ok()?))
    });
    Some(Node {
        id: id.to_owned(),
        endpoint: address.split_once('@')?.0.to_owned(),
        flags: flags.split(',').map(str::to_owned).collect(),
        primary: (primary != "-").then(|| primary.to_owned()),
        epoch: epoch.parse().ok()?,
        connected: link == "connected",
        slots: slots.collect::<Option<_>>()?,
        open: open.into_iter().map(str::to_owned).collect(),
    })
}

/// The table of one node.
///
/// # Errors
/// When the node does not answer.
pub fn nodes(client: &mut ValkeyClient, endpoint: &str) -> Result<Vec<Node>> {
    let text: String = client.ask(endpoint, redis::cmd("CLUSTER").arg("NODES"))?;
    text.lines().map(|line| node(line).with_context(|| format!("{line:?} is no node"))).collect()
}

/// `master` or `slave`.
///
/// # Errors
/// When the node does not answer.
pub fn role(client: &mut ValkeyClient, endpoint: &str) -> Result<String> {
    let info: String = client.ask(endpoint, redis::cmd("INFO").arg("replication"))?;
    let role = info.lines().find_map(|line| line.strip_prefix("role:"));
    role.map(|role| role.trim().to_owned()).with_context(|| format!("{endpoint} has no role"))
}

/// Checks that every node says `cluster_state:ok` and has the same sound table: exactly these members, nobody failing, every slot
/// owned once and in contiguous even ranges, none on its way, epochs of the `shards` primaries distinct. Answers the node ids by endpoint.
///
/// # Errors
/// Says which node says what.
pub fn agree(
    client: &mut ValkeyClient,
    members: &[String],
    shards: usize,
) -> Result<BTreeMap<String, String>> {
    let expected: BTreeSet<&str> = members.iter().map(String::as_str).collect();
    let mut ids = BTreeMap::new();
    for member in members {
        let info: String = client.ask(member, redis::cmd("CLUSTER").arg("INFO"))?;
        ensure!(info.contains("cluster_state:ok"), "{member} says {:?}", info.lines().next());
        let table = nodes(client, member)?;
        let seen: BTreeSet<&str> = table.iter().map(|node| node.endpoint.as_str()).collect();
        ensure!(
            seen == expected && table.len() == members.len(),
            "{member} knows {seen:?}, not {expected:?}"
        );
        for node in &table {
            let sound = node.connected && !node.flags.iter().any(|flag| flag.starts_with("fail"));
            ensure!(sound && !node.flags.contains("handshake"), "{member} says about {}: {node:?}", node.id);
            ensure!(node.open.is_empty(), "{member} marks slots: {node:?}");
        }
        let owners: Vec<&Node> = table.iter().filter(|node| !node.slots.is_empty()).collect();
        ensure!(owners.len() == shards, "{member} knows {} owners of slots: {owners:?}", owners.len());
        let epochs: BTreeSet<u64> = owners.iter().map(|node| node.epoch).collect();
        ensure!(epochs.len() == shards, "{member} sees the epochs {epochs:?}");
        check_slots(&owners, shards).with_context(|| format!("{member} sees it"))?;
        for replica in table.iter().filter(|node| node.slots.is_empty()) {
            let follows = owners.iter().any(|owner| Some(&owner.id) == replica.primary.as_ref());
            ensure!(follows, "{member} sees that {} follows nobody that owns slots", replica.endpoint);
        }
        let own = table.into_iter().find(|node| node.flags.contains("myself")).context("no myself")?;
        ids.insert(member.clone(), own.id);
    }
    Ok(ids)
}

fn check_slots(owners: &[&Node], shards: usize) -> Result<()> {
    let mut ranges: Vec<(u32, u32)> = owners.iter().flat_map(|node| node.slots.clone()).collect();
    ranges.sort_unstable();
    ensure!(ranges.len() == shards, "the ranges of {shards} shards are {ranges:?}");
    let mut next = 0;
    for (start, end) in &ranges {
        ensure!(*start == next && end >= start, "a gap or an overlap before slot {start}: {ranges:?}");
        next = end + 1;
    }
    ensure!(next == SLOTS, "the slots end at {next}");
    let sizes = ranges.iter().map(|(start, end)| end - start + 1);
    let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
    ensure!(most - least <= 1, "shards have {least} to {most} slots: {ranges:?}");
    Ok(())
}

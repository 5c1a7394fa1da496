//! Slots and keys as engines count them themselves. In: a cluster. Out: keys on every shard, the proof that each is there once, and
//! that all engines agree on one owner for every slot with nothing left of it anywhere else.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use redis::FromRedisValue;
use shardplane_harness::ValkeyClient;

use crate::{Cluster, engine};

/// Sets those keys `ARGV[1]:<n>` with their number as value whose slots the node owns: it refuses the others.
const LOAD: &str = "#!lua flags=allow-cross-slot-keys
local n = 0
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) - 1 do
  if redis.pcall('SET', ARGV[1] .. ':' .. i, i).ok then n = n + 1 end
end
return n";

/// Counts those keys `ARGV[1]:<n>` that the node owns and that have their number as value.
const SEEN: &str = "#!lua flags=allow-cross-slot-keys,no-writes
local n = 0
for i = tonumber(ARGV[2]), tonumber(ARGV[3]) - 1 do
  if redis.pcall('GET', ARGV[1] .. ':' .. i) == tostring(i) then n = n + 1 end
end
return n";

/// Counts the keys that the node has in ranges of slots, whoever owns them.
const HELD: &str = "#!lua flags=no-writes
local n = 0
for i = 1, #ARGV, 2 do
  for slot = tonumber(ARGV[i]), tonumber(ARGV[i + 1]) do
    n = n + redis.call('CLUSTER', 'COUNTKEYSINSLOT', slot)
  end
end
return n";

/// Keys of one script: an engine answers nobody else meanwhile.
const AT_ONCE: u64 = 5000;

fn eval<T: FromRedisValue>(
    client: &mut ValkeyClient,
    node: &str,
    script: &str,
    arguments: &[String],
) -> Result<T> {
    client.ask(node, redis::cmd("EVAL").arg(script).arg(0).arg(arguments))
}

/// Runs a script for the keys `<prefix>:0` to `<prefix>:<count - 1>` on all primaries and adds up what they answer.
fn everywhere(cluster: &Cluster<'_>, script: &str, prefix: &str, count: u64) -> Result<u64> {
    let mut client = cluster.client(&[])?;
    let mut sum = 0;
    for primary in cluster.instances()?.iter().filter(|i| i.primary()) {
        for start in (0..count).step_by(usize::try_from(AT_ONCE)?) {
            let end = count.min(start + AT_ONCE);
            let arguments = [prefix.to_owned(), start.to_string(), end.to_string()];
            sum += eval::<u64>(&mut client, &primary.endpoint, script, &arguments)?;
        }
    }
    Ok(sum)
}

/// Sets the keys `<prefix>:0` to `<prefix>:<count - 1>`, each with its number as value.
///
/// # Errors
/// When not each of them has exactly one owner.
pub fn load(cluster: &Cluster<'_>, prefix: &str, count: u64) -> Result<()> {
    let set = everywhere(cluster, LOAD, prefix, count)?;
    ensure!(set == count, "{set} of {count} keys were set");
    Ok(())
}

/// How many of these keys are there with the right value, as their owners say.
///
/// # Errors
/// When a primary does not answer.
pub fn seen(cluster: &Cluster<'_>, prefix: &str, count: u64) -> Result<u64> {
    everywhere(cluster, SEEN, prefix, count)
}

/// Who owns which slot, by node id and as ranges.
type Owners = BTreeMap<String, Vec<(u32, u32)>>;

/// What of `0..SLOTS` is in no range of these.
fn rest(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    ranges.push((engine::SLOTS, engine::SLOTS));
    let mut next = 0;
    let mut rest = Vec::new();
    for (start, end) in ranges {
        if start > next {
            rest.push((next, start - 1));
        }
        next = end + 1;
    }
    rest
}

/// Checks by the words of all engines: none marks a slot as on its way, all see the same one owner for each slot, no member has a key of
/// a slot that its shard does not own, and every replica has as many keys as its primary. Answers how many keys the shards have.
///
/// # Errors
/// Says which node says what.
pub fn tidy(cluster: &Cluster<'_>) -> Result<u64> {
    let mut client = cluster.client(&[])?;
    let mut agreed: Option<(String, Owners)> = None;
    let (mut sums, mut primaries) = (BTreeMap::new(), 0);
    for member in cluster.instances()? {
        let table = engine::nodes(&mut client, &member.endpoint)?;
        let owners: Owners = table
            .iter()
            .filter(|node| !node.slots.is_empty())
            .map(|node| (node.id.clone(), node.slots.clone()))
            .collect();
        let own = table.iter().find(|node| node.flags.contains("myself")).context("no myself")?;
        ensure!(own.open.is_empty(), "{} marks {:?}", member.endpoint, own.open);
        let covered: Vec<(u32, u32)> = owners.values().flatten().copied().collect();
        ensure!(
            rest(covered.clone()).is_empty(),
            "{} knows no owner of {:?}",
            member.endpoint,
            rest(covered)
        );
        match &agreed {
            None => agreed = Some((member.endpoint.clone(), owners.clone())),
            Some((other, theirs)) => {
                ensure!(
                    *theirs == owners,
                    "{} sees the slots at {owners:?}, {other} at {theirs:?}",
                    member.endpoint
                );
            }
        }
        let leader = own.primary.as_ref().unwrap_or(&own.id);
        let foreign = rest(owners.get(leader).cloned().unwrap_or_default());
        let arguments: Vec<String> =
            foreign.iter().flat_map(|(start, end)| [start.to_string(), end.to_string()]).collect();
        let held: u64 = eval(&mut client, &member.endpoint, HELD, &arguments)?;
        ensure!(held == 0, "{} has {held} keys of slots that it does not own", member.endpoint);
        let keys: u64 = client.ask(&member.endpoint, &redis::cmd("DBSIZE"))?;
        let known = *sums.entry(leader.clone()).or_insert(keys);
        ensure!(known == keys, "{} has {keys} keys, another of its shard has {known}", member.endpoint);
        primaries += usize::from(own.primary.is_none());
    }
    ensure!(primaries == sums.len(), "{primaries} primaries lead {} shards", sums.len());
    Ok(sums.values().sum())
}

//! Where every slot shall be. In: who owns what now, and the shards that shall be. Out: one range for each shard, even and without
//! gaps, such that the fewest slots travel. Called when the planner finds a changed number of shards; the log keeps the answer, so
//! that it does not flip while slots move.

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::GroupId;

use super::{SLOTS, ownership::Owned};

/// The range of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRange {
    /// The shard.
    pub shard: GroupId,
    /// First slot.
    pub start: u32,
    /// Last slot.
    pub end: u32,
}

/// The range of every shard, in order of slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotLayout {
    /// Every slot is in exactly one.
    pub ranges: Vec<ShardRange>,
}

/// Slots that have one owner and shall have another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First slot.
    pub start: u32,
    /// Last slot.
    pub end: u32,
    /// Who owns them.
    pub from: GroupId,
    /// Who shall.
    pub to: GroupId,
}

impl SlotLayout {
    /// The shard that shall own a slot.
    pub fn of(&self, slot: u32) -> Option<GroupId> {
        self.ranges.iter().find(|range| (range.start..=range.end).contains(&slot)).map(|range| range.shard)
    }

    /// How many slots a shard shall own.
    pub fn size(&self, shard: GroupId) -> u32 {
        let own = self.ranges.iter().filter(|range| range.shard == shard);
        own.map(|range| range.end - range.start + 1).sum()
    }

    /// What has to move, in order of slots.
    pub fn differences(&self, owned: &[Owned]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for run in owned {
            for range in &self.ranges {
                let (start, end) = (run.start.max(range.start), run.end.min(range.end));
                if start > end || range.shard == run.group {
                    continue;
                }
                match runs.last_mut() {
                    Some(last)
                        if last.end + 1 == start && (last.from, last.to) == (run.group, range.shard) =>
                    {
                        last.end = end;
                    }
                    Some(_) | None => runs.push(Run { start, end, from: run.group, to: range.shard }),
                }
            }
        }
        runs
    }

    /// How many slots have to move.
    pub fn travelling(&self, owned: &[Owned]) -> u32 {
        self.differences(owned).iter().map(|run| run.end - run.start + 1).sum()
    }

    /// What is wrong with it for these shards: each has one range, and every slot is in one.
    ///
    /// # Errors
    /// The first rule that is broken, for people.
    pub fn check(&self, shards: &[GroupId]) -> Result<(), String> {
        let mut next = 0;
        for range in &self.ranges {
            if range.start != next || range.end < range.start {
                return Err(format!("slot {next} is in no range, or in two"));
            }
            next = range.end + 1;
        }
        if next != SLOTS {
            return Err(format!("slot {next} is in no range, or in two"));
        }
        let mut given: Vec<GroupId> = self.ranges.iter().map(|range| range.shard).collect();
        let mut wanted = shards.to_vec();
        given.sort_unstable();
        wanted.sort_unstable();
        if given == wanted { Ok(()) } else { Err("it is for other shards than the spec has".to_owned()) }
    }
}

/// How many slots of `start..end` a shard owns.
fn kept(owned: &[Owned], shard: GroupId, start: u32, end: u32) -> u32 {
    let own = owned.iter().filter(|run| run.group == shard);
    own.map(|run| (run.end + 1).min(end).saturating_sub(run.start.max(start))).sum()
}

/// The slot in the middle of those that a shard owns; none when it owns nothing.
fn middle(owned: &[Owned], shard: GroupId) -> Option<u32> {
    let total: u32 = owned.iter().filter(|run| run.group == shard).map(Owned::count).sum();
    let mut before = 0;
    owned.iter().filter(|run| run.group == shard).find_map(|run| {
        let at = (total / 2).checked_sub(before).filter(|at| *at < run.count());
        before += run.count();
        at.map(|at| run.start + at)
    })
}

/// One way to go on from a number of ranges that are dealt already.
#[derive(Debug, Clone, Copy)]
struct Best {
    travel: u32,
    newcomer: bool,
    longer: bool,
}

/// The layout with the fewest slots travelling. Shards keep the order of what they own; those that own nothing are put wherever least
/// has to move, in the order of `shards`. Sizes differ by at most one. `shards` is not empty.
pub fn plan(owned: &[Owned], shards: &[GroupId]) -> SlotLayout {
    let mut owners: Vec<(u32, GroupId)> =
        shards.iter().filter_map(|shard| Some((middle(owned, *shard)?, *shard))).collect();
    owners.sort_unstable();
    let newcomers: Vec<GroupId> =
        shards.iter().copied().filter(|shard| middle(owned, *shard).is_none()).collect();
    let count = u32::try_from(shards.len()).unwrap_or(1).max(1);
    let (each, longer) = (SLOTS / count, usize::try_from(SLOTS % count).unwrap_or(0));
    let width = longer + 1;
    let at = |o: usize, n: usize, l: usize| (o * (newcomers.len() + 1) + n) * width + l;
    let start = |o: usize, n: usize, l: usize| {
        u32::try_from(o + n).unwrap_or(0) * each + u32::try_from(l).unwrap_or(0)
    };
    // The least travel for the first `o` owners and `n` newcomers of which `l` ranges are one slot longer, and the last step to it.
    let mut best: Vec<Option<Best>> = vec![None; (owners.len() + 1) * (newcomers.len() + 1) * width];
    best[0] = Some(Best { travel: 0, newcomer: false, longer: false });
    for o in 0..=owners.len() {
        for n in 0..=newcomers.len() {
            for l in 0..=longer {
                let Some(Best { travel, .. }) = best[at(o, n, l)] else { continue };
                let from = start(o, n, l);
                for (newcomer, is_longer) in [(false, true), (false, false), (true, true), (true, false)] {
                    let (next_o, next_n) = if newcomer { (o, n + 1) } else { (o + 1, n) };
                    let next_l = l + usize::from(is_longer);
                    if next_o > owners.len() || next_n > newcomers.len() || next_l > longer {
                        continue;
                    }
                    let to = from + each + u32::from(is_longer);
                    let stays = if newcomer { 0 } else { kept(owned, owners[o].1, from, to) };
                    let travel = travel + (to - from - stays);
                    let known = &mut best[at(next_o, next_n, next_l)];
                    if known.is_none_or(|known| travel < known.travel) {
                        *known = Some(Best { travel, newcomer, longer: is_longer });
                    }
                }
            }
        }
    }
    let (mut o, mut n, mut l) = (owners.len(), newcomers.len(), longer);
    let mut ranges = Vec::new();
    while o + n > 0 {
        let Some(last) = best[at(o, n, l)] else { break };
        let end = start(o, n, l) - 1;
        if last.newcomer {
            n -= 1;
        } else {
            o -= 1;
        }
        l -= usize::from(last.longer);
        let shard = if last.newcomer { newcomers[n] } else { owners[o].1 };
        ranges.push(ShardRange { shard, start: start(o, n, l), end });
    }
    ranges.reverse();
    SlotLayout { ranges }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;

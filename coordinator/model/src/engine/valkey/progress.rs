//! How far slots are on their way. In: the layout and the operation of the log, the newest facts of all members. Out: counts for people,
//! and the next layout. Called by the planner and the status.

use shardplane_proto::ids::GroupId;

use super::{
    SLOTS,
    facts::{primaries, report_of},
    layout::{self, SlotLayout},
    moves,
    ownership::{Owned, heard, known},
};
use crate::{engine::ClusterView, time::Millis};

/// Counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Slots that have to move altogether.
    pub goal: u64,
    /// Those that still have to.
    pub left: u64,
    /// Keys that went with the others, as far as ended tasks told.
    pub keys: u64,
    /// At the pace so far; none before anything moved.
    pub remaining: Option<Millis>,
}

/// How far it is; none while nothing is to move.
pub fn of(view: &ClusterView<'_>) -> Option<Progress> {
    let (layout, operation) = (moves::layout(view)?, view.reshard?);
    let left = u64::from(layout.travelling(&known(view)));
    let goal = operation.goal.as_ref().map_or(left, |goal| goal.amount).max(left);
    let elapsed = view.now.since(operation.created).0;
    let done = goal - left;
    let remaining = (done > 0).then(|| Millis(elapsed.saturating_mul(left) / done));
    Some(Progress { goal, left, keys: operation.counts.get("keys").copied().unwrap_or(0), remaining })
}

/// The layout for these shards and how many slots have to travel for it; none when everything is where it shall be.
///
/// # Errors
/// What has to be known first, for people.
pub fn wanted(view: &ClusterView<'_>, shards: &[GroupId]) -> Result<Option<(SlotLayout, u64)>, String> {
    let owned = heard(view, &primaries(view));
    let missing = SLOTS - owned.iter().map(Owned::count).sum::<u32>();
    if missing > 0 {
        return Err(format!("{missing} slots are claimed by no primary that answers"));
    }
    let layout = layout::plan(&owned, shards);
    let travelling = layout.travelling(&owned);
    Ok((travelling > 0).then(|| (layout, travelling.into())))
}

/// For people: how far it is, and what holds it up.
pub fn text(view: &ClusterView<'_>) -> Option<String> {
    let Progress { goal, left, keys, remaining } = of(view)?;
    let mut text = format!("{} of {goal} slots have moved, {keys} keys with them", goal - left);
    if let Some(error) = view.reshard.and_then(|operation| operation.halted.as_ref()) {
        text.push_str(&format!("; halted: {error}"));
        return Some(text);
    }
    if let Some(remaining) = remaining.filter(|_| left > 0) {
        text.push_str(&format!("; about {remaining} to go"));
    }
    let moving = view.members.iter().filter_map(|member| report_of(member)?.slot_move.as_ref());
    for large in moving.filter_map(|moving| Some((moving.slot, moving.large_key.as_ref()?))) {
        let (slot, key) = large;
        text.push_str(&format!(
            "; slot {slot} holds key {} of {} bytes: both primaries stand still for about {} ms",
            key.name, key.bytes, key.pause_ms
        ));
    }
    Some(text)
}

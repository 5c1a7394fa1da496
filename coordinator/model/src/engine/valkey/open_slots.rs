//! Slots that are marked as half way. In: what the primaries mark, by their own words. Out: tasks that close those which are not on their
//! way to where they shall be, or what has to be known first; the others are gone on with by what moves slots.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1::{
        self,
        valkey_task::{CloseSlot, CloseSlots, Step as Body},
    },
};

use super::{
    facts::fact_of,
    marks,
    moves::{Lead, Picture, is_slot_task},
    tasks::step,
};
use crate::{
    engine::{Member, Next},
    time::Millis,
};

/// Slots that one task closes.
const CLOSED_AT_ONCE: usize = 256;
/// Reports need this long to show what a slot task did.
const SHOWS: Millis = Millis::seconds(2);

/// What becomes of an open slot.
enum Fate {
    /// It is on its way to where it shall be: the next task that moves slots goes on with it.
    Resume,
    /// It goes back to its owner.
    Close,
}

impl<'v> Picture<'v> {
    /// How a slot stands that the primary of `holder` marks as open. None when the other side's mark speaks for it.
    fn judge(&self, holder: GroupId, mark: &v1::ValkeyOpenSlot) -> Option<Fate> {
        let peer = self.leads.iter().find(|(_, lead)| lead.report.node_id == marks::other(mark));
        let owner = self.owner(mark.slot);
        let (from, to) = match (marks::importing(mark), peer) {
            (false, peer) => (Some(holder), peer.map(|(group, _)| *group)),
            (true, Some((group, lead))) => {
                let own_node = &self.leads.get(&holder)?.report.node_id;
                let speaks = |theirs: &v1::ValkeyOpenSlot| {
                    theirs.slot == mark.slot
                        && !marks::importing(theirs)
                        && marks::other(theirs) == own_node.as_str()
                };
                if lead.report.open_slots.iter().any(speaks) {
                    return None;
                }
                (Some(*group), Some(holder))
            }
            (true, None) => (None, Some(holder)),
        };
        let wanted = self.layout.and_then(|layout| layout.of(mark.slot));
        Some(if owner.is_some() && owner == from && to.is_some() && to == wanted && from != to {
            Fate::Resume
        } else {
            Fate::Close
        })
    }

    /// Closes what is open and not on its way to where it shall be. Answers whether anything is.
    pub(super) fn close(&self, next: &mut Next) -> bool {
        let mut closing: BTreeMap<InstanceId, Vec<CloseSlot>> = BTreeMap::new();
        let mut blocked = BTreeSet::new();
        for (group, lead) in &self.leads {
            for mark in &lead.report.open_slots {
                match self.judge(*group, mark) {
                    None | Some(Fate::Resume) => continue,
                    Some(Fate::Close) => {}
                }
                match self.other_side(marks::other(mark)) {
                    Ok(peer) => {
                        let peer_node_id = peer.map(|lead| lead.report.node_id.clone()).unwrap_or_default();
                        let peer = peer.map(|lead| lead.address());
                        let slots = closing.entry(lead.member.instance.id).or_default();
                        slots.push(CloseSlot { slot: mark.slot, peer_node_id, peer });
                    }
                    Err(silent) => {
                        blocked.insert(format!(
                            "slot {} of shard {group} is half way to instance {silent}, whose shard has no primary that answers",
                            mark.slot
                        ));
                    }
                }
            }
        }
        if closing.is_empty() && blocked.is_empty() {
            return false;
        }
        next.waiting.extend(blocked);
        let ended = self.view.tasks.iter().filter(|task| is_slot_task(&task.payload)).filter_map(|t| t.ended);
        if let Some(last) = ended.max().filter(|last| self.view.now.since(*last) < SHOWS) {
            next.again_at = Some(last.plus(SHOWS));
            next.waiting.push("reports have to show what became of a slot on its way".to_owned());
            return true;
        }
        for (instance, mut slots) in closing {
            slots.sort_by_key(|slot| slot.slot);
            slots.dedup_by_key(|slot| slot.slot);
            slots.truncate(CLOSED_AT_ONCE);
            let name = match slots.as_slice() {
                [one] => format!("close slot {}", one.slot),
                many => format!("close {} slots", many.len()),
            };
            next.steps.push(step(instance, name, Body::CloseSlots(CloseSlots { slots })));
        }
        true
    }

    /// The primary that answers for the node a mark names: that node, or whoever succeeded it; none when it is none of ours.
    fn other_side(&self, node: &str) -> Result<Option<Lead<'v>>, InstanceId> {
        if let Some(lead) = self.leads.values().find(|lead| lead.report.node_id == node) {
            return Ok(Some(*lead));
        }
        let named = |member: &&Member<'_>| fact_of(member).is_some_and(|fact| fact.node_id == node);
        match self.view.members.iter().find(named) {
            None => Ok(None),
            Some(member) => match self.leads.get(&member.instance.group) {
                Some(lead) => Ok(Some(*lead)),
                None => Err(member.instance.id),
            },
        }
    }
}

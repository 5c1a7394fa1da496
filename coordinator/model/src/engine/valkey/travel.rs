//! What each shard holds, and what of it would travel for another layout. In: who owns what now, with what it reports. Out: slots, keys
//! and bytes, of shards and from shard to shard: estimates, because slots are taken as equally full. Called when something is planned.

use std::collections::BTreeMap;

use shardplane_proto::ids::GroupId;

use super::{
    facts::report_of,
    layout::SlotLayout,
    ownership::{Owned, known},
};
use crate::engine::{ClusterView, Held, Travel};

/// What the shards hold that own slots, by what their owners report.
pub fn held(view: &ClusterView<'_>) -> BTreeMap<GroupId, Held> {
    let mut held: BTreeMap<GroupId, Held> = BTreeMap::new();
    for run in known(view) {
        let entry = held.entry(run.group).or_insert_with(|| {
            let owner = view.members.iter().find(|m| m.instance.id == run.instance);
            let report = owner.and_then(report_of);
            let (keys, bytes) = report.map_or((0, 0), |report| (report.keys, report.used_memory_bytes));
            Held { slots: 0, keys, bytes }
        });
        entry.slots += Owned::count(&run);
    }
    held
}

/// What would travel, from the first slot on.
pub fn travels(view: &ClusterView<'_>, layout: &SlotLayout) -> Vec<Travel> {
    let owned = known(view);
    let mut sums: Vec<Travel> = Vec::new();
    for run in layout.differences(&owned) {
        let slots = run.end - run.start + 1;
        match sums.iter_mut().find(|sum| (sum.from, sum.to) == (run.from, run.to)) {
            Some(sum) => sum.slots += slots,
            None => sums.push(Travel { from: run.from, to: run.to, slots, keys: 0, bytes: 0 }),
        }
    }
    let held = held(view);
    for sum in &mut sums {
        if let Some(held) = held.get(&sum.from) {
            let share = |all: u64| {
                let part = u128::from(all) * u128::from(sum.slots) / u128::from(held.slots.max(1));
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            (sum.keys, sum.bytes) = (share(held.keys), share(held.bytes));
        }
    }
    sums
}

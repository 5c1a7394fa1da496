//! What would travel for another layout. In: who owns what now, with what it holds. Out: slots, keys and
//! bytes from shard to shard: estimates, because slots are taken as equally full. Called when a change is rehearsed.

use std::collections::BTreeMap;

use super::{
    facts::report_of,
    layout::SlotLayout,
    ownership::{Owned, known},
};
use crate::engine::{ClusterView, Travel};

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
    let mut holds = BTreeMap::new();
    for run in &owned {
        let report = view.members.iter().find(|m| m.instance.id == run.instance).and_then(report_of);
        let entry = holds.entry(run.group).or_insert((0, report));
        entry.0 += Owned::count(run);
    }
    for sum in &mut sums {
        if let Some((slots, Some(report))) = holds.get(&sum.from) {
            let share = |all: u64| {
                let part = u128::from(all) * u128::from(sum.slots) / u128::from((*slots).max(1));
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            (sum.keys, sum.bytes) = (share(report.keys), share(report.used_memory_bytes));
        }
    }
    sums
}

//! Who owns which slot, as one node sees it: runs of slots with the same owner. In: claims, forgotten nodes. Out: owners and ranges.

use std::collections::BTreeMap;

use super::node::NodeId;

/// First slot of a run to its last one and its owner; neighbours of one owner are one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotTable(BTreeMap<u32, (u32, NodeId)>);

impl SlotTable {
    pub fn owner(&self, slot: u32) -> Option<NodeId> {
        self.0.range(..=slot).next_back().filter(|(_, (end, _))| slot <= *end).map(|(_, (_, owner))| *owner)
    }

    pub fn runs(&self) -> impl Iterator<Item = (u32, u32, NodeId)> {
        self.0.iter().map(|(start, (end, owner))| (*start, *end, *owner))
    }

    /// Parts of `start..=end` with their owners, and the parts that nobody owns.
    pub fn within(&self, start: u32, end: u32) -> Vec<(u32, u32, Option<NodeId>)> {
        let mut parts = Vec::new();
        let mut next = start;
        let first = self.0.range(..=start).next_back().map_or(start, |(first, _)| *first);
        for (run, (last, owner)) in self.0.range(first..=end).filter(|(_, (last, _))| *last >= start) {
            if *run > next {
                parts.push((next, run - 1, None));
            }
            parts.push(((*run).max(start), (*last).min(end), Some(*owner)));
            next = last + 1;
        }
        if next <= end {
            parts.push((next, end, None));
        }
        parts
    }

    pub fn clear(&mut self, start: u32, end: u32) {
        for (from, to, owner) in self.within(start, end) {
            let Some(owner) = owner else { continue };
            let (run, (last, _)) = self.0.range(..=from).next_back().map(|(a, b)| (*a, *b)).unwrap();
            self.0.remove(&run);
            if run < from {
                self.0.insert(run, (from - 1, owner));
            }
            if last > to {
                self.0.insert(to + 1, (last, owner));
            }
        }
    }

    pub fn set(&mut self, mut start: u32, mut end: u32, owner: NodeId) {
        self.clear(start, end);
        if let Some((before, (last, who))) = self.0.range(..start).next_back().map(|(a, b)| (*a, *b))
            && who == owner
            && last + 1 == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some((last, who)) = self.0.get(&(end + 1)).copied()
            && who == owner
        {
            self.0.remove(&(end + 1));
            end = last;
        }
        self.0.insert(start, (end, owner));
    }

    pub fn of(&self, owner: NodeId) -> Vec<(u32, u32)> {
        self.runs().filter(|(_, _, who)| *who == owner).map(|(start, end, _)| (start, end)).collect()
    }

    pub fn has(&self, owner: NodeId) -> bool {
        self.0.values().any(|(_, who)| *who == owner)
    }

    pub fn owners(&self) -> Vec<NodeId> {
        let mut owners: Vec<NodeId> = self.0.values().map(|(_, owner)| *owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }

    pub fn covered(&self) -> u32 {
        self.runs().map(|(start, end, _)| end - start + 1).sum()
    }

    /// What `from` owns is now `to`'s, or nobody's.
    pub fn hand(&mut self, from: NodeId, to: Option<NodeId>) {
        for (start, end) in self.of(from) {
            self.clear(start, end);
            if let Some(to) = to {
                self.set(start, end, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_split_and_join() {
        let mut table = SlotTable::default();
        table.set(0, 99, 1);
        table.set(40, 49, 2);
        assert_eq!(table.runs().collect::<Vec<_>>(), [(0, 39, 1), (40, 49, 2), (50, 99, 1)]);
        assert_eq!((table.owner(39), table.owner(40), table.owner(100)), (Some(1), Some(2), None));
        assert_eq!(
            table.within(30, 120),
            [(30, 39, Some(1)), (40, 49, Some(2)), (50, 99, Some(1)), (100, 120, None)]
        );
        table.set(45, 45, 1);
        table.set(40, 44, 1);
        table.set(46, 49, 1);
        assert_eq!(table.runs().collect::<Vec<_>>(), [(0, 99, 1)]);
        table.clear(10, 10);
        assert_eq!((table.of(1), table.covered()), (vec![(0, 9), (11, 99)], 99));
        table.hand(1, Some(3));
        assert!(!table.has(1) && table.owners() == [3]);
        table.hand(3, None);
        assert_eq!(table.covered(), 0);
    }
}

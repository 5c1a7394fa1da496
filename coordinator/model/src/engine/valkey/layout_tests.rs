//! Properties of layouts: contiguous, even, deterministic, and never more travel than the best that trying everything finds.

use shardplane_proto::ids::InstanceId;

use super::*;

fn shard(number: u32) -> GroupId {
    GroupId::from_u128(u128::from(number) + 1)
}

fn shards(count: u32) -> Vec<GroupId> {
    (0..count).map(shard).collect()
}

fn run(start: u32, end: u32, group: GroupId) -> Owned {
    Owned { start, end, group, instance: InstanceId::from_u128(group.as_u128()) }
}

fn as_owned(layout: &SlotLayout) -> Vec<Owned> {
    layout.ranges.iter().map(|range| run(range.start, range.end, range.shard)).collect()
}

fn even(count: u32) -> Vec<Owned> {
    (0..count)
        .map(|index| {
            let (start, end) = super::super::slots_of(index, count);
            run(start, end, shard(index))
        })
        .collect()
}

fn assert_sound(layout: &SlotLayout, wanted: &[GroupId]) {
    assert_eq!(layout.check(wanted), Ok(()));
    let sizes: Vec<u32> = wanted.iter().map(|shard| layout.size(*shard)).collect();
    assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
}

/// The least travel over all places for the shards that own nothing and all choices of the longer ranges, the rest in `order`.
fn least(owned: &[Owned], order: &[GroupId], new: &[GroupId]) -> u32 {
    let Some((first, rest)) = new.split_first() else {
        let count = u32::try_from(order.len()).unwrap();
        let longer = SLOTS % count;
        let choices = (0..1u32 << count).filter(|choice| choice.count_ones() == longer);
        return choices
            .map(|choice| {
                let mut start = 0;
                let mut ranges = Vec::new();
                for (index, shard) in order.iter().enumerate() {
                    let end = start + SLOTS / count + (choice >> index & 1) - 1;
                    ranges.push(ShardRange { shard: *shard, start, end });
                    start = end + 1;
                }
                SlotLayout { ranges }.travelling(owned)
            })
            .min()
            .unwrap();
    };
    (0..=order.len())
        .map(|at| {
            let mut order = order.to_vec();
            order.insert(at, *first);
            least(owned, &order, rest)
        })
        .min()
        .unwrap()
}

#[test]
fn what_is_even_and_contiguous_stays() {
    for count in 1..=128 {
        let (owned, wanted) = (even(count), shards(count));
        let layout = plan(&owned, &wanted);
        assert_eq!(as_owned(&layout), owned);
    }
}

#[test]
fn one_more_and_one_less_are_even_and_move_no_more_than_they_must() {
    for count in 1..=32 {
        let more = plan(&even(count), &shards(count + 1));
        assert_sound(&more, &shards(count + 1));
        assert_eq!(more, plan(&even(count), &shards(count + 1)));
        let less: Vec<GroupId> = shards(count + 1).into_iter().filter(|s| *s != shard(count / 2)).collect();
        let fewer = plan(&as_owned(&more), &less);
        assert_sound(&fewer, &less);
        if count <= 6 {
            let new = [shard(count)];
            assert_eq!(more.travelling(&even(count)), least(&even(count), &shards(count), &new), "{count}");
            let order: Vec<GroupId> =
                more.ranges.iter().map(|r| r.shard).filter(|s| less.contains(s)).collect();
            assert_eq!(fewer.travelling(&as_owned(&more)), least(&as_owned(&more), &order, &[]), "{count}");
        }
    }
    let four = plan(&even(3), &shards(4));
    assert!(four.travelling(&even(3)) <= 5462, "{four:?}");
    assert!(four.travelling(&even(3)) >= 4096);
    assert_eq!(plan(&even(3), &shards(4)).size(shard(3)), 4096);
}

/// A few slots of each difference have moved, in any order: what a cancelled change leaves.
fn ragged(from: &[Owned], layout: &SlotLayout, seed: u64) -> Vec<Owned> {
    let mut slots: Vec<Owned> =
        from.iter().flat_map(|r| (r.start..=r.end).map(|s| run(s, s, r.group))).collect();
    let mut random = seed;
    for part in layout.differences(from) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = u32::try_from(random >> 40).unwrap() % (part.end - part.start + 2);
        for slot in part.start..part.start + share {
            slots[slot as usize].group = part.to;
        }
    }
    let mut owned: Vec<Owned> = Vec::new();
    for slot in slots {
        match owned.last_mut() {
            Some(last) if last.group == slot.group => last.end = slot.end,
            Some(_) | None => owned.push(slot),
        }
    }
    owned
}

#[test]
fn after_a_cancel_going_on_and_going_back_move_no_more_than_they_must() {
    for seed in 0..40 {
        for count in [3, 4, 5] {
            let (before, wanted) = (even(count), shards(count + 1));
            let layout = plan(&before, &wanted);
            let now = ragged(&before, &layout, seed);
            let on = plan(&now, &wanted);
            assert_sound(&on, &wanted);
            assert!(on.travelling(&now) <= layout.travelling(&now), "{seed} {count}");
            let back = plan(&now, &shards(count));
            assert_sound(&back, &shards(count));
            let same = SlotLayout {
                ranges: before
                    .iter()
                    .map(|r| ShardRange { shard: r.group, start: r.start, end: r.end })
                    .collect(),
            };
            assert!(back.travelling(&now) <= same.travelling(&now), "{seed} {count}");
            assert_eq!(
                as_owned(&plan(&as_owned(&on), &wanted)),
                as_owned(&on),
                "it stays when it is reached"
            );
        }
    }
}

#[test]
fn a_stray_slot_does_not_turn_the_order_round() {
    let (a, b, c) = (shard(0), shard(1), shard(2));
    let owned = [run(0, 0, c), run(1, 5461, a), run(5462, 10_922, b), run(10_923, 16_383, c)];
    let layout = plan(&owned, &[a, b, c]);
    assert_eq!(layout.ranges.iter().map(|range| range.shard).collect::<Vec<_>>(), [a, b, c]);
    assert_eq!(layout.travelling(&owned), 1);
}

#[test]
fn a_layout_is_checked_for_gaps_and_shards() {
    let good = plan(&even(3), &shards(3));
    assert_eq!(good.check(&shards(3)), Ok(()));
    assert!(good.check(&shards(4)).is_err());
    for bad in [(0, 1, 5461), (2, 10_923, 16_382), (1, 5462, 10_921), (1, 5461, 10_922)] {
        let mut layout = good.clone();
        (layout.ranges[bad.0].start, layout.ranges[bad.0].end) = (bad.1, bad.2);
        assert!(layout.check(&shards(3)).is_err(), "{bad:?}");
    }
}

#[test]
fn differences_are_runs_of_one_owner_to_one_target() {
    let layout = plan(&even(3), &shards(4));
    let runs = layout.differences(&even(3));
    assert_eq!(runs.iter().map(|r| r.end - r.start + 1).sum::<u32>(), layout.travelling(&even(3)));
    assert!(runs.iter().all(|r| r.from != r.to && layout.of(r.start) == Some(r.to)));
    assert!(layout.differences(&as_owned(&layout)).is_empty());
}

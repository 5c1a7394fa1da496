//! Valkey: what it needs and how a cluster of it comes to be and stays whole. Used by the parent's one match alone.

pub mod check;
pub mod config;
pub mod directives;
pub mod facts;
pub mod layout;
mod marks;
pub mod moves;
mod open_slots;
pub mod ownership;
pub mod parameters;
pub mod progress;
pub mod spec;
pub mod status;
pub mod takeover;
pub mod tasks;
pub mod travel;

/// Hash slots of a cluster.
pub const SLOTS: u32 = 16_384;
/// Client port, the same in every cluster.
pub const PORT: u32 = 6_379;
/// Cluster bus port: the engine's own default, client port plus 10000.
pub const BUS_PORT: u32 = 16_379;
/// Most replicas a shard may have.
pub const MOST_REPLICAS: i32 = 5;
/// Most shards: far below what the gossip bears, far above what anybody asked for.
pub const MOST_SHARDS: usize = 128;

/// First and last slot of the shard at `index` of `count`: even and contiguous, the first `SLOTS % count` get one more.
pub fn slots_of(index: u32, count: u32) -> (u32, u32) {
    let (each, more) = (SLOTS / count, SLOTS % count);
    let start = index * each + index.min(more);
    (start, start + each + u32::from(index < more) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_even_contiguous_and_complete() {
        for count in 1..=MOST_SHARDS as u32 {
            let mut next = 0;
            for index in 0..count {
                let (start, end) = slots_of(index, count);
                assert_eq!(start, next);
                assert!((end - start + 1).abs_diff(SLOTS / count) <= 1);
                next = end + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }
}

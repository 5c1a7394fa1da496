//! How many keys go in one MIGRATE, how long it may take, and what a large key costs.
//!
//! In: keys with their sizes. Out: batches, timeouts, pauses. Pure; called by `transfer`.
//!
//! MIGRATE stops the source from its first byte until the target's last answer, and the target while it takes the values in.

use std::time::Duration;

/// Most keys asked for at once.
pub const MOST_KEYS: usize = 100;
/// A batch ends where it would hold more bytes; a larger key goes alone.
const MOST_BYTES: u64 = 512 << 10;
/// A key from this size on is told to people.
pub const LARGE: u64 = 32 << 20;
/// Bytes, as MEMORY USAGE counts them, that two engines move in a second: measured with a hash of 1.5 million fields on two busy
/// cores, see `one_large_hash` in the guest tests. Small keys cost by their number rather than by their bytes.
const BYTES_PER_SECOND: u64 = 30_000_000;
/// Of what is expected: how busy the machines are is not known.
const TIMEOUT_FACTOR: u32 = 4;
const LONGEST_LEAST: Duration = Duration::from_secs(1);

/// A key and its bytes in memory, as the engine estimates them.
pub type Sized = (Vec<u8>, u64);

/// Keys in the same order, cut into batches of at most so many.
pub fn batches(keys: Vec<Sized>, most: usize) -> Vec<Vec<Sized>> {
    let mut batches: Vec<Vec<Sized>> = Vec::new();
    let mut bytes = 0_u64;
    for (key, size) in keys {
        bytes = bytes.saturating_add(size);
        match batches.last_mut() {
            Some(last) if bytes <= MOST_BYTES && last.len() < most => last.push((key, size)),
            Some(_) | None => {
                bytes = size;
                batches.push(vec![(key, size)]);
            }
        }
    }
    batches
}

/// How long moving so many bytes stops both nodes.
pub fn pause(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / BYTES_PER_SECOND)
}

/// MIGRATE's timeout, which is for each wait on the target. The source stands still as long, and must not for so long that
/// the others take it for dead because the target is.
pub fn timeout(bytes: u64, node_timeout: Duration) -> Duration {
    let least = (node_timeout / 8).min(LONGEST_LEAST);
    pause(bytes).saturating_mul(TIMEOUT_FACTOR).max(least).min(node_timeout.mul_f32(0.9))
}

/// Whether two tries in a row are short enough for that.
pub fn fits_twice(timeout: Duration, node_timeout: Duration) -> bool {
    timeout * 2 <= node_timeout / 2
}

/// Whether a key of so many bytes would stop the nodes for so long that the others vote them out.
pub fn outlasts(bytes: u64, node_timeout: Duration) -> bool {
    pause(bytes) > node_timeout.mul_f32(0.7)
}

/// At most 64 bytes of a key's name, escaped.
pub fn name(key: &[u8]) -> String {
    let mut name: String =
        key.iter().take(64).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
    name.truncate(64);
    name
}

/// Bytes for people.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(sizes: &[u64]) -> Vec<Vec<u64>> {
        let keys = sizes.iter().map(|size| (vec![b'k'], *size)).collect();
        batches(keys, 3).into_iter().map(|batch| batch.into_iter().map(|(_, size)| size).collect()).collect()
    }

    #[test]
    fn batches_are_bounded_by_bytes_and_a_large_key_goes_alone() {
        let half = MOST_BYTES / 2;
        assert_eq!(sizes(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(sizes(&[1, 2, 3]), [[1, 2, 3]]);
        assert_eq!(sizes(&[1, 2, 3, 4]), [vec![1, 2, 3], vec![4]]);
        assert_eq!(sizes(&[half, half, 1]), [vec![half, half], vec![1]]);
        assert_eq!(sizes(&[1, LARGE, 1, 2]), [vec![1], vec![LARGE], vec![1, 2]]);
        assert_eq!(sizes(&[u64::MAX, u64::MAX]), [[u64::MAX], [u64::MAX]]);
    }

    #[test]
    fn timeouts_grow_with_the_bytes() {
        let five = Duration::from_secs(5);
        assert_eq!(timeout(0, five), Duration::from_millis(625));
        assert_eq!(timeout(0, five * 100), Duration::from_secs(1));
        assert_eq!(pause(60_000_000), Duration::from_secs(2));
        assert_eq!(timeout(30_000_000, five), Duration::from_secs(4));
        assert_eq!(timeout(u64::MAX, five), Duration::from_millis(4500));
        assert!(fits_twice(timeout(0, five), five) && !fits_twice(timeout(30_000_000, five), five));
        assert!(!outlasts(100_000_000, Duration::from_secs(5)));
        assert!(outlasts(1_400_000_000, Duration::from_secs(5)), "a hash of 14 million fields");
    }

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(name(b"plain:{1}"), "plain:{1}");
        assert_eq!(name(b"\xff\n"), "\\xff\\n");
        assert_eq!(name(&[0; 100]).len(), 64);
    }
}

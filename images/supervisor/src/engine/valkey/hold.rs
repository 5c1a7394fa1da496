//! The hold rule: a primary that died gives its replicas the time to take over before it starts again.
//!
//! In: nodes.conf as the dead engine left it. Out: how long to wait. Pure; called by `mod` before each start.
//!
//! Why: an append-only file that is synced every second lacks up to a second of writes that the replicas have. A
//! primary that is back before the failover would win with the older data, and its replicas would copy it.

use std::time::Duration;

use super::parse;

/// What a failover may take beyond the timeouts: the vote's delay and its rounds.
const VOTE: Duration = Duration::from_secs(5);

/// Some when nodes.conf says that this node was a primary with slots and somebody could take over: two node timeouts
/// (one until it is suspected, one for the majority to agree) and the vote. An empty nodes.conf is a first start.
pub fn hold(nodes_conf: &str, has_replicas: bool, node_timeout: Duration) -> Option<Duration> {
    let was_primary = parse::nodes(nodes_conf)
        .iter()
        .any(|node| node.is("myself") && node.is("master") && !node.slots.is_empty());
    (has_replicas && was_primary).then(|| node_timeout * 2 + VOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIMARY: &str = "\
0245661d4bf70a334e7ccc0054180439e256ba57 127.0.0.1:7002@17002,two.example,tls-port=0,shard-id=cb470c293f5912365bef5d471f710a263bc888e6 master - 0 1796054627996 2 connected 8192-16383
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 myself,master - 0 0 1 connected 0-8191 [100->-0245661d4bf70a334e7ccc0054180439e256ba57]
vars currentEpoch 2 lastVoteEpoch 0
";
    const REPLICA: &str = "\
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 master - 0 1796054628997 1 connected 0-8191
453cff8be5a592c1f4aad70a87c54abcf007cd8b 127.0.0.1:7003@17003,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 myself,slave 6e731a511d84d1a3938221280d95474aa68545ca 0 0 1 connected [100->-0245661d4bf70a334e7ccc0054180439e256ba57]
vars currentEpoch 2 lastVoteEpoch 0
";
    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn a_primary_with_slots_and_replicas_is_held() {
        assert_eq!(hold(PRIMARY, true, TIMEOUT), Some(Duration::from_secs(15)));
    }

    #[test]
    fn nobody_else_is_held() {
        assert_eq!(hold(PRIMARY, false, TIMEOUT), None, "nobody could take over");
        assert_eq!(hold(REPLICA, true, TIMEOUT), None);
        assert_eq!(hold("", true, TIMEOUT), None, "first start");
        let empty = PRIMARY.replace(" 0-8191", "");
        assert_eq!(hold(&empty, true, TIMEOUT), None, "a migration marker is no slot");
    }
}

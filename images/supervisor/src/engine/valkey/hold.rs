//! The hold rule: a primary that died gives its replicas the time to take over before it starts again.
//!
//! In: nodes.conf as the dead engine left it, after `yielding` made a replica of whoever was succeeded; the config. Out: how long to
//! wait, and why. Pure; called by `mod` before each start.
//!
//! Why: an append-only file that is synced every second lacks up to a second of writes that the replicas have. A
//! primary that is back before the failover would win with the older data, and its replicas would copy it. Without any
//! file it would win with nothing, and no wait is long enough for that: the replicas may be cut off from each other.

use std::time::Duration;

use shardplane_proto::v1::ValkeyConfig;

use super::parse;
use crate::engine::Hold;

/// What a failover may take beyond the timeouts: the vote's delay and its rounds.
const VOTE: Duration = Duration::from_secs(5);

/// What a node with importing marks waits besides: it must not start before it is told of an heir, see `yielding`.
const NEWS: Duration = Duration::from_secs(15);

const OLDER: &str = "this node was a primary: its replicas get the time to take over before it starts";
const EMPTY: &str = "this node was a primary with its data in memory only, and the data is lost: if it started now, \
    its replicas would erase their copies. It starts when the coordinator sees another primary of its shard, which the \
    engine elects or the coordinator promotes. If no replica has the data any more, delete the cluster and create it anew";

/// Some when nodes.conf says that this node was a primary with slots, somebody could take over and nobody has: for two
/// node timeouts (one until it is suspected, one for the majority to agree) and the vote, or without an end when it would
/// come back empty. An empty nodes.conf is a first start.
pub fn hold(nodes_conf: &str, config: &ValkeyConfig) -> Option<Hold> {
    let was_primary = |node: &parse::Node| node.is("myself") && node.is("master") && !node.slots.is_empty();
    let own = parse::nodes(nodes_conf).into_iter().find(was_primary)?;
    if !config.has_replicas {
        return None;
    }
    let node_timeout = Duration::from_millis(config.node_timeout_ms.into());
    let imports = own.open.iter().any(|(_, mark)| matches!(mark, parse::Mark::ImportingFrom(_)));
    let news = if imports { NEWS } else { Duration::ZERO };
    Some(match config.persistent {
        true => Hold { length: Some(node_timeout * 2 + VOTE + news), why: OLDER },
        false => Hold { length: None, why: EMPTY },
    })
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

    fn config() -> ValkeyConfig {
        ValkeyConfig { has_replicas: true, persistent: true, node_timeout_ms: 5000, ..Default::default() }
    }

    #[test]
    fn a_primary_with_slots_and_replicas_is_held() {
        let held = hold(PRIMARY, &config()).unwrap();
        assert_eq!(held.length, Some(Duration::from_secs(15)));
        let imports = PRIMARY.replace("[100->-", "[9000-<-");
        assert_eq!(hold(&imports, &config()).unwrap().length, Some(Duration::from_secs(30)));
    }

    #[test]
    fn one_that_comes_back_empty_is_held_without_an_end() {
        let in_memory = ValkeyConfig { persistent: false, ..config() };
        let held = hold(PRIMARY, &in_memory).unwrap();
        assert_eq!(held.length, None);
        assert!(held.why.contains("would erase their copies"), "{}", held.why);
        assert_eq!(hold(REPLICA, &in_memory), None, "its primary has the data");
        assert_eq!(hold("", &in_memory), None, "first start");
        assert_eq!(hold(PRIMARY, &ValkeyConfig { has_replicas: false, ..in_memory }), None);
    }

    #[test]
    fn nobody_else_is_held() {
        let alone = ValkeyConfig { has_replicas: false, ..config() };
        assert_eq!(hold(PRIMARY, &alone), None, "nobody could take over");
        assert_eq!(hold(REPLICA, &config()), None);
        assert_eq!(hold("", &config()), None, "first start");
        let empty = PRIMARY.replace(" 0-8191", "");
        assert_eq!(hold(&empty, &config()), None, "a migration marker is no slot");
    }
}

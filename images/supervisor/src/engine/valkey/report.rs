//! What the node says about itself and its peers.
//!
//! In: CLUSTER INFO, CLUSTER NODES, INFO and CONFIG GET of the running engine. Out: an encoded `ValkeyReport`. Called by `mod`.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_proto::v1::{
    ValkeyDirective, ValkeyOpenSlot, ValkeyPeer, ValkeyRefusal, ValkeyReport, ValkeySlotMove, ValkeySlots,
    valkey_open_slot::Direction,
};

use super::{
    control::Control,
    directives,
    parse::{self, Mark},
    slots::Progress,
};
use crate::engine::{EngineError, Report};

/// The directive with which a replica stands in no election.
const NO_FAILOVER: &str = "cluster-replica-no-failover";
/// A replica heard of so many seconds ago still counts.
const GOOD_LAG: u64 = 10;

/// Asks the engine. An error while it loads its data.
pub async fn report(
    control: &Control,
    directives: &[ValkeyDirective],
    refused: &[ValkeyRefusal],
    progress: &Progress,
) -> Result<Report, EngineError> {
    let mut question = redis::pipe();
    // Before the role: a replica that stands in no election by then wins none after.
    question
        .cmd("CONFIG")
        .arg("GET")
        .arg(NO_FAILOVER)
        .arg(directives.iter().map(|d| d.name.as_str()).collect::<Vec<_>>());
    question.cmd("CLUSTER").arg("INFO");
    question.cmd("CLUSTER").arg("NODES");
    question.cmd("INFO").arg(&["server", "memory", "replication", "keyspace"]);
    let (config, cluster, nodes, info): (BTreeMap<String, String>, String, String, String) =
        control.ask(&question).await?;
    let mut report = assemble(&cluster, &nodes, &info)
        .ok_or_else(|| EngineError::Engine("CLUSTER NODES does not list the node itself".to_owned()))?;
    report.unapplied_directives = directives::unapplied(directives, &config);
    report.stands_down = config.get(NO_FAILOVER).is_some_and(|value| value == "yes");
    report.slot_move = progress.now();
    let still =
        |one: &&ValkeyRefusal| report.unapplied_directives.iter().any(|n| n.eq_ignore_ascii_case(&one.name));
    report.refused_directives = refused.iter().filter(still).cloned().collect();
    let (message, live_copies) = (report.encode_to_vec(), report.good_replicas);
    let read_only = report.role == "slave";
    Ok(Report { message, meaning: meaning(report), live_copies, read_only })
}

/// The same report without what changes under normal load.
fn meaning(mut report: ValkeyReport) -> Vec<u8> {
    report.offset = 0;
    report.used_memory_bytes = 0;
    report.keys = 0;
    // Of a move only what people should know at once; how far it is comes with the next report.
    report.slot_move =
        report.slot_move.map(|now| ValkeySlotMove { large_key: now.large_key, ..ValkeySlotMove::default() });
    report.encode_to_vec()
}

/// None when the node does not list itself.
fn assemble(cluster: &str, nodes: &str, info: &str) -> Option<ValkeyReport> {
    let (cluster, info) = (parse::fields(cluster), parse::fields(info));
    let (own, mut others): (Vec<_>, Vec<_>) =
        parse::nodes(nodes).into_iter().partition(|node| node.is("myself"));
    let own = own.into_iter().next()?;
    // The engine lists peers in the order of a hash table; a fixed order keeps equal reports equal.
    others.sort_by(|a, b| a.id.cmp(&b.id));
    let role = info.text("role").to_owned();
    let is_replica = role == "slave";
    let peer = |node: parse::Node| ValkeyPeer {
        node_id: node.id,
        ip: node.ip,
        port: node.port,
        flags: node.flags,
        primary_node_id: node.primary_id,
        connected: node.connected,
        config_epoch: node.config_epoch,
    };
    // A replica has the marks of its primary, and can do nothing about them.
    let marks = if is_replica { Vec::new() } else { own.open };
    let open_slot = |(slot, mark)| ValkeyOpenSlot {
        slot,
        direction: Some(match mark {
            Mark::MigratingTo(id) => Direction::MigratingTo(id),
            Mark::ImportingFrom(id) => Direction::ImportingFrom(id),
        }),
    };
    let version = match info.text("valkey_version") {
        "" => info.text("redis_version"),
        version => version,
    };
    Some(ValkeyReport {
        node_id: own.id,
        primary_node_id: own.primary_id,
        link_up: is_replica
            && info.text("master_link_status") == "up"
            && info.text("master_sync_in_progress") == "0",
        offset: info.number(if is_replica { "slave_repl_offset" } else { "master_repl_offset" }),
        slots: own.slots.iter().map(|&(start, end)| ValkeySlots { start, end }).collect(),
        cluster_state: cluster.text("cluster_state").to_owned(),
        slots_assigned: cluster.number("cluster_slots_assigned"),
        known_nodes: cluster.number("cluster_known_nodes"),
        config_epoch: cluster.number("cluster_my_epoch"),
        peers: others.into_iter().map(peer).collect(),
        version: version.to_owned(),
        used_memory_bytes: info.number("used_memory"),
        keys: info.keys(),
        unapplied_directives: Vec::new(),
        good_replicas: if is_replica { 0 } else { info.good_replicas(GOOD_LAG) },
        open_slots: marks.into_iter().map(open_slot).collect(),
        role,
        ..ValkeyReport::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_known_nodes:3\r\ncluster_current_epoch:2\r\ncluster_my_epoch:1\r\n";
    const NODES: &str = "\
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001 master - 0 1796054628997 1 connected 0-8191
453cff8be5a592c1f4aad70a87c54abcf007cd8b 127.0.0.1:7003@17003 myself,slave 6e731a511d84d1a3938221280d95474aa68545ca 0 0 1 connected [100->-0245661d4bf70a334e7ccc0054180439e256ba57]
0245661d4bf70a334e7ccc0054180439e256ba57 127.0.0.1:7002@17002,two.example master - 0 1796054629099 2 connected 8192-16383
";
    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.1.1\r\n\r\n# Memory\r\nused_memory:2910200\r\n\r\n# Replication\r\nrole:slave\r\nmaster_link_status:up\r\nmaster_sync_in_progress:0\r\nslave_read_repl_offset:191\r\nslave_repl_offset:190\r\nmaster_repl_offset:189\r\n\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n";

    #[test]
    fn a_replica_is_reported() {
        let report = assemble(CLUSTER, NODES, INFO).unwrap();
        assert_eq!(report.node_id, "453cff8be5a592c1f4aad70a87c54abcf007cd8b");
        assert_eq!((report.role.as_str(), report.link_up, report.offset), ("slave", true, 190));
        assert_eq!(report.primary_node_id, "6e731a511d84d1a3938221280d95474aa68545ca");
        assert!(report.slots.is_empty());
        assert_eq!((report.slots_assigned, report.known_nodes, report.config_epoch), (16384, 3, 1));
        assert_eq!((report.version.as_str(), report.used_memory_bytes, report.keys), ("8.1.1", 2_910_200, 1));
        assert_eq!(report.peers[0].node_id, "0245661d4bf70a334e7ccc0054180439e256ba57");
        assert_eq!(report.peers.len(), 2);
        assert!(report.open_slots.is_empty(), "its primary's marks");
    }

    #[test]
    fn marks_of_a_primary_are_reported() {
        let nodes = NODES.replace("myself,slave 6e731a511d84d1a3938221280d95474aa68545ca", "myself,master -");
        let report = assemble(CLUSTER, &nodes, &INFO.replace("role:slave", "role:master")).unwrap();
        let to = Direction::MigratingTo("0245661d4bf70a334e7ccc0054180439e256ba57".into());
        assert_eq!(report.open_slots, [ValkeyOpenSlot { slot: 100, direction: Some(to) }]);
    }

    #[test]
    fn traffic_alone_does_not_change_the_meaning() {
        let before = assemble(CLUSTER, NODES, INFO).unwrap();
        let busy = INFO.replace("slave_repl_offset:190", "slave_repl_offset:250").replace("keys=1", "keys=9");
        assert_eq!(meaning(before.clone()), meaning(assemble(CLUSTER, NODES, &busy).unwrap()));
        let broken = INFO.replace("status:up", "status:down");
        assert_ne!(meaning(before), meaning(assemble(CLUSTER, NODES, &broken).unwrap()));
    }
}

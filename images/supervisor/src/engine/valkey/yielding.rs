//! Makes a replica of a primary that another one has succeeded, before its engine starts.
//!
//! In: nodes.conf as the dead engine left it, the config. Out: the text to put in its place, when there is a successor. Pure;
//! called by `mod` before each start.
//!
//! Why: an engine starts as what its file says, and hears of its successor only by gossip. Until then
//! - one that cannot reach its successor takes writes that are lost: a single shard alone has every majority, and in a bigger
//!   cluster the successor may be the only one that it does not reach;
//! - one with an importing mark that hears first from the source, which no longer claims the slot because the successor has it,
//!   concludes that the move was finished in its favour: it raises its own config epoch and takes all its old slots back, with the
//!   data of before its death (seen with 8.1.1; `a_move_survives_the_death_of_anyone` in the guest tests).
//!
//! Nobody has slots in the file afterwards, be it others: which have gone elsewhere meanwhile is not known here, and the engine tells
//! a primary that claims them whom it believes to own them, by whatever epoch that one had. Their owners claim them.

use shardplane_proto::v1::{ValkeyConfig, valkey_config::OtherPrimary};

use super::parse;

/// Words of a line before the slots: id, address, flags, primary, ping, pong, epoch, link.
const HEAD: usize = 8;

/// Some when this node was a primary and another one has its office: elected after it, or while it was fenced.
///
/// `fences` is the number of the last fence that this node started after.
pub fn yielded(nodes_conf: &str, config: &ValkeyConfig, fences: u64) -> Option<String> {
    let heir = config.other_primary.as_ref()?;
    let nodes = parse::nodes(nodes_conf);
    let own = nodes.iter().find(|node| node.is("myself") && node.is("master"))?;
    if heir.config_epoch <= own.config_epoch && heir.succeeded <= fences {
        return None;
    }
    let mut text = String::with_capacity(nodes_conf.len());
    // Lines with their ends: a last line without one is half written, and stays so for the engine to judge.
    for line in nodes_conf.split_inclusive('\n') {
        match line.split(' ').next() {
            Some(id) if id == own.id => {
                text.push_str(&in_role(line, "myself,slave", &heir.node_id));
                if !nodes.iter().any(|node| node.id == heir.node_id) {
                    text.push_str(&introduced(heir, line, config));
                }
            }
            Some(id) if id == heir.node_id => text.push_str(&in_role(line, "master", "-")),
            Some(id) if nodes.iter().any(|node| node.id == id) => text.push_str(&without_slots(line)),
            Some(_) | None => text.push_str(line),
        }
    }
    Some(text)
}

/// The line with other flags and another primary, without slots and marks.
fn in_role(line: &str, flags: &str, primary: &str) -> String {
    let line = without_slots(line);
    let mut words: Vec<&str> = line.trim_end().split(' ').collect();
    if words.len() < HEAD {
        return line;
    }
    (words[2], words[3]) = (flags, primary);
    format!("{}\n", words.join(" "))
}

fn without_slots(line: &str) -> String {
    let words: Vec<&str> = line.trim_end().split(' ').take(HEAD).collect();
    if words.len() < HEAD { line.to_owned() } else { format!("{}\n", words.join(" ")) }
}

/// A line for a successor that joined after this node had died. It has the shard id of its replica `own`: the engine calls another
/// one corrupted.
fn introduced(heir: &OtherPrimary, own: &str, config: &ValkeyConfig) -> String {
    let address = own.split(' ').nth(1).unwrap_or_default();
    let shard = address.split(',').find(|aux| aux.starts_with("shard-id="));
    let aux = shard.map(|shard| format!(",,tls-port=0,{shard}")).unwrap_or_default();
    let OtherPrimary { node_id, ip, config_epoch, succeeded: _ } = heir;
    format!("{node_id} {ip}:{}@{}{aux} master - 0 0 {config_epoch} connected\n", config.port, config.bus_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "6e731a511d84d1a3938221280d95474aa68545ca";
    const OTHER: &str = "0245661d4bf70a334e7ccc0054180439e256ba57";
    const REPLICA: &str = "453cff8be5a592c1f4aad70a87c54abcf007cd8b";
    const CONF: &str = "\
0245661d4bf70a334e7ccc0054180439e256ba57 127.0.0.1:7002@17002,,tls-port=0,shard-id=cb470c293f5912365bef5d471f710a263bc888e6 master - 0 1796054627996 2 connected 8192-16383
453cff8be5a592c1f4aad70a87c54abcf007cd8b 127.0.0.1:7003@17003,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 slave,fail? 6e731a511d84d1a3938221280d95474aa68545ca 0 0 7 connected
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 myself,master - 0 0 7 connected 0-8191 [100->-0245661d4bf70a334e7ccc0054180439e256ba57] [9000-<-0245661d4bf70a334e7ccc0054180439e256ba57]
vars currentEpoch 7 lastVoteEpoch 0
";

    fn config(node_id: &str, config_epoch: u64) -> ValkeyConfig {
        let ip = "10.0.0.9".into();
        let heir = OtherPrimary { node_id: node_id.into(), ip, config_epoch, succeeded: 0 };
        ValkeyConfig { other_primary: Some(heir), port: 6379, bus_port: 16379, ..Default::default() }
    }

    #[test]
    fn who_was_succeeded_follows_and_claims_nothing() {
        let text = yielded(CONF, &config(REPLICA, 8), 0).unwrap();
        let nodes = parse::nodes(&text);
        let find = |id: &str| nodes.iter().find(|node| node.id == id).unwrap();
        let (own, heir) = (find(OWN), find(REPLICA));
        assert_eq!((own.flags.join(",").as_str(), own.primary_id.as_str()), ("myself,slave", REPLICA));
        assert!(own.slots.is_empty() && own.open.is_empty() && heir.slots.is_empty());
        assert_eq!((heir.flags.join(",").as_str(), heir.primary_id.as_str()), ("master", ""));
        assert_eq!(nodes.len(), 3);
        let other = CONF.lines().next().unwrap();
        assert_eq!(text.lines().next(), other.strip_suffix(" 8192-16383"), "whoever owns slots claims them");
        assert_eq!(text.lines().last(), CONF.lines().last());
        assert_eq!(yielded(&text, &config(REPLICA, 8), 0), None, "once is enough");
    }

    #[test]
    fn a_successor_that_came_later_is_introduced_with_the_shard_id() {
        let late = "f".repeat(40);
        let text = yielded(CONF, &config(&late, 9), 0).unwrap();
        let line = text.lines().find(|line| line.starts_with(&late)).unwrap();
        let shard = "shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52";
        assert_eq!(line, format!("{late} 10.0.0.9:6379@16379,,tls-port=0,{shard} master - 0 0 9 connected"));
        assert_eq!(parse::nodes(&text).len(), 4);
    }

    #[test]
    fn who_was_fenced_yields_whatever_its_epoch_is() {
        let mut config = config(REPLICA, 6);
        config.other_primary.as_mut().unwrap().succeeded = 9;
        let text = yielded(CONF, &config, 8).unwrap();
        assert!(parse::nodes(&text).iter().any(|node| node.id == OWN && node.is("slave")));
        assert_eq!(yielded(&text, &config, 8), None, "once is enough");
        assert_eq!(yielded(CONF, &config, 9), None, "it has started since, and may have been elected");
    }

    #[test]
    fn who_may_still_lead_keeps_everything() {
        assert_eq!(yielded(CONF, &ValkeyConfig::default(), 0), None, "no other one is seen");
        assert_eq!(yielded(CONF, &config(OTHER, 7), 0), None, "the one this node took over from");
        let replica = CONF.replace("myself,master -", &format!("myself,slave {OTHER}"));
        assert_eq!(yielded(&replica, &config(REPLICA, 8), 0), None);
        assert_eq!(yielded("", &config(REPLICA, 8), 0), None, "first start");
    }
}

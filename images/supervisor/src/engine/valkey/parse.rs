//! What CLUSTER INFO, CLUSTER NODES, nodes.conf and INFO say, as values.
//!
//! In: the engine's texts. Out: nodes and fields. Pure; a line that makes no sense is left out, the rest counts.

use std::collections::BTreeMap;

/// What a node has marked a slot as. The engine knows both only of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// On its way to the node of this id.
    MigratingTo(String),
    /// On its way from the node of this id.
    ImportingFrom(String),
}

/// One line of CLUSTER NODES or nodes.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// 40 hex digits.
    pub id: String,
    /// Empty when the address is not known (noaddr).
    pub ip: String,
    /// Client port; 0 when not known.
    pub port: u32,
    /// Split at commas.
    pub flags: Vec<String>,
    /// Empty for a primary.
    pub primary_id: String,
    /// The link to it is up.
    pub connected: bool,
    /// Its config epoch.
    pub config_epoch: u64,
    /// Owned slots, both ends included, in order.
    pub slots: Vec<(u32, u32)>,
    /// Marked slots, in order; only in the line of the node itself.
    pub open: Vec<(u32, Mark)>,
}

impl Node {
    /// Whether it owns the slot.
    pub fn owns(&self, slot: u32) -> bool {
        self.slots.iter().any(|(start, end)| (*start..=*end).contains(&slot))
    }

    /// Whether it carries this flag.
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }
}

/// The nodes of CLUSTER NODES or nodes.conf.
pub fn nodes(text: &str) -> Vec<Node> {
    text.lines().filter_map(node).collect()
}

/// `id ip:port@bus[,hostname[,aux...]] flags primary ping pong epoch link slot...`
fn node(line: &str) -> Option<Node> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next().filter(|id| id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let address = words.next()?.split(',').next()?;
    // From the right: an IPv6 address has colons of its own.
    let (ip, ports) = address.rsplit_once(':')?;
    let port = ports.split('@').next()?.parse().ok()?;
    let flags = words.next()?.split(',').map(str::to_owned).collect();
    let primary = words.next()?;
    let _ping = words.next()?;
    let _pong = words.next()?;
    let config_epoch = words.next()?.parse().ok()?;
    let connected = words.next()? == "connected";
    // [slot->-node] and [slot-<-node] mark a migration; the slot itself is listed besides when it is owned.
    let (marks, owned): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with('['));
    Some(Node {
        id: id.to_owned(),
        ip: ip.to_owned(),
        port,
        flags,
        primary_id: if primary == "-" { String::new() } else { primary.to_owned() },
        connected,
        config_epoch,
        slots: owned.into_iter().filter_map(slots).collect(),
        open: marks.into_iter().filter_map(mark).collect(),
    })
}

fn mark(word: &str) -> Option<(u32, Mark)> {
    let word = word.strip_prefix('[')?.strip_suffix(']')?;
    let (slot, mark) = match (word.split_once("->-"), word.split_once("-<-")) {
        (Some((slot, to)), _) => (slot, Mark::MigratingTo(to.to_owned())),
        (None, Some((slot, from))) => (slot, Mark::ImportingFrom(from.to_owned())),
        (None, None) => return None,
    };
    Some((slot.parse().ok()?, mark))
}

fn slots(word: &str) -> Option<(u32, u32)> {
    match word.split_once('-') {
        Some((start, end)) => Some((start.parse().ok()?, end.parse().ok()?)),
        None => word.parse().ok().map(|slot| (slot, slot)),
    }
}

/// `name:value` lines of INFO and CLUSTER INFO.
pub struct Fields<'a>(BTreeMap<&'a str, &'a str>);

/// Reads INFO or CLUSTER INFO.
pub fn fields(text: &str) -> Fields<'_> {
    Fields(
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect(),
    )
}

impl Fields<'_> {
    /// The text of a field; empty when there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The number of a field; 0 when there is none.
    pub fn number<T: std::str::FromStr + Default>(&self, name: &str) -> T {
        self.text(name).parse().unwrap_or_default()
    }

    /// Keys of database 0.
    pub fn keys(&self) -> u64 {
        member(self.text("db0"), "keys").and_then(|keys| keys.parse().ok()).unwrap_or_default()
    }

    /// Replicas that are online and were heard of within `max_lag` seconds.
    pub fn good_replicas(&self, max_lag: u64) -> u32 {
        let good = |line: &str| {
            member(line, "state") == Some("online")
                && member(line, "lag")
                    .and_then(|lag| lag.parse::<u64>().ok())
                    .is_some_and(|lag| lag <= max_lag)
        };
        let is_replica = |name: &str| {
            name.strip_prefix("slave").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let count = self.0.iter().filter(|(name, line)| is_replica(name) && good(line)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

fn member<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(',')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Captured from valkey 8.1.1; the noaddr line has the form the source documents.
    const NODES: &str = "\
0245661d4bf70a334e7ccc0054180439e256ba57 127.0.0.1:7002@17002,two.example master,fail? - 1796054629904 1796054627996 2 disconnected 8192-16383
03e7cd68936f667759a61d944489a4e361346a93 127.0.0.1:7009@17009 handshake - 0 0 0 disconnected
453cff8be5a592c1f4aad70a87c54abcf007cd8b 127.0.0.1:7003@17003 slave,fail? 6e731a511d84d1a3938221280d95474aa68545ca 1796054629904 1796054629000 1 disconnected
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-8190 8191 [100->-0245661d4bf70a334e7ccc0054180439e256ba57] [101-<-0245661d4bf70a334e7ccc0054180439e256ba57]
9999999999999999999999999999999999999999 :0@0 master,fail,noaddr - 1796054629904 1796054627996 7 disconnected
vars currentEpoch 2 lastVoteEpoch 0
";

    #[test]
    fn every_kind_of_node_is_read() {
        let nodes = nodes(NODES);
        assert_eq!(nodes.len(), 5);
        assert_eq!((nodes[0].ip.as_str(), nodes[0].port, nodes[0].connected), ("127.0.0.1", 7002, false));
        assert!(nodes[0].is("fail?") && !nodes[0].is("fail"));
        assert_eq!(nodes[0].slots, [(8192, 16383)]);
        assert!(nodes[1].is("handshake"));
        assert_eq!(nodes[2].primary_id, "6e731a511d84d1a3938221280d95474aa68545ca");
        assert!(nodes[3].is("myself") && nodes[3].connected);
        assert_eq!(nodes[3].slots, [(0, 8190), (8191, 8191)]);
        assert!(nodes[3].owns(8190) && !nodes[3].owns(8192));
        let other = "0245661d4bf70a334e7ccc0054180439e256ba57";
        let marks = [(100, Mark::MigratingTo(other.into())), (101, Mark::ImportingFrom(other.into()))];
        assert_eq!(nodes[3].open, marks);
        assert_eq!((nodes[4].ip.as_str(), nodes[4].port, nodes[4].config_epoch), ("", 0, 7));
    }

    #[test]
    fn an_ipv6_address_keeps_its_colons() {
        let line = "9999999999999999999999999999999999999999 fd00::5:6379@16379 master - 0 0 7 connected";
        assert_eq!((nodes(line)[0].ip.as_str(), nodes(line)[0].port), ("fd00::5", 6379));
    }

    #[test]
    fn info_is_read() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
            slave0:ip=127.0.0.1,port=7003,state=online,offset=124,lag=0,type=replica\r\n\
            slave1:ip=127.0.0.1,port=7004,state=send_bulk,offset=0,lag=0,type=replica\r\n\
            slave2:ip=127.0.0.1,port=7005,state=online,offset=0,lag=11,type=replica\r\n\
            slave_repl_offset:5\r\nmaster_repl_offset:190\r\n\r\n# Keyspace\r\ndb0:keys=17,expires=0,avg_ttl=0\r\n";
        let fields = fields(info);
        assert_eq!(fields.text("role"), "master");
        assert_eq!(fields.number::<u64>("master_repl_offset"), 190);
        assert_eq!(fields.number::<u64>("used_memory"), 0);
        assert_eq!(fields.good_replicas(10), 1);
        assert_eq!(fields.keys(), 17);
    }
}

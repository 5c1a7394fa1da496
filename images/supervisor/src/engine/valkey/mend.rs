//! Mends a nodes.conf with which the engine would not start.
//!
//! In: nodes.conf as the dead engine left it. Out: the text to put in its place, when there is something to mend. Pure; called by
//! `mod` before each start.
//!
//! Why: shard ids travel by gossip after the roles. An engine that dies in between has written a replica with another shard id than
//! its primary's, and 8.1.1 calls such a file corrupted and aborts, at every start (valkey issue 2171). The primary's
//! id is the right one: it is what gossip would have said.

use std::collections::BTreeMap;

/// A line's id, its fields, and its shard id.
struct Line<'a> {
    id: &'a str,
    is_replica: bool,
    primary: &'a str,
    shard: &'a str,
}

fn read(line: &str) -> Option<Line<'_>> {
    let mut words = line.split_ascii_whitespace();
    let (id, address, flags, primary) = (words.next()?, words.next()?, words.next()?, words.next()?);
    // ip:port@bus,hostname,key=value...
    let shard = address.split(',').skip(2).find_map(|aux| aux.strip_prefix("shard-id="))?;
    Some(Line { id, is_replica: flags.split(',').any(|flag| flag == "slave"), primary, shard })
}

/// Some when a replica has another shard id than its primary.
pub fn mend(nodes_conf: &str) -> Option<String> {
    let shards: BTreeMap<&str, &str> = nodes_conf
        .lines()
        .filter_map(read)
        .filter(|line| !line.is_replica)
        .map(|line| (line.id, line.shard))
        .collect();
    let mut mended = false;
    let mut text = String::with_capacity(nodes_conf.len());
    // Lines with their ends: a last line without one is half written, and stays so for the engine to judge.
    for whole in nodes_conf.split_inclusive('\n') {
        match read(whole)
            .filter(|line| line.is_replica)
            .and_then(|line| Some((shards.get(line.primary)?, line.shard)))
        {
            Some((right, wrong)) if *right != wrong => {
                mended = true;
                text.push_str(&whole.replacen(&format!("shard-id={wrong}"), &format!("shard-id={right}"), 1));
            }
            Some(_) | None => text.push_str(whole),
        }
    }
    mended.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::mend;

    /// As an engine left it that was killed right after its cluster had formed.
    const FORMED: &str = "\
50a04277e5cf7876e66029a128d3e1de0de7b02b 10.20.0.2:6379@16379,,tls-port=0,shard-id=e4903bebb13de21aa58ef383c7ebaefac302f476 master - 0 1796058684349 1 connected 0-5461
bb5f8b06068556d56cb1bde6aadee92143f7ac40 10.20.0.5:6379@16379,,tls-port=0,shard-id=e4903bebb13de21aa58ef383c7ebaefac302f476 myself,slave 50a04277e5cf7876e66029a128d3e1de0de7b02b 0 0 1 connected
fcfe9dc508540b0f772eaeb497f30ff57009f110 10.20.0.4:6379@16379,,tls-port=0,shard-id=a7edc6193c2dda5e78d07079a780bcb26324908e master - 1796058684460 1796058684000 3 connected 10923-16383
1146f6d524be563b39f112b9b6db7c2dbbc43839 10.20.0.7:6379@16379,,tls-port=0,shard-id=21a2873a77894f016f6d153cc4ce08dc16ebcf58 slave fcfe9dc508540b0f772eaeb497f30ff57009f110 0 1796058684352 3 connected
vars currentEpoch 4 lastVoteEpoch 0
";

    #[test]
    fn a_replica_gets_the_shard_id_of_its_primary_and_all_else_stays() {
        let mended = mend(FORMED).unwrap();
        let own = "21a2873a77894f016f6d153cc4ce08dc16ebcf58";
        assert_eq!(mended, FORMED.replace(own, "a7edc6193c2dda5e78d07079a780bcb26324908e"));
        assert_eq!(mend(&mended), None, "once is enough");
        // The engine reads from above and blames the primary's line when that comes last.
        let upside_down = |text: &str| text.split_inclusive('\n').rev().collect::<String>();
        assert_eq!(mend(&upside_down(FORMED)), Some(upside_down(&mended)));
    }

    #[test]
    fn what_needs_no_mending_is_left_alone() {
        let mut ends = FORMED.match_indices('\n').map(|(end, _)| end);
        let without_the_last_replica = &FORMED[..=ends.nth(2).unwrap()];
        assert_eq!(mend(without_the_last_replica), None);
        for torn in ["", "vars currentEpoch 4 lastVoteEpoch 0\n", &FORMED[..FORMED.len() - 60], "a b c"] {
            assert!(mend(torn).is_none_or(|text| text.len() == torn.len()), "{torn:?}");
        }
        let stranger = FORMED.replace("slave fcfe9dc", "slave 0000000");
        assert_eq!(mend(&stranger), None, "a primary that the file does not know");
    }
}

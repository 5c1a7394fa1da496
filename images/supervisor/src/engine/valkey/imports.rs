//! Takes importing marks away from a primary that others have replaced.
//!
//! In: nodes.conf as the dead engine left it, the config. Out: the text to put in its place, when there is something to take
//! away. Pure; called by `mod` before each start.
//!
//! Why: an engine that starts with such a mark and hears first from the source, which no longer claims the slot because the heir has
//! it, concludes that the move was finished in its favour: it raises its own config epoch above the heir's and takes
//! all its old slots back, with the data of before its death (seen with 8.1.1; `a_move_survives_the_death_of_anyone` in the guest
//! tests). Without the mark it hears of the heir and becomes a replica. Only when the coordinator sees the heir: a
//! primary that nobody replaced needs its marks, as the engine deletes keys of slots that it neither owns nor imports.

use shardplane_proto::v1::ValkeyConfig;

use super::parse;

/// Some when this node was a primary with importing marks and another one, elected after it, has its office.
pub fn without_imports(nodes_conf: &str, config: &ValkeyConfig) -> Option<String> {
    let own = parse::nodes(nodes_conf).into_iter().find(|node| node.is("myself") && node.is("master"))?;
    if config.other_primary_epoch <= own.config_epoch {
        return None;
    }
    let is_import = |word: &str| word.starts_with('[') && word.contains("-<-");
    let mut taken = false;
    // Lines with their ends, as in `mend`.
    let lines = nodes_conf.split_inclusive('\n').map(|line| {
        if !line.starts_with(&own.id) || !line.split(' ').any(is_import) {
            return line.to_owned();
        }
        taken = true;
        let words: Vec<&str> = line.trim_end().split(' ').filter(|word| !is_import(word)).collect();
        format!("{}\n", words.join(" "))
    });
    let text = lines.collect();
    taken.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "\
0245661d4bf70a334e7ccc0054180439e256ba57 127.0.0.1:7002@17002,,tls-port=0,shard-id=cb470c293f5912365bef5d471f710a263bc888e6 master - 0 1796054627996 2 connected 8192-16383
6e731a511d84d1a3938221280d95474aa68545ca 127.0.0.1:7001@17001,,tls-port=0,shard-id=617006ea4ef040aea7c9811b70bdf331a4095a52 myself,master - 0 0 7 connected 0-8191 [100->-0245661d4bf70a334e7ccc0054180439e256ba57] [9000-<-0245661d4bf70a334e7ccc0054180439e256ba57]
vars currentEpoch 7 lastVoteEpoch 0
";

    fn config(other_primary_epoch: u64) -> ValkeyConfig {
        ValkeyConfig { other_primary_epoch, ..Default::default() }
    }

    #[test]
    fn imports_of_a_replaced_primary_go_and_all_else_stays() {
        let text = without_imports(CONF, &config(8)).unwrap();
        assert_eq!(text, CONF.replace(" [9000-<-0245661d4bf70a334e7ccc0054180439e256ba57]", ""));
        assert_eq!(without_imports(&text, &config(8)), None, "once is enough");
    }

    #[test]
    fn who_may_still_lead_keeps_them() {
        assert_eq!(without_imports(CONF, &config(0)), None, "no other one is seen");
        assert_eq!(without_imports(CONF, &config(7)), None, "the one this node took over from");
        assert_eq!(without_imports(&CONF.replace("myself,master", "myself,slave"), &config(8)), None);
        assert_eq!(without_imports("", &config(8)), None, "first start");
    }
}

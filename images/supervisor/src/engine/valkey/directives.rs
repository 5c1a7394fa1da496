//! Directives of a running engine: which are not in force, bringing them into force, and doing without the ones it refuses.
//!
//! In: wanted directives, CONFIG GET, last words. Out: names that differ; CONFIG SET calls; refusals with the engine's text. Called by `report` and `mod`.

use std::collections::BTreeMap;

use shardplane_proto::{
    sizes,
    v1::{ValkeyConfig, ValkeyDirective, ValkeyRefusal},
};

use super::{
    conf,
    control::{Control, bare, engine_error, says},
};
use crate::engine::EngineError;

/// Names of the wanted directives whose value in force differs; the last of a name counts.
pub fn unapplied(wanted: &[ValkeyDirective], in_force: &BTreeMap<String, String>) -> Vec<String> {
    let last: BTreeMap<&str, &str> = wanted.iter().map(|d| (d.name.as_str(), d.value.as_str())).collect();
    let differs = |name: &str, value: &str| {
        let lower = name.to_ascii_lowercase();
        !in_force.get(&lower).is_some_and(|found| same(&lower, value, found))
    };
    last.into_iter().filter(|(name, value)| differs(name, value)).map(|(name, _)| name.to_owned()).collect()
}

fn same(name: &str, wanted: &str, found: &str) -> bool {
    let (wanted, found) = (words(wanted), words(found));
    match name {
        // The engine answers with all client classes; the wanted value may name one.
        "client-output-buffer-limit" => {
            wanted.chunks(4).all(|class| found.chunks(4).any(|of_engine| of_engine == class))
        }
        // A set of letters, answered in the engine's own order.
        "notify-keyspace-events" => {
            let letters =
                |words: &[String]| words.concat().chars().collect::<std::collections::BTreeSet<_>>();
            letters(&wanted) == letters(&found)
        }
        _ => wanted == found,
    }
}

/// Words in lower case, sizes as bytes, old names of roles as the engine answers them.
fn words(value: &str) -> Vec<String> {
    value
        .split_ascii_whitespace()
        .map(|word| word.to_ascii_lowercase())
        .map(|word| match word.as_str() {
            "replica" => "slave".to_owned(),
            _ => sizes::bytes(&word).map_or(word, |size| size.to_string()),
        })
        .collect()
}

/// Brings a running engine from one config to the next by CONFIG SET. Answers what the engine refused; what it takes at its start
/// alone stays unapplied, which its report shows; a password it refuses is an error.
pub async fn apply(
    control: &Control,
    before: &ValkeyConfig,
    next: &ValkeyConfig,
) -> Result<Vec<ValkeyRefusal>, EngineError> {
    let mut connection = control.for_task().await?;
    let wanted: Vec<&ValkeyDirective> = next.directives.iter().filter(|d| !conf::is_owned(&d.name)).collect();
    let mut get = redis::cmd("CONFIG");
    // At least one name: CONFIG GET without any is an error.
    get.arg("GET").arg("port").arg(wanted.iter().map(|d| d.name.as_str()).collect::<Vec<_>>());
    let found: BTreeMap<String, String> = get.query_async(&mut connection).await.map_err(engine_error)?;
    let mut refused = Vec::new();
    for directive in wanted {
        let ValkeyDirective { name, value } = directive;
        if unapplied(std::slice::from_ref(directive), &found).is_empty() {
            continue;
        }
        let set = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(&mut connection).await;
        if let Err(error) = set.map_err(engine_error) {
            if says(&error, "can't set immutable config") {
                tracing::info!(directive = name, "taken at the next start");
                continue;
            }
            tracing::warn!(directive = name, "not set in the running engine: {error}");
            refused.push(ValkeyRefusal { name: name.clone(), error: bare(&error) });
        }
    }
    if before.announce_ip != next.announce_ip {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("cluster-announce-ip").arg(&next.announce_ip);
        set.exec_async(&mut connection).await.map_err(engine_error)?;
    }
    if before.password != next.password {
        // Both in one call: the node would else lock out itself or its peers between the two.
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("primaryauth").arg(&next.password).arg("requirepass").arg(&next.password);
        set.exec_async(&mut connection).await.map_err(engine_error)?;
    }
    Ok(refused)
}

/// The directive that an engine named when it did not start, with its text: the last words of an engine that cannot read its
/// valkey.conf are the line and what is wrong with it.
pub fn refused_at_start(last_words: &str) -> Option<ValkeyRefusal> {
    let words = last_words.split_once("FATAL CONFIG FILE ERROR")?.1;
    let mut lines = words.lines().skip_while(|line| !line.starts_with(">>>"));
    let line = lines.next()?.trim_start_matches(['>', ' ', '\'']);
    let error = lines.next()?.trim();
    let name = line.split_ascii_whitespace().next()?;
    (!error.is_empty()).then(|| ValkeyRefusal { name: name.to_ascii_lowercase(), error: error.to_owned() })
}

/// `wanted` without what was refused: in its place the value of `before`, if it has one.
pub fn without(
    wanted: &[ValkeyDirective],
    refused: &[ValkeyRefusal],
    before: &[ValkeyDirective],
) -> Vec<ValkeyDirective> {
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let kept = |directive: &ValkeyDirective| {
        if !refused.iter().any(|refusal| is(&refusal.name, &directive.name)) {
            return Some(directive.clone());
        }
        before.iter().rev().find(|old| is(&old.name, &directive.name)).cloned()
    };
    wanted.iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unapplied_of(name: &str, wanted: &str, found: &str) -> bool {
        let wanted = [ValkeyDirective { name: name.into(), value: wanted.into() }];
        let found = BTreeMap::from([(name.to_ascii_lowercase(), found.to_owned())]);
        !unapplied(&wanted, &found).is_empty()
    }

    #[test]
    fn values_are_compared_by_meaning() {
        assert!(!unapplied_of("maxmemory", "100mb", "104857600"));
        assert!(unapplied_of("maxmemory", "100m", "104857600"));
        assert!(!unapplied_of("Appendonly", "YES", "yes"));
        assert!(!unapplied_of("save", "3600 1  300 100", "3600 1 300 100"));
        assert!(!unapplied_of("save", "", ""));
        assert!(unapplied_of("save", "", "3600 1"));
        assert!(!unapplied_of("notify-keyspace-events", "KEA", "AKE"));
        let limits = "normal 0 0 0 slave 209715200 67108864 60 pubsub 33554432 8388608 60";
        assert!(!unapplied_of("client-output-buffer-limit", "replica 200mb 64mb 60", limits));
        assert!(unapplied_of("client-output-buffer-limit", "replica 100mb 64mb 60", limits));
    }

    #[test]
    fn a_name_the_engine_does_not_know_is_unapplied_and_the_last_of_a_name_counts() {
        let directive = |value: &str| ValkeyDirective { name: "hz".into(), value: value.into() };
        assert_eq!(unapplied(&[directive("10")], &BTreeMap::new()), ["hz"]);
        let found = BTreeMap::from([("hz".to_owned(), "20".to_owned())]);
        assert!(unapplied(&[directive("10"), directive("20")], &found).is_empty());
    }

    #[test]
    fn the_last_words_of_an_engine_name_what_it_refuses() {
        let words = "\n*** FATAL CONFIG FILE ERROR (Version 8.1.1) ***\nReading the configuration file, at line 5\n>>> 'io-threads \"999\"'\nargument must be between 1 and 256 inclusive\n";
        let refusal = refused_at_start(words).unwrap();
        assert_eq!(refusal.name, "io-threads");
        assert_eq!(refusal.error, "argument must be between 1 and 256 inclusive");
        assert_eq!(refused_at_start("Could not create server TCP listening socket"), None);
        assert_eq!(refused_at_start("*** FATAL CONFIG FILE ERROR\n>>> 'hz \"1\"'"), None, "cut off");
    }

    #[test]
    fn a_refused_directive_keeps_its_value_or_is_left_out() {
        let directive = |name: &str, value: &str| ValkeyDirective { name: name.into(), value: value.into() };
        let refused = |name: &str| ValkeyRefusal { name: name.into(), error: "no".into() };
        let wanted = [directive("hz", "20"), directive("Maxclients", "99999")];
        let before = [directive("maxclients", "100"), directive("hz", "10")];
        let refused = [refused("maxclients")];
        assert_eq!(
            without(&wanted, &refused, &before),
            [directive("hz", "20"), directive("maxclients", "100")]
        );
        assert_eq!(without(&wanted, &refused, &[]), [directive("hz", "20")]);
    }
}

//! Which directives a parameter set may hold. In: the map of a ValkeyParametersSet. Out: violations. Directives that the platform
//! owns (addresses, ports, passwords, files, cluster identity) are not in the list and therefore refused.

use std::collections::BTreeMap;

use crate::refusal::Violation;

/// What a directive's value may be.
enum Allowed {
    /// A whole number in this range.
    Number(i64, i64),
    /// Bytes, with k, kb, m, mb, g, gb as the engine reads them.
    Memory,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

const YES_NO: Allowed = Allowed::OneOf(&["yes", "no"]);

/// The allow-list for Valkey 8.1, sorted.
const DIRECTIVES: &[(&str, Allowed)] = &[
    ("activedefrag", YES_NO),
    ("appendfsync", Allowed::OneOf(&["always", "everysec", "no"])),
    ("appendonly", YES_NO),
    ("cluster-node-timeout", Allowed::Number(1_000, 60_000)),
    ("cluster-replica-validity-factor", Allowed::Number(0, 1_000)),
    ("cluster-require-full-coverage", YES_NO),
    ("databases", Allowed::Number(1, 1)),
    ("hash-max-listpack-entries", Allowed::Number(0, 1_000_000)),
    ("hash-max-listpack-value", Allowed::Number(0, 1_000_000)),
    ("hz", Allowed::Number(1, 500)),
    ("latency-monitor-threshold", Allowed::Number(0, 3_600_000)),
    ("lazyfree-lazy-eviction", YES_NO),
    ("lazyfree-lazy-expire", YES_NO),
    ("lfu-decay-time", Allowed::Number(0, 1_000_000)),
    ("lfu-log-factor", Allowed::Number(0, 1_000_000)),
    ("maxclients", Allowed::Number(64, 65_000)),
    ("maxmemory", Allowed::Memory),
    (
        "maxmemory-policy",
        Allowed::OneOf(&[
            "allkeys-lfu",
            "allkeys-lru",
            "allkeys-random",
            "noeviction",
            "volatile-lfu",
            "volatile-lru",
            "volatile-random",
            "volatile-ttl",
        ]),
    ),
    ("maxmemory-samples", Allowed::Number(1, 64)),
    ("min-replicas-max-lag", Allowed::Number(0, 3_600)),
    ("min-replicas-to-write", Allowed::Number(0, 5)),
    ("repl-backlog-size", Allowed::Memory),
    ("repl-timeout", Allowed::Number(5, 3_600)),
    ("set-max-intset-entries", Allowed::Number(0, 1_000_000)),
    ("slowlog-log-slower-than", Allowed::Number(-1, 3_600_000_000)),
    ("slowlog-max-len", Allowed::Number(0, 100_000)),
    ("tcp-keepalive", Allowed::Number(0, 86_400)),
    ("timeout", Allowed::Number(0, 31_536_000)),
    ("zset-max-listpack-entries", Allowed::Number(0, 1_000_000)),
    ("zset-max-listpack-value", Allowed::Number(0, 1_000_000)),
];

fn wrong_with(value: &str, allowed: &Allowed) -> Option<String> {
    match allowed {
        Allowed::Number(low, high) => {
            let fits = value.parse::<i64>().is_ok_and(|n| (low..=high).contains(&&n));
            (!fits).then(|| format!("is {value:?}; allowed is a whole number from {low} to {high}"))
        }
        Allowed::Memory => {
            let lower = value.to_ascii_lowercase();
            let digits = ["gb", "mb", "kb", "g", "m", "k", "b"]
                .iter()
                .find_map(|unit| lower.strip_suffix(unit))
                .unwrap_or(&lower);
            let fits = !digits.is_empty() && digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_digit());
            (!fits).then(|| format!("is {value:?}; allowed is a number of bytes such as 104857600 or 100mb"))
        }
        Allowed::OneOf(words) => {
            (!words.contains(&value)).then(|| format!("is {value:?}; allowed is {}", words.join(", ")))
        }
    }
}

/// Every directive is known and has a value it may have.
pub fn check(parameters: &BTreeMap<String, String>) -> Vec<Violation> {
    if parameters.len() > DIRECTIVES.len() * 2 {
        let text = format!("has {} parameters; only {} can be set", parameters.len(), DIRECTIVES.len());
        return vec![Violation::new("spec.parameters", text)];
    }
    let mut wrong = Vec::new();
    for (name, value) in parameters {
        let path = format!("spec.parameters.{name}");
        match DIRECTIVES.iter().find(|(known, _)| known == name) {
            None => {
                let known: Vec<&str> = DIRECTIVES.iter().map(|(known, _)| *known).collect();
                wrong.push(Violation::new(
                    path,
                    format!("is not a directive that can be set; those are {}", known.join(", ")),
                ));
            }
            Some((_, allowed)) => {
                wrong.extend(wrong_with(value, allowed).map(|text| Violation::new(&path, text)))
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Option<String> {
        check(&BTreeMap::from([(name.to_owned(), value.to_owned())])).pop().map(|v| v.to_string())
    }

    #[test]
    fn known_directives_with_fitting_values_pass() {
        for (name, value) in
            [("maxmemory-policy", "allkeys-lru"), ("maxmemory", "100mb"), ("hz", "10"), ("appendonly", "no")]
        {
            assert_eq!(one(name, value), None);
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (name, value) in [
            ("requirepass", "x"),
            ("port", "1"),
            ("hz", "0"),
            ("hz", "ten"),
            ("maxmemory", "mb"),
            ("maxmemory", "-1"),
            ("appendonly", "YES"),
            ("rename-command", "a"),
        ] {
            assert!(
                one(name, value).is_some_and(|text| text.starts_with(&format!("spec.parameters.{name}: "))),
                "{name} {value}"
            );
        }
    }

    #[test]
    fn far_too_many_are_one_violation() {
        let many = (0..100_000).map(|n| (format!("p{n}"), String::new())).collect();
        assert_eq!(
            check(&many),
            [Violation::new("spec.parameters", "has 100000 parameters; only 30 can be set")]
        );
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(DIRECTIVES.is_sorted_by_key(|(name, _)| *name));
    }
}

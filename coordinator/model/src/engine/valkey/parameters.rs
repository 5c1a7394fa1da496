//! Rules for parameter sets. In: the map of a ValkeyParametersSet and the engine versions that run it. Out: violations, whether a change
//! of the map needs a restart, and all directives with the value each has when no set says otherwise.

use std::collections::BTreeMap;

use shardplane_proto::sizes;

use super::directives::{Allowed, Class, DIRECTIVES, Directive, FIRST, FORBIDDEN};
use crate::refusal::Violation;

/// Major and minor of an engine version; none when it is not `8.1` or `8.1.1`.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether a version knows it. One that cannot be read, or that is older than all there are, counts as the newest: it is not judged at
/// submit, as the API promises, and fails when no image has it.
fn known(directive: &Directive, version: Option<&str>) -> bool {
    let release = version.and_then(release).filter(|release| *release >= FIRST);
    release.is_none_or(|release| release >= directive.since)
}

fn find(name: &str) -> Option<&'static Directive> {
    DIRECTIVES.iter().find(|directive| directive.name == name)
}

/// Why the directive is the platform's; none when it is not.
pub fn forbidden(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(beginning) => lower.starts_with(beginning),
        None => lower == **pattern,
    };
    FORBIDDEN.iter().find(|(names, _)| names.iter().any(is)).map(|(_, why)| *why)
}

/// Every directive that this version knows, with the engine's own value.
pub fn defaults(version: &str) -> impl Iterator<Item = (String, String)> {
    // Of a version that cannot be read nothing is known: its engine would not start on a name it does not know.
    let known = move |d: &&Directive| release(version).is_some_and(|release| release >= d.since);
    DIRECTIVES.iter().filter(known).map(|d| (d.name.to_owned(), d.default.to_owned()))
}

/// Whether going from one map to the other takes a restart of the engine.
pub fn needs_restart(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> bool {
    DIRECTIVES.iter().filter(|directive| directive.class == Class::Restart).any(|directive| {
        let value = |map: &BTreeMap<String, String>| {
            map.get(directive.name).cloned().unwrap_or_else(|| directive.default.to_owned())
        };
        value(old) != value(new)
    })
}

/// Bytes as the engine counts them. It multiplies without looking: a number that is too large would come out as a small one.
fn bytes(value: &str) -> Option<i64> {
    i64::try_from(sizes::bytes(value)?).ok()
}

fn save_points(value: &str) -> bool {
    let numbers: Option<Vec<u32>> = value.split(' ').map(|word| word.parse().ok()).collect();
    value.is_empty() || numbers.is_some_and(|n| n.len() % 2 == 0 && n.iter().step_by(2).all(|s| *s > 0))
}

fn buffer_limits(value: &str) -> bool {
    let words: Vec<&str> = value.split(' ').collect();
    let class = |class: &[&str]| {
        let [name, hard, soft, seconds] = class else { return false };
        ["normal", "replica", "slave", "pubsub"].contains(name)
            && bytes(hard).is_some()
            && bytes(soft).is_some()
            && seconds.parse::<u32>().is_ok()
    };
    words.chunks(4).all(class)
}

fn wrong_with(value: &str, allowed: Allowed) -> Option<String> {
    let percent = || value.strip_suffix('%').and_then(|n| n.parse::<u8>().ok()).is_some_and(|n| n <= 100);
    let (fits, what) = match allowed {
        Allowed::Number(low, high) => {
            let canonical =
                value.parse::<i64>().is_ok_and(|n| (low..=high).contains(&n) && n.to_string() == value);
            let what = if low == high { format!("{low}") } else { format!("a whole number from {low} to {high}") };
            (canonical, what)
        }
        Allowed::Memory => {
            (bytes(value).is_some(), "a number of bytes such as 104857600 or 100mb".to_owned())
        }
        Allowed::MemoryOrPercent => {
            (bytes(value).is_some() || percent(), "a number of bytes such as 100mb, or a share such as 5%".to_owned())
        }
        Allowed::OneOf(words) => (words.contains(&value), words.join(", ")),
        Allowed::Letters(letters) => (
            value.chars().all(|letter| letters.contains(letter)),
            format!("letters of {letters}, or nothing"),
        ),
        Allowed::SavePoints => (
            save_points(value),
            "pairs of seconds and changes such as \"3600 1 300 100\", or nothing".to_owned(),
        ),
        Allowed::BufferLimits => (
            buffer_limits(value),
            "class, hard limit, soft limit and seconds such as \"replica 256mb 64mb 60\", for normal, replica and pubsub"
                .to_owned(),
        ),
    };
    (!fits).then(|| format!("is {value:?}; allowed is {what}"))
}

fn wrong_in(name: &str, value: &str, version: Option<&str>) -> Option<String> {
    match (find(name), forbidden(name)) {
        (Some(directive), _) if !known(directive, version) => {
            let (major, minor) = directive.since;
            let version = version.unwrap_or_default();
            Some(format!("is not known to version {version}; versions from {major}.{minor} on have it"))
        }
        (Some(directive), _) => wrong_with(value, directive.allowed),
        (None, Some(why)) => Some(format!("cannot be set: {why}")),
        (None, None) => {
            let known: Vec<&str> =
                DIRECTIVES.iter().filter(|d| known(d, version)).map(|directive| directive.name).collect();
            Some(format!("is not a directive that can be set; those are {}", known.join(", ")))
        }
    }
}

/// Every directive is known to the version and has a value it may have. Without a version, the newest counts.
pub fn check(parameters: &BTreeMap<String, String>, version: Option<&str>) -> Vec<Violation> {
    if parameters.len() > DIRECTIVES.len() * 2 {
        let text = format!("has {} parameters; only {} can be set", parameters.len(), DIRECTIVES.len());
        return vec![Violation::new("spec.parameters", text)];
    }
    let wrong = |(name, value): (&String, &String)| {
        wrong_in(name, value, version).map(|text| Violation::new(format!("spec.parameters.{name}"), text))
    };
    parameters.iter().filter_map(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn one(name: &str, value: &str) -> Option<String> {
        check(&of(&[(name, value)]), None).pop().map(|v| v.to_string())
    }

    #[test]
    fn known_directives_with_fitting_values_pass() {
        for (name, value) in [
            ("maxmemory-policy", "allkeys-lru"),
            ("maxmemory", "100mb"),
            ("maxmemory-clients", "5%"),
            ("hz", "10"),
            ("appendonly", "no"),
            ("io-threads", "2"),
            ("save", ""),
            ("save", "3600 1 300 100"),
            ("notify-keyspace-events", "KEA"),
            ("notify-keyspace-events", ""),
            ("client-output-buffer-limit", "replica 256mb 64mb 60 normal 0 0 0"),
        ] {
            assert_eq!(one(name, value), None);
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (name, value, text) in [
            ("requirepass", "x", "cannot be set: passwords and users are the platform's"),
            ("PORT", "1", "cannot be set: the platform gives every instance its address and ports"),
            ("tls-port", "1", "cannot be set: the platform gives"),
            ("cluster-announce-hostname", "x", "cannot be set: the platform tells the members"),
            ("cluster-replica-no-failover", "yes", "cannot be set: the platform decides"),
            ("hz", "0", "is \"0\"; allowed is a whole number from 1 to 500"),
            ("hz", "ten", "allowed is a whole number"),
            ("databases", "3", "is \"3\"; allowed is 1"),
            ("maxmemory", "mb", "allowed is a number of bytes"),
            ("maxmemory", "-1", "allowed is a number of bytes"),
            ("maxmemory", "+1", "allowed is a number of bytes"),
            ("maxmemory", "99999999999999gb", "allowed is a number of bytes"),
            ("maxmemory", "5%", "allowed is a number of bytes"),
            ("maxmemory-clients", "101%", "or a share"),
            ("appendonly", "YES", "is \"YES\"; allowed is yes, no"),
            ("save", "3600", "allowed is pairs of seconds and changes"),
            ("save", "0 1", "allowed is pairs"),
            ("notify-keyspace-events", "Q", "allowed is letters of"),
            ("client-output-buffer-limit", "replica 1 1", "allowed is class, hard limit"),
            ("client-output-buffer-limit", "master 1 1 1", "allowed is class"),
            ("no-such", "a", "is not a directive that can be set; those are acllog-max-len"),
        ] {
            let said = one(name, value).unwrap_or_default();
            assert!(said.starts_with(&format!("spec.parameters.{name}: ")) && said.contains(text), "{said}");
        }
    }

    #[test]
    fn a_version_has_its_own_directives() {
        let set = of(&[("commandlog-reply-larger-than", "1"), ("hz", "20")]);
        for fits in ["8.1.9", "0.0.0", "next"] {
            assert_eq!(check(&set, Some(fits)), [], "{fits}");
        }
        let refused = check(&set, Some("8.0.1"));
        let text = "is not known to version 8.0.1; versions from 8.1 on have it";
        assert_eq!(refused, [Violation::new("spec.parameters.commandlog-reply-larger-than", text)]);
        let named = |version: &str| defaults(version).any(|(name, _)| name == "commandlog-reply-larger-than");
        assert!(named("8.1.1") && named("9.0") && !named("8.0.1"));
        assert_eq!(defaults("next").count(), 0);
    }

    #[test]
    fn only_what_the_engine_reads_at_its_start_needs_a_restart() {
        let changes = |old: &[(&str, &str)], new: &[(&str, &str)]| needs_restart(&of(old), &of(new));
        assert!(!changes(&[], &[("hz", "20")]));
        assert!(changes(&[], &[("io-threads", "2")]));
        assert!(
            changes(&[("io-threads", "2"), ("hz", "20")], &[("hz", "20")]),
            "it goes back to the default"
        );
        assert!(!changes(&[], &[("io-threads", "1")]), "what it has anyway");
    }

    #[test]
    fn far_too_many_are_one_violation() {
        let many = (0..100_000).map(|n| (format!("p{n}"), String::new())).collect();
        let text = format!("has 100000 parameters; only {} can be set", DIRECTIVES.len());
        assert_eq!(check(&many, None), [Violation::new("spec.parameters", text)]);
    }

    #[test]
    fn the_list_is_sorted_its_defaults_are_allowed_and_nothing_of_it_is_forbidden() {
        assert!(DIRECTIVES.is_sorted_by_key(|directive| directive.name));
        for directive in DIRECTIVES {
            assert_eq!(wrong_with(directive.default, directive.allowed), None, "{}", directive.name);
            assert_eq!(forbidden(directive.name), None, "{}", directive.name);
        }
    }
}

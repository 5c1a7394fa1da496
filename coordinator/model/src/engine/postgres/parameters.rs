//! Which parameters a set may hold. In: names and values. Out: violations with their paths. What a value means is for the engine to judge:
//! it names what it refuses, and keeps what it has.

use std::collections::BTreeMap;

use crate::refusal::Violation;

/// Names that the platform sets itself, or that would take a cluster's safety or its replication away.
const OURS: [&str; 46] = [
    "allow_alter_system",
    "allow_system_table_mods",
    "archive_command",
    "archive_library",
    "archive_mode",
    "archive_timeout",
    "cluster_name",
    "config_file",
    "data_directory",
    "dynamic_library_path",
    "exit_on_error",
    "external_pid_file",
    "fsync",
    "full_page_writes",
    "hba_file",
    "hot_standby",
    "ident_file",
    "ignore_checksum_failure",
    "ignore_invalid_pages",
    "ignore_system_indexes",
    "listen_addresses",
    "log_destination",
    "log_directory",
    "log_filename",
    "logging_collector",
    "max_prepared_transactions",
    "max_replication_slots",
    "max_wal_senders",
    "password_encryption",
    "port",
    "primary_conninfo",
    "primary_slot_name",
    "recovery_min_apply_delay",
    "recovery_target_action",
    "restart_after_crash",
    "restore_command",
    "shared_preload_libraries",
    "ssl",
    "synchronous_commit",
    "synchronous_standby_names",
    "track_commit_timestamp",
    "unix_socket_directories",
    "unix_socket_permissions",
    "wal_level",
    "wal_log_hints",
    "zero_damaged_pages",
];

/// Beginnings of names that are all the platform's.
const OUR_FAMILIES: [&str; 5] = ["ssl_", "recovery_target", "krb_", "syslog_", "citus."];

/// Whole numbers that Patroni hands to PostgreSQL itself: below the least one it takes its own default without a word.
const NUMBERS: [(&str, u32); 3] =
    [("max_connections", 25), ("max_locks_per_transaction", 32), ("max_worker_processes", 2)];

/// Longest value in bytes.
const LONGEST_VALUE: usize = 1_000;
/// Most parameters of a set.
const MOST: usize = 200;

fn is_a_name(name: &str) -> bool {
    let word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    name.len() <= 63 && name.split('.').count() <= 2 && name.split('.').all(word)
}

/// The rules.
pub fn check(parameters: &BTreeMap<String, String>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    if parameters.len() > MOST {
        let text = format!("has {} entries; at most {MOST} are allowed", parameters.len());
        wrong.push(Violation::new("spec.parameters", text));
    }
    for (name, value) in parameters.iter().take(MOST) {
        let path = format!("spec.parameters.{name}");
        if !is_a_name(name) {
            wrong.push(Violation::new(
                path,
                "is no name of a parameter: it has a-z, 0-9 and _, and at most one dot",
            ));
        } else if OURS.binary_search(&name.as_str()).is_ok()
            || OUR_FAMILIES.iter().any(|family| name.starts_with(family))
        {
            wrong.push(Violation::new(path, "is set by the platform and cannot be set here"));
        } else if let Some((_, least)) = NUMBERS.iter().find(|(number, _)| number == name) {
            let number = value.parse::<u32>().ok().filter(|number| number.to_string() == *value);
            if number.is_none_or(|number| number < *least) {
                let text = format!("is {value:?}; it is a whole number from {least}");
                wrong.push(Violation::new(path, text));
            }
        } else if value.len() > LONGEST_VALUE || value.chars().any(char::is_control) {
            let text = format!("has at most {LONGEST_VALUE} bytes and no control characters in its value");
            wrong.push(Violation::new(path, text));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_sorted_and_refused_by_name() {
        assert!(OURS.is_sorted());
        for name in OURS.into_iter().chain(["ssl_ca_file", "recovery_target_time"]) {
            let set = [(name.to_owned(), "x".to_owned())].into();
            assert!(check(&set)[0].message.contains("set by the platform"), "{name}");
        }
    }

    #[test]
    fn names_and_values_are_looked_at() {
        let one = |name: &str, value: &str| check(&[(name.to_owned(), value.to_owned())].into()).len();
        for name in ["work_mem", "auto_explain.log_min_duration", "jit"] {
            assert_eq!(one(name, "64MB"), 0, "{name}");
        }
        for name in ["", "Work_Mem", "a.b.c", "work mem", "1x", "x'; drop", "a..b"] {
            assert_eq!(one(name, "1"), 1, "{name}");
        }
        for (value, wrong) in [("100", 0), ("24", 1), ("0120", 1), ("many", 1), ("", 1)] {
            assert_eq!(one("max_connections", value), wrong, "{value}");
        }
        assert_eq!(one("work_mem", "1\n2"), 1);
        assert_eq!(one("work_mem", &"x".repeat(1_001)), 1);
    }
}

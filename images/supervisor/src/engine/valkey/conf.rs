//! valkey.conf: the directives the platform owns, then the ones of the parameter set.
//!
//! In: `ValkeyConfig` and the guest's own address. Out: the text of the file. Pure; called by `mod`.

use std::{fmt::Write as _, net::Ipv4Addr};

use shardplane_proto::v1::ValkeyConfig;

use super::{DATA_DIR, NODES_CONF};
use crate::engine::EngineError;

/// Longest password, in bytes.
const MAX_PASSWORD: usize = 512;

/// Directives a parameter set cannot move: identity, addresses, secrets, and what the supervisor relies on. One that
/// is given all the same is left out and shows up as unapplied.
const OWNED: [&str; 25] = [
    "port",
    "bind",
    "protected-mode",
    "daemonize",
    "supervised",
    "logfile",
    "pidfile",
    "dir",
    "include",
    "loadmodule",
    "cluster-enabled",
    "cluster-port",
    "cluster-config-file",
    "cluster-announce-ip",
    "cluster-announce-port",
    "cluster-announce-bus-port",
    "cluster-allow-replica-migration",
    "cluster-replica-no-failover",
    "enable-debug-command",
    "enable-protected-configs",
    "requirepass",
    "primaryauth",
    "masterauth",
    "rename-command",
    "user",
];

/// Whether a parameter set may set it.
pub fn is_owned(name: &str) -> bool {
    OWNED.iter().any(|owned| owned.eq_ignore_ascii_case(name))
}

/// The text of valkey.conf. Refused: no or too long a password, a name that is no directive, a missing address.
pub fn render(config: &ValkeyConfig, own: Option<Ipv4Addr>) -> Result<String, EngineError> {
    let refused = |text: String| Err(EngineError::Refused(text));
    let password = &config.password;
    if password.is_empty() || password.len() > MAX_PASSWORD || password.contains(['\n', '\r', '\0']) {
        return refused(format!("the password must have 1 to {MAX_PASSWORD} bytes and no line break or NUL"));
    }
    let port_ok = |port: u32| (1..=65_535).contains(&port);
    if !port_ok(config.port) || !port_ok(config.bus_port) {
        return refused(format!("ports {} and {} must be 1 to 65535", config.port, config.bus_port));
    }
    let Ok(announced) = config.announce_ip.parse::<Ipv4Addr>() else {
        return refused(format!("announce_ip {:?} is not an IPv4 address", config.announce_ip));
    };
    let own = own.unwrap_or(announced);

    let mut conf = String::new();
    // Writing to a String cannot fail.
    let put = |conf: &mut String, name: &str, value: &str| {
        let _ = writeln!(conf, "{name} {}", quote(value));
    };
    let mut given_sync_delay = false;
    for directive in &config.directives {
        let name = directive.name.as_str();
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.')
        {
            return refused(format!("{name:?} is no name of a directive"));
        }
        given_sync_delay |= name.eq_ignore_ascii_case("repl-diskless-sync-delay");
        if !is_owned(name) {
            put(&mut conf, name, &directive.value);
        }
    }
    if !given_sync_delay {
        put(&mut conf, "repl-diskless-sync-delay", "0");
    }
    put(&mut conf, "port", &config.port.to_string());
    // Two words, so not quoted as one.
    let _ = writeln!(conf, "bind {own} 127.0.0.1");
    put(&mut conf, "protected-mode", "no");
    put(&mut conf, "daemonize", "no");
    put(&mut conf, "supervised", "no");
    put(&mut conf, "logfile", "");
    put(&mut conf, "dir", DATA_DIR);
    put(&mut conf, "enable-debug-command", "no");
    put(&mut conf, "enable-protected-configs", "no");
    put(&mut conf, "cluster-enabled", "yes");
    put(&mut conf, "cluster-port", &config.bus_port.to_string());
    put(&mut conf, "cluster-config-file", NODES_CONF);
    put(&mut conf, "cluster-announce-ip", &announced.to_string());
    put(&mut conf, "cluster-announce-port", &config.port.to_string());
    put(&mut conf, "cluster-announce-bus-port", &config.bus_port.to_string());
    put(&mut conf, "cluster-allow-replica-migration", "no");
    put(&mut conf, "primaryauth", password);
    put(&mut conf, "requirepass", password);
    Ok(conf)
}

/// One argument as valkey's config parser reads it: in double quotes, everything doubtful as \xHH.
fn quote(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for byte in value.bytes() {
        match byte {
            b'"' => quoted.push_str("\\\""),
            b'\\' => quoted.push_str("\\\\"),
            b' '..=b'~' => quoted.push(char::from(byte)),
            0..=0x1f | 0x7f..=0xff => {
                let _ = write!(quoted, "\\x{byte:02x}");
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardplane_proto::v1::ValkeyDirective;

    fn config() -> ValkeyConfig {
        ValkeyConfig {
            password: "pw".into(),
            port: 6379,
            bus_port: 16379,
            announce_ip: "10.20.0.5".into(),
            directives: Vec::new(),
            has_replicas: true,
            node_timeout_ms: 5000,
            persistent: true,
            other_primary: None,
        }
    }

    fn directive(name: &str, value: &str) -> ValkeyDirective {
        ValkeyDirective { name: name.into(), value: value.into() }
    }

    #[test]
    fn any_byte_of_a_value_is_one_argument() {
        assert_eq!(quote(r#"a "b" \ 'c' # é"#), r#""a \"b\" \\ 'c' # \xc3\xa9""#);
        assert_eq!(quote("\t\u{7f}\n"), r#""\x09\x7f\x0a""#);
        assert_eq!(quote(""), r#""""#);
    }

    #[test]
    fn the_platform_keeps_what_it_owns() {
        let mut config = config();
        config.directives =
            vec![directive("maxmemory", "100mb"), directive("Dir", "/tmp"), directive("save", "")];
        let conf = render(&config, Some(Ipv4Addr::new(10, 20, 0, 5))).unwrap();
        assert!(
            conf.starts_with("maxmemory \"100mb\"\nsave \"\"\nrepl-diskless-sync-delay \"0\"\n"),
            "{conf}"
        );
        assert!(conf.contains("\nbind 10.20.0.5 127.0.0.1\n"));
        assert!(!conf.contains("/tmp"));
        assert!(conf.ends_with("requirepass \"pw\"\n"));
        config.directives = vec![directive("repl-diskless-sync-delay", "3")];
        assert!(!render(&config, None).unwrap().contains("sync-delay \"0\""));
    }

    #[test]
    fn what_could_open_or_break_the_engine_is_refused() {
        let with = |change: fn(&mut ValkeyConfig)| {
            let mut config = config();
            change(&mut config);
            render(&config, None).unwrap_err().to_string()
        };
        assert!(with(|c| c.password.clear()).contains("password"));
        assert!(with(|c| c.password = "x".repeat(513)).contains("password"));
        assert!(with(|c| c.password = "a\nb".into()).contains("password"));
        assert!(with(|c| c.port = 70_000).contains("70000"));
        assert!(with(|c| c.announce_ip = "x".into()).contains("announce_ip"));
        assert!(with(|c| c.directives = vec![directive("a\nrequirepass", "x")]).contains("no name"));
    }
}

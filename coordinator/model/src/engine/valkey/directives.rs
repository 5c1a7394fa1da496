//! The directives of Valkey that a parameter set is about: which it may hold and how each reaches a running engine, and which are the
//! platform's. Data alone; read by `parameters` and `config`. Classes and defaults are those of the real engine, 8.1.1: what its
//! CONFIG SET calls immutable needs a restart.

/// What a directive's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// A whole number in this range.
    Number(i64, i64),
    /// Bytes, with k, kb, m, mb, g, gb as the engine reads them.
    Memory,
    /// Bytes, or a share of maxmemory such as `5%`.
    MemoryOrPercent,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Letters of this set, in any order; none switches it off.
    Letters(&'static str),
    /// Pairs of seconds and changes; none switches it off.
    SavePoints,
    /// Class, hard limit, soft limit and seconds, for one class or several.
    BufferLimits,
}

/// How a changed value reaches a running engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The engine takes it while it serves.
    Live,
    /// The engine reads it when it starts.
    Restart,
}

/// A directive that a parameter set may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directive {
    /// As CONFIG GET answers it.
    pub name: &'static str,
    /// The engine's own value, which a directive that leaves a set goes back to; what the platform sets instead is in `config`.
    pub default: &'static str,
    /// What may be given.
    pub allowed: Allowed,
    /// How it is changed.
    pub class: Class,
    /// First engine version that knows it.
    pub since: (u32, u32),
}

/// The oldest version with images.
pub const FIRST: (u32, u32) = (7, 2);

const fn live(name: &'static str, default: &'static str, allowed: Allowed) -> Directive {
    Directive { name, default, allowed, class: Class::Live, since: FIRST }
}

const fn restart(name: &'static str, default: &'static str, allowed: Allowed) -> Directive {
    Directive { class: Class::Restart, ..live(name, default, allowed) }
}

const fn since(major: u32, minor: u32, directive: Directive) -> Directive {
    Directive { since: (major, minor), ..directive }
}

use Allowed::{BufferLimits, Letters, Memory, MemoryOrPercent, Number, OneOf, SavePoints};

const YES_NO: Allowed = OneOf(&["yes", "no"]);
const ENTRIES: Allowed = Number(0, 1_000_000);

/// Every directive that a set may hold, sorted by name.
pub const DIRECTIVES: &[Directive] = &[
    live("acllog-max-len", "128", Number(0, 10_000)),
    live("active-defrag-cycle-max", "25", Number(1, 99)),
    live("active-defrag-cycle-min", "1", Number(1, 99)),
    since(8, 1, live("active-defrag-cycle-us", "500", Number(0, 100_000))),
    live("active-defrag-ignore-bytes", "104857600", Memory),
    live("active-defrag-max-scan-fields", "1000", Number(1, 1_000_000)),
    live("active-defrag-threshold-lower", "10", Number(0, 1_000)),
    live("active-defrag-threshold-upper", "100", Number(0, 1_000)),
    live("active-expire-effort", "1", Number(1, 10)),
    live("activedefrag", "no", YES_NO),
    live("activerehashing", "yes", YES_NO),
    live("appendfsync", "everysec", OneOf(&["always", "everysec", "no"])),
    live("appendonly", "no", YES_NO),
    live("auto-aof-rewrite-min-size", "67108864", Memory),
    live("auto-aof-rewrite-percentage", "100", Number(0, 100_000)),
    live("busy-reply-threshold", "5000", Number(0, 600_000)),
    live(
        "client-output-buffer-limit",
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        BufferLimits,
    ),
    live("client-query-buffer-limit", "1073741824", Memory),
    live("cluster-allow-pubsubshard-when-down", "yes", YES_NO),
    live("cluster-allow-reads-when-down", "no", YES_NO),
    live("cluster-link-sendbuf-limit", "0", Memory),
    live("cluster-node-timeout", "15000", Number(1_000, 60_000)),
    live("cluster-replica-validity-factor", "10", Number(0, 1_000)),
    live("cluster-require-full-coverage", "yes", YES_NO),
    since(8, 0, live("cluster-slot-stats-enabled", "no", YES_NO)),
    since(8, 1, live("commandlog-large-reply-max-len", "128", Number(0, 100_000))),
    since(8, 1, live("commandlog-large-request-max-len", "128", Number(0, 100_000))),
    since(8, 1, live("commandlog-reply-larger-than", "1048576", Number(-1, 1 << 40))),
    since(8, 1, live("commandlog-request-larger-than", "1048576", Number(-1, 1 << 40))),
    restart("databases", "1", Number(1, 1)),
    restart("disable-thp", "yes", YES_NO),
    live("hash-max-listpack-entries", "512", ENTRIES),
    live("hash-max-listpack-value", "64", ENTRIES),
    live("hll-sparse-max-bytes", "3000", Memory),
    live("hz", "10", Number(1, 500)),
    restart("io-threads", "1", Number(1, 16)),
    live("jemalloc-bg-thread", "yes", YES_NO),
    live("latency-monitor-threshold", "0", Number(0, 3_600_000)),
    live("latency-tracking", "yes", YES_NO),
    live("lazyfree-lazy-eviction", "yes", YES_NO),
    live("lazyfree-lazy-expire", "yes", YES_NO),
    live("lazyfree-lazy-server-del", "yes", YES_NO),
    live("lazyfree-lazy-user-del", "yes", YES_NO),
    live("lazyfree-lazy-user-flush", "yes", YES_NO),
    live("lfu-decay-time", "1", ENTRIES),
    live("lfu-log-factor", "10", ENTRIES),
    live("list-compress-depth", "0", ENTRIES),
    live("list-max-listpack-size", "-2", Number(-5, 1_000_000)),
    live("maxclients", "10000", Number(64, 65_000)),
    live("maxmemory", "0", Memory),
    live("maxmemory-clients", "0", MemoryOrPercent),
    live("maxmemory-eviction-tenacity", "10", Number(0, 100)),
    live(
        "maxmemory-policy",
        "noeviction",
        OneOf(&[
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
    live("maxmemory-samples", "5", Number(1, 64)),
    live("min-replicas-max-lag", "10", Number(0, 3_600)),
    live("min-replicas-to-write", "0", Number(0, 5)),
    live("no-appendfsync-on-rewrite", "no", YES_NO),
    live("notify-keyspace-events", "", Letters("AKEg$lshzxetdmn")),
    since(8, 0, live("prefetch-batch-max-size", "16", Number(0, 128))),
    live("proto-max-bulk-len", "536870912", Memory),
    restart("rdbchecksum", "yes", YES_NO),
    live("rdbcompression", "yes", YES_NO),
    live("repl-backlog-size", "10485760", Memory),
    live("repl-backlog-ttl", "3600", Number(0, 31_536_000)),
    live("repl-disable-tcp-nodelay", "no", YES_NO),
    live("repl-diskless-sync-delay", "0", Number(0, 3_600)),
    live("repl-ping-replica-period", "10", Number(1, 3_600)),
    live("repl-timeout", "60", Number(5, 3_600)),
    live("replica-lazy-flush", "yes", YES_NO),
    live("replica-serve-stale-data", "yes", YES_NO),
    live("save", "", SavePoints),
    live("set-max-intset-entries", "512", ENTRIES),
    live("set-max-listpack-entries", "128", ENTRIES),
    live("set-max-listpack-value", "64", ENTRIES),
    live("slowlog-log-slower-than", "10000", Number(-1, 3_600_000_000)),
    live("slowlog-max-len", "128", Number(0, 100_000)),
    live("stop-writes-on-bgsave-error", "yes", YES_NO),
    live("stream-node-max-bytes", "4096", Memory),
    live("stream-node-max-entries", "100", ENTRIES),
    restart("tcp-backlog", "511", Number(1, 65_535)),
    live("tcp-keepalive", "300", Number(0, 86_400)),
    live("timeout", "0", Number(0, 31_536_000)),
    live("tracking-table-max-keys", "1000000", Number(0, 1 << 40)),
    live("zset-max-listpack-entries", "128", ENTRIES),
    live("zset-max-listpack-value", "64", ENTRIES),
];

/// Names, or beginnings of names with a star, that are the platform's, and why.
pub const FORBIDDEN: &[(&[&str], &str)] = &[
    (
        &[
            "port",
            "bind",
            "bind-source-addr",
            "cluster-port",
            "tls-*",
            "unixsocket*",
            "rdma-*",
            "protected-mode",
        ],
        "the platform gives every instance its address and ports",
    ),
    (
        &["cluster-announce-*", "replica-announce-*", "slave-announce-*", "cluster-preferred-endpoint-type"],
        "the platform tells the members where to find each other",
    ),
    (
        &[
            "requirepass",
            "masterauth",
            "masteruser",
            "primaryauth",
            "primaryuser",
            "user",
            "aclfile",
            "rename-command",
        ],
        "passwords and users are the platform's: see spec.rootPassword",
    ),
    (
        &[
            "cluster-enabled",
            "cluster-config-file",
            "replicaof",
            "slaveof",
            "replica-read-only",
            "slave-read-only",
        ],
        "the platform decides who is a member and who follows whom",
    ),
    (
        &[
            "cluster-allow-replica-migration",
            "cluster-migration-barrier",
            "cluster-replica-no-failover",
            "cluster-slave-no-failover",
            "replica-priority",
            "slave-priority",
        ],
        "the platform decides where replicas live and who may take over",
    ),
    (
        &[
            "dir",
            "dbfilename",
            "appendfilename",
            "appenddirname",
            "pidfile",
            "logfile",
            "syslog-*",
            "include",
            "loadmodule",
        ],
        "the platform owns the files of an instance",
    ),
    (
        &["daemonize", "supervised", "shutdown-timeout", "shutdown-on-sigint", "shutdown-on-sigterm"],
        "the platform starts and stops the engine",
    ),
    (
        &["enable-debug-command", "enable-module-command", "enable-protected-configs"],
        "it would open what the platform keeps closed",
    ),
];

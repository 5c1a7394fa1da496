//! PostgreSQL: groups of Patroni members, a quorum of etcd for each cluster, Citus when there is more than one group. Used by the parent's
//! one match alone.

pub mod check;
pub mod config;
pub mod facts;
pub mod moment;
pub mod parameters;
pub mod quorum;
pub mod restarts;
pub mod role;
pub mod spec;
pub mod status;
pub mod tasks;

use crate::time::Millis;

/// Client port, the same in every cluster.
pub const PORT: u32 = 5_432;
/// Most replicas a group may have.
pub const MOST_REPLICAS: i32 = 5;
/// Most groups.
pub const MOST_GROUPS: usize = 64;
/// Most days backups are kept.
pub const MOST_RETENTION_DAYS: i32 = 365;
/// Members of a quorum: it serves as long as two of them do.
pub const QUORUM: u32 = 3;
/// Major version of a cluster that names none, in an installation that says nothing else.
pub const VERSION: &str = "17";
/// About how long a group is without a leader when its leader is lost without a word: the leader key has to expire, and one more turn of
/// Patroni's loop.
pub const WITHOUT_PRIMARY: Millis = Millis::seconds(25);

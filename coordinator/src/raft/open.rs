//! Starting a member. In: its identity, data directory, address and the cluster key. Out: a running [`Raft`].

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use openraft::{
    BasicNode, Config, SnapshotPolicy,
    error::{InitializeError, RaftError},
};
use shardplane_proto::causes::with_causes;
use tokio::sync::{Semaphore, watch};

use super::{
    Raft, Role,
    client::{Network, Peers},
    disk::{self, Disk},
    log::{self, LogError, LogStore},
    machine::{Machine, Published},
    members::Keeper,
    proof::Prover,
    propose::{self, Writer},
    read, role,
    service::{Dismissed, RaftService},
    snapshot::{SnapshotDir, SnapshotError},
    types::Core,
};
use crate::{clock::Clock, dial::Dialer, secrets::ClusterKey};

/// Longest time for sending and installing one snapshot.
const SNAPSHOT: Duration = Duration::from_secs(600);
/// Entries in one AppendEntries; the log bounds their bytes.
const MAX_ENTRIES: u64 = 64;
/// A leader is believed for so many leases without a quorum's answer.
const SILENT_LEASES: u32 = 2;

/// Which files to expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// None: this member has just got its id.
    New,
    /// A log: a member without it has lost its votes and must not go on under its id.
    Existing,
}

/// Timings and sizes that tests change.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Between a leader's signs of life. Also the deadline of one AppendEntries.
    pub heartbeat: Duration,
    /// A follower that hears no leader campaigns after the lease (`election_most`) and a random time in this range: by
    /// default after 1.8 to 2.4 s.
    pub election_least: Duration,
    /// End of that range.
    pub election_most: Duration,
    /// Entries between two snapshots.
    pub snapshot_every: u64,
    /// Entries kept before a snapshot, for followers that are a little behind.
    pub entries_kept: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_least: Duration::from_millis(600),
            election_most: Duration::from_millis(1200),
            snapshot_every: 5000,
            entries_kept: 1000,
        }
    }
}

/// What a member needs to start.
#[derive(Debug, Clone)]
pub struct RaftConfig {
    /// Its node id, see [`super::Identity`].
    pub node_id: u64,
    /// Where log and snapshot are, for messages.
    pub data_dir: PathBuf,
    /// Log and snapshot.
    pub disk: Arc<dyn Disk>,
    /// Which files to expect on it.
    pub storage: Storage,
    /// Reaches the other members.
    pub dialer: Dialer,
    /// `host:port` at which the other members reach it.
    pub advertise_address: String,
    /// The cluster key.
    pub cluster_key: ClusterKey,
    /// False while it only joins: then it never becomes a voter.
    pub serving: bool,
    /// Stamps entries.
    pub clock: Clock,
    /// Timings.
    pub timing: Timing,
}

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start this member on {data_dir}: {cause}")]
pub struct RaftOpenError {
    /// The data directory.
    pub data_dir: PathBuf,
    cause: Cause,
}

/// The chain of causes is one line: it is all that the operator sees.
#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("the log: {}", with_causes(.0))]
    Log(#[from] LogError),
    #[error("the snapshot: {}", with_causes(.0))]
    Snapshot(#[from] SnapshotError),
    #[error(
        "the log begins after the snapshot ends: the snapshot file is missing or old. Wipe the directory and join under a new id"
    )]
    Hole,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the files: {0}")]
    Task(#[from] disk::Ended),
    #[error("the timings are not valid: {0}")]
    Timing(String),
    #[error("the consensus core: {0}")]
    Core(String),
}

impl Raft {
    /// Starts a member. It serves nothing by itself: mount [`Raft::service`].
    ///
    /// # Errors
    /// When its files are missing, damaged, in use or of another node.
    pub async fn open(config: RaftConfig) -> Result<Self, RaftOpenError> {
        let data_dir = config.data_dir.clone();
        start(config).await.map_err(|cause| RaftOpenError { data_dir, cause })
    }

    /// Makes this new member a cluster of one. Once in the life of a cluster; every other member joins.
    ///
    /// # Errors
    /// When the member is not new.
    pub async fn initialize(&self) -> Result<(), RaftOpenError> {
        let members = [(self.id, BasicNode::new(&self.keeper.address))];
        let members: std::collections::BTreeMap<u64, BasicNode> = members.into();
        self.core.initialize(members).await.map_err(|error| {
            let cause = match error {
                RaftError::APIError(InitializeError::NotAllowed(_)) => {
                    "it belongs to a cluster already".to_owned()
                }
                RaftError::APIError(InitializeError::NotInMembers(e)) => e.to_string(),
                RaftError::Fatal(fatal) => fatal.to_string(),
            };
            RaftOpenError { data_dir: self.data_dir.clone(), cause: Cause::Core(cause) }
        })
    }
}

async fn start(config: RaftConfig) -> Result<Raft, Cause> {
    let timing = &config.timing;
    let core_config = core_config(timing)?;
    let published = Published::new();
    let snapshots = Arc::new(SnapshotDir::new(config.disk.clone()));

    let (disk, shown) = (config.disk.clone(), published.clone());
    let (id, storage) = (config.node_id, config.storage);
    let opening = disk::run(&config.disk, move || {
        let log = LogStore::open(disk.clone(), id, storage, log::TAIL_ENTRIES)?;
        // A file that was just made is there for good only when its directory is synced too.
        disk.sync_names()?;
        snapshots.sweep()?;
        let machine = Machine::load(snapshots, shown)?;
        if log.purged()?.map(|at| at.index) > machine.last().map(|at| at.index) {
            return Err(Cause::Hole);
        }
        Ok((log, machine))
    });
    let (log, machine) = opening.await??;
    let closed = log.closed();

    let prover = Prover::new(&config.cluster_key);
    let peers = Arc::new(Peers::new(prover.clone(), config.dialer));
    let network = Network { me: id, peers: peers.clone(), disk: config.disk.clone() };
    let core = Core::new(id, Arc::new(core_config), network, log, machine);
    let core = core.await.map_err(|fatal| Cause::Core(fatal.to_string()))?;

    let lease = timing.election_most;
    let silence = lease * SILENT_LEASES;
    let paused = Arc::new(AtomicBool::new(false));
    let (role_now, role) = watch::channel(Role::Follower { leader: None });
    tokio::spawn(role::watch_role(core.metrics(), role_now, silence));
    let writer = Writer { core: core.clone(), clock: config.clock, silence, paused: paused.clone() };
    let keeper = Keeper {
        me: id,
        core: core.clone(),
        peers,
        address: config.advertise_address,
        lease,
        changing: Arc::default(),
        paused: paused.clone(),
    };
    tokio::spawn(keeper.clone().tend());
    let service = RaftService {
        me: id,
        core: core.clone(),
        prover,
        keeper: keeper.clone(),
        disk: config.disk,
        serving: config.serving,
        receiving: Arc::new(Semaphore::new(1)),
        dismissed: Arc::new(Dismissed::default()),
    };
    Ok(Raft {
        id,
        proposer: propose::start(writer),
        reader: read::start(core.clone(), published.clone(), paused),
        published,
        core,
        role,
        keeper,
        service,
        closed,
        data_dir: config.data_dir,
        stopping: Arc::default(),
    })
}

fn core_config(timing: &Timing) -> Result<Config, Cause> {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: "shardplane".to_owned(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_least),
        election_timeout_max: millis(timing.election_most),
        install_snapshot_timeout: millis(SNAPSHOT),
        max_payload_entries: MAX_ENTRIES,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(timing.snapshot_every),
        max_in_snapshot_log_to_keep: timing.entries_kept,
        // A snapshot may be as old as its interval; a follower that is not further behind gets entries.
        replication_lag_threshold: timing.snapshot_every * 2,
        ..Config::default()
    };
    config.validate().map_err(|error| Cause::Timing(error.to_string()))
}

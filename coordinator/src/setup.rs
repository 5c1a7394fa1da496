//! Forming and changing a cluster from the command line: `init`, `join`, `leave`. In: the configuration and a data directory.
//! Out: an identity, a cluster of one with its first tokens, a new member, or one fewer. Called by `main`.

use std::{
    fs::File,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use shardplane_model::{
    command::{Command, Timestamp},
    state::{Scope, Token},
};
use tokio::{net::TcpListener, sync::oneshot, time::timeout};

use crate::{
    clock::Clock,
    config::Config,
    dial::Dialer,
    raft::{
        self, Identity, MemberStatus, Raft, RaftConfig, Role, Standing, Storage, Timing, disk::Directory,
    },
    secrets::{ClusterKey, NewToken, new_token},
    serve,
};

/// A cluster of one elects itself at once.
const FIRST_LEADER: Duration = Duration::from_secs(30);
const JOIN: Duration = Duration::from_secs(600);
const LEAVE: Duration = Duration::from_secs(60);

/// What `init` made.
#[derive(Debug)]
pub struct FirstTokens {
    /// For the operator: every scope but the hosts'.
    pub admin: NewToken,
    /// For host agents.
    pub host: NewToken,
    /// Whether the key file is new and the other members need a copy.
    pub key_made: bool,
}

fn raft_config(
    config: &Config,
    identity: Identity,
    key: ClusterKey,
    clock: Clock,
    serving: bool,
) -> RaftConfig {
    RaftConfig {
        node_id: identity.node_id,
        data_dir: config.data_dir.clone(),
        disk: Arc::new(Directory::new(config.data_dir.clone())),
        storage: if identity.standing == Standing::Member { Storage::Existing } else { Storage::New },
        dialer: Dialer::tcp(),
        advertise_address: config.advertise.clone(),
        cluster_key: key,
        serving,
        clock,
        timing: Timing::default(),
    }
}

/// Makes the data directory, a cluster of one member, and its first tokens.
///
/// # Errors
/// When the directory is in use already, or the disk refuses.
pub async fn init(config: &Config) -> Result<FirstTokens> {
    let data_dir = config.data_dir.display();
    match Identity::load(&config.data_dir)?.map(|identity| identity.standing) {
        None => {}
        Some(Standing::Starting) => {
            bail!("an earlier init or join on {data_dir} did not end; remove the directory and try again")
        }
        Some(Standing::Member | Standing::Left) => {
            bail!("{data_dir} is initialised already; start this member with `run`")
        }
    }
    let key_made = !config.key_file.exists();
    let key =
        if key_made { ClusterKey::create(&config.key_file)? } else { ClusterKey::load(&config.key_file)? };
    let clock = Clock::start();
    let identity = Identity::new(clock.now());
    identity.save(&config.data_dir)?;

    let raft = Raft::open(raft_config(config, identity, key, clock.clone(), true)).await?;
    let made = first_entries(&raft, config, &clock).await;
    raft.stop().await;
    let (admin, host) = made?;
    Identity { standing: Standing::Member, ..identity }.save(&config.data_dir)?;
    Ok(FirstTokens { admin, host, key_made })
}

async fn first_entries(raft: &Raft, config: &Config, clock: &Clock) -> Result<(NewToken, NewToken)> {
    raft.initialize().await?;
    let mut role = raft.role();
    let leads = role.wait_for(|role| matches!(role, Role::Leader { .. }));
    timeout(FIRST_LEADER, leads).await.context("the new cluster of one did not elect its only member")??;
    let (admin, host) = (new_token(clock.now()), new_token(clock.now()));
    let all = vec![Scope::Read, Scope::Write, Scope::SecretsRead, Scope::Operator];
    let commands = vec![
        Command::Configure(config.settings()),
        Command::AddToken(token(&admin, "admin", all, clock.now())),
        Command::AddToken(token(&host, "hosts", vec![Scope::Host], clock.now())),
    ];
    for answer in raft.propose(commands).await? {
        answer?;
    }
    Ok((admin, host))
}

fn token(new: &NewToken, name: &str, scopes: Vec<Scope>, created: Timestamp) -> Token {
    Token { id: new.id, name: name.to_owned(), scopes, hash: new.hash.clone(), created }
}

/// Makes the file for the tokens, mode 0600, before there are any: tokens that cannot be written would be lost.
///
/// # Errors
/// When the file exists or cannot be made.
pub fn token_file(path: &Path) -> Result<File> {
    let made = File::options().write(true).create_new(true).mode(0o600).open(path);
    made.with_context(|| format!("cannot make {} for the tokens", path.display()))
}

/// Writes the tokens as shell lines.
///
/// # Errors
/// When the disk refuses.
pub fn write_tokens(tokens: &FirstTokens, mut file: File, path: &Path) -> Result<()> {
    let mut write = || {
        writeln!(file, "KC_TOKEN={}", tokens.admin.secret)?;
        writeln!(file, "HOST_TOKEN={}", tokens.host.secret)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write the tokens to {}", path.display()))
}

/// Starts this member for good; it has to be one already.
///
/// # Errors
/// When it never joined, has left, or its files are not whole.
pub async fn open_member(config: &Config, clock: Clock) -> Result<Raft> {
    let data_dir = config.data_dir.display();
    let key = ClusterKey::load(&config.key_file)?;
    let identity = match Identity::load(&config.data_dir)? {
        None => bail!(
            "{data_dir} holds no member: run `init` for a new cluster, or `join` to become a member of one"
        ),
        Some(Identity { standing: Standing::Starting, .. }) => {
            bail!(
                "the init or join on {data_dir} did not end: run `join` again, or remove the directory and start over"
            )
        }
        Some(Identity { standing: Standing::Left, node_id }) => {
            bail!(
                "member {node_id} on {data_dir} has left its cluster: remove the directory and `join` under a new id"
            )
        }
        Some(identity) => identity,
    };
    Ok(Raft::open(raft_config(config, identity, key, clock, true)).await?)
}

/// Records that this member was taken out: its id is used up.
///
/// # Errors
/// When the disk refuses.
pub fn note_left(config: &Config) -> Result<()> {
    if let Some(identity) = Identity::load(&config.data_dir)? {
        Identity { standing: Standing::Left, ..identity }.save(&config.data_dir)?;
    }
    Ok(())
}

/// Becomes a member of the cluster that `any` belongs to: serves on `listen` while the leader sends all data, then stops.
///
/// # Errors
/// When this is a member already, or the leader refuses or cannot reach it.
pub async fn join(config: &Config, any: &str) -> Result<(u64, Vec<MemberStatus>)> {
    let data_dir = config.data_dir.display();
    let key = ClusterKey::load(&config.key_file)
        .context("a joining member needs the cluster's key file: copy it from another member")?;
    let clock = Clock::start();
    let identity = match Identity::load(&config.data_dir)? {
        None => Identity::new(clock.now()),
        Some(identity) if identity.standing == Standing::Starting => identity,
        Some(identity) => bail!("{data_dir} holds member {} already; start it with `run`", identity.node_id),
    };
    identity.save(&config.data_dir)?;
    let listener = bind(config.listen).await?;
    let raft = Raft::open(raft_config(config, identity, key.clone(), clock, false)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(serve::serve(listener, serve::raft_routes(&raft), async move {
        // Dropping the sender means the same.
        let _ = stopped.await;
    }));
    let joined = raft::join(Dialer::tcp(), &key, any, identity.node_id, &config.advertise, JOIN).await;
    raft.stop().await;
    drop(stop);
    serving.await?.context("serving the members' calls failed")?;
    let members = joined?;
    Identity { standing: Standing::Member, ..identity }.save(&config.data_dir)?;
    Ok((identity.node_id, members))
}

/// Leaves the cluster. `any` is a member's address; without one this member itself is asked, which must run then.
///
/// # Errors
/// When this is no member, or the leader refuses.
pub async fn leave(config: &Config, any: Option<&str>, allow_even: bool) -> Result<(u64, Vec<MemberStatus>)> {
    let key = ClusterKey::load(&config.key_file)?;
    let identity = Identity::load(&config.data_dir)?;
    let Some(identity) = identity.filter(|identity| identity.standing == Standing::Member) else {
        bail!("{} holds no member of a cluster", config.data_dir.display());
    };
    let any = any.unwrap_or(&config.advertise);
    let members = raft::leave(Dialer::tcp(), &key, any, identity.node_id, allow_even, LEAVE).await?;
    ensure!(
        members.iter().all(|member| member.id != identity.node_id),
        "the leader still counts this member"
    );
    note_left(config)?;
    Ok((identity.node_id, members))
}

/// Binds the port.
///
/// # Errors
/// When it is taken.
pub async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))
}

/// Where the configuration is when nobody says otherwise.
pub fn default_config() -> PathBuf {
    PathBuf::from("/etc/shardplane/coordinator.toml")
}

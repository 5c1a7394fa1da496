//! Tests of the replicated log: the store against the library's suite, disks that fail, clusters over real gRPC.

mod cluster;
mod disk;
mod membership;
mod suite;

use std::{future::Future, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use shardplane_model::{
    command::{Command, Timestamp},
    state::{Scope, Token},
};
use shardplane_proto::ids::TokenId;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{ProposeError, Raft, RaftConfig, Role, Storage, Timing, disk::Directory};
use crate::{clock::Clock, dial::Dialer, secrets::ClusterKey, serve};

/// How long a test waits for a fact; a loaded machine needs elections of several seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A command that always changes the state.
pub(super) fn add_token(number: u128) -> Command {
    Command::AddToken(Token {
        id: TokenId::from_u128(number),
        name: format!("token {number}"),
        scopes: vec![Scope::Read],
        hash: "00".repeat(32),
        created: Timestamp(1),
    })
}

pub(super) fn has_token(raft: &Raft, number: u128) -> bool {
    raft.local().tokens.contains_key(&TokenId::from_u128(number))
}

pub(super) async fn until<F: Future<Output = bool>>(what: &str, fact: impl Fn() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !fact().await {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain until {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(150),
        election_least: Duration::from_millis(600),
        election_most: Duration::from_millis(1200),
        ..Timing::default()
    }
}

pub(super) fn config(id: u64, dir: &Path, address: &str, storage: Storage) -> RaftConfig {
    RaftConfig {
        node_id: id,
        data_dir: dir.to_owned(),
        disk: Arc::new(Directory::new(dir.to_owned())),
        storage,
        dialer: Dialer::tcp(),
        advertise_address: address.to_owned(),
        cluster_key: ClusterKey::for_tests(1),
        serving: true,
        clock: Clock::start(),
        timing: timing(),
    }
}

/// A member with its port.
pub(super) struct Running {
    pub(super) raft: Raft,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

/// A member that can be stopped and started again on its data.
pub(super) struct Machine {
    pub(super) id: u64,
    pub(super) dir: TempDir,
    pub(super) address: SocketAddr,
    pub(super) timing: Timing,
    pub(super) running: Option<Running>,
}

impl Machine {
    pub(super) async fn start_new(id: u64, timing: Timing) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut machine = Self { id, dir: tempfile::tempdir().unwrap(), address, timing, running: None };
        machine.launch(listener, Storage::New).await;
        machine
    }

    async fn launch(&mut self, listener: TcpListener, storage: Storage) {
        let mut config = config(self.id, self.dir.path(), &self.address.to_string(), storage);
        config.timing = self.timing.clone();
        let raft = Raft::open(config).await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let routes = serve::raft_routes(&raft);
        let serving = tokio::spawn(async move {
            let served = serve::serve(listener, routes, async {
                let _ = stopped.await;
            });
            served.await.unwrap();
        });
        self.running = Some(Running { raft, stop, serving });
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.running.as_ref().expect("it runs").raft
    }

    /// Ends it without a word to the others.
    pub(super) async fn kill(&mut self) {
        let running = self.running.take().expect("it runs");
        running.serving.abort();
        drop(running.stop);
        running.raft.stop().await;
    }

    pub(super) async fn restart(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.launch(listener, Storage::Existing).await;
    }
}

pub(super) async fn leads(raft: &Raft) -> bool {
    matches!(*raft.role().borrow(), Role::Leader { .. })
}

/// A cluster of one.
pub(super) async fn single(timing: Timing) -> Machine {
    let machine = Machine::start_new(1, timing).await;
    machine.raft().initialize().await.unwrap();
    until("the only member leads", || leads(machine.raft())).await;
    machine
}

/// Three voters; the first one leads.
pub(super) async fn three(timing: Timing) -> Vec<Machine> {
    let mut machines = vec![single(timing.clone()).await];
    for id in [2, 3] {
        let machine = Machine::start_new(id, timing.clone()).await;
        add(&machines[0], &machine).await;
        machines.push(machine);
    }
    until("all three vote", || async { voters(&machines[0]) == [1, 2, 3] }).await;
    machines
}

pub(super) async fn add(leader: &Machine, machine: &Machine) {
    leader.raft().keeper.add(machine.id, &machine.address.to_string(), PATIENCE).await.unwrap();
}

pub(super) fn voters(machine: &Machine) -> Vec<u64> {
    machine.raft().members().into_iter().filter(|member| member.voter).map(|member| member.id).collect()
}

pub(super) async fn leader_of(machines: &[Machine]) -> usize {
    let running = || machines.iter().enumerate().filter(|(_, machine)| machine.running.is_some());
    let find =
        || running().find(|(_, machine)| matches!(*machine.raft().role().borrow(), Role::Leader { .. }));
    until("somebody leads", || async { find().is_some() }).await;
    find().expect("somebody leads").0
}

/// Proposes at whoever leads, as a client would: again until it is answered.
pub(super) async fn write(machines: &[Machine], number: u128) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leader = leader_of(machines).await;
        match machines[leader].raft().propose(vec![add_token(number)]).await {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < deadline, "token {number}: {error}"),
        }
    }
}

pub(super) fn outcome_is_known(error: &ProposeError) -> bool {
    match error {
        ProposeError::NotLeader { .. } | ProposeError::NoQuorum | ProposeError::TooLarge { .. } => true,
        ProposeError::Stopped | ProposeError::Timeout => false,
    }
}

//! One member of the coordinator as a host of the simulation. In: its seat, which outlives its crashes. Out: the real member, put
//! together as `run` does it, and a handle for whoever looks into it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use shardplane_coordinator::{
    clock::Clock,
    member,
    raft::{self, Raft, RaftConfig, Role, Storage, Timing},
    secrets::{ClusterKey, NewToken, Sealer},
    serve,
};
use shardplane_model::{
    command::Command,
    state::{Scope, Settings, Token},
    time::{Millis, Timestamp},
};

use crate::{
    disk::Platter,
    net::{self, PORT, Port},
};

/// The wall clock when the world begins.
pub const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// How long a member tries to join.
const JOIN: Duration = Duration::from_secs(60);

/// What all members of a cluster share.
pub struct Shared {
    pub key: ClusterKey,
    pub admin: NewToken,
    pub host: NewToken,
    pub settings: Settings,
    pub timing: Timing,
}

/// A place for a member.
pub struct Seat {
    pub id: u64,
    pub name: String,
    pub platter: Platter,
    pub shared: Arc<Shared>,
    /// The running member.
    raft: Mutex<Option<Raft>>,
    /// Whether its log was made.
    made: AtomicBool,
    /// Whether it was ever a member: it forms the cluster or joins it until then.
    pub joined: AtomicBool,
    /// Whether it was taken out: then it does not start any more.
    pub left: AtomicBool,
    /// How far its wall clock is off at the next start, in seconds.
    pub skew: AtomicI64,
    /// Why it could not start or stopped last.
    pub stopped: Mutex<Option<String>>,
}

impl Seat {
    pub fn new(id: u64, seed: u64, shared: Arc<Shared>) -> Self {
        Self {
            id,
            name: format!("member{id}"),
            platter: Platter::new(seed),
            shared,
            raft: Mutex::default(),
            made: AtomicBool::default(),
            joined: AtomicBool::default(),
            left: AtomicBool::default(),
            skew: AtomicI64::default(),
            stopped: Mutex::default(),
        }
    }

    pub fn address(&self) -> String {
        format!("{}:{PORT}", self.name)
    }

    /// The running member.
    pub fn raft(&self) -> Option<Raft> {
        self.raft.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the running member: it is about to crash.
    pub fn vacate(&self) {
        *self.raft.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The term that it leads in.
    pub fn leads(&self) -> Option<u64> {
        match *self.raft()?.role().borrow() {
            Role::Leader { term } => Some(term),
            Role::Follower { .. } | Role::Stopped => None,
        }
    }

    fn note(&self, reason: impl ToString) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_string());
    }

    /// Runs until the member stops by itself.
    pub async fn run(self: Arc<Self>) -> turmoil::Result {
        let port = Port::bind().await?;
        let wall = EPOCH + turmoil::sim_elapsed().unwrap_or_default();
        let seconds = wall.as_secs().saturating_add_signed(self.skew.load(Ordering::Relaxed));
        let clock = Clock::showing(Duration::from_secs(seconds));
        let new = !self.made.load(Ordering::Relaxed);
        let opened = Raft::open(RaftConfig {
            node_id: self.id,
            data_dir: self.name.clone().into(),
            disk: Arc::new(self.platter.mounted()),
            storage: if new { Storage::New } else { Storage::Existing },
            dialer: net::dialer(),
            advertise_address: self.address(),
            cluster_key: self.shared.key.clone(),
            serving: true,
            clock: clock.clone(),
            timing: self.shared.timing.clone(),
        });
        let raft = match opened.await {
            Ok(raft) => raft,
            Err(error) if self.platter.state().died || self.platter.state().failed > 0 => {
                self.note(error);
                return Ok(());
            }
            Err(error) => return Err(format!("{}: {error}", self.name).into()),
        };
        self.made.store(true, Ordering::Relaxed);
        *self.raft.lock().unwrap_or_else(PoisonError::into_inner) = Some(raft.clone());
        let sealer = Sealer::new(&self.shared.key);
        let (routes, planning) =
            member::start(raft.clone(), self.shared.settings.clone(), sealer, clock, net::dialer());
        let mut role = raft.role();
        let dismissed = raft.clone();
        let serving = tokio::spawn(serve::serve(port, routes, async move {
            tokio::select! {
                _ = role.wait_for(|role| *role == Role::Stopped) => {}
                () = dismissed.told_to_leave() => {}
            }
        }));
        if !self.joined.load(Ordering::Relaxed) {
            tokio::spawn(self.clone().become_member(raft.clone()));
        }
        serving.await??;
        self.note(raft.stop_reason().unwrap_or_else(|| "nobody knows".to_owned()));
        self.left.store(raft.dismissed(), Ordering::Relaxed);
        raft.stop().await;
        planning.abort();
        self.vacate();
        Ok(())
    }

    /// The first member forms the cluster, every other one joins it.
    async fn become_member(self: Arc<Self>, raft: Raft) {
        if self.id == 1 {
            self.form(&raft).await;
        } else {
            let (key, me) = (&self.shared.key, self.address());
            let first = format!("member1:{PORT}");
            while let Err(error) = raft::join(net::dialer(), key, &first, self.id, &me, JOIN).await {
                self.note(error);
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        self.joined.store(true, Ordering::Relaxed);
    }

    async fn form(&self, raft: &Raft) {
        raft.initialize().await.unwrap();
        let mut role = raft.role();
        role.wait_for(|role| matches!(role, Role::Leader { .. })).await.unwrap();
        let token = |new: &NewToken, name: &str, scopes| {
            let (name, hash) = (name.to_owned(), new.hash.clone());
            Command::AddToken(Token { id: new.id, name, scopes, hash, created: Timestamp(0) })
        };
        let all = vec![Scope::Read, Scope::Write, Scope::SecretsRead, Scope::Operator];
        let commands = vec![
            Command::Configure(self.shared.settings.clone()),
            token(&self.shared.admin, "admin", all),
            token(&self.shared.host, "hosts", vec![Scope::Host]),
        ];
        raft.propose(commands).await.unwrap();
    }
}

/// The catalogue and timings of every member.
pub fn settings() -> Settings {
    use shardplane_model::state::{VmOffer, VolumeOffer};
    let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.01 };
    let volume = VolumeOffer { iops: 750, max_size_gib: 100, price_gib_hour: 0.0001 };
    Settings {
        vm_offers: [("g3-1c1-100".to_owned(), vm)].into(),
        volume_offers: [("gp3-750".to_owned(), volume)].into(),
        lost_after: Millis::seconds(30),
        ..Settings::default()
    }
}

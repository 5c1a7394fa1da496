//! A cluster of real members, users and agents in one simulation. In: a seed and how many members. Out: the same world each time; time
//! passes in steps, after each of which everything that must always hold is looked at.

use std::{
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use shardplane_coordinator::{
    raft::Timing,
    secrets::{ClusterKey, new_token},
};
use shardplane_model::time::Timestamp;
use turmoil::Sim;

use crate::{
    agent::{self, Agent},
    member::{Seat, Shared, settings},
    user::{self, User},
    watch::Watch,
};

/// One step of simulated time.
pub const STEP: Duration = Duration::from_millis(1);
/// A machine that was asked to start does so within this time.
const BOOT: Duration = Duration::from_millis(200);

pub struct World {
    pub sim: Sim<'static>,
    pub seats: Vec<Arc<Seat>>,
    pub shared: Arc<Shared>,
    pub ledger: user::Ledger,
    pub diaries: Vec<agent::Shared>,
    pub watch: Watch,
    pub dice: StdRng,
    seed: u64,
    /// What happened, for people and for comparing two runs.
    pub trace: String,
    /// Members that are off until this time.
    pub off: Vec<(usize, Duration)>,
    pub crashes: u64,
    names: u64,
    _key: tempfile::TempDir,
}

impl World {
    /// A cluster of so many members; nobody else is there yet.
    pub fn new(seed: u64, members: usize) -> Self {
        let mut world = Self::empty(seed);
        for _ in 0..members {
            world.add_seat();
        }
        world.until("all are voters", Duration::from_secs(60), |world| {
            world.voters() == (1..=members as u64).collect::<Vec<_>>()
        });
        world
    }

    fn empty(seed: u64) -> Self {
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(seed)
            .tick_duration(STEP)
            .simulation_duration(Duration::from_secs(86_400))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(4))
            .tcp_capacity(4096)
            .enable_random_order();
        let dir = tempfile::tempdir().unwrap();
        let timing = Timing { snapshot_every: 60, entries_kept: 15, ..Timing::default() };
        let shared = Shared {
            key: ClusterKey::create(&dir.path().join("key")).unwrap(),
            admin: new_token(Timestamp(1)),
            host: new_token(Timestamp(1)),
            settings: settings(),
            timing,
        };
        Self {
            sim: builder.build(),
            seats: Vec::new(),
            shared: Arc::new(shared),
            ledger: user::Ledger::default(),
            diaries: Vec::new(),
            watch: Watch::default(),
            dice: StdRng::seed_from_u64(seed ^ 0x5eed),
            seed,
            trace: String::new(),
            off: Vec::new(),
            crashes: 0,
            names: 0,
            _key: dir,
        }
    }

    /// A new member, which joins.
    pub fn add_seat(&mut self) -> usize {
        self.seat(false)
    }

    /// A new member, which does not join by itself.
    pub fn add_lonely_seat(&mut self) -> usize {
        self.seat(true)
    }

    fn seat(&mut self, lonely: bool) -> usize {
        let id = self.seats.len() as u64 + 1;
        let seat = Arc::new(Seat::new(id, self.seed.wrapping_mul(31).wrapping_add(id), self.shared.clone()));
        seat.joined.store(lonely, Ordering::Relaxed);
        let software = seat.clone();
        self.sim.host(seat.name.as_str(), move || software.clone().run());
        self.seats.push(seat);
        self.seats.len() - 1
    }

    /// A name that no host has.
    pub fn next_name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}-{}", self.names)
    }

    pub fn addresses(&self) -> Vec<String> {
        self.seats.iter().map(|seat| seat.address()).collect()
    }

    pub fn add_user(&mut self, number: u64) {
        let user = User {
            seed: self.seed.wrapping_add(number),
            token: self.shared.admin.secret.clone(),
            members: self.addresses(),
            ledger: self.ledger.clone(),
        };
        self.sim.client(format!("user{number}"), user.run());
    }

    pub fn add_agent(&mut self, number: u8) {
        let diary = agent::Shared::default();
        let agent = Agent {
            seed: self.seed.wrapping_add(1000 + u64::from(number)),
            number,
            token: self.shared.host.secret.clone(),
            members: self.addresses(),
            diary: diary.clone(),
        };
        self.diaries.push(diary);
        self.sim.client(format!("host{number}"), agent.run());
    }

    pub fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    pub fn note(&mut self, what: impl AsRef<str>) {
        let at = self.now().as_millis();
        let _ = writeln!(self.trace, "{at:>7} {}", what.as_ref());
    }

    /// Everything that happened, the figures, and all of it as one number.
    pub fn shown(&self) -> String {
        let mut shown = self.trace.clone();
        {
            let book = user::open(&self.ledger);
            let lost: u64 = self.seats.iter().map(|seat| seat.platter.state().lost).sum();
            let diaries = || self.diaries.iter().map(agent::open);
            let heartbeats: u64 = diaries().map(|diary| diary.all_heartbeats).sum();
            let stale: u64 = diaries().map(|diary| diary.stale).sum();
            let _ = writeln!(
                shown,
                "{} writes, {} reads and {} failures of users; {heartbeats} heartbeats and {stale} stale orders to hosts",
                book.writes, book.reads, book.failures,
            );
            let _ = writeln!(
                shown,
                "{} elections, {} crashes, {lost} writes lost by disks, {} states compared",
                self.watch.elections, self.crashes, self.watch.compared
            );
        }
        let mut hasher = DefaultHasher::new();
        shown.hash(&mut hasher);
        let _ = write!(shown, "fingerprint {:016x}", hasher.finish());
        shown
    }

    fn fail(&self, why: &str) -> ! {
        panic!("seed {}, at {:?}: {why}\n{}", self.seed, self.now(), self.trace);
    }

    /// One step of time, and a look at everything.
    pub fn step(&mut self) {
        if let Err(error) = self.sim.step() {
            self.fail(&error.to_string());
        }
        let now = self.now();
        match self.watch.look(now, &self.seats) {
            Ok(Some((term, member))) => self.note(format!("member {member} leads in term {term}")),
            Ok(None) => {}
            Err(why) => self.fail(&why),
        }
        for diary in &self.diaries {
            if let Err(why) = self.watch.hear(diary) {
                self.fail(&why);
            }
            if let Some(why) = agent::open(diary).broken.first() {
                self.fail(&format!("a host: {why}"));
            }
        }
        if let Some(why) = user::open(&self.ledger).broken.first() {
            self.fail(&format!("a user: {why}"));
        }
        for index in 0..self.seats.len() {
            self.tend(index);
        }
    }

    /// Machines whose power failed in the middle of something go off, what stopped by itself is started again, as a service manager does.
    fn tend(&mut self, index: usize) {
        let seat = self.seats[index].clone();
        if seat.left.load(Ordering::Relaxed) {
            return;
        }
        if let Some(at) = self.off.iter().position(|(off, _)| *off == index) {
            if self.off[at].1 <= self.now() {
                self.off.remove(at);
                self.note(format!("{} starts", seat.name));
                self.sim.bounce(seat.name.as_str());
            }
        } else if seat.platter.state().died {
            self.note(format!("the power of {} failed in the middle of a write", seat.name));
            let wait = self.dice.random_range(200..4000);
            self.crash(index, Duration::from_millis(wait));
        } else if !self.sim.is_host_running(seat.name.as_str()) {
            let why = seat.stopped.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.note(format!("{} stopped: {}", seat.name, why.unwrap_or_default()));
            self.crash(index, BOOT);
        }
    }

    /// Cuts the power of a member for a while.
    pub fn crash(&mut self, index: usize, off: Duration) {
        let seat = self.seats[index].clone();
        seat.vacate();
        seat.platter.cut();
        let name = seat.name.as_str();
        if self.sim.is_host_running(name) {
            self.sim.crash(name);
        }
        self.crashes += 1;
        let skew = self.dice.random_range(-600..600);
        seat.skew.store(skew, Ordering::Relaxed);
        self.note(format!("{name} is off for {} ms, its clock {skew} s wrong then", off.as_millis()));
        self.off.retain(|(other, _)| *other != index);
        // Who was taken out stays off.
        if !seat.left.load(Ordering::Relaxed) {
            let until = self.now() + off;
            self.off.push((index, until));
        }
    }

    /// Cuts the power of a member for good.
    pub fn retire(&mut self, index: usize) {
        self.crash(index, Duration::ZERO);
        self.off.retain(|(other, _)| *other != index);
        self.seats[index].left.store(true, Ordering::Relaxed);
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
    }

    /// Steps until a fact holds; it has to within `bound`.
    pub fn until(&mut self, what: &str, bound: Duration, fact: impl Fn(&Self) -> bool) {
        let until = self.now() + bound;
        while !fact(self) {
            if self.now() > until {
                self.fail(&format!("waited {bound:?} in vain until {what}"));
            }
            self.step();
        }
    }

    /// The member that leads in the newest term.
    pub fn leader(&self) -> Option<usize> {
        let leading = self.seats.iter().enumerate();
        leading.filter_map(|(index, seat)| Some((seat.leads()?, index))).max().map(|(_, index)| index)
    }

    /// The voters as the leader knows them.
    pub fn voters(&self) -> Vec<u64> {
        let Some(raft) = self.leader().and_then(|index| self.seats[index].raft()) else { return Vec::new() };
        raft.members().into_iter().filter(|member| member.voter).map(|member| member.id).collect()
    }
}

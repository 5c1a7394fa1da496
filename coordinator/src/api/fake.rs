//! A store in memory for the API's tests: the real state machine without a log.

use std::sync::{Arc, Mutex};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_model::{
    command::{Applied, Command, Entry},
    engine::Report,
    observed::{HostReport, MemberReport, Observed},
    refusal::Refusal,
    state::{Scope, Settings, State, Token, VmOffer, VolumeOffer},
    time::Millis,
};
use shardplane_proto::{
    ids::{Generation, HostId, InstanceId},
    v1,
};
use tokio::sync::watch;

use super::{
    Api,
    store::{Reports, Standing, Store, Unavailable},
};
use crate::{
    clock::Clock,
    secrets::{ClusterKey, Sealer, new_token},
};

/// The store and what tests do to it.
pub struct Fake {
    clock: Clock,
    state: Mutex<State>,
    applied: watch::Sender<u64>,
    /// Who leads.
    pub standing: watch::Sender<Standing>,
    heard: watch::Sender<u64>,
    observed: Mutex<Arc<Observed>>,
}

impl Fake {
    /// An installation with offers, and a leader.
    pub fn new() -> Arc<Self> {
        let fake = Arc::new(Self {
            clock: Clock::start(),
            state: Mutex::new(State::default()),
            applied: watch::channel(0).0,
            standing: watch::channel(Standing::Leads { term: 1 }).0,
            heard: watch::channel(0).0,
            observed: Mutex::default(),
        });
        let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.01 };
        let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0001 };
        fake.apply(vec![Command::Configure(Settings {
            vm_offers: [("g3-1c1-100".to_owned(), vm)].into(),
            volume_offers: [("gp3-750".to_owned(), volume)].into(),
            lost_after: Millis::seconds(30),
            ..Settings::default()
        })]);
        fake
    }

    /// Applies commands as one entry.
    pub fn apply(&self, commands: Vec<Command>) -> Vec<Result<Applied, Refusal>> {
        let mut state = self.state.lock().unwrap();
        let index = *self.applied.borrow() + 1;
        let answers = state.apply(index, &Entry { at: self.clock.now(), commands });
        drop(state);
        self.applied.send_replace(index);
        answers
    }

    /// Hosts that are connected and heard just now.
    pub fn hear(&self, hosts: &[HostId]) {
        let at = self.clock.now();
        let report = HostReport {
            connected: true,
            at,
            accepted: Generation(0),
            complete: true,
            problems: Vec::new(),
            granted: at,
        };
        let hosts = hosts.iter().map(|host| (*host, report.clone())).collect();
        *self.observed.lock().unwrap() = Arc::new(Observed { hosts, ..Observed::default() });
    }

    /// A host that is heard just now says that it has stopped an instance, as its newest spec wants.
    pub fn hear_fenced(&self, host: HostId, instance: InstanceId) {
        self.hear(&[host]);
        let mut observed = Observed::clone(&self.observed.lock().unwrap());
        let accepted = Generation(*self.applied.borrow());
        observed.hosts.entry(host).and_modify(|report| report.accepted = accepted);
        let report = MemberReport {
            machine: v1::MachineState::Down,
            message: "fenced: the machine is stopped".to_owned(),
            engine_state: v1::EngineState::Stopped,
            engine: None,
            fenced: true,
            port_cut: true,
            ..self.running(host, v1::ValkeyReport::default())
        };
        observed.members.insert(instance, report);
        *self.observed.lock().unwrap() = Arc::new(observed);
    }

    /// A host says what an instance's engine reports.
    pub fn hear_engine(&self, host: HostId, instance: InstanceId, engine: v1::ValkeyReport) {
        let mut observed = Observed::clone(&self.observed.lock().unwrap());
        observed.members.insert(instance, self.running(host, engine));
        *self.observed.lock().unwrap() = Arc::new(observed);
    }

    fn running(&self, host: HostId, engine: v1::ValkeyReport) -> MemberReport {
        MemberReport {
            host,
            at: self.clock.now(),
            machine: v1::MachineState::Running,
            message: String::new(),
            engine_state: v1::EngineState::Running,
            engine_message: String::new(),
            engine: Some(Report::Valkey(Box::new(engine))),
            config_generation: 1,
            restart_generation: 0,
            failed_since: None,
            silent_since: None,
            detached_since: None,
            fenced: false,
            port_cut: false,
            under_way: None,
        }
    }

    /// Makes a token with these scopes.
    pub fn token(&self, scopes: &[Scope]) -> String {
        let created = self.clock.now();
        let made = new_token(created);
        let token = Token {
            id: made.id,
            name: "tester".to_owned(),
            scopes: scopes.to_vec(),
            hash: made.hash.clone(),
            created,
        };
        self.apply(vec![Command::AddToken(token)]);
        made.secret.clone()
    }

    /// The API over it.
    pub fn api(self: &Arc<Self>) -> Api {
        let sealer = Sealer::new(&ClusterKey::for_tests(7));
        Api::new(self.clone(), self.clone(), sealer, self.clock.clone())
    }
}

impl Store for Fake {
    fn propose(
        &self,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Result<Vec<Result<Applied, Refusal>>, Unavailable>> {
        async move { Ok(self.apply(commands)) }.boxed()
    }

    fn read(&self) -> BoxFuture<'_, Result<State, Unavailable>> {
        async move { Ok(self.local()) }.boxed()
    }

    fn local(&self) -> State {
        self.state.lock().unwrap().clone()
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    fn members(&self) -> Vec<String> {
        vec!["127.0.0.1:1".to_owned()]
    }
}

impl Reports for Fake {
    fn observed(&self) -> Arc<Observed> {
        self.observed.lock().unwrap().clone()
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.heard.subscribe()
    }
}

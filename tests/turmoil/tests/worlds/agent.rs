//! A scripted host agent with real sessions. In: the members' addresses. Out: in its diary: what it was told, and every order that
//! broke a promise. It has no machines; it accepts what a real agent accepts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use shardplane_proto::v1::{self, from_host, host_session_client::HostSessionClient, to_host};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, transport::Endpoint};

use crate::net;

/// Without a word for that long the session counts as lost.
const SILENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(2);

/// What one host was told.
#[derive(Default)]
pub struct Diary {
    /// Newest accepted (term, generation).
    pub accepted: (u64, u64),
    /// What each generation said, its term aside.
    specs: BTreeMap<u64, v1::HostSpec>,
    /// The term of the open session.
    pub session: Option<u64>,
    /// Sessions so far; also in the facts of the host.
    pub sessions: u64,
    /// The number of the newest session that was welcomed: its facts are in the log.
    pub welcomed: u64,
    /// Terms from which a spec was accepted.
    pub terms: Vec<u64>,
    /// Heartbeats that nobody has looked at: when, in which term.
    pub heartbeats: Vec<(Duration, u64)>,
    pub all_heartbeats: u64,
    /// Orders of leaders of the past.
    pub stale: u64,
    /// Broken promises.
    pub broken: Vec<String>,
}

pub type Shared = Arc<Mutex<Diary>>;

pub fn open(diary: &Shared) -> MutexGuard<'_, Diary> {
    diary.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One host.
pub struct Agent {
    pub seed: u64,
    pub number: u8,
    pub token: String,
    pub members: Vec<String>,
    pub diary: Shared,
}

impl Agent {
    pub fn host_id(number: u8) -> String {
        ulid::Ulid::from_parts(1, u128::from(number)).to_string().to_lowercase()
    }

    /// Opens one session after the other.
    pub async fn run(self) -> turmoil::Result {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let mut next = 0;
        loop {
            let at = self.members[next % self.members.len()].clone();
            let ended = self.session(&at).await;
            open(&self.diary).session = None;
            let led = ended.as_ref().err().and_then(|status| status.metadata().get("shardplane-leader"));
            let leader = led.and_then(|at| at.to_str().ok()?.split(':').next().map(str::to_owned));
            let known = leader.and_then(|leader| {
                self.members.iter().position(|member| member.split(':').next() == Some(leader.as_str()))
            });
            next = known.unwrap_or(next + 1);
            sleep(Duration::from_millis(dice.random_range(100..600))).await;
        }
    }

    fn hello(&self, session: u64, accepted: u64) -> v1::HostHello {
        v1::HostHello {
            host_id: Self::host_id(self.number),
            name: format!("h{}", self.number),
            rack: format!("r{}", self.number),
            underlay_ipv4: format!("10.9.0.{}", self.number),
            capacity: Some(v1::Capacity {
                vcpu_percent: 6400,
                memory_mib: 64 << 10,
                disk_gib: 1000,
                iops: 100_000,
            }),
            images: vec![v1::ImageManifest {
                engine: "valkey".to_owned(),
                version: "8.1.9".to_owned(),
                digest: "ab".repeat(32),
                size_bytes: 1,
            }],
            boot_id: "one".to_owned(),
            agent_version: session.to_string(),
            vmm: "namespace".to_owned(),
            accepted_generation: accepted,
            ..Default::default()
        }
    }

    async fn session(&self, at: &str) -> Result<(), Status> {
        let endpoint = Endpoint::from_shared(format!("http://{at}"))
            .map_err(|e| Status::internal(e.to_string()))?
            .connect_timeout(CONNECT);
        let channel = endpoint.connect_with_connector(net::dialer()).await;
        let channel = channel.map_err(|e| Status::unavailable(e.to_string()))?;
        let (say, said) = mpsc::channel(16);
        let (session, accepted) = {
            let mut diary = open(&self.diary);
            diary.sessions += 1;
            (diary.sessions, diary.accepted.1)
        };
        let hello = from_host::Body::Hello(self.hello(session, accepted));
        let gone = |_| Status::cancelled("the session ended");
        say.send(v1::FromHost { body: Some(hello) }).await.map_err(gone)?;
        let mut request = Request::new(ReceiverStream::new(said));
        let bearer = format!("Bearer {}", self.token).parse();
        request.metadata_mut().insert("authorization", bearer.map_err(|_| Status::internal("token"))?);
        let mut client = HostSessionClient::new(channel);
        let opening = client.open(request);
        let mut stream =
            timeout(SILENCE, opening).await.map_err(|_| Status::cancelled("silence"))??.into_inner();
        let mut term = None;
        let mut full = true;
        let mut beat = tokio::time::interval(Duration::from_secs(1));
        loop {
            let message = tokio::select! {
                message = timeout(SILENCE, stream.message()) => message,
                _ = beat.tick(), if term.is_some() => {
                    let accepted_generation = open(&self.diary).accepted.1;
                    let report = v1::HostReport { full, accepted_generation, ..Default::default() };
                    full = false;
                    say.send(v1::FromHost { body: Some(from_host::Body::Report(report)) }).await.map_err(gone)?;
                    continue;
                }
            };
            let Some(message) = message.map_err(|_| Status::cancelled("silence"))?? else { return Ok(()) };
            self.hear(&mut term, session, message.body);
        }
    }

    fn hear(&self, term: &mut Option<u64>, session: u64, body: Option<to_host::Body>) {
        let diary = &mut *open(&self.diary);
        match body {
            Some(to_host::Body::Welcome(welcome)) => {
                *term = Some(welcome.term);
                diary.session = Some(welcome.term);
                diary.welcomed = session;
                if !(5_000..30_000).contains(&welcome.lost_after_ms) {
                    diary.broken.push(format!("a lease of {} ms to start machines", welcome.lost_after_ms));
                }
            }
            Some(to_host::Body::Spec(spec)) => diary.take(*term, spec),
            Some(to_host::Body::Heartbeat(_)) => {
                let at = turmoil::sim_elapsed().unwrap_or_default();
                diary.heartbeats.push((at, term.unwrap_or_default()));
                diary.all_heartbeats += 1;
            }
            None => diary.broken.push("an empty message".to_owned()),
        }
    }
}

impl Diary {
    fn take(&mut self, session: Option<u64>, spec: v1::HostSpec) {
        if session != Some(spec.term) {
            self.broken.push(format!("a spec of term {} in a session of {session:?}", spec.term));
        }
        let (term, generation) = (spec.term, spec.generation);
        let said = v1::HostSpec { term: 0, ..spec };
        match self.specs.get(&generation) {
            Some(before) if *before != said => {
                self.broken
                    .push(format!("generation {generation} says something else in term {term} than before"));
            }
            Some(_) => {}
            None => {
                self.specs.insert(generation, said);
            }
        }
        if term < self.accepted.0 {
            self.stale += 1;
        } else if generation < self.accepted.1 {
            self.broken.push(format!("generation {generation} of term {term} after {:?}", self.accepted));
        } else {
            if term > self.accepted.0 {
                self.terms.push(term);
            }
            self.accepted = (term, generation);
        }
    }
}

//! A coordinator that says what the test says.
//!
//! In: nothing. Out: an address, and each session as a pair of ends. Used by tests of the agent that need no coordinator of their own:
//! `agent/tests` with machines in namespaces, `tests/vm` with virtual ones. Every wait has an end, at which the test fails.

use std::{net::SocketAddr, time::Duration};

use shardplane_proto::v1::{
    self,
    host_session_server::{HostSession, HostSessionServer},
};
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// The token the scripted coordinator demands.
pub const TOKEN: &str = "host-token-of-the-test";
const PATIENCE: Duration = Duration::from_secs(30);

struct Script {
    sessions: mpsc::Sender<Session>,
    leader: Option<SocketAddr>,
}

#[tonic::async_trait]
impl HostSession for Script {
    type OpenStream = ReceiverStream<Result<v1::ToHost, Status>>;

    async fn open(
        &self,
        request: Request<Streaming<v1::FromHost>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        if token != Some(format!("Bearer {TOKEN}").as_str()) {
            return Err(Status::unauthenticated("wrong token"));
        }
        if let Some(leader) = self.leader {
            let mut status = Status::failed_precondition("not the leader");
            let leader = leader.to_string().parse().map_err(|_| Status::internal("an address is no text"))?;
            status.metadata_mut().insert("shardplane-leader", leader);
            return Err(status);
        }
        let (to, stream) = mpsc::channel(8);
        let beats = to.clone();
        tokio::spawn(async move {
            let beat = || v1::ToHost {
                body: Some(v1::to_host::Body::Heartbeat(v1::Heartbeat { answers: u64::MAX })),
            };
            tokio::time::sleep(Duration::from_secs(1)).await;
            while beats.send(Ok(beat())).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let session = Session { from: request.into_inner(), to, reports: Vec::new() };
        self.sessions.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// The coordinator.
pub struct Coordinator {
    /// Where it listens.
    pub address: SocketAddr,
    sessions: mpsc::Receiver<Session>,
}

impl Coordinator {
    /// Listens on a free port.
    ///
    /// # Panics
    /// When there is none.
    pub async fn start() -> Self {
        Self::start_as(None).await
    }

    /// Listens on a free port and sends agents to `leader`.
    ///
    /// # Panics
    /// When there is none.
    pub async fn follower_of(leader: SocketAddr) -> Self {
        Self::start_as(Some(leader)).await
    }

    async fn start_as(leader: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (sender, sessions) = mpsc::channel(4);
        let server = tonic::transport::Server::builder()
            .add_service(HostSessionServer::new(Script { sessions: sender, leader }));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, sessions }
    }

    /// The next session that an agent opens: hello taken, welcome sent.
    ///
    /// # Panics
    /// When none comes, or it begins with something else.
    pub async fn session(&mut self) -> (v1::HostHello, Session) {
        let mut session =
            timeout(PATIENCE, self.sessions.recv()).await.expect("no session").expect("the server runs");
        let v1::from_host::Body::Hello(hello) = session.next().await else {
            panic!("the first message is no hello")
        };
        session.say(v1::to_host::Body::Welcome(v1::Welcome { term: 1, lost_after_ms: 60_000 })).await;
        (hello, session)
    }
}

/// One session as the coordinator sees it.
pub struct Session {
    from: Streaming<v1::FromHost>,
    to: mpsc::Sender<Result<v1::ToHost, Status>>,
    /// All reports so far that were no heartbeats.
    pub reports: Vec<v1::HostReport>,
}

impl Session {
    /// Sends one message.
    ///
    /// # Panics
    /// When the agent ended the session.
    pub async fn say(&self, body: v1::to_host::Body) {
        self.to.send(Ok(v1::ToHost { body: Some(body) })).await.expect("the agent ended the session");
    }

    /// Sends a spec.
    ///
    /// # Panics
    /// When the agent ended the session.
    pub async fn spec(&self, spec: v1::HostSpec) {
        self.say(v1::to_host::Body::Spec(spec)).await;
    }

    async fn next(&mut self) -> v1::from_host::Body {
        let message = timeout(PATIENCE, self.from.message()).await.expect("the agent says nothing");
        let message = message.expect("the session broke off").expect("the agent ended the session");
        message.body.expect("a message without a body")
    }

    /// Takes reports until one fits.
    ///
    /// # Panics
    /// When none comes that does; says which came last.
    pub async fn report(&mut self, what: &str, fits: impl Fn(&v1::HostReport) -> bool) -> v1::HostReport {
        let wait = async {
            loop {
                if let v1::from_host::Body::Report(report) = self.next().await {
                    if !report.instances.is_empty() || !report.problems.is_empty() {
                        self.reports.push(report.clone());
                    }
                    if fits(&report) {
                        return report;
                    }
                }
            }
        };
        match timeout(PATIENCE, wait).await {
            Ok(report) => report,
            Err(_) => panic!(
                "never reported: {what}; last {:#?}",
                self.reports.iter().rev().take(3).collect::<Vec<_>>()
            ),
        }
    }

    /// Takes messages until the outcome of a task comes.
    ///
    /// # Panics
    /// When it does not come.
    pub async fn outcome(&mut self, task: &str) -> v1::TaskOutcome {
        let wait = async {
            loop {
                match self.next().await {
                    v1::from_host::Body::Outcome(outcome) if outcome.task_id == task => return outcome,
                    v1::from_host::Body::Outcome(_)
                    | v1::from_host::Body::Report(_)
                    | v1::from_host::Body::Hello(_) => {}
                }
            }
        };
        timeout(PATIENCE, wait).await.expect("no outcome came")
    }
}

//! One host's session. In: the agent's stream. Out: what it says, to the ear; the host's desired state whenever it has risen. A
//! member that does not lead refuses and names the leader.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use futures::Stream;
use shardplane_model::{
    command::{Command, Notice},
    hostspec::host_spec,
    state::{HostFacts, Scope, Sealed},
};
use shardplane_proto::{
    causes::with_causes,
    ids::{Generation, HostId, InstanceId, ResourceId, TaskId, TokenId},
    v1::{self, from_host, host_session_server::HostSession, to_host},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, metadata::MetadataValue};

use super::{
    ear::{Ear, SessionNumber},
    executor::ForHosts,
    hello::{self, BadMessage},
};
use crate::{
    api::auth,
    clock::Clock,
    raft::{Raft, Role},
    secrets::{Sealer, UnsealError},
};

/// Bytes of one message of a host: a full report of a large host.
pub(super) const LARGEST_MESSAGE: usize = 16 << 20;
/// A host that says nothing for that long has no session any more; it sends something every second.
const SILENCE: Duration = Duration::from_secs(5);
/// The first message must come at once.
const HELLO: Duration = Duration::from_secs(5);
/// A desired state that was not accepted is sent again after that long.
const RESEND: Duration = Duration::from_secs(5);
/// Messages under way to one host.
const QUEUE: usize = 4;
/// Metadata entry that names the leader.
const LEADER_ENTRY: &str = "shardplane-leader";

/// What the executor wants hosts to have.
pub(super) type Wanted = watch::Receiver<ForHosts>;

/// The service that agents call.
#[derive(Clone)]
pub struct SessionService {
    raft: Raft,
    sealer: Sealer,
    clock: Clock,
    ear: Ear,
    wanted: Wanted,
}

fn bad(error: &BadMessage) -> Status {
    Status::invalid_argument(format!("the host's message makes no sense: {}", with_causes(error)))
}

impl SessionService {
    pub(super) fn new(raft: Raft, sealer: Sealer, clock: Clock, ear: Ear, wanted: Wanted) -> Self {
        Self { raft, sealer, clock, ear, wanted }
    }

    /// The term this member leads in.
    fn term(&self) -> Result<u64, Status> {
        match self.raft.role().borrow().clone() {
            Role::Leader { term } => Ok(term),
            Role::Follower { leader } => {
                let mut status = Status::failed_precondition("this member does not lead");
                if let Some(address) = leader.and_then(|leader| MetadataValue::try_from(leader.address).ok())
                {
                    status.metadata_mut().insert(LEADER_ENTRY, address);
                }
                Err(status)
            }
            Role::Stopped => Err(Status::unavailable("this member is stopping")),
        }
    }

    /// The host token the agent shows.
    fn authenticate(&self, request: &Request<Streaming<v1::FromHost>>) -> Result<TokenId, Status> {
        let token = auth::bearer(request.metadata().as_ref());
        let caller = auth::caller(&self.raft.local(), token)
            .map_err(|problem| Status::unauthenticated(problem.message))?;
        caller.needs(&[Scope::Host]).map_err(|problem| Status::permission_denied(problem.message))?;
        caller.user.id.parse().map_err(|_| Status::internal("the token has no id"))
    }
}

#[tonic::async_trait]
impl HostSession for SessionService {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<v1::ToHost, Status>> + Send>>;

    async fn open(
        &self,
        request: Request<Streaming<v1::FromHost>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let term = self.term()?;
        let token = self.authenticate(&request).inspect_err(|status| {
            let from =
                request.remote_addr().map_or_else(|| "an unknown address".to_owned(), |at| at.to_string());
            tracing::warn!(from, reason = status.message(), "an agent was refused");
        })?;
        let (to_host, messages) = mpsc::channel(QUEUE);
        let (stream, received) = (request.into_inner(), Received::default());
        let session = Session { service: self.clone(), term, token, stream, received, to_host };
        tokio::spawn(session.run());
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

struct Session {
    service: SessionService,
    term: u64,
    token: TokenId,
    stream: Streaming<v1::FromHost>,
    received: Received,
    to_host: mpsc::Sender<Result<v1::ToHost, Status>>,
}

/// What was sent last, so that nothing is sent twice without need.
#[derive(Default)]
struct Sent {
    generation: Generation,
    at: Option<Instant>,
    confirmed: u64,
}

/// Reports of a host that a heartbeat can answer. The host counts its leases from when it sent the one that is answered, so a heartbeat
/// answers none that came after the quorum was asked: a leader that was replaced since prolongs nothing beyond its own time, however
/// late its words come through.
#[derive(Default)]
struct Received {
    count: u64,
    /// When each came, oldest first; more than [`Received::KEPT`] are not answered one by one.
    at: VecDeque<(Instant, u64)>,
}

impl Received {
    const KEPT: usize = 64;

    fn came(&mut self, at: Instant) {
        self.count += 1;
        self.at.push_back((at, self.count));
        if self.at.len() > Self::KEPT {
            self.at.pop_front();
        }
    }

    /// The newest that came until `asked`; 0 when none is known.
    fn until(&self, asked: Option<Instant>) -> u64 {
        let before = |(at, _): &&(Instant, u64)| asked.is_some_and(|asked| *at <= asked);
        self.at.iter().rev().find(before).map_or(0, |(_, number)| *number)
    }
}

impl Session {
    async fn run(mut self) {
        if let Err(status) = self.serve().await {
            // The host may be gone already; then nobody needs the reason.
            let _ = self.to_host.try_send(Err(status));
        }
    }

    async fn next(&mut self, within: Duration) -> Result<from_host::Body, Status> {
        let silent =
            |_| Status::deadline_exceeded(format!("the host said nothing for {} s", within.as_secs()));
        let message = timeout(within, self.stream.message()).await.map_err(silent)??;
        let ended = || Status::cancelled("the host ended the session");
        message
            .ok_or_else(ended)?
            .body
            .ok_or_else(|| Status::invalid_argument("the host sent an empty message"))
    }

    async fn serve(&mut self) -> Result<(), Status> {
        let from_host::Body::Hello(said) = self.next(HELLO).await? else {
            return Err(Status::invalid_argument("a session begins with hello"));
        };
        let (host, facts, accepted) = hello::hello(said).map_err(|error| bad(&error))?;
        self.refuse_double(host, &facts)?;
        let name = facts.name.clone();
        let notice = Command::Notice(Notice::Host { host, facts });
        let answers = self.service.raft.propose(vec![notice]).await;
        answers.map_err(|error| Status::unavailable(format!("the host could not be recorded: {error}")))?;
        let number = self.service.ear.open(host, accepted);
        tracing::info!(%host, name, "host session opened");
        let ended = self.listen(host, number).await;
        self.service.ear.close(host, number);
        if let Err(status) = &ended {
            tracing::info!(%host, name, reason = status.message(), "host session ended");
        }
        ended
    }

    /// One id is one host: a second one with another boot or address is a copied state directory.
    fn refuse_double(&self, host: HostId, facts: &HostFacts) -> Result<(), Status> {
        let state = self.service.raft.local();
        let known = state.hosts.get(&host).map(|known| &known.facts);
        let differs = known.is_some_and(|k| k.boot_id != facts.boot_id && k.underlay != facts.underlay);
        if differs && self.service.ear.observed().hears(host, self.service.clock.now()) {
            let text = format!(
                "host id {host} has a session already, from another machine: was a state directory copied?"
            );
            return Err(Status::already_exists(text));
        }
        Ok(())
    }

    async fn listen(&mut self, host: HostId, number: SessionNumber) -> Result<(), Status> {
        // What the host may rest on ends before this side's patience does, however late its last words came through.
        let lost_after = self.service.raft.local().settings.lost_after.0;
        let margin = u64::try_from((SILENCE + Duration::from_secs(1)).as_millis()).unwrap_or(u64::MAX);
        let lost_after_ms = lost_after.saturating_sub(margin).max(lost_after / 4);
        self.send(to_host::Body::Welcome(v1::Welcome { term: self.term, lost_after_ms })).await?;
        let mut sent = Sent::default();
        self.deliver(host, &mut sent).await?;
        let mut wanted = self.service.wanted.clone();
        let mut role = self.service.raft.role();
        let silence = tokio::time::sleep(SILENCE);
        tokio::pin!(silence);
        loop {
            tokio::select! {
                message = self.stream.message() => {
                    silence.as_mut().reset(Instant::now() + SILENCE);
                    let body = message?.ok_or_else(|| Status::cancelled("the host ended the session"))?.body;
                    self.hear(host, number, body)?;
                }
                () = &mut silence => {
                    return Err(Status::deadline_exceeded(format!("the host said nothing for {} s", SILENCE.as_secs())));
                }
                changed = wanted.changed() => {
                    changed.map_err(|_| Status::unavailable("this member is stopping"))?;
                    let (behind, confirmed, asked) = {
                        let wanted = wanted.borrow_and_update();
                        (wanted.behind.get(&host).copied(), wanted.confirmed, wanted.asked)
                    };
                    let due = sent.at.is_none_or(|at| at.elapsed() > RESEND);
                    if behind.is_some_and(|newest| newest > sent.generation || due) {
                        self.deliver(host, &mut sent).await?;
                    }
                    if confirmed > sent.confirmed {
                        if !self.service.raft.local().tokens.contains_key(&self.token) {
                            return Err(Status::unauthenticated("the host token was taken back; give the agent a new one"));
                        }
                        sent.confirmed = confirmed;
                        let answers = self.received.until(asked);
                        self.service.ear.grant(host, number);
                        self.send(to_host::Body::Heartbeat(v1::Heartbeat { answers })).await?;
                    }
                }
                changed = role.changed() => {
                    changed.map_err(|_| Status::unavailable("this member is stopping"))?;
                    if self.service.term()? != self.term {
                        return Err(Status::failed_precondition("this member leads anew; open a new session"));
                    }
                }
            }
        }
    }

    async fn send(&self, body: to_host::Body) -> Result<(), Status> {
        let message = v1::ToHost { body: Some(body) };
        let sent = timeout(SILENCE, self.to_host.send(Ok(message))).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the host ended the session")),
            Err(_) => Err(Status::deadline_exceeded("the host takes no messages")),
        }
    }

    /// Sends the host its newest desired state.
    async fn deliver(&self, host: HostId, sent: &mut Sent) -> Result<(), Status> {
        let state = self.service.raft.local();
        let sealer = &self.service.sealer;
        let unseal =
            |id: ResourceId, sealed: &Sealed| -> Result<String, UnsealError> { sealer.unseal(id, &sealed.0) };
        let spec = host_spec(&state, host, self.term, &unseal).map_err(|error| {
            Status::internal(format!("a password of this host's instances does not open: {error}"))
        })?;
        let Some(spec) = spec else { return Ok(()) };
        sent.generation = Generation(spec.generation);
        sent.at = Some(Instant::now());
        self.send(to_host::Body::Spec(spec)).await
    }

    fn hear(
        &mut self,
        host: HostId,
        number: SessionNumber,
        body: Option<from_host::Body>,
    ) -> Result<(), Status> {
        match body {
            None => Err(Status::invalid_argument("the host sent an empty message")),
            Some(from_host::Body::Hello(_)) => Err(Status::invalid_argument("the host said hello twice")),
            Some(from_host::Body::Report(report)) => {
                self.received.came(Instant::now());
                let state = self.service.raft.local();
                let engine_of = |id: InstanceId| {
                    let cluster = state.instances.get(&id)?.cluster;
                    state.clusters.get(&cluster).map(|cluster| cluster.engine)
                };
                let said = hello::report(host, report, engine_of).map_err(|error| bad(&error))?;
                if self.service.ear.report(host, number, said) {
                    return Ok(());
                }
                Err(Status::aborted(
                    "a newer session of this host took over; are two agents running with one host id?",
                ))
            }
            Some(from_host::Body::Outcome(outcome)) => {
                let id: TaskId = outcome
                    .task_id
                    .parse()
                    .map_err(|source| bad(&BadMessage::Id { field: "task_id", source }))?;
                self.service.ear.outcome(id, hello::ended(outcome));
                Ok(())
            }
        }
    }
}

impl std::fmt::Debug for SessionService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionService(at {})", self.clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_answers_no_report_that_came_after_the_quorum_was_asked() {
        let mut received = Received::default();
        let start = Instant::now();
        let at = |n: u64| start + Duration::from_secs(n);
        (1..=100).for_each(|n| received.came(at(n)));
        assert_eq!(received.until(Some(at(70))), 70);
        assert_eq!(received.until(Some(at(70) + Duration::from_millis(500))), 70);
        assert_eq!(received.until(Some(at(200))), 100);
        assert_eq!(received.until(Some(at(20))), 0, "too long ago to be known");
        assert_eq!(received.until(None), 0);
    }
}

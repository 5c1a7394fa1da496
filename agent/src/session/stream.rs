//! One stream to one member, from connect to its end.
//!
//! In: the session's shared things. Out: how it ended. A peer that is dead is noticed within 5 s by HTTP/2 keep-alive.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use shardplane_proto::{
    causes::innermost,
    v1::{self, from_host, host_session_client::HostSessionClient, to_host},
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, metadata::MetadataValue, transport::Endpoint};

use super::Session;
use crate::{boot_time::BootTime, reconcile::Received};

const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// For the answer to `Open` and for the welcome.
const OPEN_DEADLINE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_millis(2500);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// A stream that takes nothing for this long is dead, whatever the transport says.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// A leader says something every second while a quorum confirms it; after this silence another may lead.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// This task looks around every second. After so long a pause it was not running, as on a suspended host, and what it finds
/// then may be as old as the pause.
const STOOD_STILL_AFTER: Duration = Duration::from_secs(5);
/// Outcomes are sent again this often while the spec still has their tasks.
const REPEAT_OUTCOMES_EVERY: u32 = 5;
/// A spec of a host with many instances and many remotes is large.
const MAX_SPEC_BYTES: usize = 64 << 20;
/// Messages between this task and the transport; the board holds the rest.
const OUTGOING: usize = 8;

/// How an attempt ended.
#[derive(Debug)]
pub enum End {
    /// The member does not lead and named who does.
    Redirected {
        /// `host:port`.
        leader: String,
    },
    /// No session came to be.
    Refused {
        /// Why, and what to do where that is known.
        why: String,
    },
    /// There was a session.
    Broken {
        /// Why it ended.
        why: String,
    },
}

/// Opens a session and serves it until it ends.
pub async fn open(session: &Session, address: &str) -> End {
    match connect(session, address).await {
        Ok((incoming, outgoing)) => End::Broken { why: serve(session, incoming, outgoing).await },
        Err(end) => end,
    }
}

type Open = (Streaming<v1::ToHost>, mpsc::Sender<v1::FromHost>);

async fn connect(session: &Session, address: &str) -> Result<Open, End> {
    let refused = |why: String| End::Refused { why };
    let token = tokio::fs::read_to_string(&session.token_file).await.map_err(|error| {
        refused(format!("cannot read the host token {}: {error}", session.token_file.display()))
    })?;
    let bearer = MetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| refused(format!("{} does not hold a token", session.token_file.display())))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| refused(format!("{address} is not host:port: {error}")))?
        .connect_timeout(CONNECT_DEADLINE)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_DEADLINE)
        .keep_alive_while_idle(true);
    let connected = timeout(OPEN_DEADLINE, endpoint.connect()).await;
    let channel = connected
        .map_err(|_| refused("it did not answer in time".into()))?
        .map_err(|error| refused(format!("cannot connect: {}", innermost(&error))))?;
    let mut client = HostSessionClient::new(channel).max_decoding_message_size(MAX_SPEC_BYTES);
    let (outgoing, stream) = mpsc::channel(OUTGOING);
    let hello = v1::HostHello { accepted_generation: session.board.accepted(), ..session.hello.clone() };
    outgoing.try_send(message(from_host::Body::Hello(hello))).map_err(|error| refused(error.to_string()))?;
    let mut request = Request::new(ReceiverStream::new(stream));
    request.metadata_mut().insert("authorization", bearer);
    // The welcome may lie here for long before it is read; it was sent after this.
    let asked = BootTime::now();
    let opened = timeout(OPEN_DEADLINE, client.open(request)).await;
    let mut incoming = opened
        .map_err(|_| refused("it did not open the stream in time".into()))?
        .map_err(|status| not_opened(&status))?
        .into_inner();
    let first = timeout(OPEN_DEADLINE, incoming.message()).await;
    let first = first.map_err(|_| refused("it sent no welcome in time".into()))?;
    match first.map_err(|status| not_opened(&status))?.and_then(|message| message.body) {
        Some(to_host::Body::Welcome(welcome)) => welcomed(session, asked, &welcome),
        Some(to_host::Body::Spec(_) | to_host::Body::Heartbeat(_)) | None => {
            return Err(refused("its first message was not a welcome".into()));
        }
    }
    tracing::info!(%address, "session opened");
    Ok((incoming, outgoing))
}

fn not_opened(status: &Status) -> End {
    let leader = status.metadata().get("shardplane-leader").and_then(|value| value.to_str().ok());
    match (status.code(), leader) {
        (Code::FailedPrecondition, Some(leader)) if !leader.is_empty() => {
            End::Redirected { leader: leader.to_owned() }
        }
        (Code::Unauthenticated | Code::PermissionDenied, _) => End::Refused {
            why: format!(
                "the host token is refused ({}); put a token with the scope host into host_token_file",
                status.message()
            ),
        },
        _ => End::Refused { why: format!("{}: {}", status.code(), status.message()) },
    }
}

/// `asked`: a moment before the coordinator sent it.
fn welcomed(session: &Session, asked: BootTime, welcome: &v1::Welcome) {
    session.contact.welcomed(asked, Duration::from_millis(welcome.lost_after_ms));
}

async fn serve(
    session: &Session,
    mut incoming: Streaming<v1::ToHost>,
    outgoing: mpsc::Sender<v1::FromHost>,
) -> String {
    let mut heartbeat = interval(HEARTBEAT_EVERY);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beats = 0u32;
    let (mut taken, mut heard) = (Instant::now(), Instant::now());
    let mut full = Some(session.board.full());
    let mut turn = BootTime::now();
    let mut reports = Reports::default();
    loop {
        if let Some(why) = stood_still(turn, BootTime::now()) {
            return why;
        }
        turn = BootTime::now();
        // Only what the stream has room for is taken off the board: a slow stream sends newer facts, not more.
        let room = match outgoing.try_reserve() {
            Ok(permit) => {
                taken = Instant::now();
                match next(session, &mut full) {
                    Some(body) => {
                        reports.sent(&body, turn);
                        permit.send(message(body));
                        continue;
                    }
                    None => true,
                }
            }
            Err(TrySendError::Full(())) => false,
            Err(TrySendError::Closed(())) => return "the stream was closed".into(),
        };
        if !room && taken.elapsed() > STALLED_AFTER {
            return format!("it took nothing for {} s", STALLED_AFTER.as_secs());
        }
        if heard.elapsed() > SILENT_AFTER {
            return format!("it said nothing for {} s", SILENT_AFTER.as_secs());
        }
        tokio::select! {
            received = incoming.message() => match received {
                Ok(Some(message)) => {
                    let now = BootTime::now();
                    if let Some(why) = stood_still(turn, now) {
                        return why;
                    }
                    if !session.contact.heard(now) {
                        return "its message came when it may have given this host up".into();
                    }
                    heard = Instant::now();
                    take(session, message, &mut reports);
                }
                Ok(None) => return "the coordinator ended it".into(),
                Err(status) => return format!("{}: {}", status.code(), status.message()),
            },
            _ = heartbeat.tick() => {
                beats = beats.wrapping_add(1);
                if beats.is_multiple_of(REPEAT_OUTCOMES_EVERY) {
                    session.board.repeat_outcomes();
                }
                // With a full queue the heartbeat would only stand behind others.
                if let Ok(permit) = outgoing.try_reserve() {
                    let report = session.board.changes().unwrap_or_else(|| session.board.heartbeat());
                    let body = from_host::Body::Report(report);
                    reports.sent(&body, turn);
                    permit.send(message(body));
                }
            }
            () = session.board.changed(), if room => {}
        }
    }
}

/// The next thing to say, if there is one.
fn next(session: &Session, full: &mut Option<v1::HostReport>) -> Option<from_host::Body> {
    if let Some(report) = full.take().or_else(|| session.board.changes()) {
        return Some(from_host::Body::Report(report));
    }
    session.board.next_outcome().map(from_host::Body::Outcome)
}

/// Some when this task did not run for so long that what waits for it may be too old to act upon.
fn stood_still(turn: BootTime, now: BootTime) -> Option<String> {
    let pause = now.saturating_duration_since(turn);
    (pause > STOOD_STILL_AFTER).then(|| format!("this agent stood still for {} s", pause.as_secs()))
}

/// When each report of this session was sent: leases count from the one that the coordinator answers.
#[derive(Default)]
struct Reports {
    count: u64,
    unanswered: VecDeque<(u64, BootTime)>,
}

impl Reports {
    /// Older ones are not answered any more: the coordinator keeps as many.
    const KEPT: usize = 64;

    /// `at`: a moment before it was sent.
    fn sent(&mut self, body: &from_host::Body, at: BootTime) {
        match body {
            from_host::Body::Report(_) => {
                self.count += 1;
                self.unanswered.push_back((self.count, at));
                if self.unanswered.len() > Self::KEPT {
                    self.unanswered.pop_front();
                }
            }
            from_host::Body::Hello(_) | from_host::Body::Outcome(_) => {}
        }
    }

    fn answered(&mut self, number: u64) -> Option<BootTime> {
        let mut newest = None;
        while let Some((_, at)) = self.unanswered.pop_front_if(|(one, _)| *one <= number) {
            newest = Some(at);
        }
        newest
    }
}

fn take(session: &Session, message: v1::ToHost, reports: &mut Reports) {
    match message.body {
        Some(to_host::Body::Welcome(welcome)) => welcomed(session, BootTime::now(), &welcome),
        Some(to_host::Body::Spec(spec)) => {
            let session_number = session.contact.now().session;
            let received = Received { session: session_number, spec: Arc::new(spec) };
            drop(session.specs.send_replace(Some(received)));
        }
        Some(to_host::Body::Heartbeat(v1::Heartbeat { answers })) => {
            if let Some(sent) = reports.answered(answers) {
                session.contact.granted(sent);
            }
        }
        // A newer coordinator says something this agent does not know: heard all the same.
        None => {}
    }
}

fn message(body: from_host::Body) -> v1::FromHost {
    v1::FromHost { body: Some(body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_count_from_when_the_answered_report_was_sent() {
        let (mut reports, start) = (Reports::default(), BootTime::now());
        let at = |n: u64| start + Duration::from_secs(n);
        for n in 1..=3 {
            reports.sent(&from_host::Body::Report(v1::HostReport::default()), at(n));
            reports.sent(&from_host::Body::Outcome(v1::TaskOutcome::default()), at(n));
        }
        assert_eq!(reports.answered(2), Some(at(2)));
        assert_eq!(reports.answered(2), None, "the same answer again is no newer contact");
        assert_eq!(reports.answered(9), Some(at(3)));
    }

    #[test]
    fn a_pause_is_noticed_and_a_busy_host_is_not_one() {
        let turn = BootTime::now();
        assert_eq!(stood_still(turn, turn + STOOD_STILL_AFTER), None);
        let why = stood_still(turn, turn + Duration::from_secs(3600)).unwrap();
        assert_eq!(why, "this agent stood still for 3600 s");
    }
}

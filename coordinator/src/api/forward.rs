//! Any member answers: one that does not lead passes the whole request to the leader. In: requests of either HTTP version, gRPC
//! streams included. Out: the leader's answer as it is, or a retryable refusal in the route's own envelope. Called by the door.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header, request::Parts};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use shardplane_proto::causes::innermost;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    BODY_LIMIT, auth,
    door::{self, STRANGERS_LIMIT},
    errors::{Problem, Trouble},
    family::Family,
    store::{Standing, Store},
};
use crate::dial::Dialer;

/// Marks a request that a member has passed on already: two members that take each other for the leader must not play ball.
const PASSED_ON: HeaderName = HeaderName::from_static("x-shardplane-forwarded");

/// Longest wait for the head of an answer. Streams may go on for as long as they like after it.
const HEAD: Duration = Duration::from_secs(60);

/// How long a request may wait for a leader who answers.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(6) };

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// Headers that concern one connection only.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// An attempt without an answer.
struct Broken {
    problem: Problem,
    /// Whether the leader may have got the request.
    sent: bool,
}

/// Knows the leader and how to reach it.
#[derive(Clone)]
pub struct Forwarder {
    store: Arc<dyn Store>,
    standing: watch::Receiver<Standing>,
    http1: Client<Dialer, Body>,
    http2: Client<Dialer, Body>,
}

impl Forwarder {
    /// A forwarder to the leader of this.
    pub fn new(store: Arc<dyn Store>, dialer: Dialer) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30));
        let http1 = builder.build(dialer.clone());
        builder
            .http2_only(true)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .http2_keep_alive_timeout(Duration::from_secs(5));
        Self { standing: store.standing(), store, http1, http2: builder.build(dialer) }
    }

    async fn send(&self, leader: &str, request: Request) -> Result<Response, Broken> {
        let safe = safe_to_repeat(&request);
        let grpc = door::is_grpc(&request);
        let client = if request.version() == Version::HTTP_2 { &self.http2 } else { &self.http1 };
        let request = readdressed(leader, request).map_err(|problem| Broken { problem, sent: false })?;
        let broken = |cause: String, sent: bool| {
            let text = format!("the connection to the leader at {leader} failed: {cause}");
            let problem = if safe || !sent {
                Problem::new(Trouble::Unavailable, format!("{text}; try again in a second"))
            } else {
                Problem::new(
                    Trouble::Uncertain,
                    format!("{text}; it may have been carried out, look before you try again"),
                )
            };
            Broken { problem, sent }
        };
        match timeout(HEAD, client.request(request)).await {
            Ok(Ok(mut response)) => {
                strip(response.headers_mut(), grpc);
                Ok(response.map(Body::new))
            }
            Ok(Err(error)) => Err(broken(innermost(&error), !error.is_connect())),
            Err(_) => Err(broken(format!("no answer within {} s", HEAD.as_secs()), true)),
        }
    }
}

/// Answers here when this member leads, else by the leader. While there is none, or the one that is known does not answer, it waits
/// a little: an election takes two seconds, and some clients take a single 503 for the end.
pub async fn pass_on(State(mut forwarder): State<Forwarder>, request: Request, next: Next) -> Response {
    let family = door::family_of(&request);
    if leads(&forwarder.standing) {
        return next.run(request).await;
    }
    let passed_on = request.headers().contains_key(&PASSED_ON);
    let until = Instant::now() + if passed_on { Duration::ZERO } else { PATIENCE };
    let mut kept = match Kept::of(&*forwarder.store, request).await {
        Ok(kept) => kept,
        Err(problem) => return family.refuse(&problem),
    };
    loop {
        let standing = forwarder.standing.borrow_and_update().clone();
        let sent = match standing {
            Standing::Leads { .. } => return next.run(kept.last()).await,
            Standing::Follows { leader: Some(_) } if passed_on => {
                Err(unsent("the member that was asked has just lost the lead"))
            }
            Standing::Follows { leader: Some(leader) } => {
                let (request, more) = kept.next();
                let sent = forwarder.send(&leader, request).await;
                match more {
                    Some(more) => kept = more,
                    None => return answered(family, sent),
                }
                sent
            }
            Standing::Follows { leader: None } => Err(unsent(
                "there is no leader: more than half of the coordinator's members must run and reach each other (/healthz of each says how it is)",
            )),
            Standing::Stopped => return answered(family, Err(unsent("this member is stopping"))),
        };
        let repeatable = match &sent {
            Ok(response) => response.status() == StatusCode::SERVICE_UNAVAILABLE && kept.idempotent(),
            Err(broken) => !broken.sent || kept.idempotent(),
        };
        if !repeatable || Instant::now() >= until {
            return answered(family, sent);
        }
        // A change of leader ends the pause early; a gone sender is noticed as Stopped in the next round.
        let _ = timeout(PAUSE, forwarder.standing.changed()).await;
    }
}

fn leads(standing: &watch::Receiver<Standing>) -> bool {
    matches!(*standing.borrow(), Standing::Leads { .. })
}

/// A request that may have to be sent more than once.
enum Kept {
    /// Its body is a stream: it can be sent once.
    Once(Request),
    /// Its body is here.
    Whole(Box<Parts>, Bytes),
}

impl Kept {
    async fn of(store: &dyn Store, request: Request) -> Result<Self, Problem> {
        if door::is_grpc(&request) {
            return Ok(Kept::Once(request));
        }
        // Large bodies of strangers are not kept here: the leader decides whether to read them.
        let small = hyper::body::Body::size_hint(request.body())
            .upper()
            .is_some_and(|size| size <= STRANGERS_LIMIT as u64);
        if !small && auth::caller(&store.local(), auth::bearer(request.headers())).is_err() {
            return Ok(Kept::Once(request));
        }
        let (parts, body) = request.into_parts();
        Ok(Kept::Whole(Box::new(parts), door::whole(body, BODY_LIMIT).await?))
    }

    /// The request to send, and what is left for another attempt.
    fn next(self) -> (Request, Option<Self>) {
        match self {
            Kept::Once(request) => (request, None),
            Kept::Whole(parts, body) => {
                let request = Request::from_parts(*parts.clone(), Body::from(body.clone()));
                (request, Some(Kept::Whole(parts, body)))
            }
        }
    }

    fn last(self) -> Request {
        self.next().0
    }

    /// Whether sending it again after it was carried out is answered the same.
    fn idempotent(&self) -> bool {
        match self {
            Kept::Once(_) => false,
            Kept::Whole(parts, _) => matches!(parts.method, Method::GET | Method::HEAD | Method::PUT),
        }
    }
}

fn answered(family: Family, sent: Result<Response, Broken>) -> Response {
    sent.unwrap_or_else(|broken| family.refuse(&broken.problem))
}

fn unsent(why: &str) -> Broken {
    let problem = Problem::new(Trouble::Unavailable, format!("{why}; try again in a second"));
    Broken { problem, sent: false }
}

/// Whether doing it twice is as good as once. PUT is idempotent by its id, a second DELETE of the same is told the same.
fn safe_to_repeat(request: &Request) -> bool {
    match Family::of(request.method(), request.uri().path(), door::is_grpc(request)) {
        Family::Grpc => !request.uri().path().ends_with("/CreateToken"),
        Family::CommandLine => false,
        Family::Change | Family::Read | Family::Poll | Family::List | Family::Operator => {
            request.method() != Method::POST
        }
    }
}

fn readdressed(leader: &str, request: Request) -> Result<Request, Problem> {
    let grpc = door::is_grpc(&request);
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri =
        Uri::builder().scheme("http").authority(leader).path_and_query(path).build().map_err(|cause| {
            Problem::new(
                Trouble::Unavailable,
                format!("the leader's address {leader:?} is not usable: {cause}"),
            )
        })?;
    strip(&mut parts.headers, grpc);
    parts.headers.remove(header::HOST);
    parts.headers.insert(PASSED_ON, HeaderValue::from_static("1"));
    Ok(Request::from_parts(parts, body))
}

fn strip(headers: &mut HeaderMap, grpc: bool) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(header::TE);
    if grpc {
        // gRPC servers insist on being told that trailers are welcome.
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

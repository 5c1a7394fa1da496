//! The one port of a member. In: a listener and the routes of everybody who serves something. Out: HTTP/1.1 and HTTP/2
//! without TLS (REST, gRPC and the members' calls), until told to stop. Called by `run` and `join`.

mod admission;

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::Request, response::Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustix::{
    net::sockopt,
    process::{Resource, getrlimit, setrlimit},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tonic::service::Routes;
use tower::ServiceExt as _;

use crate::raft::Raft;
use admission::Admission;

/// How long a member has patience with its clients.
#[derive(Clone, Copy)]
struct Patience {
    /// A new connection may go this long without a request: whoever connects here wants something.
    first_request: Duration,
    /// The head of an HTTP/1.1 request may take this long, and such a connection may idle: longer than clients keep one for reuse.
    head: Duration,
    /// HTTP/2 connections are asked this often whether somebody is there,
    ask: Duration,
    /// and dropped this long after a question without an answer.
    answer: Duration,
    /// Open requests may take this long after the signal to stop.
    drain: Duration,
}

const PATIENCE: Patience = Patience {
    first_request: Duration::from_secs(30),
    head: Duration::from_secs(60),
    ask: Duration::from_secs(20),
    answer: Duration::from_secs(20),
    drain: Duration::from_secs(5),
};

/// The kernel gives up a peer that acknowledges nothing for this long: it vanished, or does not read its answers.
const VANISHED: Duration = Duration::from_secs(40);

/// Requests and streams of one HTTP/2 connection at a time.
const STREAMS: u32 = 256;

/// Pause after an accept that failed for want of something, such as file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// Between two warnings that connections are refused.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Where connections come from.
pub trait Listener: Send {
    /// One connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, ready for use, and the address of its client.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        if let Err(error) = tune(&stream) {
            // It works all the same, only slower, and is noticed later when its client vanishes.
            tracing::debug!(%error, "socket options were refused");
        }
        Ok((stream, peer))
    }
}

/// The members' calls as a router, to be merged with others.
pub fn raft_routes(raft: &Raft) -> Router {
    Routes::new(raft.service()).prepare().into_axum_router()
}

/// Serves `routes` until `stop` is ready, then finishes open requests, 5 s at most.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: impl Listener,
    routes: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    allow_many_files();
    serve_with(listener, routes, PATIENCE, stop).await
}

async fn serve_with(
    mut listener: impl Listener,
    routes: Router,
    patience: Patience,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let admission = Admission::new();
    let mut connections = JoinSet::new();
    let mut warned: Option<Instant> = None;
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if concerns_one(&error) => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted; trying on");
                sleep(PAUSE).await;
                continue;
            }
        };
        match admission.place(address_of(peer)) {
            Some(place) => {
                let connection = converse(stream, routes.clone(), patience, stopped.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            None if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) => {
                warned = Some(Instant::now());
                tracing::warn!(%peer, "too many connections: new ones are closed until others end");
            }
            None => {}
        }
    }
    drop(listener);
    stopping.send_replace(true);
    // What is still open after that is dropped with the set.
    let _ = timeout(patience.drain, async { while connections.join_next().await.is_some() {} }).await;
    Ok(())
}

/// Serves one connection until the client ends it, vanishes, or the member stops.
async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    routes: Router,
    patience: Patience,
    mut stopped: watch::Receiver<bool>,
) {
    let asked = Arc::new(AtomicBool::new(false));
    let noted = asked.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        noted.store(true, Ordering::Relaxed);
        let answer = routes.clone().oneshot(request);
        async { Ok::<Response, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(patience.ask)
        .keep_alive_timeout(patience.answer)
        .max_concurrent_streams(STREAMS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let first = Instant::now() + patience.first_request;
    let (mut waiting, mut ending) = (true, false);
    loop {
        tokio::select! {
            // How a connection ends is the client's business; its requests had their answers or found nobody to take them.
            _ = connection.as_mut() => return,
            () = sleep_until(first), if waiting => {
                if !asked.load(Ordering::Relaxed) {
                    return;
                }
                waiting = false;
            }
            _ = stopped.wait_for(|stop| *stop), if !ending => {
                connection.as_mut().graceful_shutdown();
                ending = true;
            }
        }
    }
}

/// Small answers must not wait for more, and a peer that vanished must be noticed though nobody speaks.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, VANISHED / 2)?;
    sockopt::set_tcp_keepintvl(stream, VANISHED / 4)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(VANISHED.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// An IPv4 client has one address, however it came in.
fn address_of(peer: SocketAddr) -> IpAddr {
    peer.ip().to_canonical()
}

/// Whether only the one connection failed, before it was accepted.
fn concerns_one(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// A connection is a file; many systems start programs with room for 1024, though they allow more.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be had was not needed yet: accepting pauses when it is.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests;

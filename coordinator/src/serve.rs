//! The one port of a member. In: a listener and the routes of everybody who serves something. Out: HTTP/1.1 and HTTP/2
//! without TLS (REST, gRPC and the members' calls), until told to stop. Called by `run` and `join`.

use std::{future::Future, io, time::Duration};

use axum::{Router, serve::ListenerExt as _};
use tokio::{net::TcpListener, sync::oneshot, time::timeout};
use tonic::service::Routes;

use crate::raft::Raft;

/// How long open requests may take after the signal to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// The members' calls as a router, to be merged with others.
pub fn raft_routes(raft: &Raft) -> Router {
    Routes::new(raft.service()).prepare().into_axum_router()
}

/// Serves `routes` until `stop` is ready, then finishes open requests, 5 s at most.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let listener = listener.tap_io(|stream| {
        // Small answers must not wait for more; a socket that refuses the option works all the same.
        let _ = stream.set_nodelay(true);
    });
    let (draining, drain) = oneshot::channel();
    let stop = async move {
        stop.await;
        let _ = draining.send(());
    };
    let serving = axum::serve(listener, routes).with_graceful_shutdown(stop);
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        ended = &mut serving => return ended,
        _ = drain => {}
    }
    timeout(DRAIN, serving).await.unwrap_or(Ok(()))
}

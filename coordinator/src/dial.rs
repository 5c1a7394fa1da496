//! Outgoing connections of a member. In: an address, as `http://host:port`. Out: a byte stream, over TCP unless the caller of
//! [`Dialer::new`] says otherwise. Used for calls between members and for requests that are passed on to the leader.

use std::{
    error::Error,
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::{Service, ServiceExt as _};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// Why there is no connection.
pub type DialError = Box<dyn Error + Send + Sync>;

/// What makes connections.
pub trait Dial: Send + Sync + 'static {
    /// A connection to the host and port of this URI.
    fn dial(&self, to: Uri) -> BoxFuture<'static, Result<Stream, DialError>>;
}

trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// One connection.
pub struct Stream(TokioIo<Pin<Box<dyn Duplex>>>);

impl Stream {
    /// A connection over any byte stream.
    pub fn new(over: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Self(TokioIo::new(Box::pin(over)))
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Makes connections for HTTP clients; cheap to clone.
#[derive(Clone)]
pub struct Dialer(Arc<dyn Dial>);

impl Dialer {
    /// Connections as `dial` makes them.
    pub fn new(dial: impl Dial) -> Self {
        Self(Arc::new(dial))
    }

    /// Connections over TCP; 2 s at most for each.
    pub fn tcp() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        Self::new(Tcp(connector))
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Stream, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        self.0.dial(to)
    }
}

struct Tcp(HttpConnector);

impl Dial for Tcp {
    fn dial(&self, to: Uri) -> BoxFuture<'static, Result<Stream, DialError>> {
        let connector = self.0.clone();
        Box::pin(async move { Ok(Stream::new(connector.oneshot(to).await?.into_inner())) })
    }
}

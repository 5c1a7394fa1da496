//! The simulated network as the coordinator's own traits. In: addresses. Out: connections of turmoil.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use futures::future::BoxFuture;
use http::Uri;
use shardplane_coordinator::{
    dial::{Dial, DialError, Dialer, Stream},
    serve::Listener,
};
use tokio::time::timeout;
use turmoil::net::{TcpListener, TcpStream};

/// The port of every member.
pub const PORT: u16 = 7710;
/// As over TCP.
const CONNECT: Duration = Duration::from_secs(2);

struct Simulated;

impl Dial for Simulated {
    fn dial(&self, to: Uri) -> BoxFuture<'static, Result<Stream, DialError>> {
        Box::pin(async move {
            let host = to.host().ok_or("no host")?.to_owned();
            let stream = timeout(CONNECT, TcpStream::connect((host, to.port_u16().unwrap_or(PORT)))).await;
            Ok(Stream::new(stream??))
        })
    }
}

/// Connections through the simulated network.
pub fn dialer() -> Dialer {
    Dialer::new(Simulated)
}

/// A member's port on the simulated network.
pub struct Port(TcpListener);

impl Port {
    /// Takes the port of this host.
    pub async fn bind() -> io::Result<Self> {
        Ok(Self(TcpListener::bind(("0.0.0.0", PORT)).await?))
    }
}

impl Listener for Port {
    type Stream = TcpStream;

    fn accept(&mut self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send {
        self.0.accept()
    }
}

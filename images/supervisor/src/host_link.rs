//! The one connection to the host: dials, frames, redials for ever.
//!
//! In: where the host listens. Out: [`LinkEvent`]s; each connection comes with a queue of its own for what
//! the guest says, so that nothing meant for a dead connection is sent on the next. Run as a task by `run`.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use nix::{
    libc::linger,
    sys::socket::{
        setsockopt,
        sockopt::{Linger, SndBuf},
    },
};
use prost::Message as _;
use shardplane_proto::{
    MAX_GUEST_FRAME,
    v1::{FromGuest, ToGuest},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    sync::mpsc::{self, Receiver, Sender},
    time::{sleep, timeout},
};
use tokio_util::codec::LengthDelimitedCodec;
use tokio_vsock::{VMADDR_CID_HOST, VsockAddr, VsockStream};

/// The vsock port of the host's agent.
const VSOCK_PORT: u32 = 1024;

/// Frames that may wait for a slow host: all kept outcomes and some reports.
const QUEUE: usize = 512;
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// A host that takes nothing for so long is given up.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);
/// Small, so that a host that stopped reading is noticed after seconds of reports, not after minutes. A vsock has no such buffer: what the
/// VMM takes for the host, 256 KiB, counts as sent.
const SEND_BUFFER: usize = 8 << 10;
/// Seconds that the close of a vsock waits at most until the VMM has handed on what was sent last.
const LINGER: i32 = 1;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where the host listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// At a socket in this machine's file system.
    Unix(PathBuf),
    /// Outside of this virtual machine.
    Vsock,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Vsock => write!(f, "vsock port {VSOCK_PORT}"),
        }
    }
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + AsFd + Send + Unpin {}
impl Stream for UnixStream {}
impl Stream for VsockStream {}

async fn dial(host: &Host) -> io::Result<Box<dyn Stream>> {
    Ok(match host {
        Host::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Host::Vsock => Box::new(VsockStream::connect(VsockAddr::new(VMADDR_CID_HOST, VSOCK_PORT)).await?),
    })
}

/// What the link tells the loop.
pub enum LinkEvent {
    /// A new connection; the queue takes what the guest says on it.
    Up(Sender<FromGuest>),
    /// The host said something.
    Received(ToGuest),
    /// The connection is gone; another is tried.
    Down,
}

/// Keeps a connection to `host` until the loop is gone or drops the queue of a connection.
pub async fn keep(host: Host, events: Sender<LinkEvent>) {
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout(CONNECT_DEADLINE, dial(&host)).await {
            Ok(Ok(stream)) => {
                pause = FIRST_PAUSE;
                let (queue, outgoing) = mpsc::channel(QUEUE);
                if events.send(LinkEvent::Up(queue)).await.is_err() {
                    return;
                }
                match talk(stream, outgoing, &events).await {
                    Ok(()) => return,
                    Err(error) => tracing::warn!("link to the host lost, dialling again: {error:#}"),
                }
                if events.send(LinkEvent::Down).await.is_err() {
                    return;
                }
            }
            Ok(Err(error)) => tracing::debug!(%host, %error, "host not reached"),
            Err(_) => tracing::debug!(%host, "host did not accept in time"),
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// Ends with Ok when the loop dropped its queue and everything in it was sent, or when the loop is gone.
async fn talk(
    stream: Box<dyn Stream>,
    mut outgoing: Receiver<FromGuest>,
    events: &Sender<LinkEvent>,
) -> anyhow::Result<()> {
    setsockopt(&stream, SndBuf, &SEND_BUFFER).context("make the send buffer small")?;
    let socket = stream.as_fd().try_clone_to_owned().context("keep the socket at hand")?;
    let (read, write) = tokio::io::split(stream);
    let framing = LengthDelimitedCodec::builder()
        .big_endian()
        .length_field_length(4)
        .max_frame_length(MAX_GUEST_FRAME)
        .to_owned();
    let mut frames_in = framing.new_read(read);
    let mut frames_out = framing.new_write(write);
    let reading = async {
        while let Some(frame) = frames_in.next().await {
            let message =
                ToGuest::decode(frame.context("read a frame")?).context("decode a message of the host")?;
            if events.send(LinkEvent::Received(message)).await.is_err() {
                return Ok(());
            }
        }
        anyhow::bail!("the host closed the connection")
    };
    let writing = async {
        while let Some(message) = outgoing.recv().await {
            let frame = Bytes::from(message.encode_to_vec());
            timeout(WRITE_DEADLINE, frames_out.send(frame))
                .await
                .with_context(|| format!("the host took nothing for {WRITE_DEADLINE:?}"))?
                .context("write a frame")?;
        }
        linger_at_close(&socket)
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// What was sent last is with the host when the socket is closed: a virtual machine turns itself off right after. A unix socket has
/// delivered it already, and takes no notice.
fn linger_at_close(socket: &OwnedFd) -> anyhow::Result<()> {
    let wait = linger { l_onoff: 1, l_linger: LINGER };
    setsockopt(socket, Linger, &wait).context("make the close wait for the host")
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardplane_proto::v1::{GuestReport, GuestStop, from_guest, to_guest};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixListener,
    };

    #[test]
    fn pauses_grow_to_one_second_and_no_further() {
        let pauses: Vec<_> = std::iter::successors(Some(FIRST_PAUSE), |p| Some(longer(*p))).take(8).collect();
        assert_eq!(pauses[1], Duration::from_millis(40));
        assert_eq!(pauses[7], LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn frames_go_both_ways_and_a_lost_host_is_dialled_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.sock");
        let (events, mut seen) = mpsc::channel(8);
        let link = tokio::spawn(keep(Host::Unix(path.clone()), events));
        for _ in 0..2 {
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            let (mut host, _) = listener.accept().await.unwrap();
            let Some(LinkEvent::Up(queue)) = seen.recv().await else { panic!("no connection") };
            let report = FromGuest { body: Some(from_guest::Body::Report(GuestReport::default())) };
            queue.send(report.clone()).await.unwrap();
            let size = host.read_u32().await.unwrap() as usize;
            let mut frame = vec![0; size];
            host.read_exact(&mut frame).await.unwrap();
            assert_eq!(FromGuest::decode(frame.as_slice()).unwrap(), report);
            let stop = ToGuest { body: Some(to_guest::Body::Stop(GuestStop { deadline_ms: 7 })) };
            host.write_u32(stop.encoded_len() as u32).await.unwrap();
            host.write_all(&stop.encode_to_vec()).await.unwrap();
            assert!(matches!(seen.recv().await, Some(LinkEvent::Received(got)) if got == stop));
            drop(host);
            assert!(matches!(seen.recv().await, Some(LinkEvent::Down)));
        }
        link.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_reads_nothing_is_given_up() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (events, _seen) = mpsc::channel(8);
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let filling = tokio::spawn(async move {
            let report = GuestReport { message: "x".repeat(64 << 10), ..Default::default() };
            for _ in 0..QUEUE {
                let body = Some(from_guest::Body::Report(report.clone()));
                if queue.send(FromGuest { body }).await.is_err() {
                    break;
                }
            }
            std::future::pending::<()>().await;
        });
        let error = talk(Box::new(ours), outgoing, &events).await.unwrap_err();
        assert!(error.to_string().contains("took nothing"), "{error:#}");
        filling.abort();
    }
}

//! One connection to a VMM's API socket, as hyper wants it, with descriptors beside the first bytes.
//!
//! In: a socket's path and descriptors to hand over. Out: [`Wire`]. Used by `api`, one connection a call: the VMM takes ten
//! at once and answers the eleventh with 503 (notes, section 1), and calls to one VM are few.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, Interest, ReadBuf},
    net::UnixStream,
};

/// A connection.
pub struct Wire {
    stream: UnixStream,
    /// Sent with the first bytes, as the VMM expects them; then dropped: it has copies of its own.
    fds: Vec<OwnedFd>,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn connect(socket: &Path, fds: Vec<OwnedFd>) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::connect(socket).await?, fds })
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let room = bytes.len().min(to.remaining());
        let mut buffer = ReadBuf::new(bytes.split_at_mut(room).0);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        to.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.fds.is_empty() {
            return Pin::new(&mut self.stream).poll_write(cx, bytes);
        }
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let sent = self.stream.try_io(Interest::WRITABLE, || send_with(&self.stream, bytes, &self.fds));
            match sent {
                // The readiness was stale; it is asked for again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(sent) => {
                    self.fds.clear();
                    return Poll::Ready(Ok(sent));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn send_with(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1)) * borrowed.len()];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(io::Error::other("the descriptors do not fit into one message"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

//! What a running machine says without being asked: its serial port and the VMM's events.
//!
//! In: the VMM's serial socket and its event file. Out: `console.log` in the machine's folder, of a bounded length, and the
//! notable events, for the log and for a dead machine's last words. One task a machine, which ends with it; while no agent
//! reads, the VMM keeps the last MiB of the serial port itself.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use shardplane_proto::ids::InstanceId;
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    time::{sleep, timeout},
};

use super::event::{Event, Events};

/// The log is cut when it is longer than this.
const LONGEST: u64 = 256 << 10;
/// What then stays of it.
const KEPT: u64 = 64 << 10;
/// How often events are looked for: nothing waits for them.
const EVENT_POLL: Duration = Duration::from_secs(1);
/// How soon a serial port that was closed is looked for again.
const RECONNECT: Duration = Duration::from_millis(50);
/// How many of the last events are remembered.
const REMEMBERED: usize = 4;

/// Where a machine's serial port is.
#[derive(Debug)]
pub struct Serial {
    /// The VMM's socket.
    pub path: PathBuf,
    /// A connection that was made before the machine booted.
    pub first: Option<UnixStream>,
}

/// The last notable events of a machine.
#[derive(Debug, Clone, Default)]
pub struct LastEvents(Arc<Mutex<Vec<Event>>>);

impl LastEvents {
    /// As words for people; empty when there were none.
    pub fn words(&self) -> String {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn note(&self, instance: InstanceId, events: Vec<Event>) {
        let notable: Vec<_> = events.into_iter().filter(Event::is_notable).collect();
        // A guest that restarts for ever says much, and the last of it says enough.
        let more = notable.len().saturating_sub(REMEMBERED);
        if more > 0 {
            tracing::info!(%instance, "the VMM says {more} things more than these");
        }
        for event in notable.into_iter().skip(more) {
            tracing::info!(%instance, "the VMM says: {event}");
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.push(event);
            let surplus = held.len().saturating_sub(REMEMBERED);
            held.drain(..surplus);
        }
    }
}

/// Follows one machine until its `death`, and reads what it wrote until then.
pub async fn follow(
    instance: InstanceId,
    serial: Serial,
    mut log: File,
    mut events: Option<Events>,
    last: LastEvents,
    death: BoxFuture<'static, ()>,
) {
    let drained = drain(instance, serial, &mut log, death);
    let mut look = || {
        let read = events.as_mut().map_or_else(|| Ok(Vec::new()), Events::read);
        match read {
            Ok(seen) => last.note(instance, seen),
            Err(error) => tracing::debug!(%instance, %error, "no events"),
        }
    };
    tokio::pin!(drained);
    loop {
        tokio::select! {
            () = &mut drained => break,
            () = sleep(EVENT_POLL) => look(),
        }
    }
    look();
}

/// A guest that restarts gets another serial port at the same place: an end of the stream is the machine's only when its
/// process has ended too.
async fn drain(instance: InstanceId, mut serial: Serial, log: &mut File, mut death: BoxFuture<'static, ()>) {
    loop {
        if let Err(error) = drain_once(&mut serial, log).await {
            tracing::debug!(%instance, %error, "the machine's console is looked for again");
        }
        if timeout(RECONNECT, &mut death).await.is_ok() {
            return;
        }
    }
}

async fn drain_once(serial: &mut Serial, log: &mut File) -> io::Result<()> {
    let mut stream = match serial.first.take() {
        Some(stream) => stream,
        None => UnixStream::connect(&serial.path).await?,
    };
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(length) => append(log, buffer.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Appends, and keeps only the end of what has become long.
fn append(log: &mut File, bytes: &[u8]) -> io::Result<()> {
    log.write_all(bytes)?;
    let length = log.metadata()?.len();
    if length > LONGEST {
        let mut end = Vec::new();
        log.seek(SeekFrom::Start(length - KEPT))?;
        log.read_to_end(&mut end)?;
        log.set_len(0)?;
        log.write_all(&end)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_long_console_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.log");
        let mut log = File::options().create(true).read(true).append(true).open(&path).unwrap();
        for number in 0..40_000 {
            append(&mut log, format!("line {number}\n").as_bytes()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() as u64 <= LONGEST && text.ends_with("line 39998\nline 39999\n"));
    }

    #[tokio::test]
    async fn what_the_serial_port_said_is_kept_when_the_machine_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, path) = (dir.path().join("serial"), dir.path().join("console.log"));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let serial = Serial { first: Some(UnixStream::connect(&socket).await.unwrap()), path: socket };
        let log = File::options().create(true).read(true).append(true).open(&path).unwrap();
        std::fs::write(
            dir.path().join("events"),
            "{\"source\": \"guest\", \"event\": \"panic\"}\n\n{\"source\": \"vmm\", \"event\": \"shutdown\"}\n\n",
        )
        .unwrap();
        let events =
            Events::new(File::options().read(true).write(true).open(dir.path().join("events")).unwrap());
        let last = LastEvents::default();
        let (died, death) = tokio::sync::oneshot::channel::<()>();
        let death = async { death.await.unwrap_or_default() }.boxed();
        let task =
            tokio::spawn(follow(InstanceId::from_u128(1), serial, log, Some(events), last.clone(), death));
        // The guest restarts in between.
        for words in [&b"booting\n"[..], b"Kernel panic\n"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, words).await.unwrap();
        }
        drop(listener);
        died.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "booting\nKernel panic\n");
        assert_eq!(last.words(), "guest panic");
    }
}

//! The agent's end of the conversation with one guest.
//!
//! In: connections on a unix socket of the machine's own (for a namespace machine a file in its `/run/shardplane`, for a VM
//! the VMM's vsock socket), and what the machine's owner wants the guest to have. Out: configuration, tasks and the stop
//! to the guest, its reports and outcomes to the board. One task a machine; who the guest is follows from the socket.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use shardplane_proto::{MAX_GUEST_FRAME, ids::InstanceId, v1};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::{board::Board, machine::Assignment, vmm::GuestSocket};

/// A guest that takes longer to read a frame, or to say hello, is cut off and may dial again.
const IO_DEADLINE: Duration = Duration::from_secs(5);
/// A supervisor reports every second; after this silence its last report no longer counts.
const SILENCE: Duration = Duration::from_secs(5);

/// What the owner wants the guest to have.
#[derive(Debug, Clone, Default)]
pub struct ForGuest {
    /// Its configuration and tasks; absent until the coordinator has sent them in this life of the agent.
    pub assignment: Option<Arc<Assignment>>,
    /// Milliseconds for an orderly stop, when it is to stop.
    pub stop: Option<u32>,
}

/// A running link; it ends, and its socket goes, with this value.
#[derive(Debug)]
pub struct GuestLink {
    wanted: watch::Sender<ForGuest>,
    connected: watch::Receiver<bool>,
    task: JoinHandle<()>,
    socket: PathBuf,
}

impl GuestLink {
    /// Listens at `socket`; replaces a socket that a dead agent left. `dir` is a folder of root's on the same file system.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn listen(
        dir: &Path,
        socket: &GuestSocket,
        id: InstanceId,
        board: Arc<Board>,
        word: Box<dyn Word>,
    ) -> io::Result<Self> {
        // Made where nobody else can reach it and then put in its place: in a folder that belongs to somebody else, a name
        // may stand for another file at any moment.
        let made = dir.join("link.new");
        match std::fs::remove_file(&made) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
        std::os::unix::fs::chown(&made, socket.owner, socket.owner)?;
        std::fs::rename(&made, &socket.path)?;
        let socket = &socket.path;
        let (wanted, wanted_of_task) = watch::channel(ForGuest::default());
        let (connected_of_task, connected) = watch::channel(false);
        let task = Link { id, word, board, wanted: wanted_of_task, connected: connected_of_task };
        let task = tokio::spawn(task.run(listener));
        Ok(Self { wanted, connected, task, socket: socket.to_owned() })
    }

    /// Changes what the guest is to have.
    pub fn want(&self, change: impl FnOnce(&mut ForGuest)) {
        self.wanted.send_modify(change);
    }

    /// Waits until a guest is connected, at most this long. Says whether one is.
    pub async fn connected_within(&self, limit: Duration) -> bool {
        let mut connected = self.connected.clone();
        matches!(timeout(limit, connected.wait_for(|is| *is)).await, Ok(Ok(_)))
    }
}

impl Drop for GuestLink {
    fn drop(&mut self) {
        self.task.abort();
        // Gone already is as good.
        let _absent = std::fs::remove_file(&self.socket);
    }
}

/// What the coordinator's word means for the writes of a guest.
pub trait Word: Send + Sync {
    /// Whether a guest that stood still may take writes again, by its report from after that.
    fn may_write(&self, report: &v1::GuestReport) -> bool;
    /// How long a guest of this spec may take writes from this report on.
    fn grant(&self, spec: &v1::InstanceSpec, report: &v1::GuestReport) -> Option<v1::GuestLease>;
}

struct Link {
    id: InstanceId,
    word: Box<dyn Word>,
    board: Arc<Board>,
    wanted: watch::Receiver<ForGuest>,
    connected: watch::Sender<bool>,
}

type Connection = Framed<UnixStream, LengthDelimitedCodec>;

/// What this connection was given already.
#[derive(Default)]
struct Given {
    config_generation: Option<u64>,
    tasks: BTreeSet<String>,
    stop: bool,
}

impl Link {
    async fn run(mut self, listener: UnixListener) {
        let mut next = None;
        loop {
            let stream = match next.take() {
                Some(stream) => stream,
                None => match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(instance = %self.id, %error, "cannot take the supervisor's connection");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                },
            };
            let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_GUEST_FRAME).new_codec();
            let ended = tokio::select! {
                ended = self.serve(Framed::new(stream, codec)) => ended,
                // A supervisor has one connection: a new one means that the old one is dead.
                newer = listener.accept() => {
                    next = newer.ok().map(|(stream, _)| stream);
                    Ok(())
                }
            };
            self.connected.send_replace(false);
            let note = "the supervisor is not connected";
            self.board.set_guest(self.id, None, note);
            if let Err(why) = ended {
                tracing::info!(instance = %self.id, "connection to the supervisor ended: {why}");
            }
        }
    }

    async fn serve(&mut self, mut connection: Connection) -> Result<(), String> {
        let first = timeout(IO_DEADLINE, connection.next()).await.map_err(|_| "it said no hello")?;
        let hello = match decode(first)? {
            v1::from_guest::Body::Hello(hello) => hello,
            v1::from_guest::Body::Report(_) | v1::from_guest::Body::Outcome(_) => {
                return Err("its first frame was not a hello".into());
            }
        };
        tracing::info!(instance = %self.id, supervisor = hello.supervisor_version, engine = hello.engine,
            version = hello.engine_version, "the supervisor is connected");
        self.connected.send_replace(true);
        let mut given = Given::default();
        let mut heard = Instant::now();
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            self.give(&mut connection, &mut given, &wanted).await?;
            tokio::select! {
                frame = connection.next() => {
                    heard = Instant::now();
                    match decode(frame)? {
                        v1::from_guest::Body::Report(report) => {
                            let answers = self.answers(&wanted, &report);
                            self.board.set_guest(self.id, Some(report), "");
                            for answer in answers {
                                send(&mut connection, answer).await?;
                            }
                        }
                        v1::from_guest::Body::Outcome(outcome) => self.take(outcome, &wanted),
                        v1::from_guest::Body::Hello(_) => return Err("it said hello twice".into()),
                    }
                }
                changed = self.wanted.changed() => changed.map_err(|_| "the agent stops")?,
                () = sleep_until(heard + SILENCE) => {
                    let note = format!("the supervisor has said nothing for {} s", SILENCE.as_secs());
                    self.board.set_guest(self.id, None, &note);
                    heard = Instant::now();
                }
            }
        }
    }

    /// What a guest that waits for the coordinator's word is told.
    fn answers(&self, wanted: &ForGuest, report: &v1::GuestReport) -> Vec<v1::to_guest::Body> {
        let wake = report.held_wake;
        let confirmed = wake != 0 && self.word.may_write(report);
        let confirm = confirmed.then_some(v1::to_guest::Body::Confirm(v1::GuestConfirm { wake }));
        let spec = wanted.assignment.as_ref().map(|assignment| &assignment.spec);
        let lease = spec.and_then(|spec| self.word.grant(spec, report)).map(v1::to_guest::Body::Lease);
        confirm.into_iter().chain(lease).collect()
    }

    fn take(&self, outcome: v1::TaskOutcome, wanted: &ForGuest) {
        let asked = wanted.assignment.iter().flat_map(|one| &one.spec.tasks);
        if asked.map(|task| &task.task_id).any(|task| *task == outcome.task_id) {
            self.board.set_outcome(self.id, outcome);
        }
    }

    async fn give(&self, to: &mut Connection, given: &mut Given, wanted: &ForGuest) -> Result<(), String> {
        if let Some(deadline_ms) = wanted.stop {
            if !given.stop {
                given.stop = true;
                send(to, v1::to_guest::Body::Stop(v1::GuestStop { deadline_ms })).await?;
            }
            return Ok(());
        }
        let Some(assignment) = &wanted.assignment else { return Ok(()) };
        let generation = assignment.spec.config_generation;
        if given.config_generation.is_none_or(|before| before < generation) {
            given.config_generation = Some(generation);
            send(to, v1::to_guest::Body::Config(assignment.guest_config())).await?;
        }
        for task in &assignment.spec.tasks {
            if !self.board.has_outcome(&task.task_id) && given.tasks.insert(task.task_id.clone()) {
                send(to, v1::to_guest::Body::Task(task.clone())).await?;
            }
        }
        // Tasks are few, but a connection may live for years.
        given.tasks.retain(|task| assignment.spec.tasks.iter().any(|asked| asked.task_id == *task));
        Ok(())
    }
}

fn decode(frame: Option<io::Result<bytes::BytesMut>>) -> Result<v1::from_guest::Body, String> {
    let frame = frame.ok_or("it closed the connection")?.map_err(|error| error.to_string())?;
    let message =
        v1::FromGuest::decode(frame).map_err(|error| format!("a frame is not FromGuest: {error}"))?;
    message.body.ok_or_else(|| "a frame holds nothing this agent knows".into())
}

async fn send(to: &mut Connection, body: v1::to_guest::Body) -> Result<(), String> {
    let bytes = Bytes::from(v1::ToGuest { body: Some(body) }.encode_to_vec());
    match timeout(IO_DEADLINE, to.send(bytes)).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it read nothing for {} s", IO_DEADLINE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::fake::eventually;

    const ID: InstanceId = InstanceId::from_u128(1);

    /// A lease for whoever has a copy, and leave to write.
    struct Copies;

    impl Word for Copies {
        fn may_write(&self, report: &v1::GuestReport) -> bool {
            report.live_copies > 0
        }

        fn grant(&self, _: &v1::InstanceSpec, report: &v1::GuestReport) -> Option<v1::GuestLease> {
            let lease = v1::GuestLease { answers_boot_ms: report.boot_ms, ..v1::GuestLease::default() };
            (report.boot_ms > 0).then_some(lease)
        }
    }

    struct Guest(Connection);

    impl Guest {
        async fn dial(socket: &Path) -> Self {
            let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_GUEST_FRAME).new_codec();
            let mut guest = Self(Framed::new(UnixStream::connect(socket).await.unwrap(), codec));
            guest.say(v1::from_guest::Body::Hello(v1::GuestHello::default())).await;
            guest
        }

        async fn say(&mut self, body: v1::from_guest::Body) {
            let frame = v1::FromGuest { body: Some(body) }.encode_to_vec();
            self.0.send(Bytes::from(frame)).await.unwrap();
        }

        async fn hear(&mut self) -> Option<v1::to_guest::Body> {
            let frame = timeout(Duration::from_secs(5), self.0.next()).await.unwrap()?.unwrap();
            v1::ToGuest::decode(frame).unwrap().body
        }
    }

    fn assignment(config_generation: u64, tasks: &[&str]) -> Option<Arc<Assignment>> {
        let task = |id: &&str| v1::GuestTask { task_id: (*id).into(), payload: Vec::new() };
        let tasks = tasks.iter().map(task).collect();
        let spec = v1::InstanceSpec { config_generation, tasks, ..Default::default() };
        Some(Arc::new(Assignment { spec, nic: v1::GuestNic::default() }))
    }

    fn is_config(body: Option<v1::to_guest::Body>, generation: u64) -> bool {
        matches!(body, Some(v1::to_guest::Body::Config(config)) if config.generation == generation)
    }

    fn is_task(body: Option<v1::to_guest::Body>, id: &str) -> bool {
        matches!(body, Some(v1::to_guest::Body::Task(task)) if task.task_id == id)
    }

    #[tokio::test]
    async fn a_guest_is_given_what_it_lacks_and_its_words_reach_the_board() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("host.sock");
        let board = Arc::new(Board::default());
        let link = GuestLink::listen(
            dir.path(),
            &GuestSocket { path: socket.clone(), owner: None },
            ID,
            Arc::clone(&board),
            Box::new(Copies),
        )
        .unwrap();
        board.set_machine(ID, v1::MachineState::Running, "", 1);
        let mut guest = Guest::dial(&socket).await;
        assert!(link.connected_within(Duration::from_secs(5)).await);
        link.want(|wanted| wanted.assignment = assignment(1, &["a"]));
        assert!(is_config(guest.hear().await, 1));
        assert!(is_task(guest.hear().await, "a"));
        link.want(|wanted| wanted.assignment = assignment(1, &["a", "b"]));
        assert!(is_task(guest.hear().await, "b"), "neither the config nor a task is given twice");
        for task_id in ["a", "never asked for"] {
            let outcome = v1::TaskOutcome { task_id: task_id.into(), ok: true, ..Default::default() };
            guest.say(v1::from_guest::Body::Outcome(outcome)).await;
        }
        guest
            .say(v1::from_guest::Body::Report(v1::GuestReport { engine_starts: 7, ..Default::default() }))
            .await;
        let starts = || {
            board.full().instances.first().and_then(|one| one.guest.as_ref().map(|guest| guest.engine_starts))
        };
        eventually("the report is on the board", || starts() == Some(7)).await;
        assert!(board.has_outcome("a") && !board.has_outcome("never asked for"));

        // It stood still: it is answered when it may write, and not before.
        for (wake, live_copies) in [(0, 1), (1, 0), (2, 1)] {
            let report = v1::GuestReport { held_wake: wake, live_copies, ..Default::default() };
            guest.say(v1::from_guest::Body::Report(report)).await;
        }
        let confirm = guest.hear().await;
        assert!(
            matches!(confirm, Some(v1::to_guest::Body::Confirm(v1::GuestConfirm { wake: 2 }))),
            "{confirm:?}"
        );

        let report = v1::GuestReport { boot_ms: 5, ..Default::default() };
        guest.say(v1::from_guest::Body::Report(report)).await;
        let lease = guest.hear().await;
        assert!(
            matches!(&lease, Some(v1::to_guest::Body::Lease(lease)) if lease.answers_boot_ms == 5),
            "{lease:?}"
        );

        // A supervisor that was restarted: the old connection counts no longer.
        let mut newer = Guest::dial(&socket).await;
        assert!(is_config(newer.hear().await, 1));
        assert!(is_task(newer.hear().await, "b"), "the outcome of a is known");
        assert_eq!(guest.hear().await, None);
        eventually("the old report is withdrawn", || starts().is_none()).await;
        link.want(|wanted| wanted.assignment = assignment(2, &[]));
        assert!(is_config(newer.hear().await, 2));
        link.want(|wanted| wanted.stop = Some(5));
        assert!(matches!(newer.hear().await, Some(v1::to_guest::Body::Stop(stop)) if stop.deadline_ms == 5));
        drop(link);
        assert!(!socket.exists());
    }
}

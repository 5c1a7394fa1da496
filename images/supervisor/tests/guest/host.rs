//! A host for one guest: makes its namespaces, accepts its connection, sends and collects messages.
//!
//! In: the built image. Out: a [`Guest`] with everything it said. Everything dies with the test's own namespaces.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use prost::Message as _;
use shardplane_proto::v1::{
    EngineState, FromGuest, GuestConfig, GuestConfirm, GuestHello, GuestNic, GuestReport, GuestStop,
    GuestTask, TaskOutcome, ToGuest, ValkeyConfig, ValkeyDirective, ValkeyReport, ValkeyTask, from_guest,
    to_guest, valkey_config::OtherPrimary, valkey_task::Step,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, unix::OwnedWriteHalf},
    task::JoinHandle,
};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Bytes that config parsers stumble over.
pub const PASSWORD: &str = "p \"q\" \\x41 'r' # $é\t{}";

/// A password of the greatest length, 512 bytes.
pub fn password() -> String {
    let mut password = PASSWORD.repeat(20);
    password.truncate(511);
    while password.len() < 512 {
        password.push('x');
    }
    password
}

/// What the guest said, newest last.
#[derive(Default)]
pub struct Said {
    pub hellos: Vec<GuestHello>,
    pub reports: Vec<GuestReport>,
    pub outcomes: Vec<TaskOutcome>,
    pub connections: u32,
}

pub struct Guest {
    pub number: u8,
    pub dir: PathBuf,
    pub said: Arc<Mutex<Said>>,
    pub launcher: Child,
    pub booted: Instant,
    /// Whether a guest that stood still gets its host's word at once, as on a busy machine it may.
    pub confirms: Arc<AtomicBool>,
    /// Where this host listens.
    socket: PathBuf,
    writer: Writer,
    host: JoinHandle<()>,
}

/// What the launcher of a namespace machine does, as far as it matters here.
const LAUNCH: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$DIR/root"; R=$DIR/root
mount -t erofs -o loop,ro "$IMAGE" "$R"
mount --bind "$SUPERVISOR" "$R/usr/sbin/shardplane-supervisor"
mount --bind "$DIR/data" "$R/data"
mount -t tmpfs tmpfs "$R/run"; mkdir "$R/run/shardplane"
mount --bind "$DIR/host" "$R/run/shardplane"
mount -t tmpfs tmpfs "$R/tmp"
mount -t tmpfs tmpfs "$R/dev"; mkdir "$R/dev/shm"
mount -t tmpfs tmpfs "$R/dev/shm"
mknod -m 666 "$R/dev/null" c 1 3; mknod -m 666 "$R/dev/urandom" c 1 9
mount -t proc proc "$R/proc"
# What a launcher leaves to PID 1; sys_chroot is for the chroot on this line.
CAPS=-all,+net_admin,+chown,+setuid,+setgid,+kill,+dac_override,+fowner,+sys_chroot
exec setpriv --bounding-set="$CAPS" --inh-caps="$CAPS" chroot "$R" /sbin/shardplane-supervisor
"#;

impl Guest {
    /// Boots a guest; its files stay in `dir` for the next boot.
    pub async fn boot(image: &Path, dir: &Path, number: u8) -> Self {
        for name in ["data", "host"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        let mut launch = Command::new("unshare");
        launch
            .args([
                "--mount",
                "--pid",
                "--net",
                "--uts",
                "--ipc",
                "--cgroup",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                LAUNCH,
            ])
            .envs([
                ("DIR", dir),
                ("IMAGE", image),
                ("SUPERVISOR", Path::new(env!("CARGO_BIN_EXE_shardplane-supervisor"))),
            ]);
        let guest = Self::launch(launch, &dir.join("host/host.sock"), dir, number);
        guest.plug().await;
        guest
    }

    /// Runs what makes a machine, whose supervisor comes to this socket.
    pub fn launch(mut launch: Command, socket: &Path, dir: &Path, number: u8) -> Self {
        let said = Arc::new(Mutex::new(Said::default()));
        let writer = Arc::default();
        let confirms = Arc::new(AtomicBool::new(true));
        let host = listen(socket, &said, &writer, &confirms);
        let (dir, socket) = (dir.to_owned(), socket.to_owned());
        let booted = Instant::now();
        let launcher = launch.spawn().unwrap();
        Self { number, dir, said, launcher, booted, confirms, socket, writer, host }
    }

    /// Gives the guest its card, once it has a network namespace of its own.
    async fn plug(&self) {
        let netns = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = self.launcher.id().to_string();
        until("a network namespace", || {
            netns(&pid).filter(|of_guest| Some(of_guest) != netns("self").as_ref())
        })
        .await;
        let port = format!("port{}", self.number);
        let _ = Command::new("ip").args(["link", "del", &port]).stderr(std::process::Stdio::null()).status();
        ip(&format!("link add {port} type veth peer name eth0 netns {pid}"));
        ip(&format!("link set {port} master br0 up"));
    }

    /// Boots a guest and waits until it can be spoken to.
    pub async fn boot_up(image: &Path, dir: &Path, number: u8) -> Self {
        let guest = Self::boot(image, dir, number).await;
        until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
        guest
    }

    /// Cuts the connection and listens anew, as an agent that restarts does.
    pub async fn restart_host(&mut self) {
        self.host.abort();
        *self.writer.lock().await = None;
        self.host = listen(&self.socket, &self.said, &self.writer, &self.confirms);
    }

    pub fn address(&self) -> String {
        format!("10.77.0.{}", self.number)
    }

    /// The usual config; `change` makes it unusual.
    pub async fn configure(&self, generation: u64, change: impl FnOnce(&mut ValkeyConfig)) {
        self.configure_to_restart(generation, 0, change).await;
    }

    /// The same, under a config that orders a restart.
    pub async fn configure_to_restart(
        &self,
        generation: u64,
        restart_generation: u64,
        change: impl FnOnce(&mut ValkeyConfig),
    ) {
        let directive = |name: &str, value: &str| ValkeyDirective { name: name.into(), value: value.into() };
        let mut engine = ValkeyConfig {
            password: password(),
            port: 6379,
            bus_port: 16379,
            announce_ip: self.address(),
            directives: vec![
                directive("appendonly", "yes"),
                directive("appendfsync", "everysec"),
                directive("cluster-node-timeout", "2000"),
                directive("save", "3600 1 300 100"),
                directive("client-output-buffer-limit", "replica 200mb 64mb 60"),
                directive("notify-keyspace-events", "KEA"),
            ],
            has_replicas: true,
            node_timeout_ms: 2000,
            persistent: true,
            other_primary: None,
        };
        change(&mut engine);
        let nic = GuestNic {
            mac: String::new(),
            ipv4: format!("{}/24", self.address()),
            gateway: "10.77.0.1".into(),
            mtu: 1400,
        };
        let config = GuestConfig {
            generation,
            instance_id: format!("guest-{}", self.number),
            hostname: format!("guest-{}", self.number),
            nic: Some(nic),
            engine_config: engine.encode_to_vec(),
            memory_mib: 64,
            restart_generation,
        };
        self.send(to_guest::Body::Config(config)).await;
    }

    /// Sends a task and waits for its outcome.
    pub async fn perform(&self, task_id: &str, step: Step) -> TaskOutcome {
        let before = self.said.lock().unwrap().outcomes.iter().filter(|o| o.task_id == task_id).count();
        let payload = ValkeyTask { step: Some(step) }.encode_to_vec();
        self.send(to_guest::Body::Task(GuestTask { task_id: task_id.into(), payload })).await;
        until(&format!("the outcome of {task_id}"), || {
            let said = self.said.lock().unwrap();
            said.outcomes.iter().filter(|outcome| outcome.task_id == task_id).nth(before).cloned()
        })
        .await
    }

    pub async fn perform_ok(&self, task_id: &str, step: Step) {
        let outcome = self.perform(task_id, step).await;
        assert!(outcome.ok, "{task_id} on guest {}: {}", self.number, outcome.error);
    }

    pub async fn send(&self, body: to_guest::Body) {
        say(self.writer.lock().await.as_mut().unwrap(), body).await.unwrap();
    }

    pub async fn stop(mut self) {
        self.send(to_guest::Body::Stop(GuestStop { deadline_ms: 8000 })).await;
        let status = until("the end of the guest", || self.launcher.try_wait().unwrap()).await;
        assert!(status.success(), "{status}");
        // What it said last may still be on its way when its process is gone.
        self.state(EngineState::Stopped).await;
    }

    /// Waits for a report of this state, newer than what was there before.
    pub async fn state(&self, state: EngineState) -> GuestReport {
        let what = format!("{} of guest {}", state.as_str_name(), self.number);
        until(&what, || {
            self.said.lock().unwrap().reports.last().filter(|report| report.state() == state).cloned()
        })
        .await
    }

    /// Waits until the engine's newest report is so.
    pub async fn engine(&self, what: &str, is_so: impl Fn(&ValkeyReport) -> bool) -> ValkeyReport {
        let what = format!("{what} at guest {}", self.number);
        until(&what, || {
            let said = self.said.lock().unwrap();
            let report = said.reports.last().filter(|report| !report.engine_report.is_empty())?;
            Some(ValkeyReport::decode(report.engine_report.as_slice()).unwrap()).filter(&is_so)
        })
        .await
    }

    /// Pid of the engine, as this process sees it: the child of the supervisor, which is the child of the launcher.
    pub fn engine_pid(&self) -> Option<i32> {
        child(self.supervisor_pid()?)
    }

    /// Pid of the supervisor, likewise.
    pub fn supervisor_pid(&self) -> Option<i32> {
        child(self.launcher.id().cast_signed())
    }
}

impl Guest {
    /// The power goes.
    pub fn die(&mut self) {
        self.host.abort();
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.die();
    }
}

async fn say(to: &mut OwnedWriteHalf, body: to_guest::Body) -> std::io::Result<()> {
    let message = ToGuest { body: Some(body) }.encode_to_vec();
    to.write_u32(message.len() as u32).await?;
    to.write_all(&message).await
}

fn child(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split(' ').next()?.parse().ok()
}

type Writer = Arc<tokio::sync::Mutex<Option<OwnedWriteHalf>>>;

fn listen(
    socket: &Path,
    said: &Arc<Mutex<Said>>,
    writer: &Writer,
    confirms: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let (said, writer, confirms) = (said.clone(), writer.clone(), confirms.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut read, write) = stream.into_split();
            *writer.lock().await = Some(write);
            said.lock().unwrap().connections += 1;
            while let Ok(size) = read.read_u32().await {
                let mut frame = vec![0; size as usize];
                if read.read_exact(&mut frame).await.is_err() {
                    break;
                }
                let body = FromGuest::decode(frame.as_slice()).unwrap().body.unwrap();
                if let from_guest::Body::Report(GuestReport { held_wake: wake @ 1.., .. }) = &body
                    && confirms.load(Ordering::Relaxed)
                    && let Some(writer) = writer.lock().await.as_mut()
                {
                    // A connection that ended meanwhile is none to tell it on.
                    let _ended = say(writer, to_guest::Body::Confirm(GuestConfirm { wake: *wake })).await;
                }
                let mut said = said.lock().unwrap();
                match body {
                    from_guest::Body::Hello(hello) => said.hellos.push(hello),
                    from_guest::Body::Report(report) => said.reports.push(report),
                    from_guest::Body::Outcome(outcome) => said.outcomes.push(outcome),
                }
            }
        }
    })
}

/// Waits for a fact.
pub async fn until<T>(what: &str, fact: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, fact).await
}

/// Waits for a fact of something slow.
pub async fn until_within<T>(patience: Duration, what: &str, mut fact: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = fact() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A client of one guest's engine.
pub async fn client(guest: &Guest) -> redis::aio::MultiplexedConnection {
    use redis::IntoConnectionInfo as _;
    let settings = redis::RedisConnectionInfo::default().set_password(password());
    let info = (guest.address(), 6379).into_connection_info().unwrap().set_redis_settings(settings);
    redis::Client::open(info).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// The values CONFIG GET answers.
pub async fn config_of(guest: &Guest, name: &str) -> BTreeMap<String, String> {
    redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut client(guest).await).await.unwrap()
}

/// What the coordinator tells another member of the shard about a guest that it sees as the primary.
pub fn other_primary(heir: &Guest, report: &ValkeyReport) -> OtherPrimary {
    OtherPrimary {
        node_id: report.node_id.clone(),
        ip: heir.address(),
        config_epoch: report.config_epoch,
        succeeded: 0,
    }
}

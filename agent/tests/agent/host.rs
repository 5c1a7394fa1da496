//! A host of its own for a test: a network namespace, folders, and the real agent program.
//!
//! In: the image that `images/build valkey` makes. Out: agents that start, die and sweep. Leaves nothing behind, also when
//! the test fails.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};

use shardplane_harness::coordinator::TOKEN;
use shardplane_proto::{ids::InstanceId, v1};

const AGENT: &str = env!("CARGO_BIN_EXE_shardplane-agent");

/// Why a scenario cannot run here.
pub fn cannot_run() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("needs root");
    }
    if !images().join("valkey-8.1.1.erofs").exists() {
        return Some("needs the image of images/build valkey");
    }
    None
}

/// The digest of the image that the tests boot; a host may have others too.
pub fn valkey(hello: &v1::HostHello) -> String {
    hello.images.iter().find(|image| image.engine == "valkey").unwrap().digest.clone()
}

/// Where `images/build valkey [--out DIR]` put its image; `SHARDPLANE_IMAGES` names another DIR than its default.
fn images() -> PathBuf {
    if let Some(dir) = std::env::var_os("SHARDPLANE_IMAGES") {
        return dir.into();
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/out")
}

/// The host.
pub struct Host {
    dir: tempfile::TempDir,
    agent: Option<Child>,
}

impl Host {
    /// Moves the calling thread, and all it makes, into network and mount namespaces of their own.
    pub fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        let nothing: Option<&str> = None;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        for arguments in [
            "link set lo up",
            "link add underlay type bridge",
            "addr add 192.0.2.1/24 dev underlay",
            "link set underlay up",
        ] {
            Self::ip(arguments);
        }
        Self { dir: tempfile::tempdir().unwrap(), agent: None }
    }

    /// Runs `ip` in the namespace of the calling thread.
    pub fn ip(arguments: &str) {
        assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
    }

    /// How many loop devices this host's machines hold on files whose path contains `name`.
    pub fn loops(&self, name: &str) -> usize {
        let mut devices = std::collections::BTreeSet::new();
        for pid in self.machines() {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
            devices.extend(mounts.lines().filter_map(|line| {
                let device = line.split_ascii_whitespace().find(|word| word.starts_with("/dev/loop"))?;
                Some(device.trim_start_matches("/dev/").to_owned())
            }));
        }
        let backing = |device: &String| fs::read_to_string(format!("/sys/block/{device}/loop/backing_file"));
        devices.iter().filter(|device| backing(device).is_ok_and(|file| file.contains(name))).count()
    }

    /// Writes the configuration.
    pub fn configure(&self, coordinator: std::net::SocketAddr) {
        let dir = self.dir.path().display();
        fs::write(self.dir.path().join("token"), TOKEN).unwrap();
        let image_dir = fs::canonicalize(images()).unwrap();
        let text = format!(
            "name = \"host-of-the-test\"\nrack = \"r1\"\nstate_dir = \"{dir}/state\"\nrun_dir = \"{dir}/run\"\n\
             image_dir = \"{}\"\ncoordinators = [\"{coordinator}\"]\nhost_token_file = \"{dir}/token\"\n\
             underlay_ipv4 = \"192.0.2.1\"\n",
            image_dir.display()
        );
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("agent.toml")
    }

    /// A path in the host's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs code in a network namespace of this host's agent; sockets that it opens stay there.
    pub fn inside<T: Send + 'static>(&self, netns: &str, code: impl FnOnce() -> T + Send + 'static) -> T {
        self.thread_inside(netns, code).join().unwrap()
    }

    /// The same, on a thread that goes on.
    pub fn thread_inside<T: Send + 'static>(
        &self,
        netns: &str,
        code: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = fs::File::open(self.path("run/netns").join(netns)).unwrap();
        thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            code()
        })
    }

    /// Gives the state its own small file system.
    pub fn limit_state(&self, options: &str) {
        fs::create_dir(self.path("state")).unwrap();
        mount(Some("tmpfs"), &self.path("state"), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
    }

    /// Starts the agent.
    pub fn start_agent(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.path("agent.log")).unwrap();
        let child = Command::new(AGENT)
            .args(["run", "--config"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.agent = Some(child);
    }

    /// Sends the agent a signal that it survives.
    pub fn signal_agent(&self, signal: Signal) {
        let pid = self.agent.as_ref().unwrap().id();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Ends the agent with a signal and waits for its end.
    pub fn end_agent(&mut self, signal: Signal) {
        if let Some(mut child) = self.agent.take() {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
            child.wait().unwrap();
        }
    }

    /// Runs `sweep --purge`.
    pub fn sweep(&self) -> std::process::Output {
        Command::new(AGENT).args(["sweep", "--purge", "--config"]).arg(self.config()).output().unwrap()
    }

    /// Host pids of PID 1 of this host's machines, found without the agent.
    pub fn machines(&self) -> Vec<i32> {
        let Ok(host) = fs::read_to_string(self.path("state/host-id")) else { return Vec::new() };
        let tag = format!("SHARDPLANE_MACHINE={}/", host.trim());
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut found: Vec<i32> = pids
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let nspid =
                    status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or_default().to_owned();
                let inner = nspid.split_ascii_whitespace().last() == Some("1");
                inner && environment.windows(tag.len()).any(|window| window == tag.as_bytes())
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// Host pids of all processes of a machine.
    pub fn processes_of(&self, instance: InstanceId) -> Vec<i32> {
        let pid_namespace = |pid: &i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let is = |pid: &&i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&instance.to_string())
        };
        let machines = self.machines();
        let init = machines.iter().find(is).unwrap();
        let all = fs::read_dir("/proc").unwrap();
        all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| pid_namespace(pid) == pid_namespace(init))
            .collect()
    }

    /// What of this host is still mounted or attached.
    pub fn traces(&self) -> Vec<String> {
        let dir = fs::canonicalize(self.dir.path()).unwrap().display().to_string();
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let mut traces: Vec<_> =
            mounts.lines().filter(|line| line.contains(&dir)).map(str::to_owned).collect();
        for entry in fs::read_dir("/sys/block").unwrap() {
            let path = entry.unwrap().path().join("loop/backing_file");
            let backing = fs::read_to_string(path).unwrap_or_default();
            if backing.starts_with(&dir) {
                traces.push(backing);
            }
        }
        traces
    }

    /// The agent's log, for a failed test.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end_agent(Signal::SIGKILL);
        if std::thread::panicking() {
            eprintln!("{}", self.log());
            for pid in self.machines() {
                let console = fs::read_to_string(format!("/proc/{pid}/root/run/console/log"));
                eprintln!("console of {pid}: {}", console.unwrap_or_default());
            }
        }
        if self.config().exists() {
            self.sweep();
        }
        // A file system of the state's own is only there in some tests.
        let _not_mounted = umount2(&self.path("state"), MntFlags::MNT_DETACH);
    }
}

/// Polls until `holds`, for at most 15 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

//! A host of its own for a test: network and mount namespaces, folders, the real agent program with cloud-hypervisor.
//!
//! In: nothing. Out: agents that start, die and sweep, and what is on the host without asking them. Leaves nothing behind,
//! also when the test fails.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sha2::{Digest as _, Sha256};
use shardplane_proto::ids::InstanceId;

use crate::{binary, guest, vm::Vm};

/// sha256 of the 4096 zeros that are the image here.
pub const DIGEST: &str = "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7";

/// The host.
pub struct Host {
    dir: tempfile::TempDir,
    agent: Option<Child>,
    first_uid: u32,
    /// Lines of the configuration besides those that every host has.
    more: Vec<String>,
    /// The same in the table `[cloud_hypervisor]`.
    more_of_vmm: Vec<String>,
}

/// What is left of machines on a host; the same before and after when nothing leaks.
#[derive(Debug, PartialEq, Eq)]
pub struct Traces {
    /// Processes with the host's tag.
    pub processes: usize,
    /// Folders of machines.
    pub folders: usize,
    /// User ids taken.
    pub uids: usize,
    /// Volumes.
    pub volumes: usize,
    /// Interfaces in the VPC's namespace.
    pub interfaces: usize,
    /// Groups of machines, where limits are enforced.
    pub cgroups: usize,
    /// Open files of the agent.
    pub files: usize,
    /// Mounts that the agent sees below the host's folder.
    pub mounts: usize,
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, |entries| entries.count())
}

impl Host {
    /// Moves the calling thread, and all it makes, into network and mount namespaces of their own.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn new() -> Self {
        let made = unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS);
        made.expect("namespaces of the test");
        let nothing: Option<&str> = None;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).expect("private mounts");
        for arguments in [
            "link set lo up",
            "link add underlay type bridge",
            "addr add 192.0.2.1/24 dev underlay",
            "link set underlay up",
        ] {
            let status = Command::new("ip").args(arguments.split(' ')).status();
            assert!(status.is_ok_and(|status| status.success()), "ip {arguments}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        // Tests run side by side: each has user ids of its own.
        let first_uid = 3_000_000 + (rand_number() % 50_000) * 1000;
        let host = Self { dir, agent: None, first_uid, more: Vec::new(), more_of_vmm: Vec::new() };
        let images = host.path("images");
        fs::create_dir_all(images.join("kernel")).expect("the image folder");
        fs::write(images.join("tiny-1.erofs"), [0; 4096]).expect("an image");
        let manifest = format!(r#"{{"engine":"tiny","version":"1","digest":"{DIGEST}","sizeBytes":4096}}"#);
        fs::write(images.join("tiny-1.json"), manifest).expect("its manifest");
        let kernel = guest::build(host.dir.path());
        fs::copy(kernel, images.join("kernel/vmlinuz")).expect("a kernel");
        fs::write(images.join("kernel/cmdline"), "words.of=kernel\n").expect("its words");
        fs::write(images.join("kernel/initramfs"), [0; 512]).expect("an initramfs");
        for name in ["tiny-1.erofs", "kernel/vmlinuz", "kernel/initramfs"] {
            fs::set_permissions(images.join(name), fs::Permissions::from_mode(0o644)).expect("open to all");
        }
        host.name_kernel();
        host
    }

    /// Writes the manifest of kernel and initramfs as they are.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn name_kernel(&self) {
        let digest = |name: &str| {
            let bytes = fs::read(self.path("images/kernel").join(name)).expect("a file of the kernel's");
            hex::encode(Sha256::digest(bytes))
        };
        let (kernel, initramfs) = (digest("vmlinuz"), digest("initramfs"));
        let text = format!(r#"{{"vmlinuz": "sha256:{kernel}", "initramfs": "sha256:{initramfs}"}}"#);
        fs::write(self.path("images/kernel/kernel.json"), text).expect("its manifest");
    }

    /// Adds a line to the configuration.
    pub fn set(&mut self, line: String) {
        self.more.push(line);
    }

    /// Adds a line to the table `[cloud_hypervisor]`.
    pub fn set_of_vmm(&mut self, line: String) {
        self.more_of_vmm.push(line);
    }

    /// A path in the host's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// User ids of its VMMs.
    pub fn uids(&self) -> std::ops::Range<u32> {
        self.first_uid..self.first_uid + 1000
    }

    /// Writes the configuration.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn configure(&self, coordinator: std::net::SocketAddr, token: &str) {
        let dir = self.dir.path().display();
        let binary = binary().expect("a binary");
        let binary = binary.canonicalize().expect("its path");
        fs::write(self.path("token"), token).expect("the token");
        let text = format!(
            "name = \"host-of-the-test\"\nstate_dir = \"{dir}/state\"\nrun_dir = \"{dir}/run\"\n\
             image_dir = \"{dir}/images\"\ncoordinators = [\"{coordinator}\"]\nhost_token_file = \"{dir}/token\"\n\
             underlay_ipv4 = \"192.0.2.1\"\nvmm = \"cloud-hypervisor\"\n{}\n[cloud_hypervisor]\nbinary = \"{}\"\n\
             first_uid = {}\nuids = 1000\n{}\n",
            self.more.join("\n"),
            binary.display(),
            self.first_uid,
            self.more_of_vmm.join("\n"),
        );
        fs::write(self.config(), text).expect("the configuration");
    }

    fn config(&self) -> PathBuf {
        self.path("agent.toml")
    }

    /// Runs the agent's program with a command of its own.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn agent_command(&self, arguments: &[&str]) -> std::process::Output {
        let output = Command::new(program()).args(arguments).arg("--config").arg(self.config()).output();
        output.expect("the agent's program")
    }

    /// Starts the agent.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_agent(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.path("agent.log"));
        let child = Command::new(program())
            .args(["run", "--config"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("the agent's log"))
            .spawn();
        self.agent = Some(child.expect("the agent"));
    }

    /// Ends the agent at once, as nothing else does.
    pub fn kill_agent(&mut self) {
        if let Some(mut child) = self.agent.take() {
            let _dead = child.kill();
            let _reaped = child.wait();
        }
    }

    /// The agent's pid.
    ///
    /// # Panics
    /// When none runs.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("an agent").id()
    }

    /// Removes everything, with the state.
    pub fn sweep(&self) -> std::process::Output {
        self.agent_command(&["sweep", "--purge"])
    }

    /// Processes with the host's tag: VMMs, and whether each is one or still its launcher.
    pub fn tagged(&self) -> Vec<(Vm, bool)> {
        let Ok(host) = fs::read_to_string(self.path("state/host-id")) else { return Vec::new() };
        let tag = format!("SHARDPLANE_MACHINE={}/", host.trim());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let environment = String::from_utf8_lossy(&environment).into_owned();
            let variables = || environment.split('\0');
            let Some(rest) = variables().find_map(|one| one.strip_prefix(&tag)) else { continue };
            let Some(instance) = rest.split('/').next().and_then(|id| id.parse().ok()) else { continue };
            found.push((Vm { pid, instance }, variables().any(|one| one == "SHARDPLANE_VMM=1")));
        }
        found.sort();
        found
    }

    /// The machines' processes.
    pub fn vms(&self) -> Vec<Vm> {
        self.tagged().into_iter().filter(|(_, is_vmm)| *is_vmm).map(|(vm, _)| vm).collect()
    }

    /// The process of one instance.
    pub fn vm(&self, instance: InstanceId) -> Option<Vm> {
        self.vms().into_iter().find(|vm| vm.instance == instance)
    }

    /// What a machine wrote to its console.
    pub fn console(&self, instance: InstanceId) -> String {
        fs::read_to_string(self.path(&format!("run/machines/{instance}/console.log"))).unwrap_or_default()
    }

    /// What is left of machines.
    pub fn traces(&self, vpc: &str) -> Traces {
        let agent = self.agent.as_ref().map_or(0, Child::id);
        let netns = self.path(&format!("run/netns/vpc-{vpc}"));
        let links = Command::new("nsenter")
            .arg(format!("--net={}", netns.display()))
            .args(["ip", "-o", "link"])
            .output();
        let host = fs::read_to_string(self.path("state/host-id")).unwrap_or_default();
        let end = host.trim().get(18..).unwrap_or_default().to_owned();
        let groups = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
            .map(|root| Path::new(root).join(format!("shardplane-{end}")));
        let mounts = fs::read_to_string(format!("/proc/{agent}/mountinfo")).unwrap_or_default();
        let dir = self.dir.path().display().to_string();
        Traces {
            processes: self.tagged().len(),
            folders: entries(&self.path("run/machines")),
            uids: entries(&self.path("run/vm-uids")),
            volumes: entries(&self.path("state/volumes")),
            interfaces: links.map_or(0, |output| String::from_utf8_lossy(&output.stdout).lines().count()),
            cgroups: groups.iter().map(|group| entries(group)).sum(),
            files: entries(Path::new(&format!("/proc/{agent}/fd"))),
            mounts: mounts.lines().filter(|line| line.contains(&dir)).count(),
        }
    }

    /// What starts took so far, from the agent's own words, in milliseconds: middle, 99th of a hundred, worst. The overhead is what is left
    /// of a start, until its guest runs, without the waiting for the VMM's answers, and without the making of a volume, which happens once in its
    /// life. What is recorded after that delays only the report.
    pub fn timeline(&self) -> String {
        let log = self.log();
        let column = |line: &str, words: &str| numbers(&log, line, words);
        let booted = |words: &str| column("the VMM has booted", words);
        let started = |words: &str| column("started in", words);
        let [whole, after, volume] = ["started in ", " ms and ", "volume in "].map(started);
        let vmm = booted("it was waited ");
        let parts = whole.iter().zip(&after).zip(&volume).zip(&vmm);
        let overhead = parts.map(|(((whole, after), volume), vmm)| whole - after - volume - vmm).collect();
        let count = whole.len();
        let rows = [
            ("overhead", overhead),
            ("whole start", whole),
            ("VMM", vmm),
            ("volume", volume),
            ("proof of absence", started("proved absent in ")),
            ("record before", started("recorded in ")),
            ("record after", after),
            ("prepared", booted("prepared in ")),
            ("launched", booted("launched in ")),
            ("booted", booted("booted in ")),
        ];
        let shown = rows.map(|(name, numbers)| format!("{name} {}", percentiles(numbers)));
        format!("{count} starts, in ms, p50/p99/most: {}", shown.join(", "))
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }
}

/// The number after some words of each line with others.
fn numbers(log: &str, line: &str, words: &str) -> Vec<f32> {
    let lines = log.lines().filter(|one| one.contains(line));
    lines.filter_map(|one| one.split(words).nth(1)?.split(' ').next()?.parse().ok()).collect()
}

fn percentiles(mut numbers: Vec<f32>) -> String {
    numbers.sort_by(f32::total_cmp);
    let at = |hundredths: usize| {
        let index = (numbers.len() * hundredths).div_ceil(100).saturating_sub(1);
        numbers.get(index).copied().unwrap_or_default()
    };
    format!("{:.1}/{:.1}/{:.1}", at(50), at(99), at(100))
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill_agent();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if self.config().exists() {
            let swept = self.sweep();
            if !swept.status.success() {
                eprintln!("{}", String::from_utf8_lossy(&swept.stderr));
            }
        }
        for (vm, _) in self.tagged() {
            let _gone = kill(Pid::from_raw(vm.pid), Signal::SIGKILL);
        }
    }
}

/// The agent's program, which cargo puts beside the folder of the tests.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.ancestors().nth(2).expect("the folder of the profile");
    let program = profile.join("shardplane-agent");
    assert!(program.is_file(), "{} is not there: cargo build -p shardplane-agent", program.display());
    program
}

fn rand_number() -> u32 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    std::process::id() ^ time.map_or(0, |time| time.subsec_nanos())
}

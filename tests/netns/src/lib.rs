//! A lab of hosts for the tests of the real network code: each host is a network namespace of its own, joined to a
//! switch by its underlay interface.
//!
//! In: how many hosts. Out: [`Lab`] with a [`Host`] each, on which the agent's own `Network` runs. The namespaces of the lab
//! have no names, only open files: they end with the test, also with one that panics, and tests do not see each other.
//! Needs root, `ip`, `bridge` and `nft`.

pub mod frame;
pub mod machine;
pub mod spec;

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    mount::{MntFlags, umount2},
    sched::{CloneFlags, setns, unshare},
};
use shardplane_agent::network::{
    Network, NetworkChanges, NetworkConfig, NetworkError, NetworkInventory, PortKind, WantedNetwork,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Whether the tests can run here; says why not when they cannot.
pub fn able() -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    println!("skipped: network namespaces need root");
    false
}

/// Runs work on a thread of its own inside a network namespace. Sockets opened there stay there.
pub fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).context("enter a namespace of the lab")?;
            work()
        });
        thread.join().map_err(|_| anyhow!("a thread of the lab panicked"))?
    })
}

/// Runs a command line (words parted by blanks) inside a network namespace; answers its standard output.
pub fn sh(namespace: &File, line: &str) -> Result<String> {
    inside(namespace, || {
        let mut words = line.split_whitespace();
        let program = words.next().context("an empty command line")?;
        let output =
            Command::new(program).args(words).output().with_context(|| format!("start {program}"))?;
        if !output.status.success() {
            bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })
}

/// Makes a network namespace that lives as long as the file.
pub fn namespace() -> Result<File> {
    let made = thread::spawn(|| -> Result<File> {
        unshare(CloneFlags::CLONE_NEWNET).context("make a namespace of the lab")?;
        Ok(File::open("/proc/thread-self/ns/net")?)
    });
    made.join().map_err(|_| anyhow!("a thread of the lab panicked"))?
}

/// Waits until the check answers something.
pub fn wait_for<T>(what: &str, mut check: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = check()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited 10 s for {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A switch and the hosts on it.
pub struct Lab {
    /// The hosts, with the underlay addresses 172.31.0.1, 172.31.0.2, ….
    pub hosts: Vec<Host>,
    _switch: File,
}

impl Lab {
    /// Joins so many hosts.
    pub fn new(hosts: u8) -> Result<Self> {
        let switch = namespace()?;
        sh(&switch, "ip link add underlay type bridge mcast_snooping 0")?;
        sh(&switch, "ip link set underlay up")?;
        let hosts = (1..=hosts).map(|number| Host::new(&switch, number)).collect::<Result<_>>()?;
        Ok(Self { hosts, _switch: switch })
    }
}

/// One host of the lab: a namespace, a run directory and the agent's network in it.
pub struct Host {
    /// The host's own namespace.
    pub namespace: File,
    /// What the agent keeps its namespaces in.
    pub run_dir: TempDir,
    /// The host's address on the switch.
    pub underlay_ipv4: Ipv4Addr,
    runtime: Runtime,
    network: Network,
}

impl Host {
    fn new(switch: &File, number: u8) -> Result<Self> {
        let namespace = namespace()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        sh(switch, &format!("ip link add h{number} type veth peer name uplink netns {path}"))?;
        sh(switch, &format!("ip link set h{number} master underlay up"))?;
        let underlay_ipv4 = Ipv4Addr::new(172, 31, 0, number);
        sh(&namespace, "ip link set lo up")?;
        sh(&namespace, "ip link set uplink up")?;
        sh(&namespace, &format!("ip addr add {underlay_ipv4}/24 dev uplink"))?;
        let run_dir = TempDir::new()?;
        let (runtime, network) = open(&namespace, run_dir.path(), underlay_ipv4)?;
        Ok(Self { namespace, run_dir, underlay_ipv4, runtime, network })
    }

    /// Starts the agent's network anew, as after a restart of the agent.
    pub fn restart(&mut self) -> Result<()> {
        (self.runtime, self.network) = open(&self.namespace, self.run_dir.path(), self.underlay_ipv4)?;
        Ok(())
    }

    /// The agent's network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Makes the host look as wanted.
    pub fn ensure(&self, wanted: &WantedNetwork) -> Result<NetworkChanges, NetworkError> {
        self.runtime.block_on(self.network.ensure(wanted))
    }

    /// What exists of the agent's.
    pub fn inventory(&self) -> Result<NetworkInventory, NetworkError> {
        self.runtime.block_on(self.network.inventory())
    }

    /// Removes everything of the agent's.
    pub fn sweep_all(&self) -> Result<NetworkChanges, NetworkError> {
        self.runtime.block_on(self.network.sweep_all())
    }

    /// Opens a file of a namespace that the agent keeps.
    pub fn open(&self, file_name: &str) -> Result<File> {
        let path = self.run_dir.path().join("netns").join(file_name);
        File::open(&path).with_context(|| format!("open {}", path.display()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Whatever the test left, and however it ended: nothing may stay mounted in the temporary directory.
        let Ok(entries) = fs::read_dir(self.run_dir.path().join("netns")) else { return };
        for entry in entries.flatten() {
            while umount2(&entry.path(), MntFlags::MNT_DETACH).is_ok() {}
        }
    }
}

fn open(namespace: &File, run_dir: &Path, underlay_ipv4: Ipv4Addr) -> Result<(Runtime, Network)> {
    inside(namespace, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let config =
            NetworkConfig { run_dir: run_dir.to_owned(), underlay_ipv4, mtu: None, ports: PortKind::Veth };
        let network = runtime.block_on(Network::open(config))?;
        Ok((runtime, network))
    })
}

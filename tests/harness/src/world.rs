//! A world of coordinators and hosts on this machine, made by `deploy/world`. In: how many, and what to kill. Out: processes, and
//! nothing of them after the drop.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{Api, Stand, ValkeyClient};

/// Lines of each log that a failed test shows.
const LOG_TAIL: usize = 25;

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct WorldOptions {
    /// Part of the world's name; one world of a name exists at a time.
    pub name: String,
    /// Hosts.
    pub hosts: u32,
    /// Members of the coordinator.
    pub coordinators: u32,
    /// Racks; as many as hosts when absent.
    pub racks: Option<u32>,
    /// After so many seconds without contact a host is declared lost.
    pub lost_after_s: u32,
    /// Further options of `deploy/world up`, for example `["--memory-mib", "2048"]`.
    pub more: Vec<String>,
}

impl WorldOptions {
    /// Four hosts and three coordinators; hosts are lost after 30 s.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            hosts: 4,
            coordinators: 3,
            racks: None,
            lost_after_s: 30,
            more: Vec::new(),
        }
    }
}

/// A line of the world's lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// From 1.
    pub index: u32,
    /// Name of its network namespace.
    pub netns: String,
    /// Of its agent or coordinator, while that runs.
    pub pid: Option<i32>,
    /// A host's underlay address, a coordinator's `address:port`.
    pub address: String,
}

/// Whom a host cannot reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The coordinators.
    Coordinators,
    /// The other hosts.
    Peers,
    /// Anybody.
    All,
}

impl Cut {
    fn word(self) -> &'static str {
        match self {
            Cut::Coordinators => "coordinators",
            Cut::Peers => "peers",
            Cut::All => "all",
        }
    }
}

/// A world. Dropping it removes every trace; `SHARDPLANE_KEEP=1` leaves it for a look,
/// `SHARDPLANE_KEEP=failed` only when its test fails.
#[derive(Debug)]
pub struct World {
    name: String,
}

impl World {
    /// Makes a world and waits until its hosts are ready. One of the same name, left by a killed test, is removed first.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn up(options: &WorldOptions) -> Result<Self> {
        let world = Self { name: format!("sp-{}", options.name) };
        world.run(&["down"])?;
        let (hosts, coordinators) = (options.hosts.to_string(), options.coordinators.to_string());
        let lost_after = format!("{}s", options.lost_after_s);
        let owner = std::process::id().to_string();
        let bin_dir = bin_dir()?;
        let bin_dir = bin_dir.to_string_lossy();
        let mut arguments = vec![
            "up",
            "--hosts",
            &hosts,
            "--coordinators",
            &coordinators,
            "--lost-after",
            &lost_after,
            "--bin-dir",
            &bin_dir,
            "--owner",
            &owner,
        ];
        let racks = options.racks.map(|racks| racks.to_string());
        if let Some(racks) = &racks {
            arguments.extend(["--racks", racks]);
        }
        arguments.extend(options.more.iter().map(String::as_str));
        world.run(&arguments)?;
        Ok(world)
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let script = tree().join("deploy/world");
        let output = Command::new(&script).args(arguments).args(["--name", &self.name]).output();
        let output = output.with_context(|| format!("cannot run {}", script.display()))?;
        if !output.status.success() {
            bail!(
                "world {} could not {}: {}",
                self.name,
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn act(&self, verb: &str, index: u32) -> Result<()> {
        self.run(&[verb, &index.to_string()]).map(drop)
    }

    /// One more host, ready; answers its index.
    ///
    /// # Errors
    /// With the words of `deploy/world`, as all verbs here.
    pub fn add_host(&self) -> Result<u32> {
        let name = self.run(&["add-host"])?;
        let index = name.strip_prefix("host-").and_then(|index| index.parse().ok());
        index.with_context(|| format!("add-host answered {name:?}"))
    }

    /// As a power loss.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn kill_host(&self, index: u32) -> Result<()> {
        self.act("kill-host", index)
    }

    /// Power comes back.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn start_host(&self, index: u32) -> Result<()> {
        self.act("start-host", index)
    }

    /// `kill -9` of an agent alone.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn kill_agent(&self, index: u32) -> Result<()> {
        self.act("kill-agent", index)
    }

    /// A new agent on a host.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn start_agent(&self, index: u32) -> Result<()> {
        self.act("start-agent", index)
    }

    /// `kill -9` of a coordinator.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn kill_coordinator(&self, index: u32) -> Result<()> {
        self.act("kill-coordinator", index)
    }

    /// A stopped or killed coordinator again, with its data.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn start_coordinator(&self, index: u32) -> Result<()> {
        self.act("start-coordinator", index)
    }

    /// Drops packets between a host and others. Several cuts of one host add up.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn partition_host(&self, index: u32, from: Cut) -> Result<()> {
        self.run(&["partition-host", &index.to_string(), "--from", from.word()]).map(drop)
    }

    /// Ends all partitions of a host.
    ///
    /// # Errors
    /// With the words of `deploy/world`.
    pub fn heal_host(&self, index: u32) -> Result<()> {
        self.act("heal-host", index)
    }

    /// Where the world's files are while it runs.
    pub fn run_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.name)
    }

    fn list(&self, file: &str) -> Result<Vec<Member>> {
        let path = self.run_dir().join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let member = |line: &str| {
            let mut words = line.split_whitespace();
            let (index, netns, pid, address) = (words.next()?, words.next()?, words.next()?, words.next()?);
            Some(Member {
                index: index.parse().ok()?,
                netns: netns.to_owned(),
                pid: pid.parse().ok(),
                address: address.to_owned(),
            })
        };
        text.lines()
            .map(|line| {
                member(line).with_context(|| format!("{line:?} in {} is not a member", path.display()))
            })
            .collect()
    }

    /// All hosts, in order.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn hosts(&self) -> Result<Vec<Member>> {
        self.list("hosts")
    }

    /// All coordinators, in order.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn coordinators(&self) -> Result<Vec<Member>> {
        self.list("coordinators")
    }

    /// A client with the admin token.
    ///
    /// # Errors
    /// When the world's files cannot be read.
    pub fn api(&self) -> Result<Api> {
        let env = fs::read_to_string(self.run_dir().join("env")).context("cannot read the world's env")?;
        let token = env
            .lines()
            .find_map(|line| line.strip_prefix("KC_TOKEN="))
            .context("the world's env has no token")?;
        let members = self.coordinators()?.into_iter().map(|member| format!("http://{}", member.address));
        Ok(Api::new(members.collect(), token))
    }

    /// A client of one coordinator only.
    ///
    /// # Errors
    /// When the world's files cannot be read or have no such coordinator.
    pub fn api_of(&self, coordinator: u32) -> Result<Api> {
        let member = self.coordinators()?.into_iter().find(|member| member.index == coordinator);
        let member = member.with_context(|| format!("there is no coordinator {coordinator}"))?;
        Ok(Api::new(vec![format!("http://{}", member.address)], self.api()?.token()))
    }

    /// Index of the coordinator that leads, when one does.
    ///
    /// # Errors
    /// When the world's files cannot be read.
    pub fn leader(&self) -> Result<Option<u32>> {
        for member in self.coordinators()? {
            let health = Api::new(vec![format!("http://{}", member.address)], "").get("/healthz");
            if health.is_ok_and(|health| health.body["role"] == "leader") {
                return Ok(Some(member.index));
            }
        }
        Ok(None)
    }

    /// The index of a host by the name that the API gives (`host-<index>`).
    pub fn host_index(name: &str) -> Option<u32> {
        name.strip_prefix("host-")?.parse().ok()
    }

    /// The file of the network namespace of an instance's machine.
    pub fn machine_netns(&self, host: u32, instance: &str) -> PathBuf {
        machine_netns(&self.run_dir(), host, instance)
    }

    /// A client of a cluster that speaks from inside one of its machines, on a host that is not in `avoid`, because the
    /// client's connections end with that host. Where machines are virtual it speaks to each from the gateway of its host.
    ///
    /// # Errors
    /// When no instance runs on another host.
    pub fn valkey(&self, cluster: &str, password: &str, avoid: &[u32]) -> Result<ValkeyClient> {
        let (api, cluster, avoid) = (self.api()?, cluster.to_owned(), avoid.to_vec());
        let run_dir = self.run_dir();
        let find = move || {
            let instances = api.items("instances", &cluster)?;
            let text =
                |instance: &Value, member: &str| instance[member].as_str().unwrap_or_default().to_owned();
            let nodes: Vec<String> =
                instances.iter().map(|instance| format!("{}:6379", text(instance, "address"))).collect();
            let mut doors = BTreeMap::new();
            let mut stand = None;
            for instance in &instances {
                let Some(host) = Self::host_index(&text(instance, "hostName")) else { continue };
                let mut netns = machine_netns(&run_dir, host, &text(instance, "id"));
                if !netns.exists() {
                    let Some(gateway) = vpc_netns(&run_dir, host) else { continue };
                    doors.insert(format!("{}:6379", text(instance, "address")), gateway.clone());
                    netns = gateway;
                }
                let stays = instance["machine"] == "running" && instance["intent"] == "wanted";
                if !avoid.contains(&host) && stays && stand.is_none() {
                    stand = Some(netns);
                }
            }
            let netns =
                stand.with_context(|| format!("no machine of {cluster} runs on a host besides {avoid:?}"))?;
            Ok(Stand { netns, nodes, doors })
        };
        ValkeyClient::new(Arc::new(find), password)
    }

    fn show_logs(&self) {
        for (kind, members) in [('c', self.coordinators()), ('h', self.hosts())] {
            for member in members.unwrap_or_default() {
                let path = self.run_dir().join(format!("{kind}{}/log", member.index));
                let text = fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("--- the end of {}", path.display());
                for line in &lines[lines.len().saturating_sub(LOG_TAIL)..] {
                    eprintln!("{line}");
                }
            }
        }
    }
}

/// The file of the network namespace of an instance's machine, in a world with this directory.
pub fn machine_netns(run_dir: &Path, host: u32, instance: &str) -> PathBuf {
    run_dir.join(format!("h{host}/run/netns/machine-{instance}"))
}

/// The network namespace of the one VPC of a host.
fn vpc_netns(run_dir: &Path, host: u32) -> Option<PathBuf> {
    let entries = fs::read_dir(run_dir.join(format!("h{host}/run/netns"))).ok()?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut vpcs = files
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vpc-")));
    vpcs.next().filter(|_| vpcs.next().is_none())
}

/// This tree; where it lies elsewhere than when this was compiled, `SHARDPLANE_TREE` says where.
fn tree() -> PathBuf {
    env::var_os("SHARDPLANE_TREE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), PathBuf::from)
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            self.show_logs();
        }
        let keep = env::var("SHARDPLANE_KEEP").unwrap_or_default();
        if keep == "1" || (keep == "failed" && thread::panicking()) {
            eprintln!("kept: deploy/world down --name {}", self.name);
        } else if let Err(error) = self.run(&["down"]) {
            eprintln!("{error:#}");
        }
    }
}

/// Where the built programs lie: beside the folder of the test programs.
///
/// # Errors
/// When this program lies in no target directory.
pub fn bin_dir() -> Result<PathBuf> {
    let test = env::current_exe().context("cannot find this program")?;
    test.ancestors().nth(2).map(Path::to_path_buf).context("this program lies in no target directory")
}

//! The network of this host: one namespace a VPC, in it one bridge and one VXLAN device a subnet and one port a machine.
//!
//! In: [`WantedNetwork`], the whole desired state. Out: a kernel that looks like it, and [`NetworkChanges`]. The agent's
//! reconciler calls [`Network::ensure`] for every accepted spec and now and then again; nothing is remembered between
//! two calls, so that a restarted agent, or one killed between two steps, goes on from what is there.

pub mod addr;
pub mod diff;
pub mod error;
mod filter;
pub mod inventory;
mod links;
pub mod name;
pub mod parse;
mod read;
mod read_link;
mod run;
#[cfg(test)]
mod simulation;
pub mod step;
pub mod tap;
pub mod wanted;
mod worker;

use std::{
    fs::{self, File},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use shardplane_proto::ids::{InstanceId, ResourceId};
use tokio::sync::Mutex;

use self::{
    diff::{HostFacts, NameTaken, Plan},
    worker::Worker,
};

pub use self::{
    addr::{Ipv4Prefix, Mac, NotAnAddress},
    error::{Failure, NetworkError},
    inventory::NetworkInventory,
    name::Namespace,
    parse::SpecError,
    wanted::{PortKind, WantedError, WantedNetwork, WantedPort, WantedRemote, WantedSubnet, WantedVpc},
};

/// Bytes that VXLAN over IPv4 adds to a frame: outer IPv4, UDP, VXLAN and the inner Ethernet header.
pub const VXLAN_OVERHEAD: u32 = 50;

/// Least MTU that IPv4 allows for, in bytes.
const MIN_MTU: u32 = 576;

/// Where and how this host is wired.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Namespaces are kept in `netns` below it. One agent each.
    pub run_dir: PathBuf,
    /// Address of this host that the other hosts send VXLAN to.
    pub underlay_ipv4: Ipv4Addr,
    /// MTU of the machines, in bytes; without it that of the device with the underlay address, less the overhead.
    pub mtu: Option<u32>,
    /// What the machines of this host attach to.
    pub ports: PortKind,
}

/// What a call has changed; empty when everything was as wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkChanges {
    /// In the order in which they were done, for people.
    pub steps: Vec<String>,
}

/// The network of one host.
#[derive(Debug)]
pub struct Network {
    netns_dir: PathBuf,
    host: File,
    facts: HostFacts,
    ports: PortKind,
    /// One job at a time; held by the job itself, so that a caller who gives up does not let in the next too early.
    turn: Arc<Mutex<()>>,
}

impl Network {
    /// Takes over the network of the host whose namespace the calling thread is in when this is first polled. The
    /// process must see the host's mounts as the host does (no private mount namespace), or the namespaces that are
    /// kept as files end with it.
    pub async fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
        let path = PathBuf::from(worker::OWN_NAMESPACE);
        let host = File::open(&path).map_err(|cause| NetworkError::File {
            what: "open the namespace file",
            path,
            cause,
        })?;
        let netns_dir = config.run_dir.join("netns");
        fs::create_dir_all(&netns_dir).map_err(|cause| NetworkError::File {
            what: "create",
            path: netns_dir.clone(),
            cause,
        })?;
        let facts = HostFacts { underlay_ipv4: config.underlay_ipv4, mtu: 0 };
        let mut network = Self { netns_dir, host, facts, ports: config.ports, turn: Arc::default() };
        let address = config.underlay_ipv4;
        let underlay = network.work(move |worker, _| read::mtu_of_address(worker, address)).await?;
        let underlay = underlay.ok_or(NetworkError::NoUnderlay(address))?;
        network.facts.mtu = config.mtu.unwrap_or_else(|| underlay.saturating_sub(VXLAN_OVERHEAD));
        if network.facts.mtu < MIN_MTU {
            return Err(NetworkError::MtuTooSmall(network.facts.mtu));
        }
        Ok(network)
    }

    /// Makes the host look as wanted: makes what is missing, corrects what differs, removes what is ours and not
    /// wanted. Twice is as good as once. A VPC that fails does not keep the others from being done.
    ///
    /// # Errors
    /// [`NetworkError::Incomplete`] when at least one VPC failed; with any other nothing was changed.
    pub async fn ensure(&self, wanted: &WantedNetwork) -> Result<NetworkChanges, NetworkError> {
        wanted.check()?;
        let (wanted, facts) = (wanted.clone(), self.facts);
        let carry_out = move |worker: &mut Worker, netns_dir: &Path| {
            let have = read::inventory(worker, netns_dir)?;
            carry_out(worker, diff::diff(&wanted, &have, facts))
        };
        self.work(carry_out).await
    }

    /// The network namespace of a namespace machine: `eth0` in it has the machine's MAC and the MTU and is down until
    /// the machine sets it up. It exists after an [`Network::ensure`] that wants the machine.
    pub fn machine_netns(&self, instance: InstanceId) -> PathBuf {
        self.netns_dir.join(Namespace::Machine(instance).file_name())
    }

    /// The network namespace of a VPC, in which the taps of virtual machines are ([`name::port`]). It exists after an
    /// [`Network::ensure`] that wants the VPC.
    pub fn vpc_netns(&self, vpc: ResourceId) -> PathBuf {
        self.netns_dir.join(Namespace::Vpc(vpc).file_name())
    }

    /// What the machines of this host attach to.
    pub fn ports(&self) -> PortKind {
        self.ports
    }

    /// MTU of the machines, in bytes: what a guest is to be told.
    pub fn mtu(&self) -> u32 {
        self.facts.mtu
    }

    /// What exists of ours.
    pub async fn inventory(&self) -> Result<NetworkInventory, NetworkError> {
        self.work(read::inventory).await
    }

    /// Removes everything of ours: machines lose their network at once.
    pub async fn sweep_all(&self) -> Result<NetworkChanges, NetworkError> {
        self.ensure(&WantedNetwork::default()).await
    }

    async fn work<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker, &Path) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let host = self.host.try_clone().map_err(|cause| NetworkError::Thread {
            what: "copy the handle of the host's network namespace".to_owned(),
            cause,
        })?;
        let netns_dir = self.netns_dir.clone();
        worker::run(host, netns_dir.clone(), move |worker| {
            let _turn = turn;
            job(worker, &netns_dir)
        })
        .await
    }
}

fn carry_out(worker: &mut Worker, plan: Plan) -> Result<NetworkChanges, NetworkError> {
    let mut done = NetworkChanges::default();
    let mut failures: Vec<Failure> = Vec::new();
    for group in plan {
        let of = group.of;
        if failures.iter().any(|failure| failure.of == of) {
            continue;
        }
        let taken = |NameTaken { name, alias }| NetworkError::NameTaken { of, name, alias };
        let result = group.steps.map_err(taken).and_then(|steps| {
            steps.iter().try_for_each(|step| {
                run::run(worker, step)?;
                done.steps.push(step.to_string());
                Ok(())
            })
        });
        failures.extend(result.err().map(|cause| Failure { of, cause: Box::new(cause) }));
    }
    if failures.is_empty() { Ok(done) } else { Err(NetworkError::Incomplete { done, failures }) }
}

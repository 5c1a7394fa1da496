//! Machines, each owned by one task; everybody else holds a [`Machine`] and says what is wanted.
//!
//! In: a [`Desired`]. Out: states on the board, and a word to the reconciler when one is gone. The reconciler makes them.

pub mod absence;
mod backoff;
mod fence;
mod owner;
mod start;
mod stop;

use std::{fmt, io, path::PathBuf, sync::Arc};

use shardplane_proto::{
    ids::{HostId, InstanceId},
    v1,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinHandle,
};

use crate::{
    board::Board,
    boot_time::BootTime,
    contact::Contact,
    guest_link::{GuestLink, Word},
    images::Images,
    lease,
    ledger::{Ledger, ProcessId},
    reconcile::network::HostNetwork,
    vmm::Vmm,
    volumes::Volumes,
};

/// One instance as the newest spec describes it.
#[derive(Clone, PartialEq)]
pub struct Assignment {
    /// Its part of the spec, secrets included.
    pub spec: v1::InstanceSpec,
    /// Its network card, as the guest must set it up.
    pub nic: v1::GuestNic,
}

impl fmt::Debug for Assignment {
    /// Without the engine's configuration: it holds secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, .. } = self;
        write!(f, "Assignment({}, config {})", spec.instance_id, spec.config_generation)
    }
}

impl Assignment {
    /// What the guest is told.
    pub fn guest_config(&self) -> v1::GuestConfig {
        v1::GuestConfig {
            generation: self.spec.config_generation,
            instance_id: self.spec.instance_id.clone(),
            hostname: self.spec.hostname.clone(),
            nic: Some(self.nic.clone()),
            engine_config: self.spec.engine_config.clone(),
            memory_mib: self.spec.memory_mib,
            restart_generation: self.spec.restart_generation,
        }
    }
}

/// What a machine is to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    /// No spec was confirmed since the agent started: let it run, start nothing, stop nothing.
    Observe,
    /// In the spec.
    Run {
        /// How.
        assignment: Arc<Assignment>,
        /// Why it cannot be started although it is wanted, for example because its port could not be made.
        blocked: Option<String>,
    },
    /// In the spec, but must not serve: stop it, keep its volume, start nothing.
    Fence {
        /// Its port is known to be cut.
        port_cut: bool,
    },
    /// No longer in the spec: stop it and remove its volume.
    Retire,
}

/// What the owners share.
pub struct Shared {
    /// This host.
    pub host: HostId,
    /// This boot of it.
    pub boot_id: String,
    /// Folder with one folder a machine, which holds the socket that its guest dials.
    pub machines_dir: PathBuf,
    /// How machines are run.
    pub vmm: Arc<dyn Vmm>,
    /// Their volumes.
    pub volumes: Volumes,
    /// Their images.
    pub images: Images,
    /// Their ports.
    pub network: Arc<dyn HostNetwork>,
    /// What must not be forgotten.
    pub ledger: Arc<Ledger>,
    /// What the coordinator is told.
    pub board: Arc<Board>,
    /// Whether the coordinator is there.
    pub contact: Arc<Contact>,
    /// Starts that may go on at once: a host that comes back with all its machines must stay responsive.
    pub starts: Semaphore,
    /// Where owners say that process and volume are proved gone.
    pub removed: mpsc::Sender<InstanceId>,
}

/// What the coordinator's word means for one machine.
struct WordFor {
    id: InstanceId,
    shared: Arc<Shared>,
}

impl Word for WordFor {
    /// The spec that was accepted last counts, be it in an earlier life of the agent.
    fn may_write(&self, report: &v1::GuestReport) -> bool {
        let Some(accepted) = self.shared.ledger.contents().accepted else { return false };
        let text = self.id.to_string();
        let spec = accepted.spec.instances.into_iter().find(|one| one.instance_id == text);
        let (heard, cut) = (self.shared.contact.now(), self.shared.board.is_port_cut(self.id));
        spec.is_some_and(|spec| lease::may_write(&spec, report, heard, cut, BootTime::now()))
    }

    fn grant(&self, spec: &v1::InstanceSpec, report: &v1::GuestReport) -> Option<v1::GuestLease> {
        let (heard, cut) = (self.shared.contact.now(), self.shared.board.is_port_cut(self.id));
        lease::grant(spec, report.boot_ms, heard, cut, BootTime::now())
    }
}

/// The handle of one machine. Dropping it lets the machine run and forgets it.
#[derive(Debug)]
pub struct Machine {
    desired: watch::Sender<Desired>,
    owner: JoinHandle<()>,
}

impl Machine {
    /// Makes the owner. `running` is the process that was adopted.
    ///
    /// # Errors
    /// When the machine's folder or its socket cannot be made.
    pub fn own(
        id: InstanceId,
        shared: Arc<Shared>,
        desired: Desired,
        running: Option<ProcessId>,
    ) -> io::Result<Self> {
        let dir = shared.machines_dir.join(id.to_string());
        std::fs::create_dir_all(&dir)?;
        let word = Box::new(WordFor { id, shared: Arc::clone(&shared) });
        let socket = shared.vmm.guest_socket(id, &dir)?;
        let link = GuestLink::listen(&dir, &socket, id, Arc::clone(&shared.board), word)?;
        let (desired, wanted) = watch::channel(desired);
        let owner = owner::Owner::new(id, shared, link, wanted, running);
        Ok(Self { desired, owner: tokio::spawn(owner.run()) })
    }

    /// Says what it is to be; the same again changes nothing.
    pub fn want(&self, desired: Desired) {
        self.desired.send_if_modified(|held| {
            let differs = *held != desired;
            *held = desired;
            differs
        });
    }

    /// It must not serve, whatever it was to be so far. True when that is news.
    pub fn fence(&self) -> bool {
        self.desired.send_if_modified(|held| {
            let news = match held {
                Desired::Fence { .. } | Desired::Retire => false,
                Desired::Observe | Desired::Run { .. } => true,
            };
            if news {
                *held = Desired::Fence { port_cut: false };
            }
            news
        })
    }

    /// Is it on its way out?
    pub fn is_retiring(&self) -> bool {
        matches!(&*self.desired.borrow(), Desired::Retire)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.owner.abort();
    }
}

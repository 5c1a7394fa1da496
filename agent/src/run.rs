//! The command `run`: puts the agent together, in the order that safety wants.
//!
//! In: the configuration. Out: a running agent until SIGTERM or SIGINT; the machines go on. Adoption comes before the first
//! connect, so nothing can be asked for that already runs.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, bail};
use shardplane_proto::{
    ids::HostId,
    v1::{self, MachineState},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, watch},
};

use crate::{
    board::Board,
    config::{Config, VmmKind},
    contact::Contact,
    digests::Digests,
    identity,
    images::Images,
    ledger::{Ledger, Opened},
    machine::Shared,
    network::{Network, NetworkConfig, PortKind},
    preflight,
    reconcile::{Reconciler, adopt::adopt},
    session::Session,
    vmm::{Vmm, cloud_hypervisor::CloudHypervisorVmm, namespace::NamespaceVmm},
    volumes::Volumes,
};

/// Removals waiting for the reconciler; an owner with one more waits.
const REMOVALS: usize = 64;

/// Machines started at once; each start runs some programs and reads all of `/proc`.
const STARTS_AT_ONCE: usize = 8;

/// What `run` and `sweep` both need.
pub struct Base {
    /// Held as long as the agent runs: two agents would fight over the machines.
    _lock: File,
    /// This host.
    pub host: HostId,
    /// This boot.
    pub boot_id: String,
    /// What the files that machines boot hold.
    pub digests: Arc<Digests>,
    /// How machines are run.
    pub vmm: Arc<dyn Vmm>,
    /// The host's network.
    pub network: Network,
}

impl Base {
    /// Takes the lock and opens what acts on the host.
    ///
    /// # Errors
    /// When the host's network cannot be taken over or another agent runs.
    pub async fn open(config: &Config) -> anyhow::Result<Self> {
        let lock = lock(&config.run_dir)?;
        let host = identity::host_id(&config.state_dir)?;
        let boot_id = identity::boot_id().context("cannot read the boot id")?;
        let (run_dir, boot) = (&config.run_dir, boot_id.clone());
        let digests = Arc::new(Digests::open(&config.state_dir));
        let vmm: io::Result<(Arc<dyn Vmm>, PortKind)> = match config.vmm {
            VmmKind::Namespace => {
                NamespaceVmm::open(host, boot, run_dir).map(|vmm| (Arc::new(vmm) as _, PortKind::Veth))
            }
            VmmKind::CloudHypervisor => {
                let own = config.cloud_hypervisor();
                CloudHypervisorVmm::open(host, boot, run_dir, own, Arc::clone(&digests))
                    .map(|vmm| (Arc::new(vmm) as _, PortKind::Tap))
            }
        };
        let (vmm, ports) = vmm.context("cannot prepare the run directory")?;
        let network = NetworkConfig {
            run_dir: config.run_dir.clone(),
            underlay_ipv4: config.underlay_ipv4,
            mtu: config.mtu,
            ports,
        };
        let network = Network::open(network).await.context("cannot take over the host's network")?;
        Ok(Self { _lock: lock, host, boot_id, digests, vmm, network })
    }
}

fn lock(run_dir: &Path) -> anyhow::Result<File> {
    let path = run_dir.join("agent.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            bail!("another agent runs with run_dir {}: stop it first", run_dir.display())
        }
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Runs the agent.
///
/// # Errors
/// Only at the start: once it runs, problems are reported, not fatal.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let findings = preflight::look(&config);
    preflight::judge(&findings)?;
    for finding in findings.iter().filter(|finding| finding.level == preflight::Level::Warn) {
        tracing::warn!("{}: {}", finding.what, finding.text);
    }
    let base = Base::open(&config).await?;
    let images = Images::load(&config.image_dir, base.digests)
        .with_context(|| format!("cannot read image_dir {}", config.image_dir.display()))?;
    let (ledger, opened) = Ledger::open(&config.state_dir).context("cannot read the ledger")?;
    let board = Arc::new(Board::default());
    if let Opened::MovedAside(aside) = opened {
        let text = format!(
            "the ledger was damaged and is now {}; what runs was found by search, generations start anew",
            aside.display()
        );
        board.set_problem("ledger-damaged", Some(text));
    }
    let volumes = Volumes::new(&config.state_dir, config.volume_devices.as_deref());
    let vmm = base.vmm;
    let (adopted, second) = adopt(&vmm, &ledger, &volumes, &base.boot_id).await?;
    if !second.is_empty() {
        let which: Vec<_> = second
            .iter()
            .map(|one| format!("process {} of instance {}", one.process.pid, one.tag.instance))
            .collect();
        let text = format!("an instance runs twice: {} is not its machine; end it", which.join(", "));
        board.set_problem("runs-twice", Some(text));
    }
    if let Some(accepted) = ledger.contents().accepted {
        board.set_accepted(accepted.generation);
    }
    for (id, running) in &adopted {
        let state = if running.is_some() { MachineState::Running } else { MachineState::Down };
        board.set_machine(*id, state, "", ledger.machine(*id).map_or(0, |record| record.starts));
    }
    let mut conditions = vmm.conditions();
    conditions.extend(images.condition());
    for condition in &conditions {
        tracing::warn!(kind = condition.r#type, status = condition.status, "{}", condition.message);
    }
    let hello = v1::HostHello {
        host_id: base.host.to_string(),
        name: config.name.clone(),
        rack: config.rack.clone(),
        zone: config.zone.clone(),
        underlay_ipv4: config.underlay_ipv4.to_string(),
        capacity: Some(config.capacity(preflight::capacity(&config.state_dir, &volumes)?)),
        images: images.manifests(),
        boot_id: base.boot_id.clone(),
        agent_version: env!("CARGO_PKG_VERSION").into(),
        vmm: vmm.name().into(),
        accepted_generation: 0,
        conditions,
    };
    tracing::info!(host = %base.host, name = config.name, images = hello.images.len(), machines = adopted.len(),
        "the agent starts");
    let (removed, removals) = mpsc::channel(REMOVALS);
    let contact = Arc::new(Contact::default());
    let machines_dir = config.run_dir.join("machines");
    let shared = Arc::new(Shared {
        host: base.host,
        boot_id: base.boot_id,
        machines_dir,
        vmm,
        volumes,
        images,
        network: Arc::new(base.network),
        ledger,
        board: Arc::clone(&board),
        contact: Arc::clone(&contact),
        starts: Semaphore::new(STARTS_AT_ONCE),
        removed,
    });
    let (specs, newest_spec) = watch::channel(None);
    let reconciler =
        Reconciler::new(shared, adopted, newest_spec, removals).context("cannot own the adopted machines")?;
    let session = Session {
        coordinators: config.coordinators,
        token_file: config.host_token_file,
        hello,
        board,
        contact,
        specs,
    };
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    tokio::select! {
        () = session.run() => {}
        () = reconciler.run() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("the agent ends; its machines go on");
    Ok(())
}

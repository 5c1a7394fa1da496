//! The command `sweep`: removes every trace of this agent from the host.
//!
//! In: the configuration. Out: no machine, network namespace, mount, loop device or socket of it; with `--purge` no state
//! and no volume either. The agent must not run. Safe to repeat.

use std::{
    fs, io,
    net::Ipv4Addr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{
    config::Config, ledger::Ledger, machine::absence::make_absent, network::NetworkError, preflight,
    run::Base, volumes::Volumes,
};

/// How long the kernel may take to free loop devices after the last unmount.
const LOOP_DEADLINE: Duration = Duration::from_secs(5);
const LOOP_POLL: Duration = Duration::from_millis(50);

/// Sweeps.
///
/// # Errors
/// The first thing that could not be removed; what follows it is then still there.
pub async fn sweep(config: &Config, purge: bool) -> anyhow::Result<()> {
    // What runs machines may be gone from the host; it is not needed to remove them.
    preflight::judge(&preflight::basics(config))?;
    let base = match Base::open(config).await {
        // Sweeping sends nothing, so any address will do: the configured one may be gone already.
        Err(error) if matches!(error.downcast_ref(), Some(NetworkError::NoUnderlay(_))) => {
            let mut anywhere = config.clone();
            anywhere.underlay_ipv4 = Ipv4Addr::LOCALHOST;
            Base::open(&anywhere).await?
        }
        opened => opened?,
    };
    make_absent(&base.vmm, None).await.map_err(|why| anyhow::anyhow!("machines are left: {why}"))?;
    base.vmm.release_all().context("cannot free what the machines had on the host")?;
    base.network.sweep_all().await.context("cannot remove the network")?;
    wait_for_loops(&config.state_dir.join("volumes")).await?;
    for name in ["machines", "stage", "contact"] {
        remove(&config.run_dir.join(name))?;
    }
    if purge {
        // One by one: a volume may be a device, on which the data would stay.
        let volumes = Volumes::new(&config.state_dir, config.volume_devices.as_deref());
        for id in volumes.list()? {
            volumes.remove(id).with_context(|| format!("the volume of {id} is left"))?;
        }
        for name in ["volumes", "ledger.json", "image-digests.json", "host-id"] {
            remove(&config.state_dir.join(name))?;
        }
    } else {
        let (ledger, _) = Ledger::open(&config.state_dir).context("cannot read the ledger")?;
        ledger.change_blocking(|contents| {
            contents.machines.values_mut().for_each(|record| record.run = None)
        })?;
    }
    drop(base);
    // Emptied by the network's sweep; with a namespace still mounted in it, it stays.
    let _kept = fs::remove_dir(config.run_dir.join("netns"));
    remove(&config.run_dir.join("agent.lock"))?;
    // Not empty when an operator keeps other things there, which stay.
    let _kept = fs::remove_dir(&config.run_dir);
    tracing::info!(purge, "swept");
    Ok(())
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let result = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Loop devices free themselves with the last mount, which the kernel does a moment after the last process.
async fn wait_for_loops(volumes: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + LOOP_DEADLINE;
    loop {
        let held = loops_of(volumes).context("cannot list the loop devices")?;
        if held.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("loop devices are still in use: {}; see losetup --list", held.join(", "));
        }
        tokio::time::sleep(LOOP_POLL).await;
    }
}

fn loops_of(volumes: &Path) -> io::Result<Vec<String>> {
    let mut held = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if !backing.is_empty() && Path::new(backing.trim()).starts_with(volumes) {
            held.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(held)
}

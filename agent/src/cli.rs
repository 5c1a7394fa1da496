//! The command line.
//!
//! In: arguments. Out: an exit code; errors on stderr with their causes. Called by `main`.

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::{
    config::Config,
    preflight, run, sweep,
    vmm::{cloud_hypervisor, namespace},
};

/// Runs the machines of this host as the coordinator wants them.
#[derive(Debug, Parser)]
#[command(name = "shardplane-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the agent. Ending it leaves the machines running.
    Run {
        /// Configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Stops every machine and removes every trace of the agent. Volumes and state are kept without --purge.
    Sweep {
        /// Configuration file.
        #[arg(long)]
        config: PathBuf,
        /// Also removes volumes with their data, the ledger and the host's id.
        #[arg(long)]
        purge: bool,
    },
    /// Says whether this host can run machines, and what to do where it cannot.
    Check {
        /// Configuration file.
        #[arg(long)]
        config: PathBuf,
    },
    /// Launches one machine from a spec on stdin; the agent runs this itself.
    #[command(hide = true)]
    Launch,
    /// Launches the VMM of one machine from a spec on stdin; the agent runs this itself.
    #[command(hide = true)]
    LaunchVm,
}

/// The program.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Launch => return namespace::launch::main(),
        Command::LaunchVm => return cloud_hypervisor::launch::main(),
        Command::Check { config } => return check(&config),
        Command::Run { config } => with_runtime(&config, run::run),
        Command::Sweep { config, purge } => {
            with_runtime(&config, async move |config| sweep::sweep(&config, purge).await)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shardplane-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: &std::path::Path) -> ExitCode {
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("shardplane-agent: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let findings = preflight::look(&config);
    print!("{}", preflight::table(&findings));
    match preflight::judge(&findings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shardplane-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn with_runtime(
    path: &std::path::Path,
    work: impl AsyncFnOnce(Config) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    let config = Config::load(path)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(work(config))
}

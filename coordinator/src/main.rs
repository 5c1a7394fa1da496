//! `shardplane-coordinator`: one member of the coordinator. In: a command and a configuration. Out: a cluster of one (`init`),
//! a new member (`join`), a running member (`run`), one fewer (`leave`).

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use shardplane_coordinator::{
    clock::Clock,
    config::Config,
    dial::Dialer,
    member,
    raft::{MemberStatus, Raft, Role},
    secrets::{ClusterKey, Sealer},
    serve,
    setup::{self, bind},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing_subscriber::EnvFilter;

/// One member of the Shardplane coordinator.
#[derive(Parser)]
#[command(name = "shardplane-coordinator", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(clap::Args)]
struct ConfigArg {
    /// The configuration.
    #[arg(long, default_value_os_t = setup::default_config())]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Action {
    /// Make a new cluster of one member, its key file and its first tokens.
    Init {
        #[command(flatten)]
        config: ConfigArg,
        /// Write KC_TOKEN and HOST_TOKEN to this new file (mode 0600) instead of printing them.
        #[arg(long)]
        tokens_to: Option<PathBuf>,
    },
    /// Become a member of a cluster; then start it with `run`.
    Join {
        #[command(flatten)]
        config: ConfigArg,
        /// host:port of any member.
        #[arg(long)]
        leader: String,
    },
    /// Leave the cluster.
    Leave {
        #[command(flatten)]
        config: ConfigArg,
        /// host:port of any member; needed when this member does not run.
        #[arg(long)]
        leader: Option<String>,
        /// Leave although an even number of voters stays behind, because another one leaves next.
        #[arg(long)]
        allow_even: bool,
    },
    /// Serve.
    Run {
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Print the version.
    Version,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The consensus library tells every call that a silent member does not answer, several a second; what matters of it is told
    // by this program: roles, quorum, and why it stops.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,openraft=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(Cli::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shardplane-coordinator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(action: Action) -> Result<()> {
    match action {
        Action::Init { config, tokens_to } => {
            let config = Config::load(&config.config)?;
            let tokens_to =
                tokens_to.map(|path| setup::token_file(&path).map(|file| (path, file))).transpose()?;
            let tokens = match setup::init(&config).await {
                Ok(tokens) => tokens,
                Err(error) => {
                    if let Some((path, _)) = tokens_to {
                        std::fs::remove_file(&path)
                            .with_context(|| format!("cannot remove {}", path.display()))?;
                    }
                    return Err(error);
                }
            };
            match tokens_to {
                Some((path, file)) => {
                    setup::write_tokens(&tokens, file, &path)?;
                    println!("the tokens are in {}", path.display());
                }
                None => {
                    println!("admin token: {}", tokens.admin.secret);
                    println!("host token: {}", tokens.host.secret);
                }
            }
            if tokens.key_made {
                println!(
                    "the cluster key is in {}: every other member needs the same file",
                    config.key_file.display()
                );
            }
            println!(
                "next: start this member with `shardplane-coordinator run`; the tokens are shown only this once"
            );
        }
        Action::Join { config, leader } => {
            let config = Config::load(&config.config)?;
            let (id, members) = setup::join(&config, &leader).await?;
            println!("member {id} joined; start it with `shardplane-coordinator run`");
            print_members(&members);
        }
        Action::Leave { config, leader, allow_even } => {
            let config = Config::load(&config.config)?;
            let (id, members) = setup::leave(&config, leader.as_deref(), allow_even).await?;
            println!("member {id} left; {} can be removed", config.data_dir.display());
            print_members(&members);
        }
        Action::Run { config } => serve_member(&Config::load(&config.config)?).await?,
        Action::Version => println!("shardplane-coordinator {}", env!("CARGO_PKG_VERSION")),
    }
    Ok(())
}

fn print_members(members: &[MemberStatus]) {
    for member in members {
        let part = if member.voter { "voter" } else { "learner" };
        println!("  {} {part} {}{}", member.id, member.address, if member.leader { " leader" } else { "" });
    }
    let voters = members.iter().filter(|member| member.voter).count();
    let (even, learners) = (voters.is_multiple_of(2), members.len() - voters);
    if even && learners == 0 {
        let fewer = voters - 1;
        println!("warning: {voters} voters tolerate no more losses than {fewer}; let one more join or leave");
    } else if even {
        println!("a learner has all data and no vote; it becomes a voter once it runs");
    } else if learners > 0 {
        println!("a learner has all data and no vote; two of them become voters together, once they run");
    }
}

async fn serve_member(config: &Config) -> Result<()> {
    let listener = bind(config.listen).await?;
    let clock = Clock::start();
    let sealer = Sealer::new(&ClusterKey::load(&config.key_file)?);
    let raft = setup::open_member(config, clock.clone()).await?;
    tracing::info!(member = raft.id(), listen = %config.listen, "serving");

    let (stop, mut stopping) = watch::channel(false);
    let (routes, planning) = member::start(raft.clone(), config.settings(), sealer, clock, Dialer::tcp());
    let mut serving = tokio::spawn(serve::serve(listener, routes, async move {
        // A sender that is gone means the same.
        let _ = stopping.wait_for(|stop| *stop).await;
    }));
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut role = raft.role();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = raft.told_to_leave() => {}
        _ = role.wait_for(|role| *role == Role::Stopped) => {}
        ended = &mut serving => bail!("serving on {} ended: {ended:?}", config.listen),
    }
    let reason = raft.stop_reason();
    stop.send_replace(true);
    raft.stop().await;
    serving.await?.context("serving ended badly")?;
    planning.abort();
    leave_or_fail(config, &raft, reason)
}

fn leave_or_fail(config: &Config, raft: &Raft, reason: Option<String>) -> Result<()> {
    if raft.dismissed() {
        setup::note_left(config)?;
        tracing::info!(
            member = raft.id(),
            "this member was taken out of the cluster; its data directory can be removed"
        );
        return Ok(());
    }
    match reason {
        Some(reason) => bail!("member {} stopped: {reason}", raft.id()),
        None => Ok(()),
    }
}

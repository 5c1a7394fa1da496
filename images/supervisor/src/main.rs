//! PID 1 inside a guest: takes its config from the host, runs the engine of its image and reports about it.
//!
//! In: `--host PATH`, the socket of the host (default `/run/shardplane/host.sock`); nothing secret. Out: exit code 0
//! after an orderly stop. Called by the machine launcher of the agent, or by the kernel of a VM.

use std::{path::PathBuf, process::ExitCode};

mod bounded;
mod engine;
mod engine_log;
mod host_link;
mod image;
mod lease;
mod lifecycle;
mod nic;
mod pid1;
mod process;
mod run;
mod supervisor;
mod tasks;
mod wake;

fn host_socket(arguments: impl Iterator<Item = String>) -> PathBuf {
    let mut arguments = arguments.skip(1);
    let mut host = None;
    while let Some(argument) = arguments.next() {
        if argument == "--host" {
            host = arguments.next();
        } else {
            // A kernel hands words of its command line that it does not know to PID 1: no reason to die.
            tracing::warn!(argument, "argument not known, ignored");
        }
    }
    host.unwrap_or_else(|| "/run/shardplane/host.sock".to_owned()).into()
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    let host = host_socket(std::env::args());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the async runtime does not start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run::run(host)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("supervisor ends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_kernel_command_line_do_no_harm() {
        let words = ["/sbin/shardplane-supervisor", "splash", "--host", "/run/h.sock"].map(str::to_owned);
        assert_eq!(host_socket(words.into_iter()), PathBuf::from("/run/h.sock"));
        assert_eq!(host_socket(std::iter::empty()), PathBuf::from("/run/shardplane/host.sock"));
    }
}

//! PID 1 inside a guest: takes its config from the host, runs the engine of its image and reports about it.
//!
//! In: `--host PATH`, the socket of the host (default `/run/shardplane/host.sock`); nothing secret. Out: exit code 0
//! after an orderly stop. Called by the machine launcher of the agent. The kernel of a virtual machine calls it as `/init`: it boots the
//! machine and becomes the supervisor of its image, whose end is the end of the machine's power.

use std::process::ExitCode;

use crate::{
    machine::{Machine, Start},
    vm::{boot, power},
};

mod boot_time;
mod bounded;
mod engine;
mod engine_log;
mod host_link;
mod image;
mod lease;
mod lifecycle;
mod machine;
mod nic;
mod pid1;
mod process;
mod run;
mod supervisor;
mod tasks;
mod vm;
mod wake;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    match Start::of(std::env::args()) {
        Start::Boot => {
            boot::main();
            ExitCode::FAILURE
        }
        Start::Wait { until } => {
            while !until.exists() {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            ExitCode::SUCCESS
        }
        Start::Supervise(machine @ Machine::Namespaces { .. }) => supervise(machine),
        Start::Supervise(machine @ Machine::Virtual { .. }) => {
            let code = supervise(machine);
            power::off();
            code
        }
    }
}

fn supervise(machine: Machine) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the async runtime does not start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run::run(machine)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("supervisor ends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

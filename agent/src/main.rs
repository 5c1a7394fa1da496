//! The program `shardplane-agent`.
//!
//! In: a command line. Out: a running agent, a swept host, or (hidden) one launched machine. Only `run` and `sweep` make
//! threads: `launch` forks and must have one.

use std::process::ExitCode;

fn main() -> ExitCode {
    shardplane_agent::cli::main()
}

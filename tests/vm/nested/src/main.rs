//! Stories that are told on a host which is itself an emulated machine, with real virtual machines.
//!
//! In: the name of a story; what `tests/all/host.rs` has put on the host's disk; root. Out: lines on the console and an exit code. Run by
//! `host/begin`.

mod counters;
mod iops;
mod machine;
mod stack;
mod vmm;

use std::process::ExitCode;

use anyhow::bail;

fn main() -> ExitCode {
    let story = std::env::args().nth(1).unwrap_or_default();
    let told = match story.as_str() {
        "machine" => machine::tell(),
        "stack" => stack::tell(),
        "iops" => iops::tell(),
        _ => (|| bail!("there is no story {story:?}"))(),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("nested: failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! The simulator by hand: `cargo sim --seed 7 --trace` replays one history, `cargo sim --hours 30` lives many.

use std::process::ExitCode;

use clap::Parser;
use shardplane_sim::{
    campaign::{self, history},
    story::Options,
};

/// Simulates hosts, engines and a leader around the real model, with faults from a seed.
#[derive(Debug, Parser)]
struct Args {
    /// The one history to live; the first one with --hours.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lives histories from the seed on until that many hours are simulated.
    #[arg(long)]
    hours: Option<u64>,
    /// Simulated minutes of faults in each history, before everything heals.
    #[arg(long, default_value_t = campaign::MINUTES)]
    minutes: u64,
    /// Hosts in the beginning; by the seed when not given.
    #[arg(long)]
    hosts: Option<usize>,
    /// Prints what happens as it happens.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(hours) = args.hours {
        let totals = campaign::run(args.seed, hours, args.minutes);
        println!("{}", campaign::told(&totals));
        totals.failures.iter().for_each(|failure| println!("{failure}"));
        return if totals.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let options = Options { seed: args.seed, minutes: args.minutes, hosts: args.hosts, trace: args.trace };
    match history(options) {
        Ok(summary) => {
            println!(
                "seed {}: {} simulated seconds, {} log entries, trace {:016x}",
                args.seed,
                summary.millis / 1_000,
                summary.entries,
                summary.hash
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

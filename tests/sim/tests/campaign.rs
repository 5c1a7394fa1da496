//! Many histories of the simulator. SHARDPLANE_SIM_HOURS says how many simulated hours (1 unless it says so), SHARDPLANE_SIM_SEED where
//! the seeds begin. A history that breaks a rule is told with its seed and the command that replays it.
#![allow(clippy::unwrap_used)]

use shardplane_sim::{
    campaign::{self, MINUTES, history},
    story::Options,
};

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn whatever_happens_no_rule_breaks_and_all_heals() {
    let hours = number("SHARDPLANE_SIM_HOURS", 1);
    let totals = campaign::run(number("SHARDPLANE_SIM_SEED", 1), hours, MINUTES);
    println!("{}", campaign::told(&totals));
    assert!(totals.failures.is_empty(), "{}", totals.failures.join("\n\n"));
    assert!(totals.all.millis >= hours * 3_600_000);
    let least = 20;
    assert!(totals.all.faults.len() >= least, "fewer than {least} kinds of faults: {:?}", totals.all.faults);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let options = |seed| Options { seed, minutes: 8, hosts: Some(5), trace: false };
    let hashes: Vec<u64> = [3, 3, 4].map(|seed| history(options(seed)).unwrap().hash).into();
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
}

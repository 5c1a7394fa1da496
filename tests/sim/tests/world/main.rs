//! The model in a simulated world whose truth the planner cannot see: hosts that die, return and are cut off, engines that
//! fail over by themselves, leaders that change. A seed fixes everything.
#![allow(clippy::unwrap_used)]

mod causes;
mod day_two;
mod day_two_edges;
mod decisions;
mod engines;
mod growth;
mod parameters;
mod planned;
mod progress;
mod properties;
mod repairs;
mod reshard;
mod reshard_faults;
mod scenarios;
mod scene;
mod spread;
mod stand_down;
mod takeover;
mod told;

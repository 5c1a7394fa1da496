//! The simulated world: hosts, engines and a leader as pure steps around the real model. In: a seed, a number of hosts, faults. Out: a
//! world whose truth the planner cannot see, checked after every step. Used by the tests beside it.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod agent;
pub mod campaign;
pub mod check;
pub mod clients;
pub mod clock;
pub mod ear;
pub mod faults;
pub mod fencing;
pub mod gossip;
pub mod host;
pub mod keys;
pub mod leader;
pub mod machine;
pub mod mesh;
pub mod moves;
pub mod node;
pub mod perform;
pub mod replication;
pub mod report;
pub mod rng;
pub mod safety;
pub mod settings;
pub mod slot_table;
pub mod story;
pub mod trace;
pub mod truth;
pub mod users;
pub mod watch;
pub mod wire;
pub mod world;

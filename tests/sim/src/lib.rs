//! The simulated world: hosts, engines and a leader as pure steps around the real model. In: a seed, a number of hosts, faults. Out: a
//! world whose truth the planner cannot see, checked after every step. Used by the tests beside it.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod check;
pub mod host;
pub mod leader;
pub mod mesh;
pub mod node;
pub mod rng;
pub mod world;

//! PostgreSQL clusters from the planner's side: placed, formed, repaired, drained, among simulated hosts and guests.
#![allow(clippy::unwrap_used)]

mod guests;
mod quorum;
mod repair;
mod world;

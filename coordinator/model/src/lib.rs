//! The coordinator's thinking. In: log entries ([`command::Entry`]) and what hosts report ([`observed::Observed`]). Out: the
//! replicated [`state::State`], the planner's proposals and what users see. Called by the coordinator and the simulator;
//! it has no clock, no I/O, no randomness and no hash order, so that every replica comes to the same result.

pub mod apply;
pub mod audit;
pub mod command;
pub mod engine;
pub mod hostspec;
pub mod net;
pub mod observed;
pub mod plan;
pub mod refusal;
pub mod resource;
pub mod state;
pub mod time;
pub mod validate;
pub mod view;

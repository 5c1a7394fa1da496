//! The real agent with real virtual machines, driven by a scripted coordinator over the wire.

#![allow(clippy::unwrap_used)]

// The same script as of the agent's own tests, of which these need a part.
#[allow(dead_code)]
#[path = "../../../../agent/tests/agent/coordinator.rs"]
mod coordinator;
mod deaths;
mod leak;
mod life;
mod refusals;
mod scene;

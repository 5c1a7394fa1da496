//! The real agent with real virtual machines, driven by a scripted coordinator over the wire.

#![allow(clippy::unwrap_used)]

mod deaths;
mod leak;
mod life;
mod refusals;
mod scene;

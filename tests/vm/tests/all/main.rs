//! The real agent with real virtual machines, driven by a scripted coordinator over the wire.

#![allow(clippy::unwrap_used)]

mod deaths;
mod devices;
mod figures;
mod leak;
mod life;
mod limits;
mod refusals;
mod scene;

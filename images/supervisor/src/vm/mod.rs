//! A machine of its own: what only a virtual machine's PID 1 does, before, beside and after the engine.
//!
//! In: the kernel as it starts `/init`. Out: the machine as the launcher of a namespace machine would hand it over, and at
//! the end its power off. Called by `main` and `run`.

pub mod boot;
pub mod button;
pub mod clock;
mod modules;
pub mod power;
mod root;
pub mod timeline;

//! The host agent: boots machines, wires them into their subnets and reports what really runs.
//!
//! In: whole desired states of the coordinator. Out: machines, and reports about them. `session` talks to the coordinator,
//! `reconcile` compares and decides, `machine` owns one machine a task, `vmm` runs it, `network` wires it, `guest_link`
//! talks to the supervisor in it, `ledger` remembers, `board` holds what is to be told.

mod board;
mod boot_time;
pub mod cli;
mod config;
mod contact;
mod digests;
mod durable;
mod guest_link;
mod identity;
mod images;
mod lease;
mod ledger;
mod machine;
pub mod network;
mod preflight;
mod reconcile;
mod run;
mod session;
mod sweep;
mod vmm;
mod volumes;

/// What the agent decides, without its effects: the simulator plays the agent of many hosts with it.
pub mod decide {
    pub use crate::{
        boot_time::BootTime,
        contact::{Contact, Heard, StartRule, may_start},
        lease::{Cut, decide as cuts, grant},
        ledger::Accepted,
        reconcile::{
            diff::{Action, Existing, Reason, diff},
            wanted::{Refusal, check_order},
        },
    };
}

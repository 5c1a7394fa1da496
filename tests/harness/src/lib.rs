//! What end-to-end tests stand on. In: the built programs and the image. Out: a world of coordinators and hosts on this machine
//! ([`World`]), its REST API ([`Api`]), facts to wait for ([`wait_until`]), and Valkey clients inside a cluster's own network
//! ([`ValkeyClient`], [`Writer`]). Used by `tests/e2e`. For tests of the agent alone: a scripted [`coordinator`] and a
//! block device ([`LoopDevice`]).

mod api;
pub mod coordinator;
mod loop_device;
mod netns;
mod valkey;
mod wait;
mod world;
mod writer;

pub use self::{
    api::{Api, Reply},
    loop_device::LoopDevice,
    netns::inside,
    valkey::{FindStand, Stand, ValkeyClient},
    wait::wait_until,
    world::{Cut, Member, World, WorldOptions, bin_dir, machine_netns},
    writer::{Writer, Written},
};

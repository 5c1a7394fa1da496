//! What the end-to-end tests share beyond the harness. In: a world. Out: clusters in it as a user makes them ([`Cluster`], [`PgCluster`]), what an
//! operator types ([`Kc`]) or calls ([`Grpc`]), what engines say themselves ([`engine`], [`slots`], [`names`]), processes to kill
//! ([`process`]) and what lies about on hosts ([`Inventory`]).

mod change;
mod cluster;
pub mod engine;
mod ground;
mod grpc;
mod inventory;
mod kc;
pub mod names;
mod postgres;
pub mod process;
pub mod slots;
mod stage;

pub use self::{
    cluster::{Cluster, Instance, Shape, id},
    grpc::Grpc,
    inventory::{Inventory, lib_dir},
    kc::{Kc, Running},
    postgres::{PgCluster, Rows},
    stage::{measured, on_stage},
};

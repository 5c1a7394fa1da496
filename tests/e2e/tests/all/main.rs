//! Life and death of real clusters in worlds of real processes. In: the built programs and the image. Out: a pass for each story,
//! with the figures that it measured. The scenarios that a test covers stand in its name or its first line.

mod agents;
mod capacity;
mod churn;
mod create;
mod deaths;
mod endpoints;
mod footprint;
mod growth;
mod grpc;
mod hosts;
mod interrupted;
mod leaders;
mod lease;
mod maintenance;
mod modify;
mod operators;
mod operators_hosts;
mod parameters;
mod partitions;
mod passwords;
mod postgres;
mod power;
mod reshard;
mod reshard_deaths;
mod reshard_trouble;
mod spread;
mod storm;
mod story;
mod takeover;
mod throttle;

use std::time::Duration;

/// For a cluster to be whole again without a host being lost.
const SOON: Duration = Duration::from_secs(45);
/// For a cluster to be whole again after a host is declared lost.
const REPAIR: Duration = Duration::from_secs(90);

//! An agent that makes and removes the same network over and over until it is killed.
//!
//! In: its run directory, as the only argument; it is started inside a host of the lab. Out: nothing. Run by
//! `tests/crash.rs`.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use shardplane_agent::network::{Network, NetworkConfig, PortKind, WantedNetwork};
use shardplane_netns::spec::{doomed, network};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let run_dir = std::env::args().nth(1).context("the run directory is the argument")?.into();
    let config = NetworkConfig {
        run_dir,
        underlay_ipv4: Ipv4Addr::new(172, 31, 0, 1),
        mtu: None,
        ports: PortKind::Veth,
    };
    let agent = Network::open(config).await?;
    let wanted = network(0, &[&doomed()]);
    // More than anybody waits for.
    for _ in 0..10_000 {
        agent.ensure(&wanted).await?;
        agent.ensure(&WantedNetwork::default()).await?;
    }
    Ok(())
}

//! An agent that is killed at any moment leaves something that the next one finishes or removes.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use shardplane_netns::{
    Lab, able, inside,
    machine::Guest,
    spec::{doomed, network},
};

#[test]
fn an_agent_may_be_killed_at_any_moment() -> Result<()> {
    if !able() {
        return Ok(());
    }
    let lab = Lab::new(1)?;
    let host = &lab.hosts[0];
    let vpc = doomed();
    let mut half_made = 0;
    for kill in 0..40_u64 {
        let mut agent = inside(&host.namespace, || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_doomed-agent"));
            command.arg(host.run_dir.path()).stdin(Stdio::null()).spawn().context("start the doomed agent")
        })?;
        // Different moments of its two rounds; the time is what is tested, there is no fact to wait for.
        thread::sleep(Duration::from_millis(3 + kill * 7 % 90));
        ensure!(agent.try_wait()?.is_none(), "the agent ended by itself");
        agent.kill()?;
        agent.wait()?;
        let left = host.inventory()?;
        half_made += usize::from(!left.is_empty() && left.links() != 4);
        if kill % 2 == 0 {
            host.ensure(&network(0, &[&vpc]))?;
            assert_eq!(host.ensure(&network(0, &[&vpc]))?.steps, Vec::<String>::new());
            if kill % 10 == 0 {
                Guest::boot(host, &vpc.machines[0])?.reaches(&Guest::boot(host, &vpc.machines[1])?)?;
            }
        } else {
            host.sweep_all()?;
            assert!(host.inventory()?.is_empty());
            assert_eq!(fs::read_dir(host.run_dir.path().join("netns"))?.count(), 0);
        }
    }
    ensure!(half_made > 0, "no kill met the agent in the middle of its work");
    Ok(())
}

//! Passwords as people make them: clusters form with them, and they are nowhere that others can read.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Shape, id, lib_dir, on_stage, process};
use shardplane_harness::{World, WorldOptions};

use crate::story::reborn;

#[test]
fn a_password_works_and_is_found_nowhere() {
    let options = WorldOptions { hosts: 2, coordinators: 3, ..WorldOptions::named("password") };
    on_stage(options, |world| {
        // Unique and in each password, however the rest is quoted or encoded where it lies.
        let core = id();
        for (shards, password) in [
            (3, format!("a \"b' \\ @:/?#%41&=+ $(x) {core} Grüße 漢 🔑")),
            (1, format!("  {core}  ")),
            (1, format!("#\"{core}")),
            (1, format!("{core}{}", "é\"".repeat((512 - 26) / 3))),
        ] {
            let (cluster, _) = Cluster::create(world, &Shape { password, ..Shape::of(shards, 1) })?;
            cluster.wait_agreed(crate::SOON)?;
            let mut client = cluster.client(&[])?;
            client.query::<()>(redis::cmd("SET").arg("a").arg("b"))?;
            ensure!(client.get("a")?.as_deref() == Some("b"), "what was written is not there");
            let mut stranger = world.valkey(&cluster.id, "wrong", &[])?;
            ensure!(stranger.get("a").is_err(), "a wrong password was let in");
            // A replica that restarts has to find the password again.
            let (_, replica) = cluster.pair(0)?;
            let init = process::init_of(&replica.id)?;
            process::murder(init)?;
            reborn(&cluster, &replica, process::init_of, init, "replica with a password")?;
            nowhere(world, &core)?;
            cluster.delete()?;
        }
        nowhere(world, &core)
    });
}

fn nowhere(world: &World, core: &str) -> Result<()> {
    for pid in process::all()? {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let found = bytes.windows(core.len()).any(|window| window == core.as_bytes());
            ensure!(
                !found,
                "the password is in /proc/{pid}/{file} of {:?}",
                process::status_field(pid, "Name")
            );
        }
    }
    // Logs, ledgers, the coordinators' data, and volumes block by block. What machines keep in memory is in their own mounts.
    let places = [world.run_dir(), lib_dir(world)];
    let mut grep = Command::new("grep")
        .args(["-rlaFs", "-D", "skip", "-f", "-"])
        .args(&places)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run grep")?;
    // Not as an argument, where it would be found.
    grep.stdin.take().context("grep has no input")?.write_all(core.as_bytes())?;
    let output = grep.wait_with_output()?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(found.is_empty(), "the password is in {found}");
    Ok(())
}

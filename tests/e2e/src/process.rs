//! Processes of machines, seen from the host. In: an instance. Out: its PID 1, its engine, and their ends.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_harness::wait_until;

/// How a machine's processes say whose they are, in their environment: host, instance and incarnation.
const MARK: &[u8] = b"SHARDPLANE_MACHINE=";

/// All process ids there are.
pub fn all() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc").context("cannot list processes")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The `host/instance/incarnation` of a machine's process; none for others and for those that just ended.
pub fn machine_of(pid: i32) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environ.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(MARK))?;
    String::from_utf8(value.to_vec()).ok()
}

/// A field of `/proc/<pid>/status`.
pub fn status_field(pid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The PID 1 of each machine of an instance. Two would be a fault.
///
/// # Errors
/// When processes cannot be listed.
pub fn inits_of(instance: &str) -> Result<Vec<i32>> {
    let is_init = |pid: &i32| {
        let innermost = status_field(*pid, "NSpid");
        innermost.is_some_and(|pids| pids.split_whitespace().nth(1) == Some("1"))
    };
    let of_it = |pid: &i32| machine_of(*pid).is_some_and(|mark| mark.split('/').nth(1) == Some(instance));
    Ok(all()?.into_iter().filter(of_it).filter(is_init).collect())
}

/// The PID 1 of an instance's machine.
///
/// # Errors
/// When there is not exactly one.
pub fn init_of(instance: &str) -> Result<i32> {
    match inits_of(instance)?.as_slice() {
        [pid] => Ok(*pid),
        several => anyhow::bail!("instance {instance} has {} machines: {several:?}", several.len()),
    }
}

/// All processes of an instance's machine.
///
/// # Errors
/// When there is no machine.
pub fn all_of(instance: &str) -> Result<Vec<i32>> {
    let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = space(init_of(instance)?);
    Ok(all()?.into_iter().filter(|pid| space(*pid) == own).collect())
}

/// The oldest process of an instance's machine whose name begins so: what an engine has forked comes later.
///
/// # Errors
/// When there is none.
pub fn named(instance: &str, name: &str) -> Result<i32> {
    let called = |pid: &i32| status_field(*pid, "Name").is_some_and(|known| known.starts_with(name));
    let found = all_of(instance)?.into_iter().filter(called).min_by_key(|pid| start_of(*pid));
    found.with_context(|| format!("no {name} runs in the machine of {instance}"))
}

/// The engine's process of an instance.
///
/// # Errors
/// When there is none.
pub fn engine_of(instance: &str) -> Result<i32> {
    let init = init_of(instance)?.to_string();
    let engine = all()?.into_iter().find(|pid| {
        status_field(*pid, "PPid").as_deref() == Some(init.as_str())
            && status_field(*pid, "Name").is_some_and(|name| name.starts_with("valkey-server"))
    });
    engine.with_context(|| format!("no engine runs in the machine of {instance}"))
}

/// `kill -9`, and waits until it is gone.
///
/// # Errors
/// When it does not go within 10 s.
pub fn murder(pid: i32) -> Result<()> {
    let born = start_of(pid);
    kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("cannot kill {pid}"))?;
    let gone = || match start_of(pid) {
        still if still.is_some() && still == born => Err(()),
        Some(_) | None => Ok(()),
    };
    wait_until(&format!("the end of process {pid}"), Duration::from_secs(10), gone)?;
    Ok(())
}

/// Stops a process without its knowing, or lets it go on.
///
/// # Errors
/// When there is no such process.
pub fn freeze(pid: i32, frozen: bool) -> Result<()> {
    let signal = if frozen { Signal::SIGSTOP } else { Signal::SIGCONT };
    kill(Pid::from_raw(pid), signal).with_context(|| format!("cannot send {signal} to {pid}"))
}

/// When a living process was started, in ticks: with the pid it names a process for good.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // One that nobody has reaped yet has ended.
    (fields.next()? != "Z").then(|| fields.nth(18)?.parse().ok())?
}

/// Resident memory in MiB.
///
/// # Errors
/// When there is no such process.
pub fn rss_mib(pid: i32) -> Result<f64> {
    let rss = status_field(pid, "VmRSS").with_context(|| format!("process {pid} has no memory"))?;
    let kib: f64 = rss.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kib / 1024.0)
}

/// How many files a process has open.
///
/// # Errors
/// When there is no such process.
pub fn open_files(pid: i32) -> Result<usize> {
    let dir = PathBuf::from(format!("/proc/{pid}/fd"));
    Ok(fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?.count())
}

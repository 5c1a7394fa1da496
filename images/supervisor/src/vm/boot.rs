//! `/init` of a virtual machine: from the bare kernel to the supervisor of the image.
//!
//! In: the kernel's command line and the disks. Out: this process becomes `/sbin/shardplane-supervisor` of the image, in a machine as
//! the launcher of a namespace machine makes one. Called by `main`. When a step fails it says so on the console and turns the machine off.

use std::{convert::Infallible, fs, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::{Context as _, bail};
use nix::{
    sys::stat::{Mode, umask},
    unistd::{Pid, getpid, sethostname},
};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    modules, power, root,
    timeline::{self, Timeline},
};

/// Where every image has its supervisor.
const SUPERVISOR: &str = "/sbin/shardplane-supervisor";
/// Before the host's name on the kernel's command line.
const HOSTNAME: &str = "shardplane.hostname=";
/// Open files of a machine's processes; the kernel's own default is too few for an engine.
const MAX_FILES: u64 = 524_288;

/// Boots. Returns only when a step failed; the machine is off or about to be then.
pub fn main() {
    let why = match boot() {
        Ok(never) => match never {},
        Err(why) => why,
    };
    tracing::error!("this machine cannot start and turns itself off: {why:#}");
    power::off();
}

fn boot() -> anyhow::Result<Infallible> {
    if getpid() != Pid::from_raw(1) {
        bail!("only a kernel runs this, as its first process");
    }
    let mut timeline = Timeline::default();
    timeline.reached("init");
    umask(Mode::from_bits_truncate(0o022));
    root::mount_kernel()?;
    modules::load(Path::new(modules::FOLDER))?;
    timeline.reached("modules");
    let cmdline = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    root::mount_machine()?;
    root::switch()?;
    timeline.reached("disks");
    if let Some(name) = hostname(&cmdline) {
        sethostname(name).with_context(|| format!("set the host name {name}"))?;
    }
    // An engine forks to save; the copy shares its pages, so the sum of both may exceed the memory.
    fs::write("/proc/sys/vm/overcommit_memory", "1").context("set vm.overcommit_memory")?;
    let files = Rlimit { current: Some(MAX_FILES), maximum: Some(MAX_FILES) };
    setrlimit(Resource::Nofile, files).with_context(|| format!("allow {MAX_FILES} open files"))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).context("forbid core dumps")?;
    let mut supervisor = Command::new(SUPERVISOR);
    let error = supervisor.env_clear().arg(timeline::ARGUMENT).arg(timeline.argument()).exec();
    Err(error).with_context(|| format!("run {SUPERVISOR} of the image"))
}

fn hostname(cmdline: &str) -> Option<&str> {
    cmdline.split_whitespace().filter_map(|word| word.strip_prefix(HOSTNAME)).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_name_is_on_the_command_line() {
        let line = "console=ttyS0 quiet panic=-1 shardplane.hostname=cache-0 \n";
        assert_eq!(hostname(line), Some("cache-0"));
        assert_eq!(hostname("console=ttyS0 quiet"), None);
    }
}

//! Whether this host can run machines at all, and what it has to offer.
//!
//! In: the host and the configuration. Out: [`Finding`]s, each with what to do where something is missing; the capacity
//! found. The command `check` shows all; the agent refuses to start on a failed one, before anything else.

mod host;
mod modules;
mod vm;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use shardplane_proto::v1;

use crate::{
    config::{Config, VmmKind},
    digests::Digests,
    volumes::Volumes,
};

/// How good one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Machines run, but not as well as they could.
    Warn,
    /// Machines cannot run.
    Fail,
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How good it is.
    pub level: Level,
    /// What was found and, unless it is good, what to do.
    pub text: String,
}

impl Finding {
    fn ok(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Ok, text: text.into() }
    }

    fn warn(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Warn, text: text.into() }
    }

    fn fail(what: &str, text: impl Into<String>) -> Self {
        Self { what: what.into(), level: Level::Fail, text: text.into() }
    }

    /// Good, or failed with the reason.
    fn must(what: &str, found: Result<String, String>) -> Self {
        found.map_or_else(|text| Self::fail(what, text), |text| Self::ok(what, text))
    }
}

/// The host as it is looked at: all of it below `/`, or below a folder that a test has made.
struct View {
    root: PathBuf,
}

impl View {
    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn read(&self, absolute: &str) -> io::Result<String> {
        fs::read_to_string(self.path(absolute))
    }
}

/// All that failed, with what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host cannot run machines:\n  {}", .0.join("\n  "))]
pub struct CannotRun(Vec<String>);

/// Looks at everything that the configured way to run machines needs.
pub fn look(config: &Config) -> Vec<Finding> {
    let view = View { root: "/".into() };
    let volumes = Volumes::new(&config.state_dir, config.volume_devices.as_deref());
    let mut findings = basics(config);
    findings.push(host::underlay(config));
    findings.push(host::cgroups(&view));
    findings.push(modules::modules(&view, config.vmm));
    findings.push(host::disk(&config.state_dir));
    findings.extend(volumes.devices().map(|devices| host::devices(devices.survey())));
    findings.extend(match config.vmm {
        VmmKind::Namespace => host::namespaces(&view),
        VmmKind::CloudHypervisor => {
            vm::look(&view, &config.cloud_hypervisor(), &Digests::open(&config.state_dir))
        }
    });
    findings
}

/// Looks at what even a sweep needs.
pub fn basics(config: &Config) -> Vec<Finding> {
    let mut findings = vec![host::root(nix::unistd::geteuid().is_root())];
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    findings.extend(host::programs(&path));
    findings.push(host::own_folder("state_dir", &config.state_dir));
    findings.push(host::own_folder("run_dir", &config.run_dir));
    findings.push(host::images(&config.image_dir));
    findings
}

/// Refuses a host with a failed finding.
///
/// # Errors
/// All that failed, at once.
pub fn judge(findings: &[Finding]) -> Result<(), CannotRun> {
    let failed = findings.iter().filter(|finding| finding.level == Level::Fail);
    let failed: Vec<_> = failed.map(|finding| format!("{}: {}", finding.what, finding.text)).collect();
    if failed.is_empty() { Ok(()) } else { Err(CannotRun(failed)) }
}

/// One line a finding.
pub fn table(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    let line = |finding: &Finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        format!("{level:<5} {:<width$}  {}\n", finding.what, finding.text)
    };
    findings.iter().map(line).collect()
}

/// What is there: all cores, all memory, the whole file system of the volumes or all devices that are one or can be.
///
/// # Errors
/// When it cannot be found out.
pub fn capacity(state_dir: &Path, volumes: &Volumes) -> anyhow::Result<v1::Capacity> {
    let cores = std::thread::available_parallelism().context("cannot count the cores")?;
    let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let memory_kib = memory_kib(&meminfo).context("/proc/meminfo has no MemTotal")?;
    let disk_gib = match volumes.devices() {
        Some(devices) => host::offered(&devices.survey().context("cannot look at the devices for volumes")?),
        None => {
            let disk = rustix::fs::statvfs(state_dir).map_err(io::Error::from);
            let disk =
                disk.with_context(|| format!("cannot measure the file system of {}", state_dir.display()))?;
            disk.f_blocks.saturating_mul(disk.f_frsize) >> 30
        }
    };
    Ok(v1::Capacity {
        vcpu_percent: u64::try_from(cores.get())? * 100,
        memory_mib: memory_kib / 1024,
        disk_gib,
        iops: 0,
    })
}

fn memory_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
impl View {
    /// A host of a test with these files in it.
    fn with(files: &[(&str, &str)]) -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().unwrap();
        let view = Self { root: dir.path().into() };
        for (absolute, text) in files {
            let path = view.path(absolute);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        (dir, view)
    }
}

/// A test's word on one row: how good it is, and words that are in it.
#[cfg(test)]
fn assert_row(found: &Finding, level: Level, words: &[&str]) {
    assert_eq!(found.level, level, "{found:?}");
    for word in words {
        assert!(found.text.contains(word), "{word} in {found:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_found() {
        assert_eq!(memory_kib("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2048));
        let found = capacity(Path::new("/"), &Volumes::new(Path::new("/none"), None)).unwrap();
        assert!(found.vcpu_percent >= 100 && found.memory_mib > 0);
    }

    #[test]
    fn the_table_says_what_to_do_and_only_a_failure_forbids_to_run() {
        let mut findings = vec![Finding::ok("root", "yes"), Finding::warn("disk", "full: make room")];
        assert_eq!(table(&findings), "ok    root  yes\nwarn  disk  full: make room\n");
        assert_eq!(judge(&findings), Ok(()));
        findings.push(Finding::fail("/dev/kvm", "is not there: load kvm_intel or kvm_amd"));
        let refusal = judge(&findings).unwrap_err().to_string();
        assert!(refusal.ends_with("/dev/kvm: is not there: load kvm_intel or kvm_amd"), "{refusal}");
    }
}

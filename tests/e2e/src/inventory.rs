//! What lies about on a world's hosts. In: a world. Out: everything there that a machine could leave behind, as lines to compare.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use shardplane_harness::{Member, World};

use crate::process;

/// A picture of all hosts: processes, mounts, loop devices, files, volumes, links, nftables, cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory(BTreeSet<String>);

impl Inventory {
    /// Takes the picture.
    ///
    /// # Errors
    /// When a host cannot be looked at.
    pub fn of(world: &World) -> Result<Self> {
        let mut lines = BTreeSet::new();
        let lib = lib_dir(world);
        for host in world.hosts()? {
            let (run, lib) =
                (world.run_dir().join(format!("h{}/run", host.index)), lib.join(format!("h{}", host.index)));
            let name = format!("host {}", host.index);
            for dir in [run.join("machines"), run.join("netns"), run.join("stage"), lib.join("volumes")] {
                files(&dir, &mut |path| lines.insert(format!("{name}: file {}", path.display())))?;
            }
            for line in wires(&host)? {
                lines.insert(format!("{name}: {line}"));
            }
            let id = fs::read_to_string(lib.join("host-id")).context("cannot read the host's id")?;
            let id = id.trim();
            for pid in process::all()? {
                if let Some(mark) = process::machine_of(pid).filter(|mark| mark.starts_with(id)) {
                    lines.insert(format!("{name}: process {pid} of {mark}"));
                }
            }
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let dir = Path::new(root).join(format!("shardplane-{}", &id[id.len() - 8..]));
                for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                    if entry.path().is_dir() {
                        lines.insert(format!("{name}: cgroup {}", entry.path().display()));
                    }
                }
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot list mounts")?;
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
            if Path::new(point).starts_with(world.run_dir()) || Path::new(point).starts_with(&lib) {
                lines.insert(format!("mount {point}"));
            }
        }
        for device in fs::read_dir("/sys/block").context("cannot list block devices")?.flatten() {
            let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            if Path::new(backing.trim()).starts_with(&lib) {
                lines.insert(format!("loop device of {}", backing.trim()));
            }
        }
        Ok(Self(lines))
    }

    /// What is here and not in `other`.
    pub fn beyond(&self, other: &Self) -> Vec<String> {
        self.0.difference(&other.0).cloned().collect()
    }

    /// Number of things whose line contains `word`.
    pub fn count(&self, word: &str) -> usize {
        self.0.iter().filter(|line| line.contains(word)).count()
    }
}

/// Where the world's disks are.
pub fn lib_dir(world: &World) -> PathBuf {
    Path::new("/var/lib").join(world.run_dir().file_name().unwrap_or_default())
}

fn files(dir: &Path, seen: &mut impl FnMut(&Path) -> bool) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        // What disappears meanwhile is no trace.
        let Ok(entry) = entry else { continue };
        let path = entry.path();
        // A staging area may hold another file system for a moment; it is counted as a mount.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(&path, seen)?;
        }
        seen(&path);
    }
    Ok(())
}

fn wires(host: &Member) -> Result<Vec<String>> {
    let run = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("ip").args(["netns", "exec", &host.netns]).args(arguments).output()?;
        ensure!(output.status.success(), "{arguments:?} on {}: {output:?}", host.netns);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let links = run(&["ip", "-o", "link"])?;
    let link = |line: &str| Some(format!("link {}", line.split_whitespace().nth(1)?.split('@').next()?));
    let mut lines: Vec<String> = links.lines().filter_map(link).collect();
    lines.extend(run(&["nft", "list", "ruleset"])?.lines().map(|line| format!("nftables {line}")));
    Ok(lines)
}

//! What `/proc` says: start times, tags, and which tagged processes are machines.
//!
//! In: a `/proc`. Out: [`Seen`] for one number, [`Found`] for all of this host's. Called by the VMMs.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use shardplane_proto::ids::{HostId, InstanceId};

use crate::{
    identity::{MachineTag, TAG_VARIABLE},
    ledger::{ProcessId, Run},
    vmm::{Found, FoundKind, Seen, Verdict, judge},
};

/// The environment variable that tells a VMM from its launcher, which has the tag too.
pub const VMM_VARIABLE: &str = "SHARDPLANE_VMM";

/// Bytes of an environment that is not large.
const USUAL_ENVIRONMENT: usize = 4096;

/// A `/proc`.
#[derive(Debug, Clone)]
pub struct Procfs {
    root: PathBuf,
}

impl Default for Procfs {
    fn default() -> Self {
        Self { root: "/proc".into() }
    }
}

impl Procfs {
    /// What one process number is now; `None` when nothing has it.
    ///
    /// # Errors
    /// When `/proc` refuses; a process that ends meanwhile is `None`.
    pub fn see(&self, pid: i32) -> io::Result<Option<Seen>> {
        let dir = self.root.join(pid.to_string());
        let Some(stat) = gone_is_none(fs::read(dir.join("stat")))? else { return Ok(None) };
        let (state, start_ticks) = parse_stat(&stat)
            .ok_or_else(|| io::Error::other(format!("{}/stat has an unknown form", dir.display())))?;
        let zombie = matches!(state, b'Z' | b'X');
        let tag = if zombie { None } else { read_tag(&dir)? };
        Ok(Some(Seen { start_ticks, zombie, tag }))
    }

    /// Does the process recorded in the ledger still live, and is it that machine? `boot_id` is of the kernel that runs.
    ///
    /// # Errors
    /// When `/proc` refuses.
    pub fn inspect(&self, instance: InstanceId, run: &Run, boot_id: &str) -> io::Result<Verdict> {
        let seen = match run.process {
            Some(process) => self.see(process.pid)?,
            None => None,
        };
        Ok(judge(instance, run, boot_id, seen))
    }

    /// Whether a process is a VMM; not when it cannot be found out.
    pub fn is_vmm(&self, process: ProcessId) -> bool {
        is_vmm(&self.root.join(process.pid.to_string())).unwrap_or(false)
    }

    /// All living processes that are machines of `host`, or launchers of such; the oldest first.
    ///
    /// # Errors
    /// When `/proc` refuses.
    pub fn find(&self, host: HostId) -> io::Result<Vec<Found>> {
        let own_depth = depth(&self.root.join("self"))?.unwrap_or(1);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let dir = self.root.join(&name);
            // Nearly all of a host's processes are nobody's machine: for them this is all that is read.
            if read_tag(&dir)?.is_none_or(|tag| tag.host != host) {
                continue;
            }
            let Some(Seen { start_ticks, zombie: false, tag: Some(tag) }) = self.see(pid)? else { continue };
            let process = ProcessId { pid, start_ticks };
            let kind = match pid_inside(&dir)? {
                // Deeper than the agent and number 1 there: the machine itself. Others down there die with it.
                Some((level, 1)) if level > own_depth => FoundKind::Machine,
                Some((level, _)) if level == own_depth && is_vmm(&dir)? => FoundKind::Machine,
                Some((level, _)) if level == own_depth => FoundKind::Launcher,
                Some(_) | None => continue,
            };
            found.push(Found { tag, process, kind });
        }
        found.sort_by_key(|one| (one.process.start_ticks, one.process.pid));
        Ok(found)
    }
}

fn gone_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A process that ends between open and read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// State and field 22 of a `stat` line; the command in parentheses may hold anything, also parentheses.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // state is field 3, so 22 is the 19th after it.
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn read_tag(dir: &Path) -> io::Result<Option<MachineTag>> {
    Ok(read_variable(dir, TAG_VARIABLE)?.as_deref().and_then(MachineTag::parse))
}

fn is_vmm(dir: &Path) -> io::Result<bool> {
    Ok(read_variable(dir, VMM_VARIABLE)?.is_some())
}

fn read_variable(dir: &Path, name: &str) -> io::Result<Option<String>> {
    let environment = match read_whole(&dir.join("environ")) {
        // It has capabilities that the agent lacks. A machine has fewer than the agent that started it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        result => gone_is_none(result)?,
    };
    let Some(environment) = environment else { return Ok(None) };
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|line| std::str::from_utf8(line).ok());
    let value = variables.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Ok(value.map(str::to_owned))
}

/// In one piece: these files say that they are empty, and whoever believes it reads them in many small ones, each of which stops their process.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_ENVIRONMENT);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Depth of the innermost pid namespace and the number in it, from `NSpid` of `status`.
fn pid_inside(dir: &Path) -> io::Result<Option<(usize, u32)>> {
    let Some(status) = gone_is_none(fs::read(dir.join("status")))? else { return Ok(None) };
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<u32> =
        line.unwrap_or_default().split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
    Ok(numbers.last().map(|last| (numbers.len(), *last)))
}

fn depth(dir: &Path) -> io::Result<Option<usize>> {
    Ok(pid_inside(dir)?.map(|(level, _)| level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MachineUuid;

    fn process(root: &Path, pid: i32, state: char, tag: &str, nspid: &str) {
        let dir = root.join(pid.to_string());
        fs::create_dir(&dir).unwrap();
        let zeros = "0 ".repeat(18);
        fs::write(dir.join("stat"), format!("{pid} (a) (b c) {state} {zeros}{} 0", pid * 10)).unwrap();
        fs::write(dir.join("environ"), format!("A=1\0{TAG_VARIABLE}={tag}\0")).unwrap();
        fs::write(dir.join("status"), format!("Name:\ta\nNSpid:\t{nspid}\n")).unwrap();
    }

    #[test]
    fn machines_and_launchers_of_this_host_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let (host, instance) = (HostId::from_u128(1), InstanceId::from_u128(2));
        let tag = MachineTag { host, instance, uuid: MachineUuid::generate() };
        let foreign = MachineTag { host: HostId::from_u128(3), ..tag };
        fs::create_dir(root.join("self")).unwrap();
        fs::write(root.join("self/status"), "NSpid:\t50\n").unwrap();
        process(&root, 10, 'S', &tag.to_string(), "10\t1");
        process(&root, 11, 'S', &tag.to_string(), "11\t7");
        process(&root, 12, 'S', &tag.to_string(), "12");
        process(&root, 13, 'Z', &tag.to_string(), "13\t1");
        process(&root, 14, 'S', &foreign.to_string(), "14\t1");
        process(&root, 15, 'S', "nonsense", "15\t1");
        process(&root, 16, 'S', &format!("{tag}\0{VMM_VARIABLE}=1"), "16");
        let procfs = Procfs { root };
        let found = procfs.find(host).unwrap();
        let seen: Vec<_> =
            found.iter().map(|one| (one.process.pid, one.process.start_ticks, one.kind)).collect();
        assert_eq!(
            seen,
            [(10, 100, FoundKind::Machine), (12, 120, FoundKind::Launcher), (16, 160, FoundKind::Machine)]
        );
        assert_eq!(procfs.see(99).unwrap(), None);
        assert!(procfs.see(13).unwrap().unwrap().zombie);
    }

    #[test]
    fn this_process_is_seen() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let seen = Procfs::default().see(pid).unwrap().unwrap();
        assert!(seen.start_ticks > 0 && !seen.zombie && seen.tag.is_none());
    }
}

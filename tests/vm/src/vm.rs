//! A machine's process as the kernel shows it, and its VMM asked directly.
//!
//! In: a pid. Out: facts that do not come from the agent.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use shardplane_proto::ids::InstanceId;

/// A VMM's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vm {
    /// Its number.
    pub pid: i32,
    /// The instance it is.
    pub instance: InstanceId,
}

impl Vm {
    /// A line of its `/proc/<pid>/status`.
    pub fn status(&self, key: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_default().split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// How the system calls of one of its threads are filtered.
    pub fn seccomp(&self, thread: &str) -> Option<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
        let line = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
            line.unwrap_or_default().to_owned()
        };
        texts.into_iter().find(|text| line(text, "Name") == thread).map(|text| line(&text, "Seccomp"))
    }

    /// The user it runs as.
    pub fn uid(&self) -> u32 {
        self.status("Uid").split(' ').next().and_then(|uid| uid.parse().ok()).unwrap_or_default()
    }

    /// Its session.
    pub fn session(&self) -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        stat.rsplit(')').next()?.split_ascii_whitespace().nth(3)?.parse().ok()
    }

    /// What one of its links in `/proc` points at.
    pub fn link(&self, name: &str) -> PathBuf {
        fs::read_link(format!("/proc/{}/{name}", self.pid)).unwrap_or_default()
    }

    /// The folder of its cgroup, as the kernel names it.
    pub fn cgroup(&self) -> String {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("0::"));
        line.unwrap_or_default().to_owned()
    }

    /// Memory in use in KiB, without pages that come from hugetlbfs.
    pub fn rss_kib(&self) -> u64 {
        self.status("VmRSS").split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    /// What its VMM answers to `vm.info`, asked without the agent.
    pub fn info(&self) -> Option<serde_json::Value> {
        let answer = self.ask("GET /api/v1/vm.info")?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Whether its VMM does what it is told, by somebody other than the agent.
    pub fn tell(&self, call: &str) -> bool {
        self.ask(&format!("PUT /api/v1/{call}")).is_some_and(|answer| answer.starts_with("HTTP/1.1 20"))
    }

    /// The answer is whole when it has as many bytes as it says; one without a body says nothing of that.
    fn ask(&self, request: &str) -> Option<String> {
        let mut stream = UnixStream::connect(format!("/proc/{}/cwd/api", self.pid)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).ok()?;
            answer.extend_from_slice(buffer.get(..length)?);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                if length == 0 {
                    return None;
                }
                continue;
            };
            let head = head.to_lowercase();
            let said = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= said.unwrap_or(0) {
                return Some(text.into_owned());
            }
            if length == 0 {
                return None;
            }
        }
    }
}

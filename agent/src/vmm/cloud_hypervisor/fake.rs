//! A scripted VMM: answers as the real one was seen to, byte for byte where that matters.
//!
//! In: calls over a real unix socket. Out: its answers, and what it was asked. Used by unit tests only.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{IoSliceMut, Write as _},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use shardplane_proto::ids::{HostId, InstanceId};

use crate::{
    identity::MachineTag,
    vmm::{Limits, MachineSpec, Nic},
};

/// A machine.
pub fn spec() -> MachineSpec {
    MachineSpec {
        tag: MachineTag {
            host: HostId::from_u128(1),
            instance: InstanceId::from_u128(2),
            uuid: "01arz3ndektsv4rrffq69g5fav".parse().unwrap(),
        },
        hostname: "db".into(),
        image: "/images/e.erofs".into(),
        volume: "/volumes/data.raw".into(),
        nic: Nic {
            netns: "/run/netns/vpc".into(),
            interface: "spp000000000002".into(),
            mac: "02:00:00:00:00:05".into(),
        },
        host_dir: "/run/machines/2".into(),
        limits: Limits { vcpus: 2, vcpu_share: 50, memory_mib: 256, iops: 750 },
    }
}

/// Stands for an attached tap.
pub fn tap() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

/// What to answer instead of doing it.
pub enum Reply {
    /// A status and a body.
    Status(u16, String),
    /// The connection ends.
    Hangup,
    /// Nothing, for as long as the test lasts.
    Silence,
}

impl Reply {
    /// An array of texts, outermost first.
    pub fn refusal(status: u16, texts: &[&str]) -> Self {
        Self::Status(status, json!(texts).to_string())
    }

    /// As the HTTP layer below refuses.
    pub fn object(status: u16, text: &str) -> Self {
        Self::Status(status, format!("{{ \"error\": \"{text}\" }}"))
    }

    /// Without a word.
    pub fn empty(status: u16) -> Self {
        Self::Status(status, String::new())
    }
}

#[derive(Default)]
struct Inner {
    pid: i32,
    calls: Vec<String>,
    scripted: BTreeMap<String, VecDeque<Reply>>,
    config: Option<Value>,
    state: &'static str,
    descriptors: usize,
    forgotten: Vec<String>,
    silent: Vec<UnixStream>,
}

/// The VMM.
pub struct FakeServer {
    socket: PathBuf,
    inner: Arc<Mutex<Inner>>,
    _dir: Option<tempfile::TempDir>,
}

impl FakeServer {
    /// A VMM without a machine that says it is process `pid`.
    pub async fn start(pid: i32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api");
        Self { _dir: Some(dir), ..Self::start_at(socket, pid) }
    }

    /// The same, at this socket.
    pub fn start_at(socket: PathBuf, pid: i32) -> Self {
        let listener = UnixListener::bind(&socket).unwrap();
        let inner = Arc::new(Mutex::new(Inner { pid, state: "Created", ..Inner::default() }));
        let served = Arc::clone(&inner);
        // Ends with the test's process. One call at a time, as the real one.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &served);
            }
        });
        Self { socket, inner, _dir: None }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The next such call is answered with this.
    pub fn next(&self, call: &str, reply: Reply) {
        self.lock().scripted.entry(call.into()).or_default().push_back(reply);
    }

    /// It does not keep what is at this JSON pointer below `vm.info`.
    pub fn forget(&self, pointer: &str) {
        self.lock().forgotten.push(pointer.into());
    }

    /// Somebody pauses the machine.
    pub fn pause(&self) {
        self.lock().state = "Paused";
    }

    /// What it was asked.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// How many descriptors it was given.
    pub fn descriptors(&self) -> usize {
        self.lock().descriptors
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

fn serve(mut stream: UnixStream, inner: &Mutex<Inner>) {
    let Some((path, body, descriptors)) = read_request(&stream) else { return };
    let mut inner = inner.lock().unwrap();
    let call = path.trim_start_matches("/api/v1/").to_owned();
    inner.calls.push(call.clone());
    inner.descriptors += descriptors;
    let scripted = inner.scripted.get_mut(&call).and_then(VecDeque::pop_front);
    let reply = scripted.unwrap_or_else(|| inner.answer(&call, &body));
    let (status, body) = match reply {
        Reply::Status(status, body) => (status, body),
        Reply::Hangup => return,
        Reply::Silence => return inner.silent.push(stream),
    };
    // The status line has no reason, and 204 no length.
    let length = if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let _client_gone = write!(
        stream,
        "HTTP/1.1 {status} \r\nServer: Cloud Hypervisor API\r\nConnection: keep-alive\r\n{length}\r\n{body}"
    );
}

impl Inner {
    fn answer(&mut self, call: &str, body: &[u8]) -> Reply {
        let text = |status, text: &str| Reply::refusal(status, &["Error from API", text]);
        match call {
            "vmm.ping" => {
                let version =
                    json!({"build_version": "v54.0.0", "version": "54.0.0", "pid": self.pid, "features": []});
                Reply::Status(200, version.to_string())
            }
            "vm.create" if self.config.is_some() => text(500, "VM is already created"),
            "vm.create" => {
                self.config = Some(serde_json::from_slice(body).unwrap());
                Reply::empty(204)
            }
            "vm.add-net" => {
                let net: Value = serde_json::from_slice(body).unwrap();
                self.config.as_mut().unwrap()["net"] = json!([net]);
                Reply::empty(204)
            }
            "vm.info" => match &self.config {
                None => text(404, "VM is not created"),
                Some(config) => {
                    let mut info = json!({"config": config, "state": self.state});
                    for pointer in &self.forgotten {
                        let (parent, key) = pointer.rsplit_once('/').unwrap();
                        info.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key);
                    }
                    Reply::Status(200, info.to_string())
                }
            },
            "vm.boot" | "vm.resume" => {
                self.state = "Running";
                Reply::empty(204)
            }
            "vm.power-button" if self.state != "Running" => text(500, "VM is not running"),
            "vm.power-button" => Reply::empty(204),
            "vm.delete" => {
                self.config = None;
                Reply::empty(204)
            }
            "vmm.shutdown" => Reply::empty(200),
            _ => Reply::refusal(404, &["Not Found"]),
        }
    }
}

/// Path, body and number of descriptors of one request that has its length.
fn read_request(stream: &UnixStream) -> Option<(String, Vec<u8>, usize)> {
    let (mut bytes, mut descriptors) = (Vec::new(), 0);
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            assert!(!head.contains("chunked"), "the real one refuses chunks");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let length: usize = length.unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let path = head.split(' ').nth(1)?.to_owned();
                return Some((path, bytes[end + 4..].to_vec(), descriptors));
            }
        }
        let mut chunk = [0; 4096];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got =
            recvmsg(stream, &mut [IoSliceMut::new(&mut chunk)], &mut control, RecvFlags::empty()).ok()?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors += fds.count();
            }
        }
        if got.bytes == 0 {
            return None;
        }
        bytes.extend_from_slice(&chunk[..got.bytes]);
    }
}

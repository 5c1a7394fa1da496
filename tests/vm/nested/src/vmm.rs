//! One virtual machine under cloud-hypervisor, and the host's end of its supervisor's link.
//!
//! In: kernel and image of `/host/images`, a cloud-hypervisor that `CLOUD_HYPERVISOR` names. Out: what the guest says, and the VMM's
//! exit. Called by `machine`.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use prost::Message as _;
use shardplane_proto::v1::{FromGuest, GuestReport, ToGuest, from_guest, to_guest};

/// Address of the machine, and its host's on the same wire.
pub const ADDRESS: &str = "10.20.0.5";
pub const HOST: &str = "10.20.0.1";
/// What images/build has made.
const IMAGES: &str = "/host/images";
const API: &str = "/run/api.sock";
const VSOCK: &str = "/run/vsock";
const CONSOLE: &str = "/data/console";
/// The machine's data, as an ext4 in a file.
pub const VOLUME: &str = "/data/volume";
/// Both machines are emulated, perhaps on a busy computer.
const PATIENCE: Duration = Duration::from_secs(240);

/// A machine that runs.
pub struct Vm {
    process: Child,
    listener: UnixListener,
    link: UnixStream,
    said: Receiver<from_guest::Body>,
}

impl Vm {
    /// Boots it, with more words for its kernel, and waits until its supervisor came. Says how long that took.
    pub fn boot(more: &str) -> anyhow::Result<(Self, Duration)> {
        for stale in [API, VSOCK, "/run/vsock_1024", CONSOLE] {
            let _absent = fs::remove_file(stale);
        }
        let listener = UnixListener::bind("/run/vsock_1024").context("listen for the supervisor")?;
        let words = fs::read_to_string(kernel("cmdline")).context("read the kernel's words")?;
        let words = words.trim();
        let started = Instant::now();
        let mut process = Command::new(program()?)
            .args(["--api-socket", API])
            .args(["--kernel", &kernel("vmlinuz"), "--initramfs", &kernel("initramfs")])
            .arg("--cmdline")
            .arg(format!(
                "console=ttyS0 quiet loglevel=4 panic=-1 shardplane.hostname=nested-0 {words} {more}"
            ))
            .args(["--cpus", "boot=1", "--memory", "size=256M"])
            .args(["--disk", &format!("path={},readonly=on,serial=root,image_type=raw", image()?)])
            .arg(format!("path={VOLUME},serial=data,image_type=raw"))
            .args(["--net", &format!("tap=card0,ip={HOST},mask=255.255.255.0,mac=52:54:00:00:00:05")])
            .args(["--vsock", &format!("cid=3,socket={VSOCK}")])
            .args(["--console", "off", "--serial", &format!("file={CONSOLE}")])
            .spawn()
            .context("run cloud-hypervisor")?;
        let link = accept(&listener, &mut process)?;
        let took = started.elapsed();
        let said = listen_to(&link)?;
        Ok((Self { process, listener, link, said }, took))
    }

    /// Waits until a supervisor comes anew: the machine started over.
    pub fn comes_again(&mut self) -> anyhow::Result<()> {
        self.link = accept(&self.listener, &mut self.process)?;
        self.said = listen_to(&self.link)?;
        Ok(())
    }

    /// Says something to the supervisor.
    pub fn send(&mut self, body: to_guest::Body) -> anyhow::Result<()> {
        let message = ToGuest { body: Some(body) }.encode_to_vec();
        let size = u32::try_from(message.len()).context("a message of that size")?;
        self.link.write_all(&size.to_be_bytes()).context("write to the supervisor")?;
        self.link.write_all(&message).context("write to the supervisor")
    }

    /// Waits for something the supervisor says.
    pub fn hear<T>(
        &mut self,
        what: &str,
        mut is_it: impl FnMut(&from_guest::Body) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let body = self.said.recv_timeout(left).with_context(|| format!("wait for {what}"))?;
            if let Some(found) = is_it(&body) {
                return Ok(found);
            }
        }
    }

    /// Waits for a report that is so.
    pub fn report(
        &mut self,
        what: &str,
        is_so: impl Fn(&GuestReport) -> bool,
    ) -> anyhow::Result<GuestReport> {
        self.hear(what, |body| match body {
            from_guest::Body::Report(report) => Some(report).filter(|report| is_so(report)).cloned(),
            from_guest::Body::Hello(_) | from_guest::Body::Outcome(_) => None,
        })
    }

    /// One call of the VMM's API that needs no body.
    pub fn call(&self, name: &str) -> anyhow::Result<()> {
        let mut api = UnixStream::connect(API).context("connect to cloud-hypervisor")?;
        write!(api, "PUT /api/v1/{name} HTTP/1.1\r\nHost: vm\r\n\r\n")
            .with_context(|| format!("ask for {name}"))?;
        let mut answer = [0; 12];
        api.read_exact(&mut answer).with_context(|| format!("hear about {name}"))?;
        ensure!(answer == *b"HTTP/1.1 204", "{name} was answered with {}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// Waits for the VMM's end.
    pub fn ended(mut self) -> anyhow::Result<ExitStatus> {
        until("the end of cloud-hypervisor", || self.process.try_wait().transpose())?
            .context("wait for cloud-hypervisor")
    }
}

fn program() -> anyhow::Result<OsString> {
    env::var_os("CLOUD_HYPERVISOR").context("CLOUD_HYPERVISOR names no program")
}

fn kernel(name: &str) -> String {
    format!("{IMAGES}/kernel/{name}")
}

fn image() -> anyhow::Result<String> {
    let files = fs::read_dir(IMAGES).context("read the folder of the images")?;
    let mut paths = files.filter_map(|file| file.ok()?.path().into_os_string().into_string().ok());
    paths.find(|path| path.contains("/valkey-") && path.ends_with(".erofs")).context("there is no image")
}

fn listen_to(link: &UnixStream) -> anyhow::Result<Receiver<from_guest::Body>> {
    let (tell, said) = channel();
    let mut from = link.try_clone().context("read the link")?;
    thread::spawn(move || {
        // Ends with the link.
        while let Ok(body) = receive(&mut from) {
            if tell.send(body).is_err() {
                return;
            }
        }
    });
    Ok(said)
}

fn accept(listener: &UnixListener, process: &mut Child) -> anyhow::Result<UnixStream> {
    listener.set_nonblocking(true).context("listen without waiting")?;
    let link = until("the supervisor", || match (listener.accept(), process.try_wait()) {
        (Ok((link, _)), _) => Some(Ok(link)),
        (Err(_), Ok(Some(status))) => Some(Err(status)),
        (Err(_), Ok(None) | Err(_)) => None,
    })?;
    let link = link.map_err(|status| anyhow::anyhow!("cloud-hypervisor ended with {status}"))?;
    link.set_nonblocking(false).context("wait at the link")?;
    Ok(link)
}

fn receive(from: &mut UnixStream) -> anyhow::Result<from_guest::Body> {
    let mut size = [0; 4];
    from.read_exact(&mut size)?;
    let mut frame = vec![0; usize::try_from(u32::from_be_bytes(size))?];
    from.read_exact(&mut frame)?;
    FromGuest::decode(frame.as_slice())?.body.context("a message of an unknown kind")
}

/// Waits for a fact.
pub fn until<T>(what: &str, mut fact: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = fact() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited in vain for {what}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the machine's console got.
pub fn console() -> String {
    String::from_utf8_lossy(&fs::read(Path::new(CONSOLE)).unwrap_or_default()).into_owned()
}

//! A thread that goes into network namespaces, and the netlink sockets it opens there.
//!
//! In: a job. Out: its result. A namespace belongs to a thread, so a thread of the async runtime must never enter one:
//! every job gets a thread of its own, which ends with it. A netlink socket stays in the namespace it was opened in;
//! everything else (`/proc/sys`, `nft`, interface numbers) asks for the thread to be there.

use std::{
    fmt,
    fs::File,
    future::Future,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::statfs::{NSFS_MAGIC, fstatfs},
};
use tokio::{runtime::Runtime, sync::oneshot};

use super::{error::NetworkError, name::Namespace};

/// Longest wait for one answer of the kernel or of `nft`.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// The namespace of the calling thread.
pub(super) const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Where a job works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The namespace that the agent was started in.
    Host,
    /// A namespace of ours.
    In(Namespace),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host"),
            Self::In(namespace) => write!(f, "{namespace}"),
        }
    }
}

/// The thread of one job.
pub(super) struct Worker {
    runtime: Runtime,
    host: File,
    netns_dir: PathBuf,
    at: Place,
    netlink: Option<(Place, Netlink)>,
}

/// A netlink socket in one namespace.
struct Netlink {
    handle: rtnetlink::Handle,
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Runs a job on a thread of its own, which starts in the host's namespace.
pub(super) async fn run<T: Send + 'static>(
    host: File,
    netns_dir: PathBuf,
    job: impl FnOnce(&mut Worker) -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    let failed = |what: &str, cause| NetworkError::Thread { what: what.to_owned(), cause };
    let (answer, answered) = oneshot::channel();
    let body = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|cause| failed("start the network thread's runtime", cause));
        let result = runtime.and_then(|runtime| {
            let mut worker = Worker { runtime, host, netns_dir, at: Place::Host, netlink: None };
            worker.go(Place::Host)?;
            job(&mut worker)
        });
        // The caller may have given up waiting; the job is done all the same.
        let _ = answer.send(result);
    };
    thread::Builder::new()
        .name("network".to_owned())
        .spawn(body)
        .map_err(|cause| failed("start the network thread", cause))?;
    let gone = |_| failed("finish a job of the network thread", io::Error::other("the thread panicked"));
    answered.await.map_err(gone)?
}

impl Worker {
    /// The file that keeps a namespace.
    pub fn path(&self, namespace: Namespace) -> PathBuf {
        self.netns_dir.join(namespace.file_name())
    }

    /// Opens a namespace of ours.
    pub fn open(&self, namespace: Namespace) -> Result<File, NetworkError> {
        let path = self.path(namespace);
        File::open(&path).map_err(|cause| NetworkError::File { what: "open the namespace file", path, cause })
    }

    fn go(&mut self, place: Place) -> Result<(), NetworkError> {
        let file;
        let target = match place {
            Place::Host => &self.host,
            Place::In(namespace) => {
                file = self.open(namespace)?;
                &file
            }
        };
        setns(target.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|cause| NetworkError::Thread {
            what: format!("enter the network namespace of {place}"),
            cause: cause.into(),
        })?;
        self.at = place;
        Ok(())
    }

    /// Puts the thread into a namespace.
    pub fn enter(&mut self, place: Place) -> Result<(), NetworkError> {
        if self.at == place { Ok(()) } else { self.go(place) }
    }

    /// Puts the thread into a namespace and opens a netlink socket there, unless the last one is from there.
    pub fn netlink(&mut self, place: Place) -> Result<rtnetlink::Handle, NetworkError> {
        self.enter(place)?;
        if let Some((opened_at, netlink)) = &self.netlink
            && *opened_at == place
        {
            return Ok(netlink.handle.clone());
        }
        let opened = {
            let _reactor = self.runtime.enter();
            rtnetlink::new_connection()
        };
        let (connection, handle, _) = opened
            .map_err(|cause| NetworkError::Thread { what: "open a netlink socket".to_owned(), cause })?;
        let connection = self.runtime.spawn(connection);
        self.netlink = Some((place, Netlink { handle: handle.clone(), connection }));
        Ok(handle)
    }

    /// Waits for an answer, at most [`DEADLINE`].
    pub fn wait<T>(
        &self,
        what: &dyn Fn() -> String,
        answer: impl Future<Output = T>,
    ) -> Result<T, NetworkError> {
        let timed = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, answer).await });
        timed.map_err(|_| NetworkError::Deadline { what: what(), limit: DEADLINE })
    }

    /// Waits for the kernel's answer to a netlink request.
    pub fn ask<T>(
        &self,
        what: &dyn Fn() -> String,
        answer: impl Future<Output = Result<T, rtnetlink::Error>>,
    ) -> Result<T, NetworkError> {
        self.wait(what, answer)?
            .map_err(|cause| NetworkError::Netlink { what: what(), cause: cause_of(cause) })
    }

    /// Makes a network namespace and keeps it as a file.
    pub fn make_namespace(&self, namespace: Namespace) -> Result<(), NetworkError> {
        let path = self.path(namespace);
        File::create_new(&path).map_err(|cause| NetworkError::File {
            what: "create the namespace file",
            path: path.clone(),
            cause,
        })?;
        // Of its own, because the thread that unshares is in the new namespace for good.
        let made = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)?;
                mount(Some(OWN_NAMESPACE), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            });
            thread.join()
        });
        let cause = match made {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(errno)) => errno.into(),
            Err(_) => io::Error::other("the thread panicked"),
        };
        Err(NetworkError::Thread { what: format!("make the network namespace of {namespace}"), cause })
    }

    /// Lets go of a namespace, finished or not.
    pub fn drop_namespace(&mut self, namespace: Namespace) -> Result<(), NetworkError> {
        if self.netlink.as_ref().is_some_and(|(place, _)| *place == Place::In(namespace)) {
            self.netlink = None;
        }
        self.enter(Place::Host)?;
        let path = self.path(namespace);
        // More than one mount only when somebody else put it there.
        for _ in 0..8 {
            if !is_namespace(&path)? {
                break;
            }
            umount2(&path, MntFlags::MNT_DETACH).map_err(|errno| NetworkError::File {
                what: "unmount the namespace file",
                path: path.clone(),
                cause: errno.into(),
            })?;
        }
        std::fs::remove_file(&path).map_err(|cause| NetworkError::File {
            what: "remove the namespace file",
            path,
            cause,
        })
    }
}

/// Whether the file is a namespace and not what a killed agent left of one.
pub(super) fn is_namespace(path: &Path) -> Result<bool, NetworkError> {
    let failed = |cause| NetworkError::File { what: "open the namespace file", path: path.to_owned(), cause };
    let file = File::open(path).map_err(failed)?;
    let status = fstatfs(&file).map_err(|errno| failed(errno.into()))?;
    Ok(status.filesystem_type() == NSFS_MAGIC)
}

fn cause_of(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(answer) => answer.to_io(),
        other @ (rtnetlink::Error::UnexpectedMessage(_)
        | rtnetlink::Error::RequestFailed
        | rtnetlink::Error::NamespaceError(_)
        | rtnetlink::Error::InvalidHardwareAddress(_)
        | rtnetlink::Error::InvalidIp(_)
        | rtnetlink::Error::InvalidAddress(..)
        | rtnetlink::Error::InvalidNla(_)) => io::Error::other(other),
    }
}

//! A look from inside a network namespace. In: its file. Out: the result of some code that ran there.

use std::{fs::File, path::Path, thread};

use anyhow::{Context as _, Result, anyhow};
use nix::sched::{CloneFlags, setns};

/// Runs code on a thread of its own inside a network namespace. Sockets that it opens stay there wherever they are used.
///
/// # Errors
/// When the namespace cannot be entered, or the code panics.
pub fn inside<T: Send>(namespace: &Path, code: impl FnOnce() -> T + Send) -> Result<T> {
    let file = File::open(namespace)
        .with_context(|| format!("cannot open the namespace {}", namespace.display()))?;
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // A namespace belongs to a thread: this one ends inside it.
            setns(&file, CloneFlags::CLONE_NEWNET)?;
            Ok::<T, nix::Error>(code())
        });
        let result =
            worker.join().map_err(|_| anyhow!("the code inside {} panicked", namespace.display()))?;
        result.with_context(|| format!("cannot enter the namespace {}", namespace.display()))
    })
}

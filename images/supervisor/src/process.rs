//! The engine's process: started without privileges in a process group of its own, signalled as a group.
//!
//! In: a [`Launch`] from the engine. Out: an [`EngineProcess`]. Its end is seen by `pid1::reap`. Called by `run`.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

use crate::{
    engine::{EngineError, Launch, file_error},
    engine_log::{self, Tail},
};

/// An engine process that was started.
pub struct EngineProcess {
    /// Its pid; also the id of its process group.
    pub pid: Pid,
    /// When it was started.
    pub since: Instant,
    /// What it wrote last.
    pub tail: Tail,
}

/// Starts the engine. The exec itself has happened when this returns.
pub fn start(launch: &Launch) -> Result<EngineProcess, EngineError> {
    let (read, write) =
        std::io::pipe().map_err(file_error("make a pipe for the output of", &launch.program))?;
    let tail = engine_log::follow(read, launch.log.clone(), launch.is_secret)
        .map_err(file_error("start a thread for the output of", &launch.program))?;
    let spawn = |write: std::io::PipeWriter| {
        // With a uid and as root the standard library also drops the supplementary groups.
        Command::new(&launch.program)
            .args(&launch.arguments)
            .env_clear()
            .env("LANG", "C")
            .current_dir("/")
            .uid(launch.uid)
            .gid(launch.uid)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(write.try_clone()?)
            .stderr(write)
            .spawn()
    };
    let child = spawn(write).map_err(file_error("start", &launch.program))?;
    // The child is not waited for through this value: pid1::reap takes every end.
    Ok(EngineProcess { pid: Pid::from_raw(child.id().cast_signed()), since: Instant::now(), tail })
}

impl EngineProcess {
    /// Asks the engine to end.
    pub fn terminate(&self) {
        let _ = kill(self.pid, Signal::SIGTERM);
    }

    /// Ends the engine and all it forked. Harmless when they are gone.
    pub fn kill_group(&self) {
        let _ = killpg(self.pid, Signal::SIGKILL);
    }
}

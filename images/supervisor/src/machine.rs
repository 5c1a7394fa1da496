//! Whose machine this process is PID 1 of, decided once from its command line.
//!
//! In: the arguments. Out: a [`Start`]. Called by `main`; what differs between machines asks the [`Machine`] and nothing else.

use std::path::PathBuf;

use crate::{
    host_link::Host,
    vm::timeline::{self, Timeline},
};

/// The argument of a process that stands where an engine will; the file it waits for follows.
pub const WAIT: &str = "--wait-for";

/// What this process is to do.
#[derive(Debug, PartialEq)]
pub enum Start {
    /// As `/init` of a virtual machine: nothing is mounted and no module loaded.
    Boot,
    /// Run the engine.
    Supervise(Machine),
    /// Stand where an engine will, until a file is there.
    Wait {
        /// The file.
        until: PathBuf,
    },
}

/// What the engine runs in.
#[derive(Debug, PartialEq)]
pub enum Machine {
    /// Namespaces of a host's kernel, made by the agent's launcher.
    Namespaces {
        /// The socket of the host.
        host: PathBuf,
    },
    /// A virtual machine, started by `vm::boot`.
    Virtual {
        /// The steps of its boot until now.
        boot: Timeline,
    },
}

impl Start {
    /// Understands a command line, the program's name first.
    pub fn of(arguments: impl Iterator<Item = String>) -> Self {
        let mut arguments = arguments.peekable();
        if arguments.next_if_eq("/init").is_some() {
            return Self::Boot;
        }
        let mut host = None;
        let mut arguments = arguments.skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--host" => host = arguments.next(),
                WAIT => return Self::Wait { until: arguments.next().unwrap_or_default().into() },
                timeline::ARGUMENT => {
                    let boot = Timeline::parse(&arguments.next().unwrap_or_default());
                    return Self::Supervise(Machine::Virtual { boot });
                }
                other => tracing::warn!(argument = other, "argument not known, ignored"),
            }
        }
        let host = host.unwrap_or_else(|| "/run/shardplane/host.sock".to_owned()).into();
        Self::Supervise(Machine::Namespaces { host })
    }
}

impl Machine {
    /// Where the host listens.
    pub fn host(&self) -> Host {
        match self {
            Self::Namespaces { host } => Host::Unix(host.clone()),
            Self::Virtual { .. } => Host::Vsock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Start {
        Start::of(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn the_command_line_tells_the_machine() {
        let supervisor = "/sbin/shardplane-supervisor";
        let at = |host: &str| Start::Supervise(Machine::Namespaces { host: host.into() });
        assert_eq!(of(&[supervisor, "splash", "--host", "/run/h.sock"]), at("/run/h.sock"));
        assert_eq!(of(&[]), at("/run/shardplane/host.sock"));
        // A kernel hands words of its command line that it does not know to PID 1: no reason to die.
        assert_eq!(of(&["/init", "splash"]), Start::Boot);
        let Start::Supervise(vm) = of(&[supervisor, timeline::ARGUMENT, "init=90000,disks=120000"]) else {
            panic!()
        };
        assert_eq!(vm.host(), Host::Vsock);
        assert!(matches!(vm, Machine::Virtual { boot } if boot.to_string().starts_with("init 90 ms")));
    }
}

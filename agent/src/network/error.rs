//! What can go wrong with the network of this host.
//!
//! In: failures of the kernel, of `nft` and of the wanted state. Out: [`NetworkError`], whose text says what was
//! attempted on what. The agent puts it into its report.

use std::{io, net::Ipv4Addr, path::PathBuf, time::Duration};

use shardplane_proto::causes::with_causes;

use super::{NetworkChanges, WantedError, name::Namespace};

/// Why the network is not as wanted.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// No interface has the underlay address.
    #[error(
        "no interface of this host has the underlay address {0}: set it on one, or correct underlay_ipv4 in the agent's configuration"
    )]
    NoUnderlay(Ipv4Addr),
    /// The underlay's MTU leaves nothing for machines.
    #[error("an MTU of {0} bytes for machines is too small: IPv4 needs 576, so the underlay needs 626")]
    MtuTooSmall(u32),
    /// The wanted state contradicts itself; nothing was changed.
    #[error("the wanted network cannot be")]
    Wanted(#[from] WantedError),
    /// An interface of somebody else has the name of one of ours.
    #[error(
        "interface {name} in the namespace of {of} belongs to somebody else (alias {alias:?}): remove or rename it"
    )]
    NameTaken {
        /// The VPC.
        of: Namespace,
        /// The interface.
        name: String,
        /// What its alias says.
        alias: String,
    },
    /// A file operation.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A thread could not be started or could not enter a namespace.
    #[error("cannot {what}")]
    Thread {
        /// What was attempted.
        what: String,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A netlink request was refused.
    #[error("cannot {what}")]
    Netlink {
        /// What was attempted.
        what: String,
        /// The kernel's answer.
        #[source]
        cause: io::Error,
    },
    /// The kernel or `nft` did not answer.
    #[error("cannot {what}: no answer within {limit:?}")]
    Deadline {
        /// What was attempted.
        what: String,
        /// How long was waited.
        limit: Duration,
    },
    /// `nft` refused.
    #[error("cannot {what}: nft says {said:?}")]
    Nft {
        /// What was attempted.
        what: String,
        /// Its standard error, cut to 500 characters.
        said: String,
    },
    /// Some VPCs or machines could not be brought into the wanted state; the others are in it.
    #[error(
        "the network is not as wanted for {} of this host, the first is {}",
        count(failures),
        first(failures)
    )]
    Incomplete {
        /// What was changed all the same.
        done: NetworkChanges,
        /// One a VPC or machine, at least one.
        failures: Vec<Failure>,
    },
}

fn count(failures: &[Failure]) -> String {
    match failures.len() {
        1 => "1 VPC or machine".to_owned(),
        more => format!("{more} VPCs or machines"),
    }
}

fn first(failures: &[Failure]) -> String {
    failures
        .first()
        .map_or_else(String::new, |failure| format!("{}: {}", failure.of, with_causes(&failure.cause)))
}

/// Why one VPC or machine is not as wanted.
#[derive(Debug, thiserror::Error)]
#[error("{of} is not as wanted")]
pub struct Failure {
    /// Which.
    pub of: Namespace,
    /// The first step that failed; the steps after it were not tried.
    #[source]
    pub cause: Box<NetworkError>,
}

impl NetworkError {
    pub(super) fn nft(what: String, stderr: &[u8]) -> Self {
        let said = String::from_utf8_lossy(stderr).trim().chars().take(500).collect();
        Self::Nft { what, said }
    }
}

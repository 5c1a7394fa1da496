//! API tokens and sealed secrets: what the state may hold of either. In: hashes and sealed bytes that the API made. Out: read at the
//! door of every request, opened by whoever has the cluster key.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::TokenId;

use crate::time::Timestamp;

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// Read resources.
    Read,
    /// Create, change and delete resources.
    Write,
    /// See passwords in reads.
    SecretsRead,
    /// Hosts, instances, operations, events, tokens.
    Operator,
    /// Open a host session.
    Host,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Scope; 5] = [Scope::Read, Scope::Write, Scope::SecretsRead, Scope::Operator, Scope::Host];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
            Scope::SecretsRead => "secrets:read",
            Scope::Operator => "operator",
            Scope::Host => "host",
        }
    }
}

/// An API token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its public part.
    pub id: TokenId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// sha256 of the whole token, hex.
    pub hash: String,
    /// When it was made.
    pub created: Timestamp,
}

/// A secret, sealed with a key that is not in the state. Its debug output shows nothing.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(#[serde(with = "hex::serde")] pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed")
    }
}

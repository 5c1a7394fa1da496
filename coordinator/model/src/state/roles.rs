//! The roles of a cluster. In: users' changes of role resources. Out: what guests are told, and what was told last. The roles themselves are
//! resources; this is the index of them.

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{Generation, ResourceId};

/// A role that shall go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Its resource, which stays until the role is gone.
    pub resource: ResourceId,
    /// Its name in the database.
    pub name: String,
    /// Who gets what it owns.
    pub reassign_owned_to: Option<String>,
}

/// The roles of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Log index of the last change.
    pub revision: Generation,
    /// Those that shall be, in the order they were made.
    pub members: Vec<ResourceId>,
    /// Those that shall go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

impl Roles {
    /// Whether there never were any.
    pub fn never_were(&self) -> bool {
        *self == Self::default()
    }
}

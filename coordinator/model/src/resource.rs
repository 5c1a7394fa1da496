//! A public resource as the state holds it: parsed, with typed references. In: what validation accepted. Out: what the
//! planner reads and the API renders.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use shardplane_proto::ids::{RequestId, ResourceId};

use crate::{
    engine::{ClusterSpec, EngineKind, RoleSpec},
    net::Cidr,
    state::Sealed,
    time::Timestamp,
};

/// The public types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Groups resources.
    Folder,
    /// Who the hosts belong to.
    HostingProvider,
    /// A private network.
    Vpc,
    /// An IPv4 range of a VPC.
    VpcSubnet,
    /// A database cluster.
    Cluster(EngineKind),
    /// A tuning profile for clusters of an engine.
    ParametersSet(EngineKind),
    /// A login role of a cluster of an engine.
    Role(EngineKind),
}

impl Kind {
    /// Every type there is, in the order a list of them shows.
    pub fn all() -> Vec<Kind> {
        let plain = [Kind::Folder, Kind::HostingProvider, Kind::Vpc, Kind::VpcSubnet];
        let engines = EngineKind::ALL.into_iter().flat_map(|engine| {
            let roles = engine.role_path().map(|_| Kind::Role(engine));
            [Kind::Cluster(engine), Kind::ParametersSet(engine)].into_iter().chain(roles)
        });
        plain.into_iter().chain(engines).collect()
    }

    /// The path segment of the type, for example `vpc-subnet`.
    pub fn path(self) -> &'static str {
        match self {
            Kind::Folder => "folder",
            Kind::HostingProvider => "hosting-provider",
            Kind::Vpc => "vpc",
            Kind::VpcSubnet => "vpc-subnet",
            Kind::Cluster(engine) => engine.cluster_path(),
            Kind::ParametersSet(engine) => engine.parameters_path(),
            Kind::Role(engine) => engine.role_path().unwrap_or_default(),
        }
    }

    /// The `kind` member, for example `VpcSubnet`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Folder => "Folder",
            Kind::HostingProvider => "HostingProvider",
            Kind::Vpc => "Vpc",
            Kind::VpcSubnet => "VpcSubnet",
            Kind::Cluster(engine) => engine.cluster_kind(),
            Kind::ParametersSet(engine) => engine.parameters_kind(),
            Kind::Role(engine) => engine.role_kind().unwrap_or_default(),
        }
    }

    /// The type with this path segment.
    pub fn from_path(path: &str) -> Option<Kind> {
        Kind::all().into_iter().find(|kind| kind.path() == path)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who did something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The token's id.
    pub id: String,
    /// The token's name.
    pub name: String,
}

/// What every resource carries besides its spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// For people; not unique.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// The folder it lives in.
    pub folder: Option<ResourceId>,
    /// For selection.
    pub labels: BTreeMap<String, String>,
    /// While set, a delete is refused.
    pub delete_protection: bool,
}

/// What the user wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spec {
    /// Nothing to say.
    Folder,
    /// Nothing to say.
    HostingProvider,
    /// A private network.
    Vpc {
        /// Whose hosts it lives on.
        provider: Option<ResourceId>,
    },
    /// A range of a VPC.
    VpcSubnet {
        /// The VPC.
        vpc: ResourceId,
        /// The range.
        cidr: Cidr,
    },
    /// A cluster.
    Cluster(ClusterSpec),
    /// A tuning profile.
    ParametersSet {
        /// For clusters of this engine.
        engine: EngineKind,
        /// Directive to value.
        parameters: BTreeMap<String, String>,
    },
    /// A login role.
    Role {
        /// Of a cluster of this engine.
        engine: EngineKind,
        /// What it is.
        role: RoleSpec,
    },
}

impl Spec {
    /// The type this spec belongs to.
    pub fn kind(&self) -> Kind {
        match self {
            Spec::Folder => Kind::Folder,
            Spec::HostingProvider => Kind::HostingProvider,
            Spec::Vpc { .. } => Kind::Vpc,
            Spec::VpcSubnet { .. } => Kind::VpcSubnet,
            Spec::Cluster(spec) => Kind::Cluster(spec.engine()),
            Spec::ParametersSet { engine, .. } => Kind::ParametersSet(*engine),
            Spec::Role { engine, .. } => Kind::Role(*engine),
        }
    }

    /// The resources this one cannot exist without, with the path of the field that names each and the type it must have.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        match self {
            Spec::Folder | Spec::HostingProvider | Spec::ParametersSet { .. } => Vec::new(),
            Spec::Vpc { provider } => provider
                .iter()
                .map(|id| ("spec.hostingProviderId".to_owned(), Kind::HostingProvider, *id))
                .collect(),
            Spec::VpcSubnet { vpc, .. } => vec![("spec.vpcId".to_owned(), Kind::Vpc, *vpc)],
            Spec::Cluster(spec) => spec.references(),
            Spec::Role { role, .. } => role.references(),
        }
    }

    /// The secret that its user gave, sealed; none when the type has none, or none was given.
    pub fn secret(&self) -> Option<&Sealed> {
        match self {
            Spec::Cluster(spec) if spec.secret_is_users() => Some(spec.secret()),
            Spec::Role { role, .. } => Some(&role.password).filter(|sealed| !sealed.0.is_empty()),
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Cluster(_)
            | Spec::ParametersSet { .. } => None,
        }
    }

    /// The same with this sealed secret.
    #[must_use]
    pub fn with_secret(self, sealed: Sealed) -> Self {
        match self {
            Spec::Cluster(spec) => Spec::Cluster(spec.with_secret(sealed)),
            Spec::Role { engine, role } => Spec::Role { engine, role: RoleSpec { password: sealed, ..role } },
            other @ (Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::ParametersSet { .. }) => other,
        }
    }
}

/// How the last change of a resource stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Being carried out.
    InFlight,
    /// Nothing left to do for it.
    Done,
    /// It cannot be carried out.
    Failed {
        /// Why, for the user.
        message: String,
    },
}

/// What a change asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    /// Create or update.
    Put,
    /// Delete.
    Delete,
}

/// The last accepted change of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its id, as PUT and DELETE answered it.
    pub request: RequestId,
    /// What it asks for.
    pub kind: ChangeKind,
    /// When it was accepted.
    pub at: Timestamp,
    /// Who asked.
    pub by: User,
    /// How it stands.
    pub outcome: Outcome,
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Made by the client.
    pub id: ResourceId,
    /// Name, folder, labels.
    pub metadata: Metadata,
    /// What the user wants.
    pub spec: Spec,
    /// When it was created.
    pub created: Timestamp,
    /// Who created it.
    pub created_by: User,
    /// The last accepted change.
    pub change: Change,
}

impl Resource {
    /// Its type.
    pub fn kind(&self) -> Kind {
        self.spec.kind()
    }

    /// The cluster spec, when it is a cluster.
    pub fn cluster_spec(&self) -> Option<&ClusterSpec> {
        match &self.spec {
            Spec::Cluster(spec) => Some(spec),
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Role { .. }
            | Spec::ParametersSet { .. } => None,
        }
    }

    /// The role, when it is one.
    pub fn role(&self) -> Option<&RoleSpec> {
        match &self.spec {
            Spec::Role { role, .. } => Some(role),
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Cluster(_)
            | Spec::ParametersSet { .. } => None,
        }
    }

    /// Whether a delete is being carried out.
    pub fn deleting(&self) -> bool {
        self.change.kind == ChangeKind::Delete
    }
}

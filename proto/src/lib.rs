//! Messages shared by Shardplane's programs, typed ids and parsing at the border.
//!
//! In: protobuf bytes or JSON. Out: typed messages ([`v1`]) and ids ([`ids`]). Used by every crate of the workspace.

pub mod ids;

/// The generated messages of `shardplane/v1/*.proto`; their comments are the documentation.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/shardplane.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/shardplane.v1.serde.rs"));
}

/// The encoded `FileDescriptorSet` of all files: for gRPC reflection, OpenAPI and the check of unknown JSON members.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

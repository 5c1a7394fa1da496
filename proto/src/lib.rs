//! What Shardplane's programs share: messages, typed ids, and how errors are told.
//!
//! In: protobuf bytes or JSON. Out: typed messages ([`v1`]) and ids ([`ids`]). Used by every crate of the workspace.

pub mod causes;
pub mod ids;
pub mod sizes;

/// The generated messages of `shardplane/v1/*.proto`; their comments are the documentation.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/shardplane.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/shardplane.v1.serde.rs"));
}

/// Largest frame between agent and supervisor in either direction, bytes.
pub const MAX_GUEST_FRAME: usize = 1 << 20;

/// The encoded `FileDescriptorSet` of all files: for gRPC reflection, OpenAPI and the check of unknown JSON members.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

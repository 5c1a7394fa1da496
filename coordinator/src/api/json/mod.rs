//! JSON at the border. In: bodies of requests, messages of ours. Out: checked messages with every violation named, and answers
//! with members in a stable order. Called by the REST handlers and the command line.

mod check;
mod node;
mod render;

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

pub use check::{Checked, MalformedBody, check, parse};
pub use node::Node;
pub use render::{message, resource};

/// The descriptors of all our messages.
pub static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    // The bytes were written by our own build; a broken build shows in every test.
    DescriptorPool::decode(shardplane_proto::DESCRIPTORS).unwrap_or_default()
});

/// The descriptor of a message of ours by its short name, for example `ValkeySpec`.
pub fn descriptor(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(&format!("shardplane.v1.{name}"))
}

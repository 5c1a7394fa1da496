//! Slots that a node marks as on their way. In: the own words of a primary. Out: what it marks, and towards whom.

use shardplane_proto::v1::{ValkeyOpenSlot, valkey_open_slot::Direction};

/// Node id of the other node, as the mark names it; empty when the mark names none.
pub fn other(mark: &ValkeyOpenSlot) -> &str {
    match &mark.direction {
        Some(Direction::MigratingTo(node) | Direction::ImportingFrom(node)) => node,
        None => "",
    }
}

/// Whether the node that marks it shall get it.
pub fn importing(mark: &ValkeyOpenSlot) -> bool {
    match &mark.direction {
        Some(Direction::ImportingFrom(_)) => true,
        Some(Direction::MigratingTo(_)) | None => false,
    }
}

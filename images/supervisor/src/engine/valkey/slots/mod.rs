//! Slots and their keys on their way between two primaries.
//!
//! In: MoveSlots and CloseSlots tasks. Out: done, or the text of what stopped it; progress for the reports. Called by `perform`.
//!
//! | file | what |
//! |---|---|
//! | `view` | what both nodes say of a slot, and what follows: pure |
//! | `mover` | one slot: open, keys, hand over, verify |
//! | `transfer` | the keys of an open slot |
//! | `close` | back to the owner |
//! | `batch`, `pace` | how much at once, how fast: pure |
//! | `node` | one engine's commands |

use std::{collections::BTreeMap, time::Duration};

use shardplane_proto::v1::{
    ValkeyConfig,
    valkey_task::{CloseSlot, CloseSlots, MoveSlots},
};
use tokio::time::Instant;

use self::{mover::Mover, node::Node, pace::Pace};
use super::control::Control;
use crate::engine::{Done, EngineError};

mod batch;
mod close;
mod mover;
mod node;
mod pace;
mod progress;
mod transfer;
mod view;

pub use progress::Progress;

const LAST_SLOT: u32 = 16_383;
/// After so long a task begins no other slot. It is what bounds a task that is no longer asked for.
const SLICE: Duration = Duration::from_secs(8);
/// A slot that was begun is finished, so that none is left half moved; past this time it is, with the reason.
const LONGEST_SLOT: Duration = Duration::from_secs(90);
/// What a last command may take past that.
const LAST_COMMAND: Duration = Duration::from_secs(60);
/// The engine's own default.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a task about slots may take.
pub const DEADLINE: Duration = SLICE.saturating_add(LONGEST_SLOT).saturating_add(LAST_COMMAND);

/// What every task about slots needs.
pub struct Context<'a> {
    /// Of the engine in this guest.
    pub control: &'a Control,
    /// Its config.
    pub config: &'a ValkeyConfig,
    /// For the reports.
    pub progress: &'a Progress,
    /// What the task did.
    pub done: &'a mut Done,
}

impl Context<'_> {
    fn mover(&mut self, keys_per_second: u32) -> Mover<'_> {
        let node_timeout = Duration::from_millis(self.config.node_timeout_ms.into());
        Mover {
            password: self.config.password.clone(),
            node_timeout: if node_timeout.is_zero() { NODE_TIMEOUT } else { node_timeout },
            pace: Pace::new(keys_per_second),
            until: Instant::now() + LONGEST_SLOT,
            done: self.done,
            progress: self.progress,
        }
    }
}

/// Moves the slots of the task from this node to another.
pub async fn move_slots(mut context: Context<'_>, task: &MoveSlots) -> Result<(), EngineError> {
    let (start, end) = (task.start, task.end);
    if start > end || end > LAST_SLOT {
        return Err(EngineError::Refused(format!("slots {start}-{end} are no range within 0-{LAST_SLOT}")));
    }
    let Some(address) = &task.target else {
        return Err(EngineError::Refused(format!("the address of node {} is missing", task.target_node_id)));
    };
    let began = Instant::now();
    let _running = context.progress.start(&context.done.task_id);
    let mut from = Node::local(context.control, context.config).await?;
    let mut to = Node::peer(&task.target_node_id, address, &context.config.password).await?;
    if from.id == to.id {
        return Err(EngineError::Refused(format!(
            "slots {start}-{end} cannot move from node {} to itself",
            to.id
        )));
    }
    let mut mover = context.mover(task.keys_per_second);
    for slot in start..=end {
        if began.elapsed() >= SLICE {
            break;
        }
        mover.until = Instant::now() + LONGEST_SLOT;
        mover.bring(slot, &mut from, &mut to).await?;
    }
    Ok(())
}

/// Closes the slots of the task. All are tried; the first failure is told.
pub async fn close_slots(mut context: Context<'_>, task: &CloseSlots) -> Result<(), EngineError> {
    let began = Instant::now();
    let _running = context.progress.start(&context.done.task_id);
    let mut local = Node::local(context.control, context.config).await?;
    let password = context.config.password.clone();
    let mut mover = context.mover(0);
    let (mut peers, mut failed): (BTreeMap<&str, Node>, _) = (BTreeMap::new(), None);
    for CloseSlot { slot, peer_node_id, peer } in &task.slots {
        if began.elapsed() >= SLICE {
            break;
        }
        if *slot > LAST_SLOT {
            return Err(EngineError::Refused(format!("slot {slot} is not within 0-{LAST_SLOT}")));
        }
        mover.until = Instant::now() + LONGEST_SLOT;
        let closed = async {
            let address = peer.as_ref().filter(|_| !peer_node_id.is_empty() && *peer_node_id != local.id);
            let Some(address) = address else { return mover.close(*slot, &mut local, None).await };
            let node = match peers.remove(peer_node_id.as_str()) {
                Some(node) => node,
                None => Node::peer(peer_node_id, address, &password).await?,
            };
            let node = peers.entry(peer_node_id).or_insert(node);
            mover.close(*slot, &mut local, Some(node)).await
        };
        if let Err(error) = closed.await {
            failed.get_or_insert(error);
        }
    }
    // Keys that went to and fro are no progress.
    context.done.counts.clear();
    failed.map_or(Ok(()), Err)
}

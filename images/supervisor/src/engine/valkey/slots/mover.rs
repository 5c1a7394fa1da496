//! One slot from one node to another, whatever an earlier try left behind.
//!
//! In: both nodes. Out: the target owns the slot by its own word and the source's, no mark is left on either, no key of
//! it is left at the source. Called by `move_slots` and `close`.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    batch::Sized,
    node::{Node, Slot},
    pace::Pace,
    progress::Progress,
    view::{Move, Side, next_move},
};
use crate::engine::{Done, EngineError, valkey::control::says};

/// Steps that one slot may need; a try that was broken off anywhere needs four.
const STEPS: u32 = 8;
/// Before SETSLOT is tried again after replicas did not confirm it.
const REPLICAS_PAUSE: Duration = Duration::from_millis(500);
const COPIES_AT_ONCE: usize = 100;
/// A bound of rounds over copies that are dropped, 100 a round.
const COPY_ROUNDS: u32 = 100_000;

/// What the slots of one task have in common.
pub struct Mover<'a> {
    /// The cluster's.
    pub password: String,
    /// Longer than this no node may stand still.
    pub node_timeout: Duration,
    /// How fast.
    pub pace: Pace,
    /// When a slot that is not done is given up.
    pub until: Instant,
    /// What was done.
    pub done: &'a mut Done,
    /// What the reports show.
    pub progress: &'a Progress,
}

impl Mover<'_> {
    /// Moves a slot. It having arrived before is success.
    pub async fn bring(&mut self, slot: u32, from: &mut Node, to: &mut Node) -> Result<(), EngineError> {
        self.progress.at(slot, 0);
        for step in 0..STEPS {
            let (source, target) = (from.side(slot).await?, to.side(slot).await?);
            match next_move(slot, &source, &target) {
                Move::Arrived => {
                    self.drop_copies(slot, from, &to.id).await?;
                    if step > 0 {
                        self.done.count("slots", 1);
                    }
                    self.progress.slot_done();
                    return Ok(());
                }
                Move::Tidy => {
                    for (node, side) in [(&mut *from, &source), (&mut *to, &target)] {
                        if side.mark.is_some() {
                            self.set(slot, node, Slot::Stable).await?;
                        }
                    }
                }
                Move::HandOver => self.hand_over(slot, from, &to.id).await?,
                Move::Carry => self.carry(slot, (from, &source), (to, &target)).await?,
                Move::Refuse(why) => return Err(EngineError::Refused(why)),
            }
        }
        Err(EngineError::Engine(format!("slot {slot} is not at node {} after {STEPS} steps", to.id)))
    }

    async fn carry(
        &mut self,
        slot: u32,
        (from, source): (&mut Node, &Side),
        (to, target): (&mut Node, &Side),
    ) -> Result<(), EngineError> {
        self.weigh(slot, from).await?;
        if source.mark.is_some() || target.mark.is_some() {
            // An earlier try may have been broken off with keys under way.
            to.cut_off(from).await?;
        }
        // The target first: a client that is sent there must be served. The importing mark also lets SETSLOT NODE raise the
        // target's epoch, without which the others would not believe its claim.
        self.set(slot, to, Slot::Importing(&source.id)).await?;
        let mut moved = self.set(slot, from, Slot::Migrating(&target.id)).await;
        if moved.is_ok() {
            moved = self.transfer(slot, from, to).await;
        }
        if let Err(error) = moved {
            return Err(self.broken_off(slot, from, to, error).await);
        }
        // The target first: once the source is no owner, somebody must be. Its replicas have every key when this is answered.
        self.set(slot, to, Slot::Owned(&target.id)).await?;
        self.set(slot, from, Slot::Owned(&target.id)).await
    }

    /// Where no key has gone yet, the slot need not stay open. The text says where its keys are.
    async fn broken_off(
        &mut self,
        slot: u32,
        from: &mut Node,
        to: &mut Node,
        error: EngineError,
    ) -> EngineError {
        let all_at =
            |node: &Node| format!("all its keys are at node {} ({}:{})", node.id, node.ip, node.port);
        let place = match self.close_empty(slot, from, to).await {
            Ok(true) => format!("slot {slot} is closed again, {}", all_at(from)),
            Ok(false) => match (from.count(slot).await, to.count(slot).await) {
                (Ok(stayed), Ok(went)) => format!(
                    "slot {slot} is open: {stayed} keys are at node {} ({}:{}), {went} at node {} ({}:{})",
                    from.id, from.ip, from.port, to.id, to.ip, to.port
                ),
                (Err(second), _) | (_, Err(second)) => {
                    format!("slot {slot} is open, its keys are not counted: {second}")
                }
            },
            // Should nothing have gone, the next task finds that out.
            Err(second) => match from.count(slot).await {
                Ok(stayed) => format!(
                    "slot {slot} is open: {stayed} keys are at node {} ({}:{}), the others at node {} ({}:{}), which was not \
                     asked: {second}",
                    from.id, from.ip, from.port, to.id, to.ip, to.port
                ),
                Err(third) => format!("slot {slot} is open, its keys are not counted: {second}; {third}"),
            },
        };
        let text = format!("{error}; {place}");
        match error {
            EngineError::Refused(_) => EngineError::Refused(text),
            EngineError::Engine(_) | EngineError::Loading(_) | EngineError::File { .. } => {
                EngineError::Engine(text)
            }
        }
    }

    /// Tells the old owner, which refuses as long as it has keys. The target became owner when the source had none, so what
    /// it has now are copies that a replica kept which took over before it heard that they went.
    pub(super) async fn hand_over(
        &mut self,
        slot: u32,
        from: &mut Node,
        to: &str,
    ) -> Result<(), EngineError> {
        self.drop_copies(slot, from, to).await?;
        self.set(slot, from, Slot::Owned(to)).await
    }

    /// Closes an open slot of which the other node has no key. False: it has some.
    ///
    /// The other node first: from then on it takes no write for the slot, and those it took are counted by the second look. A
    /// client that wants a new key is sent to and fro by the two until the owner's mark is gone, and served then. The
    /// other way round the owner would answer "no such key" for a key that a client has just made at the other node.
    pub(super) async fn close_empty(
        &mut self,
        slot: u32,
        owner: &mut Node,
        other: &mut Node,
    ) -> Result<bool, EngineError> {
        if other.count(slot).await? > 0 {
            return Ok(false);
        }
        self.set(slot, other, Slot::Stable).await?;
        if other.count(slot).await? > 0 {
            let owner = owner.id.clone();
            self.set(slot, other, Slot::Importing(&owner)).await?;
            return Ok(false);
        }
        self.set(slot, owner, Slot::Stable).await?;
        Ok(true)
    }

    /// Removes what a node has of a slot that moved away: old copies, each newer at the owner or removed there since.
    pub(super) async fn drop_copies(
        &mut self,
        slot: u32,
        at: &mut Node,
        owner: &str,
    ) -> Result<(), EngineError> {
        if at.count(slot).await? == 0 {
            return Ok(());
        }
        let side = at.side(slot).await?;
        let owns = side.owner.as_deref() == Some(side.id.as_str());
        if !owns {
            // Without a mark the node touches no key of a slot that is not its own.
            self.set(slot, at, Slot::Importing(owner)).await?;
        }
        let mut dropped = 0;
        for _ in 0..COPY_ROUNDS {
            let keys: Vec<Sized> =
                at.keys(slot, COPIES_AT_ONCE).await?.into_iter().map(|key| (key, 0)).collect();
            if keys.is_empty() {
                break;
            }
            dropped += at.unlink(&keys).await?;
        }
        if !owns {
            self.set(slot, at, Slot::Stable).await?;
        }
        self.done.note(format!(
            "slot {slot}: {dropped} copies left at node {}, which no longer owns it, were dropped",
            at.id
        ));
        Ok(())
    }

    /// SETSLOT, again and again while replicas do not confirm it.
    pub(super) async fn set(&mut self, slot: u32, node: &mut Node, to: Slot<'_>) -> Result<(), EngineError> {
        loop {
            match node.set(slot, to).await {
                Err(error) if says(&error, "NOREPLICAS") && Instant::now() < self.until => {
                    self.done.note(format!(
                        "replicas of node {} ({}:{}) did not confirm in time; the move waited for them",
                        node.id, node.ip, node.port
                    ));
                    sleep(REPLICAS_PAUSE).await;
                }
                done => return done,
            }
        }
    }
}

//! Rolling marked slots back to their owner.
//!
//! In: the local node and the peer that a mark names, if it is still there. Out: no mark on either, every key at the owner and
//! nowhere else. Called by `mod`.

use super::{
    batch,
    mover::Mover,
    node::{Limits, Node, Slot},
    view::{Close, Whose, next_close},
};
use crate::engine::{EngineError, valkey::control::says};

/// Steps that one slot may need.
const STEPS: u32 = 8;
/// A bound of rounds over strays, 100 keys a round.
const ROUNDS: u32 = 100_000;

impl Mover<'_> {
    /// Closes one slot. Not marked is success.
    pub async fn close(
        &mut self,
        slot: u32,
        local: &mut Node,
        mut peer: Option<&mut Node>,
    ) -> Result<(), EngineError> {
        self.progress.at(slot, 0);
        for _ in 0..STEPS {
            let side = local.side(slot).await?;
            let other = match &mut peer {
                Some(peer) => Some(peer.side(slot).await?),
                None => None,
            };
            match (next_close(slot, &side, other.as_ref()), &mut peer) {
                (Close::Closed, _) => {
                    self.progress.slot_done();
                    return Ok(());
                }
                (Close::OfPeer, _) => {
                    self.done.note(format!("slot {slot} moves here: its owner closes it"));
                    return Ok(());
                }
                (Close::Refuse(why), _) => return Err(EngineError::Refused(why)),
                (Close::Unmark, _) | (_, None) => self.unmark(slot, local).await?,
                (Close::RollBack, Some(peer)) => self.roll_back(slot, local, peer).await?,
                (Close::Stray { owner: Whose::Local }, Some(peer)) => self.stray(slot, local, peer).await?,
                (Close::Stray { owner: Whose::Peer }, Some(peer)) => self.stray(slot, peer, local).await?,
                (Close::HandOver, Some(peer)) => self.hand_over(slot, local, &peer.id).await?,
            }
        }
        Err(EngineError::Engine(format!("slot {slot} is not closed after {STEPS} steps")))
    }

    /// Keys that are at the other node cannot simply be fetched back: a client that was sent there a moment ago may make a
    /// key there that has come home already, and one of its two values would be lost. So the slot goes over wholly, and comes
    /// back as any slot moves.
    async fn roll_back(&mut self, slot: u32, owner: &mut Node, other: &mut Node) -> Result<(), EngineError> {
        if self.close_empty(slot, owner, other).await? {
            return Ok(());
        }
        self.bring(slot, owner, other).await?;
        self.bring(slot, other, owner).await
    }

    /// Marks without a move, and without a node to move with. Taken away where that hides no key: at the owner, or where
    /// there is none of the slot.
    async fn unmark(&mut self, slot: u32, local: &mut Node) -> Result<(), EngineError> {
        let side = local.side(slot).await?;
        let owns = side.owner.as_deref() == Some(side.id.as_str());
        let keys = local.count(slot).await?;
        if !owns && keys > 0 {
            return Err(EngineError::Refused(format!(
                "slot {slot} has {keys} keys at node {}, which does not own it; they stay there until its owner ({}) can be asked",
                side.id,
                side.owner.as_deref().unwrap_or("nobody")
            )));
        }
        self.set(slot, local, Slot::Stable).await
    }

    /// The other node marks a slot whose owner does not. The owner sends no client there, so what the other one has of it
    /// nobody sees. It may be the only copy (an owner that lost its mark), so it goes home; where the owner has the key, the
    /// owner's is what clients have seen and changed since, and the other one is dropped.
    async fn stray(&mut self, slot: u32, owner: &mut Node, other: &mut Node) -> Result<(), EngineError> {
        let (mut home, mut dropped) = (0, 0);
        for _ in 0..ROUNDS {
            let keys = other.keys(slot, batch::MOST_KEYS).await?;
            if keys.is_empty() {
                break;
            }
            self.set(slot, other, Slot::Importing(&owner.id)).await?;
            // One by one: the answer for many tells only the first that failed.
            for (key, bytes) in other.sizes(keys).await? {
                let key = [(key, bytes)];
                let timeout = batch::timeout(bytes, self.node_timeout);
                let limits = Limits { timeout, password: &self.password, freeze: None };
                let (sent, _) = other.migrate(owner, &key, &[false], limits).await?;
                match sent.into_iter().next() {
                    Some(Ok(())) | None => home += 1,
                    Some(Err(error)) if says(&error, "BUSYKEY") => dropped += other.unlink(&key).await?,
                    Some(Err(error)) => {
                        owner.cut_off(other).await?;
                        return Err(error);
                    }
                }
            }
        }
        if home + dropped > 0 {
            self.done.count("keys", home);
            self.done.note(format!(
                "slot {slot}: node {} had keys of it that no client could see: {home} went home to node {}, {dropped} that it \
                 has itself were dropped",
                other.id, owner.id
            ));
        }
        self.set(slot, other, Slot::Stable).await
    }
}

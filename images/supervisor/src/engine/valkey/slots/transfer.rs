//! The keys of one open slot, from one node to the other.
//!
//! In: both nodes, the slot marked on both. Out: no key of it is left at the source, or the text of what stopped it: then each
//! key is at one node, and the text says at which. Called by `mover`.
//!
//! **Who has the truth.** While a slot migrates, the source sends a client on (ASK) only for a key it does not have, and makes no
//! new key of that slot. So a key that the source has is the current one, whatever the target has under that name, and
//! REPLACE is right for it.
//!
//! **MIGRATE twice.** A MIGRATE that timed out may have left a key at both nodes. Were a client to remove it at the source then,
//! the copy at the target would come back to life. So the second try must come before any client's command: it is sent in the
//! same breath, and the source performs both in a row. The first is without REPLACE: when the target was only slow, that
//! first one may still be performed later, after the key went by the second and was changed at the target; without
//! REPLACE it then fails instead of bringing the old value back. For the same reason the connections of a MIGRATE that
//! timed out are closed at the target before anything else is tried. What is left: two tries that both time out, and a client
//! that removes the key before the next one. The copy that the target may have then is seen as long as nobody removes it again.

use std::time::Duration;

use shardplane_proto::v1::ValkeyLargeKey;
use tokio::time::{Instant, sleep};

use super::{
    batch::{self, Sized},
    mover::Mover,
    node::{Node, Slot},
};
use crate::engine::{EngineError, valkey::control::says};

/// How often a batch is sent while the target does not answer.
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Keys that are weighed before a slot is opened.
const WEIGHED: usize = 10_000;
const WEIGHED_AT_ONCE: usize = 500;
/// How often a slot is found without keys while keys are counted: expired ones, which go when they are asked for.
const EMPTY_ROUNDS: u32 = 50;

impl Mover<'_> {
    /// Weighs the keys of a slot before it is opened. Refused when one is too large to be moved.
    pub(super) async fn weigh(&mut self, slot: u32, from: &mut Node) -> Result<(), EngineError> {
        let keys = from.keys(slot, WEIGHED).await?;
        for part in keys.chunks(WEIGHED_AT_ONCE) {
            for (key, bytes) in from.sizes(part.to_vec()).await? {
                self.judge(slot, &key, bytes, from)?;
            }
        }
        Ok(())
    }

    /// Tells people of a large key; refuses one that would cost both nodes their office.
    fn judge(&mut self, slot: u32, key: &[u8], bytes: u64, from: &Node) -> Result<(), EngineError> {
        if bytes < batch::LARGE {
            return Ok(());
        }
        let (name, pause) = (batch::name(key), batch::pause(bytes));
        let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.progress.large(ValkeyLargeKey { name: name.clone(), bytes, pause_ms });
        let (size, seconds) = (batch::mib(bytes), pause.as_secs_f32());
        if batch::outlasts(bytes, self.node_timeout) {
            return Err(EngineError::Refused(format!(
                "key {name} of slot {slot} has about {size}: moving it would stop both primaries for about {seconds:.0} s, \
                 and after cluster-node-timeout ({:.0} s) the others would replace them. It stays at node {} ({}:{}). Raise \
                 cluster-node-timeout above {:.0} s for the move, or make the key smaller",
                self.node_timeout.as_secs_f32(),
                from.id,
                from.ip,
                from.port,
                seconds * 2.0
            )));
        }
        self.done.note(format!(
            "key {name} of slot {slot} has about {size}: moving it stops both primaries for about {seconds:.1} s"
        ));
        Ok(())
    }

    /// Moves every key of an open slot.
    pub(super) async fn transfer(
        &mut self,
        slot: u32,
        from: &mut Node,
        to: &mut Node,
    ) -> Result<(), EngineError> {
        let (mut unconfirmed, mut empty) = (false, 0);
        loop {
            let left = from.count(slot).await?;
            self.progress.at(slot, left);
            if left == 0 {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err(EngineError::Engine(format!(
                    "slot {slot} is still open when its time is up: {left} keys are left at node {} ({}:{}), the others are at \
                     node {} ({}:{}); the next try goes on from there",
                    from.id, from.ip, from.port, to.id, to.ip, to.port
                )));
            }
            let keys = from.keys(slot, self.pace.keys()).await?;
            if keys.is_empty() {
                empty += 1;
                if empty > EMPTY_ROUNDS {
                    return Err(EngineError::Engine(format!(
                        "slot {slot}: {left} keys are counted and none is listed"
                    )));
                }
                continue;
            }
            if unconfirmed {
                self.confirm(slot, from, to).await?;
            }
            for batch in batch::batches(from.sizes(keys).await?) {
                for (key, bytes) in &batch {
                    self.judge(slot, key, *bytes, from)?;
                }
                let took = self.send(slot, &batch, from, to).await?;
                sleep(self.pace.rest(batch.len(), took)).await;
            }
            unconfirmed = true;
        }
    }

    /// Waits until the replicas of both nodes have what the last batches changed, so that the loss of a primary costs no
    /// more than a batch. SETSLOT is what the engine confirms for a connection that writes nothing itself: WAIT asks for
    /// this connection's own writes, has none to wait for and would answer at once. The replicas of the source matter as well:
    /// one that takes over without having heard that keys left would have the truth about them.
    async fn confirm(&mut self, slot: u32, from: &mut Node, to: &mut Node) -> Result<(), EngineError> {
        let (source, target) = (from.id.clone(), to.id.clone());
        self.set(slot, to, Slot::Importing(&source)).await?;
        self.set(slot, from, Slot::Migrating(&target)).await
    }

    /// Moves a batch. Returns how long both nodes stood still for it.
    async fn send(
        &mut self,
        slot: u32,
        batch: &[Sized],
        from: &mut Node,
        to: &mut Node,
    ) -> Result<Duration, EngineError> {
        let bytes = batch.iter().map(|(_, bytes)| bytes).sum();
        let timeout = batch::timeout(bytes, self.node_timeout);
        // A large key gets one try at a time: two that time out could cost the source its office.
        let mut replace =
            if batch::fits_twice(timeout, self.node_timeout) { vec![false, true] } else { vec![false] };
        let mut pause = FIRST_PAUSE;
        for turn in 1.. {
            let began = Instant::now();
            let answers = from.migrate(to, batch, &replace, timeout, &self.password).await?;
            let is_silent =
                |answer: &Result<(), EngineError>| matches!(answer, Err(error) if says(error, "IOERR"));
            if answers.iter().any(is_silent) {
                to.cut_off(from).await.map_err(|error| self.uncertain(slot, batch, from, to, &error))?;
            }
            let Some(Err(error)) = answers.into_iter().next_back() else {
                let keys = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                self.done.count("keys", keys);
                self.progress.keys(keys);
                return Ok(began.elapsed());
            };
            let again = match () {
                () if says(&error, "IOERR") => {
                    self.done.note(format!("slot {slot}: node {} did not take keys in time", to.id));
                    turn < TRIES
                }
                // Left by an earlier try. The source's is the truth.
                () => says(&error, "BUSYKEY") && turn < TRIES,
            };
            if !again {
                self.withdraw(batch, from, to)
                    .await
                    .map_err(|_| self.uncertain(slot, batch, from, to, &error))?;
                return Err(self.gave_up(slot, batch, from, to, &error).await);
            }
            if replace == [false] {
                replace = vec![true];
            }
            sleep(pause).await;
            pause *= 2;
        }
        Err(EngineError::Engine(format!("slot {slot}: no try was left")))
    }

    fn uncertain(
        &self,
        slot: u32,
        batch: &[Sized],
        from: &Node,
        to: &Node,
        error: &EngineError,
    ) -> EngineError {
        EngineError::Engine(format!(
            "{error}; slot {slot}: what was not moved of {} keys is at node {} ({}:{}), and copies that nobody sees may be at \
             node {} ({}:{}): the next try replaces them",
            batch.len(),
            from.id,
            from.ip,
            from.port,
            to.id,
            to.ip,
            to.port
        ))
    }

    /// Removes from the target what the source still has: a MIGRATE that failed may have left copies there, which nobody
    /// sees, but which would be seen once a client removed the key at the source.
    async fn withdraw(&mut self, batch: &[Sized], from: &mut Node, to: &mut Node) -> Result<(), EngineError> {
        let copies = to.has(batch).await?;
        for (key, size) in batch.iter().zip(copies).filter_map(|(key, copy)| copy.then_some(key)) {
            // What the source still has after the watch began was there all along, so nobody wrote to the copy before; who
            // writes to it after that breaks the watch.
            to.watch(key).await?;
            let at_source = from.has(&[(key.clone(), *size)]).await?.first().copied().unwrap_or(false);
            to.unlink_watched(key, at_source).await?;
        }
        Ok(())
    }

    async fn gave_up(
        &mut self,
        slot: u32,
        batch: &[Sized],
        from: &mut Node,
        to: &Node,
        error: &EngineError,
    ) -> EngineError {
        let stayed = match from.has(batch).await {
            Ok(has) => has,
            Err(_) => return EngineError::Engine(error.to_string()),
        };
        let names: Vec<String> = batch
            .iter()
            .zip(stayed)
            .filter(|(_, stayed)| *stayed)
            .map(|((key, _), _)| batch::name(key))
            .collect();
        let first = names.first().map_or("none of them", String::as_str);
        EngineError::Engine(format!(
            "{error}; slot {slot}: {} of {} keys stay at node {} ({}:{}), the first is {first}; what went before is at node {} ({}:{})",
            names.len(),
            batch.len(),
            from.id,
            from.ip,
            from.port,
            to.id,
            to.ip,
            to.port
        ))
    }
}

//! The keys of one open slot, from one node to the other.
//!
//! In: both nodes, the slot marked on both. Out: no key of it is left at the source, or the text of what stopped it: then each
//! key is at one node, and the text says at which. Called by `mover`.
//!
//! **Who has the truth.** While a slot migrates, the source sends a client on (ASK) only for a key it does not have, and makes no
//! new key of that slot. So a key that the source has is the current one, whatever the target has under that name, and
//! REPLACE is right for it.
//!
//! **A MIGRATE that timed out** may have left a key at both nodes, or may be performed by the target later. Three things could go
//! wrong then, and are kept from it:
//! - A client removes the key at the source, and the copy at the target comes to life. So the second try is sent in the same
//!   breath as the first, before any client has its turn; and when that fails too, the source takes no writes until the next
//!   one (`freeze`), at most `FREEZE` each time.
//! - The first one is performed late, after the key went by the second and was changed at the target. So the first is without
//!   REPLACE: late, it fails.
//! - The second one, with REPLACE, is performed late. So the connections of a MIGRATE that timed out are closed at the target
//!   before anything else is tried.
//!
//! A target that answers no more at all leaves copies behind that nobody sees; the next try replaces them. Only a key that a client
//! removes at the source in between is seen again.

use std::time::Duration;

use shardplane_proto::v1::ValkeyLargeKey;
use tokio::time::{Instant, sleep};

use super::{
    batch::{self, Sized},
    mover::Mover,
    node::{Limits, Node, Slot},
};
use crate::engine::{EngineError, valkey::control::says};

/// How often a batch is sent while the target does not answer.
const TRIES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// For how long clients wait with writes for the next try, should this supervisor not take that back: longer than it waits itself
/// for a target that does not even let its connections be closed.
const FREEZE: Duration = Duration::from_secs(10);
/// Keys that may be on their way to the replicas of both nodes.
const CONFIRMED_AFTER: usize = batch::MOST_KEYS;
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
        let (mut unconfirmed, mut empty) = (0, 0);
        loop {
            let left = from.count(slot).await?;
            self.progress.at(slot, left);
            if left == 0 {
                return Ok(());
            }
            if Instant::now() >= self.until {
                return Err(EngineError::Engine(format!(
                    "slot {slot} is still open when its time is up, with {left} keys left; the next try goes on from there"
                )));
            }
            let keys = from.keys(slot, self.pace.listed()).await?;
            if keys.is_empty() {
                empty += 1;
                if empty > EMPTY_ROUNDS {
                    return Err(EngineError::Engine(format!(
                        "slot {slot}: {left} keys are counted and none is listed"
                    )));
                }
                continue;
            }
            if unconfirmed >= CONFIRMED_AFTER {
                self.confirm(slot, from, to).await?;
                unconfirmed = 0;
            }
            for batch in batch::batches(from.sizes(keys).await?, self.pace.keys()) {
                for (key, bytes) in &batch {
                    self.judge(slot, key, *bytes, from)?;
                }
                let took = self.send(slot, &batch, from, to).await?;
                unconfirmed += batch.len();
                let rest = self.pace.rest(batch.len(), took);
                if !rest.is_zero() {
                    sleep(rest).await;
                }
            }
        }
    }

    /// Waits until the replicas of both nodes have what the last batches changed, so that the loss of a primary costs no
    /// more than some batches. SETSLOT is what the engine confirms for a connection that writes nothing itself: WAIT asks for
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
        let mut failed = EngineError::Refused(String::new());
        for _ in 0..TRIES {
            let began = Instant::now();
            let password = self.password.clone();
            let limits = Limits { timeout, password: &password, freeze: Some(FREEZE) };
            let (answers, frozen) = from.migrate(to, batch, &replace, limits).await?;
            let is_silent =
                |answer: &Result<(), EngineError>| matches!(answer, Err(error) if says(error, "IOERR"));
            if answers.iter().any(is_silent)
                && let Err(error) = to.cut_off(from).await
            {
                from.thaw().await?;
                return Err(uncertain(slot, batch, from, to, &error));
            }
            failed = match answers.into_iter().next_back() {
                Some(Err(error)) => error,
                Some(Ok(())) | None => {
                    let took = began.elapsed();
                    let keys = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                    self.done.count("keys", keys);
                    self.progress.keys(keys);
                    // A last key that a client had removed before is one that has not gone.
                    if frozen {
                        from.thaw().await?;
                    }
                    return Ok(took);
                }
            };
            if says(&failed, "IOERR") {
                self.done.note(format!("slot {slot}: node {} did not take keys in time", to.id));
            } else if !says(&failed, "BUSYKEY") {
                break;
            }
            // What an earlier try left behind: the source's is the truth.
            if replace == [false] {
                replace = vec![true];
            }
            sleep(pause).await;
            pause *= 2;
        }
        let withdrawn = self.withdraw(batch, from, to).await;
        from.thaw().await?;
        match withdrawn {
            Ok(()) => Err(self.gave_up(slot, batch, from, &failed).await),
            Err(_) => Err(uncertain(slot, batch, from, to, &failed)),
        }
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
            "{error}; slot {slot}: {} of {} keys stay at node {} ({}:{}), the first is {first}",
            names.len(),
            batch.len(),
            from.id,
            from.ip,
            from.port
        ))
    }
}

fn uncertain(slot: u32, batch: &[Sized], from: &Node, to: &Node, error: &EngineError) -> EngineError {
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

//! The session with the leading coordinator: one stream, opened again for ever.
//!
//! In: specs and welcomes. Out: hello, one full report, then differences, outcomes and a heartbeat a second. The reconciler
//! gets the newest spec, the contact is told of every message. Nothing is queued: what is not yet sent is still on the board.

mod members;
mod stream;

use std::{path::PathBuf, sync::Arc, time::Duration};

use rand::RngExt as _;
use shardplane_proto::v1;
use tokio::sync::watch;

use self::{members::Members, stream::End};
use crate::{board::Board, contact::Contact, reconcile::Received};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The agent's end of the session.
pub struct Session {
    /// `host:port` of the members.
    pub coordinators: Vec<String>,
    /// Read at every connect.
    pub token_file: PathBuf,
    /// Says who this host is; the generation is filled in at every connect.
    pub hello: v1::HostHello,
    /// What is to be told.
    pub board: Arc<Board>,
    /// Told of every message.
    pub contact: Arc<Contact>,
    /// Where the newest spec goes.
    pub specs: watch::Sender<Option<Received>>,
}

impl Session {
    /// Runs until the task is dropped. Every attempt has deadlines, and a pause follows a failed round.
    pub async fn run(self) {
        let mut members = Members::new(self.coordinators.clone());
        let mut pause = FIRST_PAUSE;
        loop {
            let address = members.next();
            let end = stream::open(&self, &address).await;
            match &end {
                End::Redirected { leader } => tracing::info!(%address, %leader, "not the leader"),
                End::Refused { why } => tracing::warn!(%address, "session not opened: {why}"),
                End::Broken { why } => tracing::warn!(%address, "session ended: {why}"),
            }
            if let End::Broken { .. } = end {
                pause = FIRST_PAUSE;
            }
            if members.ended(&end) {
                // Half of it is random: a thousand agents must not come back at one moment.
                let share = rand::rng().random_range(0.5..=1.0);
                tokio::time::sleep(pause.mul_f64(share)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

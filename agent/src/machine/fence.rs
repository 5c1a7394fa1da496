//! A machine that must not serve: stopped and proved absent, its volume kept, until the spec wants it to run again.
//!
//! In: a spec that says fenced, and whether the port is cut. Out: the proof on the board. Called by the owner; after a restart of
//! the agent the ledger's spec brings it here again.

use std::time::Duration;

use shardplane_proto::v1::MachineState;

use super::owner::Owner;

/// What the guest gets to stop in order: nobody can follow it any more, and another waits to serve.
const DEADLINE: Duration = Duration::from_secs(2);

impl Owner {
    pub(super) async fn fence(&mut self, port_cut: bool) {
        if self.absent {
            let text =
                "fenced: another member may serve in its place; the machine is stopped, its volume is kept";
            self.say(MachineState::Down, text);
            self.shared.board.set_fenced(self.id, port_cut);
            return self.changed().await;
        }
        self.shared.board.set_fenced(self.id, false);
        self.say(MachineState::Stopping, "fenced: it is stopped");
        self.ask_to_stop(DEADLINE).await;
        if let Err(why) = self.end_process().await {
            let delay = self.backoff.failed(std::time::Instant::now(), Duration::ZERO);
            self.say(MachineState::Stopping, &why);
            tracing::warn!(instance = %self.id, "fenced, but not yet stopped: {why}");
            return tokio::time::sleep(delay).await;
        }
        self.running = None;
        self.absent = true;
        self.record_end().await;
        tracing::info!(instance = %self.id, "fenced: nothing of it runs");
    }
}

//! What the host is told: hello, reports when something changed and every second, outcomes of tasks.
//!
//! In: the supervisor's state. Out: messages on the queue of the current connection. Called by `run` and by the parent.

use shardplane_proto::v1::{EngineState, FromGuest, GuestReport, TaskOutcome, from_guest::Body};
use tokio::{sync::mpsc::Sender, time::Instant};

use super::Supervisor;
use crate::{
    boot_time::boot_time,
    bounded::bounded,
    lifecycle::{self, Phase},
    run::message,
};

impl Supervisor {
    /// A new connection: hello, the current report, and every outcome the host may have missed.
    pub fn connected(&mut self, queue: Sender<FromGuest>, hello: Body) {
        self.link = Some(queue);
        self.send(hello);
        self.send_report();
        for outcome in self.tasks.outcomes().cloned().collect::<Vec<_>>() {
            self.send(Body::Outcome(outcome));
        }
    }

    /// The connection is gone. The engine runs on.
    pub fn disconnected(&mut self) {
        self.link = None;
    }

    fn report(&self) -> GuestReport {
        let hung = lifecycle::hung_for(&self.phase, self.answered, Instant::now());
        let (state, message) = match hung {
            Some(silent) => {
                let (engine, seconds) = (&self.image.engine, silent.as_secs());
                let why = format!(
                    "{engine} does not answer for {seconds} s; it is not restarted, as it may still hold data"
                );
                (EngineState::Failed, why)
            }
            None => (self.phase.state(), self.message()),
        };
        GuestReport {
            state: state.into(),
            message: bounded(message),
            engine_report: self.latest.as_ref().map(|report| report.message.clone()).unwrap_or_default(),
            engine_starts: self.starts,
            live_copies: self.latest.as_ref().map_or(0, |report| report.live_copies),
            read_only: hung.is_none() && self.latest.as_ref().is_some_and(|report| report.read_only),
            config_generation: self.config_generation(),
            held_wake: self.held_wake(),
            copies_since_wake: self.answered_after.settled,
            // Said when it is sent: a report that differs in nothing else is the same.
            boot_ms: 0,
            restart_generation: self.in_force.as_ref().map_or(0, |in_force| in_force.restart),
        }
    }

    /// Of the config that the engine's report is about: what it says was asked under that one.
    fn config_generation(&self) -> u64 {
        let in_force = self.in_force.as_ref().map_or(0, |in_force| in_force.generation);
        if self.latest.is_some() { self.asked_under } else { in_force }
    }

    fn message(&self) -> String {
        match &self.phase {
            Phase::Waiting => "no config yet".to_owned(),
            Phase::Holding { why, .. } | Phase::Pausing { why, .. } => why.clone(),
            Phase::Restarting { .. } => format!("{} was asked to end and start anew", self.image.engine),
            Phase::Stopping { .. } => format!("{} was asked to end and is stopping", self.image.engine),
            Phase::Stopped => "stopped".to_owned(),
            Phase::Starting | Phase::Running => {
                [&self.silence, &self.refusal, self.wakes.text(), self.lease.text()]
                    .into_iter()
                    .filter(|text| !text.is_empty())
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("; ")
            }
        }
    }

    /// Sends a report, changed or not.
    pub fn send_report(&mut self) {
        let report = self.report();
        self.sent =
            Some((skeleton(&report), self.latest.as_ref().map(|r| r.meaning.clone()).unwrap_or_default()));
        let boot_ms = u64::try_from(boot_time().as_millis()).unwrap_or(u64::MAX);
        self.send(Body::Report(GuestReport { boot_ms, ..report }));
    }

    /// Sends a report when it differs from the last one in what matters.
    pub fn send_report_if_changed(&mut self) {
        let meaning = self.latest.as_ref().map(|report| report.meaning.as_slice()).unwrap_or_default();
        let same = self
            .sent
            .as_ref()
            .is_some_and(|(sent, before)| before == meaning && *sent == skeleton(&self.report()));
        if !same {
            self.send_report();
        }
    }

    pub(super) fn send_outcome(&mut self, outcome: Option<TaskOutcome>) {
        if let Some(outcome) = outcome {
            self.send(Body::Outcome(outcome));
        }
    }

    /// A full queue means a host that does not read: the link gives it up soon, and the next connection gets everything anew.
    pub(super) fn send(&mut self, body: Body) {
        if let Some(link) = &self.link
            && link.try_send(message(body)).is_err()
        {
            tracing::debug!("the host does not keep up, a message was left out");
        }
    }
}

/// A report without the engine's own message, which is compared by its meaning.
fn skeleton(report: &GuestReport) -> GuestReport {
    GuestReport { engine_report: Vec::new(), ..report.clone() }
}

//! Slow work of the supervisor, one of each kind at a time: asking the engine, a task, a change of its config.
//!
//! In: the supervisor's state. Out: jobs, and what their ends change. Called by `run` and by the parent.

use std::{sync::Arc, time::Duration};

use shardplane_proto::{causes::with_causes, v1::GuestTask};
use tokio::{
    task::JoinError,
    time::{Instant, sleep, timeout},
};

use super::{InForce, Supervisor};
use crate::{
    engine::{Done, Engine, EngineError, Report, Stop},
    lifecycle::{self, Phase},
};

/// For one report or one change of a running engine; the connection has shorter ones of its own.
const JOB_DEADLINE: Duration = Duration::from_secs(5);
/// A starting engine is asked at this pace, so that a failover or a new cluster does not wait for the next tick.
const STARTING_POLL: Duration = Duration::from_millis(50);

/// The end of a job. The first number is the engine start it belongs to: what a dead process said counts no more. The second is the
/// generation of the config.
pub enum Job {
    /// The engine was asked about itself.
    Asked(u32, u64, Result<Report, EngineError>),
    /// A task was performed, and what it did.
    Performed(Result<(), EngineError>, Done),
    /// The running engine was brought to a new config.
    Applied(u32, u64, Result<Arc<dyn Engine>, EngineError>),
    /// The engine was asked to end.
    Stopped(Result<Stop, EngineError>),
    /// The engine was told to hold writes (true), or to take them again.
    Told(bool, Result<(), EngineError>),
}

impl Supervisor {
    pub(super) fn ask(&mut self) {
        let asks = matches!(self.phase, Phase::Starting | Phase::Running);
        if let Some(InForce { engine, generation, .. }) = &self.in_force
            && asks
            && !self.asking
        {
            let (engine, start, generation) = (engine.clone(), self.starts, *generation);
            let pause = if self.phase == Phase::Starting { STARTING_POLL } else { Duration::ZERO };
            (self.asking, self.asked_after) = (true, self.wakes.asked());
            self.jobs.spawn(async move {
                sleep(pause).await;
                Job::Asked(start, generation, in_time(JOB_DEADLINE, engine.report()).await)
            });
        }
    }

    /// Brings a running engine to the newest config when it is not there yet.
    pub(super) async fn apply_wanted(&mut self) {
        let (Some(wanted), Some(in_force)) = (&self.wanted, &self.in_force) else { return };
        if wanted.generation == in_force.generation || self.applying || self.phase != Phase::Running {
            return;
        }
        let (wanted, engine) = (wanted.clone(), in_force.engine.clone());
        if let Err(error) = self.ensure_nic().await {
            return self.refuse(wanted.generation, &error);
        }
        let start = self.starts;
        self.applying = true;
        self.jobs.spawn(async move {
            let done = in_time(JOB_DEADLINE, engine.apply(&wanted)).await;
            Job::Applied(start, wanted.generation, done)
        });
    }

    /// Ends the engine so that it starts under the config that is in force, when that asks for it. What goes without a restart is in
    /// force by then: an append-only file that is new is whole.
    pub(super) fn restart_if_due(&mut self) {
        let (Some(wanted), Some(in_force)) = (&self.wanted, &self.in_force) else { return };
        let due = wanted.restart_generation > in_force.restart && wanted.generation == in_force.generation;
        let Some(latest) = self
            .latest
            .as_ref()
            .filter(|_| due && self.asked_under == wanted.generation && self.phase == Phase::Running)
        else {
            return;
        };
        if let Some(why) = in_force.engine.restart_waits(latest) {
            self.refusal = why.to_owned();
            return;
        }
        if self.applying || self.tasks.is_busy() {
            return;
        }
        tracing::info!(generation = wanted.restart_generation, "engine is restarted as asked");
        self.refusal.clear();
        let engine = in_force.engine.clone();
        self.jobs.spawn(async move {
            Job::Stopped(in_time(lifecycle::RESTART_DEADLINE, engine.stop_for_restart()).await)
        });
        let until = Instant::now() + lifecycle::RESTART_DEADLINE + lifecycle::RESTART_ENDS;
        self.phase = Phase::Restarting { until };
    }

    /// Whether the engine can be started without the part of its config that it named in its last words; then it is, at once.
    pub(super) fn does_without(&mut self, last_words: &str) -> bool {
        let Some(in_force) = &mut self.in_force else { return false };
        let Some(engine) = in_force.engine.without_what_failed(last_words) else { return false };
        tracing::warn!("engine is started without what it refuses:\n{last_words}");
        in_force.engine = engine;
        self.phase =
            Phase::Pausing { until: Instant::now(), why: "starts without what it refuses".to_owned() };
        true
    }

    fn refuse(&mut self, generation: u64, error: &EngineError) {
        self.refusal = format!("config {generation} is not in force: {}", with_causes(error));
    }

    /// A job ended.
    pub fn job_ended(&mut self, ended: Result<Job, JoinError>) {
        match ended {
            Ok(Job::Asked(start, generation, answer)) => {
                self.asking = false;
                self.answered(start, generation, answer);
                if self.phase == Phase::Starting {
                    self.ask();
                }
            }
            Ok(Job::Performed(result, done)) => {
                let outcome = self.tasks.finish(result.map_err(|error| with_causes(&error)), done);
                self.send_outcome(outcome);
                self.ask();
            }
            Ok(Job::Applied(start, generation, result)) => {
                self.applying = false;
                match result {
                    Ok(engine) if start == self.starts => {
                        tracing::info!(generation, "config in force");
                        self.refusal.clear();
                        let restart = self.in_force.as_ref().map_or(0, |before| before.restart);
                        self.in_force = Some(InForce { engine, generation, restart });
                        self.ask();
                    }
                    // A process that was started since runs under the newest config already.
                    Ok(_) => {}
                    Err(error) => self.refuse(generation, &error),
                }
            }
            Ok(Job::Stopped(Ok(Stop::Told))) => {}
            Ok(Job::Stopped(Ok(Stop::AtSignal))) => {
                if let Some(process) = &self.process {
                    process.terminate();
                }
            }
            Ok(Job::Told(hold, result)) => self.told(hold, result),
            Ok(Job::Stopped(Err(error))) if matches!(self.phase, Phase::Restarting { .. }) => {
                tracing::debug!("asked the engine to end for a restart: {error}");
                self.phase = Phase::Restarting { until: Instant::now() + lifecycle::RESTART_ENDS };
            }
            Ok(Job::Stopped(Err(error))) => {
                // A closed connection is how success looks; if it was not, SIGTERM asks the same once more.
                tracing::debug!("asked the engine to end: {error}");
                if let Some(process) = &self.process {
                    process.terminate();
                }
            }
            // A job that panicked: its flag is unknown, so all are taken back. The task, if any, has failed.
            Err(error) => {
                tracing::error!(%error, "a job broke off");
                (self.asking, self.applying) = (false, false);
                self.gate.idle();
                let outcome =
                    self.tasks.finish(Err(format!("the supervisor failed: {error}")), Done::default());
                self.send_outcome(outcome);
            }
        }
    }

    fn answered(&mut self, start: u32, generation: u64, answer: Result<Report, EngineError>) {
        if start != self.starts || self.process.is_none() {
            return;
        }
        match answer {
            Ok(report) => {
                self.latest = Some(report);
                (self.asked_under, self.answered_after) = (generation, self.asked_after);
                self.answered = Instant::now();
                self.silence.clear();
                if self.phase == Phase::Starting {
                    tracing::info!("engine answers");
                    self.phase = Phase::Running;
                }
            }
            Err(EngineError::Loading(text)) => {
                self.latest = None;
                self.answered = Instant::now();
                self.silence = format!("{} loads its data: {text}", self.image.engine);
            }
            Err(error @ (EngineError::Refused(_) | EngineError::File { .. } | EngineError::Engine(_))) => {
                self.latest = None;
                self.silence = format!("{} does not answer: {error}", self.image.engine);
            }
        }
    }

    /// Takes a task in; one that is known is answered from memory.
    pub fn receive_task(&mut self, task: GuestTask) {
        let outcome = self.tasks.receive(task, Instant::now());
        self.send_outcome(outcome);
    }

    /// Starts the next task when the engine runs and none is under way.
    pub fn start_next_task(&mut self) {
        let Some(InForce { engine, .. }) = &self.in_force else { return };
        if self.phase == Phase::Running
            && let Some(task) = self.tasks.next()
        {
            let engine = engine.clone();
            self.jobs.spawn(async move {
                let deadline = engine.deadline(&task.payload);
                let mut done = Done { task_id: task.task_id, ..Done::default() };
                let result = in_time(deadline, engine.perform(&task.payload, &mut done)).await;
                Job::Performed(result, done)
            });
        }
    }
}

pub(super) async fn in_time<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, EngineError>>,
) -> Result<T, EngineError> {
    timeout(deadline, work).await.unwrap_or_else(|_| {
        Err(EngineError::Engine(format!("not done within {:.1} s", deadline.as_secs_f32())))
    })
}

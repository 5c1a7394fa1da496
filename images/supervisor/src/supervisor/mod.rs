//! What the supervisor knows and does about its engine: config, process, jobs, reports.
//!
//! In: the events `run` hands over, one at a time. Out: the engine's process and messages on the link's queue.
//! Slow work is a job in `jobs`; its end comes back as an event.

use std::{sync::Arc, time::Duration};

use nix::unistd::Pid;
use shardplane_proto::{
    causes::with_causes,
    v1::{FromGuest, GuestConfig, GuestReport, from_guest::Body},
};
use tokio::{
    sync::mpsc::Sender,
    task::JoinSet,
    time::{Instant, timeout},
};

use self::{
    jobs::{Job, in_time},
    writes::Gate,
};
use crate::{
    engine::{self, Engine, EngineError, Report},
    image::Image,
    lease::Lease,
    lifecycle::{self, Pauses, Phase},
    nic::{self, Nic},
    pid1::{self, Exit},
    process::{self, EngineProcess},
    tasks::Tasks,
    wake::{Asked, Wakes},
};

mod jobs;
mod reports;
mod writes;

/// Netlink answers at once or not at all.
const NIC_DEADLINE: Duration = Duration::from_secs(5);
/// After the engine's end its output is at its end as well; a stuck disk must not stop the loop for longer.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The config whose engine runs or will be started next.
struct InForce {
    engine: Arc<dyn Engine>,
    generation: u64,
    /// The restart generation of the config it was started under.
    restart: u64,
}

/// Everything about the engine of this guest.
pub struct Supervisor {
    /// Work in flight: at most one of each kind.
    pub jobs: JoinSet<Job>,
    image: Image,
    link: Option<Sender<FromGuest>>,
    wanted: Option<GuestConfig>,
    in_force: Option<InForce>,
    nic: Option<Option<Nic>>,
    phase: Phase,
    process: Option<EngineProcess>,
    starts: u32,
    last_alive: Instant,
    pauses: Pauses,
    asking: bool,
    applying: bool,
    tasks: Tasks,
    latest: Option<Report>,
    /// Generation of the config that it was asked under.
    asked_under: u64,
    /// When the engine answered last.
    answered: Instant,
    wakes: Wakes,
    lease: Lease,
    gate: Gate,
    /// Of [`Wakes::count`] when the engine was asked for the latest report, and for the one that is under way.
    answered_after: Asked,
    asked_after: Asked,
    /// Why the engine does not answer.
    silence: String,
    /// Why the newest config is not in force.
    refusal: String,
    sent: Option<(GuestReport, Vec<u8>)>,
}

impl Supervisor {
    /// A guest that just booted.
    pub fn new(image: Image, wakes: Wakes) -> Self {
        Self {
            jobs: JoinSet::new(),
            image,
            link: None,
            wanted: None,
            in_force: None,
            nic: None,
            phase: Phase::Waiting,
            process: None,
            starts: 0,
            last_alive: Instant::now(),
            pauses: Pauses::default(),
            asking: false,
            applying: false,
            tasks: Tasks::default(),
            latest: None,
            asked_under: 0,
            answered: Instant::now(),
            wakes,
            lease: Lease::default(),
            gate: Gate::default(),
            answered_after: Asked::default(),
            asked_after: Asked::default(),
            silence: String::new(),
            refusal: String::new(),
            sent: None,
        }
    }

    /// Whether the engine was stopped as asked.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// When `time_is_up` is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.phase.deadline()
    }

    /// Takes a config in; an older one, or the same again, changes nothing.
    pub async fn configure(&mut self, config: GuestConfig) {
        let known = self.wanted.as_ref().map_or(0, |known| known.generation);
        if config.generation < known || (self.wanted.is_some() && config.generation == known) {
            if config.generation < known {
                tracing::warn!(generation = config.generation, known, "older config refused");
            }
            return;
        }
        tracing::info!(generation = config.generation, instance = config.instance_id, "config accepted");
        pid1::set_hostname(&config.hostname);
        self.wanted = Some(config);
        match self.phase {
            // A new config may lift a hold or cure what made the starts fail.
            Phase::Waiting | Phase::Holding { .. } | Phase::Pausing { .. } => self.attempt().await,
            Phase::Starting | Phase::Running => self.apply_wanted().await,
            Phase::Restarting { .. } | Phase::Stopping { .. } | Phase::Stopped => {}
        }
    }

    /// Makes address and link so, once for each network config.
    async fn ensure_nic(&mut self) -> Result<(), EngineError> {
        let Some(config) = &self.wanted else { return Ok(()) };
        let refused = |error: nic::NicError| EngineError::Refused(with_causes(&error));
        let nic = config.nic.as_ref().map(nic::parse).transpose().map_err(refused)?;
        if self.nic.as_ref() == Some(&nic) {
            return Ok(());
        }
        match timeout(NIC_DEADLINE, nic::ensure(nic.as_ref())).await {
            Ok(done) => done.map_err(refused)?,
            Err(_) => return Err(EngineError::Refused("netlink did not answer".to_owned())),
        }
        self.nic = Some(nic);
        Ok(())
    }

    /// Starts the engine under the newest config, or says why it is held.
    async fn attempt(&mut self) {
        self.refusal.clear();
        match self.try_start().await {
            Ok(Some(held)) => {
                if let Phase::Holding { until, why } = &held {
                    let seconds = until.map(|until| (until - Instant::now()).as_secs_f32());
                    tracing::info!(seconds, "start held: {why}");
                }
                self.phase = held;
            }
            Ok(None) => {
                self.phase = Phase::Starting;
                self.ask();
            }
            Err(error) => self.pause(
                &format!("{} does not start: {}", self.image.engine, with_causes(&error)),
                "",
                Duration::ZERO,
            ),
        }
    }

    /// Some: the start is held.
    async fn try_start(&mut self) -> Result<Option<Phase>, EngineError> {
        let Some(config) = &self.wanted else {
            return Err(EngineError::Refused("there is no config".to_owned()));
        };
        let (generation, restart) = (config.generation, config.restart_generation);
        // The one that ran or failed under this config knows what the engine does not take of it.
        let known = self.in_force.as_ref().filter(|known| known.generation == generation);
        let engine = match known {
            Some(known) => known.engine.clone(),
            None => engine::open(&self.image.engine, config)?,
        };
        self.ensure_nic().await?;
        let hold = engine.prepare()?;
        let held = hold.and_then(|hold| lifecycle::holding(hold, self.last_alive, Instant::now()));
        if held.is_some() {
            return Ok(held);
        }
        let process = process::start(&engine.start())?;
        self.starts += 1;
        tracing::info!(pid = process.pid.as_raw(), starts = self.starts, generation, "engine started");
        self.process = Some(process);
        self.in_force = Some(InForce { engine, generation, restart });
        self.latest = None;
        self.silence = "started, no answer yet".to_owned();
        Ok(None)
    }

    fn pause(&mut self, what: &str, tail: &str, uptime: Duration) {
        let pause = self.pauses.after(uptime);
        let mut why = format!("{what}; next start in {:.1} s", pause.as_secs_f32());
        if !tail.is_empty() {
            why.push_str("; it wrote last:\n");
            why.push_str(tail);
        }
        tracing::warn!("{why}");
        self.phase = Phase::Pausing { until: Instant::now() + pause, why };
    }

    /// A child ended. When it is the engine, the host hears of it at once.
    pub fn child_ended(&mut self, pid: Pid, exit: Exit) {
        let Some(process) = self.process.take_if(|process| process.pid == pid) else { return };
        process.kill_group();
        let (uptime, tail) = (process.since.elapsed(), process.tail.text(LAST_WORDS));
        self.last_alive = Instant::now();
        self.latest = None;
        match self.phase {
            Phase::Stopping { .. } => {
                tracing::info!(%exit, "engine stopped");
                self.phase = Phase::Stopped;
            }
            Phase::Running => {
                let what =
                    format!("{} ended with {exit} after {:.0} s", self.image.engine, uptime.as_secs_f32());
                self.pause(&what, &tail, uptime);
            }
            Phase::Restarting { .. } => {
                tracing::info!(%exit, "engine ended to start anew");
                self.phase = Phase::Pausing { until: Instant::now(), why: "starts anew".to_owned() };
            }
            Phase::Waiting
            | Phase::Holding { .. }
            | Phase::Starting
            | Phase::Pausing { .. }
            | Phase::Stopped => {
                if self.does_without(&tail) {
                    return;
                }
                let what = format!("{} ended with {exit} before it answered", self.image.engine);
                self.pause(&what, &tail, uptime);
            }
        }
    }

    /// The deadline of the phase has come.
    pub async fn time_is_up(&mut self) {
        match self.phase {
            Phase::Holding { .. } | Phase::Pausing { .. } => self.attempt().await,
            Phase::Stopping { .. } => {
                tracing::warn!("engine did not end in time, killed");
                if let Some(process) = &self.process {
                    process.kill_group();
                }
                // Its end comes as an event; should it not (a process stuck in the kernel), kill again in a second.
                self.phase = Phase::Stopping { kill_at: Instant::now() + Duration::from_secs(1) };
            }
            Phase::Restarting { .. } => {
                self.refusal = format!(
                    "{} did not end within {} s to start anew; it is asked again",
                    self.image.engine,
                    lifecycle::RESTART_DEADLINE.as_secs()
                );
                tracing::warn!("{}", self.refusal);
                self.phase = Phase::Running;
            }
            Phase::Waiting | Phase::Starting | Phase::Running | Phase::Stopped => {}
        }
    }

    /// Every half second: asks the engine, applies what is not applied yet, fails tasks that waited too long.
    pub async fn tick(&mut self) {
        for (pid, exit) in pid1::reap() {
            self.child_ended(pid, exit);
        }
        self.ask();
        self.tell_writes();
        if matches!(self.phase, Phase::Starting | Phase::Running) {
            self.apply_wanted().await;
        }
        self.restart_if_due();
        let why = format!("the engine is {}", self.phase.state().as_str_name());
        for outcome in self.tasks.expire(Instant::now(), &why) {
            self.send(Body::Outcome(outcome));
        }
    }

    /// Ends the engine in order and then the guest; killed after `deadline`.
    pub fn stop(&mut self, deadline: Duration) {
        let kill_at = lifecycle::kill_at(&self.phase, deadline, Instant::now());
        match (&self.process, &self.in_force) {
            (Some(_), Some(InForce { engine, .. })) => {
                if !matches!(self.phase, Phase::Stopping { .. }) {
                    let engine = engine.clone();
                    self.jobs.spawn(async move { Job::Stopped(in_time(deadline, engine.stop()).await) });
                }
                tracing::info!(?deadline, "stop asked for");
                self.phase = Phase::Stopping { kill_at };
            }
            (None, _) | (_, None) => self.phase = Phase::Stopped,
        }
    }
}

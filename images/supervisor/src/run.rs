//! The loop that owns everything: one task, one state, no locks.
//!
//! In: the host's messages, signals, ends of children, answers of the engine, time. Out: reports and outcomes to the host, the
//! engine's process. Called by `main`; returns when the engine was stopped as asked.

use std::time::Duration;

use anyhow::Context as _;
use shardplane_proto::v1::{FromGuest, GuestHello, ToGuest, from_guest, to_guest};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::{
    host_link::{self, LinkEvent},
    image, lifecycle,
    machine::Machine,
    pid1,
    supervisor::Supervisor,
    vm::{
        button,
        clock::{self, HostClock},
        timeline::Timeline,
    },
    wake::{LOOK_EVERY, Wakes},
};

/// How often the engine is asked about itself; every second time a report is sent whatever it says.
const POLL: Duration = Duration::from_millis(500);
/// How long the last report may take to leave after a stop.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);
/// Messages of the host that may wait for the loop.
const INBOX: usize = 64;

/// Runs the guest until it is stopped.
pub async fn run(machine: Machine) -> anyhow::Result<()> {
    let mut signals = pid1::signals().context("install signal handlers")?;
    let host = machine.host();
    let mut around = Around::of(machine);
    pid1::confine().context("forbid new privileges")?;
    let image = image::read()?;
    let hello = GuestHello {
        supervisor_version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: image.engine.clone(),
        engine_version: image.version.clone(),
    };
    tracing::info!(%host, "supervisor {} of {} {}", hello.supervisor_version, image.engine, image.version);
    let (events, mut inbox) = mpsc::channel(INBOX);
    let link = tokio::spawn(host_link::keep(host, events));
    let mut supervisor = Supervisor::new(image, Wakes::by(around.clock.take()));
    let mut ticks = interval(POLL);
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut report_due = false;

    while !supervisor.is_over() {
        let deadline = supervisor.deadline();
        tokio::select! {
            biased;
            _ = looks.tick() => supervisor.look(),
            Some(event) = inbox.recv() => match event {
                LinkEvent::Up(queue) => {
                    supervisor.connected(queue, from_guest::Body::Hello(hello.clone()));
                    around.said_hello();
                }
                LinkEvent::Received(message) => received(&mut supervisor, message).await,
                LinkEvent::Down => supervisor.disconnected(),
            },
            _ = signals.child.recv() => {
                for (pid, exit) in pid1::reap() {
                    supervisor.child_ended(pid, exit);
                }
            }
            _ = signals.terminate.recv() => supervisor.stop(lifecycle::STOP_DEADLINE),
            Some(()) = around.presses.recv() => {
                tracing::info!("power button pressed");
                supervisor.stop(lifecycle::STOP_DEADLINE);
            }
            _ = signals.interrupt.recv() => supervisor.stop(lifecycle::STOP_DEADLINE),
            Some(ended) = supervisor.jobs.join_next() => supervisor.job_ended(ended),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => supervisor.time_is_up().await,
            _ = ticks.tick() => {
                supervisor.tick().await;
                if report_due {
                    supervisor.send_report();
                }
                report_due = !report_due;
            }
        }
        supervisor.look();
        supervisor.start_next_task();
        supervisor.send_report_if_changed();
    }

    // Dropping the queue lets the link send what is in it and end.
    drop(supervisor);
    let _ = timeout(FLUSH_DEADLINE, link).await;
    Ok(())
}

/// What a machine has besides its engine and its link.
struct Around {
    /// Presses of the power button.
    presses: mpsc::Receiver<()>,
    clock: Option<HostClock>,
    /// Until the first hello.
    boot: Option<Timeline>,
}

impl Around {
    fn of(machine: Machine) -> Self {
        match machine {
            Machine::Namespaces { .. } => Self { presses: mpsc::channel(1).1, clock: None, boot: None },
            Machine::Virtual { mut boot } => {
                boot.reached("supervisor");
                match HostClock::open() {
                    Some(clock) => drop(tokio::spawn(clock::keep(clock))),
                    None => tracing::warn!(
                        "the host shows no clock: the wall clock of this machine drifts, and a pause is not seen"
                    ),
                }
                Self { presses: button::watch(), clock: HostClock::open(), boot: Some(boot) }
            }
        }
    }

    fn said_hello(&mut self) {
        if let Some(mut boot) = self.boot.take() {
            boot.reached("hello");
            tracing::info!("boot, since the kernel's start: {boot}");
        }
    }
}

async fn received(supervisor: &mut Supervisor, message: ToGuest) {
    match message.body {
        Some(to_guest::Body::Config(config)) => supervisor.configure(config).await,
        Some(to_guest::Body::Task(task)) => supervisor.receive_task(task),
        Some(to_guest::Body::Lease(lease)) => supervisor.granted(&lease),
        Some(to_guest::Body::Confirm(confirm)) => supervisor.confirmed(confirm.wake),
        Some(to_guest::Body::Stop(stop)) => supervisor.stop(Duration::from_millis(stop.deadline_ms.into())),
        None => tracing::warn!("the host sent a message this supervisor does not know; build the image anew"),
    }
}

/// A message to the host.
pub fn message(body: from_guest::Body) -> FromGuest {
    FromGuest { body: Some(body) }
}

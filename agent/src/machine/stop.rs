//! The order in which a machine is asked to end, and how long each that is asked may take.
//!
//! In: a running process, its supervisor, a deadline. Out: who ended it, if anybody. Called by the owner, which kills what is left.
//!
//! 1. The supervisor, by GuestStop over its link: a second to dial when it has only just started, the deadline (10 s; 2 s for a fenced
//!    machine) to end the engine, and half a second more for its own exit.
//! 2. The kernel, by the power button, where there is one: up to 5 s, but no longer than the deadline, pressed again every second. A press
//!    before the guest listens is not heard, and the VMM takes it all the same.
//! 3. Nobody any more: [`Ended::No`].
//!
//! What anybody answers counts for nothing. A machine has ended when its process has.

use std::{future::Future, time::Duration};

use shardplane_proto::ids::InstanceId;
use tokio::time::{sleep, timeout};

use crate::{
    guest_link::GuestLink,
    ledger::ProcessId,
    vmm::{Press, Vmm},
};

/// How long a supervisor that has only just started may take to dial before it is stopped without being asked.
const DIAL_GRACE: Duration = Duration::from_secs(1);
/// On top of the deadline, for the supervisor's own exit.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// What a machine gets at most to stop after its power button was pressed first.
const BUTTON_DEADLINE: Duration = Duration::from_secs(5);
/// How soon the button is pressed again.
const PRESS_AGAIN: Duration = Duration::from_secs(1);

/// Who made a machine end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its supervisor, or it was dead already.
    BySupervisor,
    /// Its kernel.
    ByButton,
    /// It runs on.
    No,
}

/// The machine's supervisor, as far as it can be asked to stop.
pub trait Supervisor: Sync {
    /// Waits until it is connected, for at most that long.
    fn connected_within(&self, limit: Duration) -> impl Future<Output = bool> + Send;

    /// Tells it to end the machine within so many milliseconds.
    fn stop(&self, deadline_ms: u32);
}

impl Supervisor for GuestLink {
    fn connected_within(&self, limit: Duration) -> impl Future<Output = bool> + Send {
        Self::connected_within(self, limit)
    }

    fn stop(&self, deadline_ms: u32) {
        self.want(|wanted| wanted.stop = Some(deadline_ms));
    }
}

/// Asks in order, until the machine has ended or nobody is left to ask.
pub async fn in_order(
    vmm: &dyn Vmm,
    id: InstanceId,
    process: ProcessId,
    supervisor: &impl Supervisor,
    deadline: Duration,
) -> Ended {
    supervisor.stop(u32::try_from(deadline.as_millis()).unwrap_or(u32::MAX));
    let connected = tokio::select! {
        // Dead already, or it had been told before.
        () = vmm.death(process) => return Ended::BySupervisor,
        connected = supervisor.connected_within(DIAL_GRACE) => connected,
    };
    if connected && timeout(deadline + STOP_GRACE, vmm.death(process)).await.is_ok() {
        return Ended::BySupervisor;
    }
    let pressed = timeout(deadline.min(BUTTON_DEADLINE), press_until_dead(vmm, id, process));
    pressed.await.unwrap_or(Ended::No)
}

/// Returns when it is dead, or at once when it has no button.
async fn press_until_dead(vmm: &dyn Vmm, id: InstanceId, process: ProcessId) -> Ended {
    let death = vmm.death(process);
    let presses = async {
        loop {
            match vmm.press_power_button(id).await {
                Press::NoButton => return Ended::No,
                Press::Done | Press::Unanswered => sleep(PRESS_AGAIN).await,
            }
        }
    };
    tokio::select! {
        () = death => Ended::ByButton,
        ended = presses => ended,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use shardplane_proto::ids::HostId;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        identity::{MachineTag, MachineUuid},
        vmm::fake::{Button, FakeVmm},
    };

    const ID: InstanceId = InstanceId::from_u128(7);

    /// A supervisor that may or may not be there and do what it is told.
    struct Scripted<'a> {
        vmm: &'a FakeVmm,
        connected: bool,
        obeys: bool,
        told: Mutex<Option<u32>>,
    }

    impl Supervisor for Scripted<'_> {
        async fn connected_within(&self, limit: Duration) -> bool {
            if !self.connected {
                sleep(limit).await;
            }
            self.connected
        }

        fn stop(&self, deadline_ms: u32) {
            *self.told.lock().unwrap() = Some(deadline_ms);
            if self.connected && self.obeys {
                self.vmm.die(ID);
            }
        }
    }

    /// Who ended it, how often its button was pressed, and after how many milliseconds it was over.
    async fn stop(connected: bool, obeys: bool, button: Button, deadline_s: u64) -> (Ended, u32, u128) {
        let vmm = FakeVmm::default();
        vmm.set_power_button(button);
        let tag = MachineTag { host: HostId::from_u128(1), instance: ID, uuid: MachineUuid::generate() };
        let process = vmm.plant(tag);
        let supervisor = Scripted { vmm: &vmm, connected, obeys, told: Mutex::default() };
        let began = Instant::now();
        let ended = in_order(&vmm, ID, process, &supervisor, Duration::from_secs(deadline_s)).await;
        let told = supervisor.told.lock().unwrap().map(u64::from);
        assert_eq!(told, Some(deadline_s * 1000), "the supervisor is told first, and how long it has");
        assert_eq!(vmm.kills(), 0, "the kill is for whoever asked");
        assert_eq!(vmm.living() == 0, ended != Ended::No, "its process is what counts");
        (ended, vmm.presses(), began.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_supervisor_is_asked_first_then_the_button_and_each_has_its_time() {
        use Button::{Broken, HearsPress, None, NotHeard};
        for (connected, obeys, button, expected) in [
            (true, true, HearsPress(1), (Ended::BySupervisor, 0, 0)),
            // It has its deadline and half a second; the kernel then listens.
            (true, false, HearsPress(1), (Ended::ByButton, 1, 10_500)),
            // Not there: it may still dial for a second.
            (false, false, HearsPress(1), (Ended::ByButton, 1, 1000)),
            // The guest listens only from the third press on.
            (false, false, HearsPress(3), (Ended::ByButton, 3, 3000)),
            (true, false, None, (Ended::No, 1, 10_500)),
            (false, false, None, (Ended::No, 1, 1000)),
        ] {
            assert_eq!(stop(connected, obeys, button, 10).await, expected, "{connected} {obeys} {button:?}");
        }
        // The last press may or may not come in the moment in which the time is over.
        for (connected, button, deadline_s, least, over) in [
            (true, NotHeard, 10, 5, 15_500),
            // The VMM gives no answer.
            (false, Broken, 10, 5, 6000),
            // A fenced machine: another waits to serve in its place.
            (true, NotHeard, 2, 2, 4500),
        ] {
            let (ended, presses, after) = stop(connected, false, button, deadline_s).await;
            assert_eq!((ended, after), (Ended::No, over), "{button:?}");
            assert!(presses >= least, "{button:?}: {presses}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_dead_is_not_waited_for() {
        let vmm = FakeVmm::default();
        let supervisor = Scripted { vmm: &vmm, connected: false, obeys: false, told: Mutex::default() };
        let gone = ProcessId { pid: 1, start_ticks: 1 };
        let began = Instant::now();
        let ended = in_order(&vmm, ID, gone, &supervisor, Duration::from_secs(10)).await;
        assert_eq!((ended, began.elapsed(), vmm.presses()), (Ended::BySupervisor, Duration::ZERO, 0));
    }

    /// HOST-7: the VMM ends before it answers the press; the machine's process says that it worked.
    #[tokio::test(start_paused = true)]
    async fn host_7_a_vmm_that_ends_before_it_answers_has_ended_the_machine() {
        assert_eq!(stop(false, false, Button::DiesUnanswered, 10).await, (Ended::ByButton, 1, 1000));
    }
}

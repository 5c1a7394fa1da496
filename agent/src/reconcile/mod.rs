//! Makes the host what the newest accepted spec says.
//!
//! In: specs from the session, and word of removed machines from their owners. Out: ports, owners told what is wanted, and
//! problems on the board. One task; the only one that accepts specs and changes the network.

pub mod adopt;
mod cuts;
pub mod diff;
pub mod network;
#[cfg(test)]
mod tests;
pub mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use shardplane_proto::{ids::InstanceId, v1};
use tokio::sync::{mpsc, watch};

use self::{
    diff::{Action, Existing, diff},
    network::network_part,
    wanted::{Wanted, check_order},
};
use crate::{
    boot_time::BootTime,
    contact::Heard,
    ledger::{Accepted, ProcessId, without_secrets},
    machine::{Desired, Machine, Shared},
};

/// How often everything is compared again when all is well.
const COMPARE_EVERY: Duration = Duration::from_secs(30);
/// And while something could not be done.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// A spec, and the session that it came in.
#[derive(Debug, Clone)]
pub struct Received {
    /// [`Heard::session`] when it came.
    pub session: u64,
    /// As it came.
    pub spec: Arc<v1::HostSpec>,
}

/// The reconciler of one host.
pub struct Reconciler {
    shared: Arc<Shared>,
    specs: watch::Receiver<Option<Received>>,
    removed: mpsc::Receiver<InstanceId>,
    machines: BTreeMap<InstanceId, Machine>,
    /// Process and volume gone, port perhaps not.
    portless: BTreeSet<InstanceId>,
    /// Specs of machines on their way out, for their ports.
    leaving: BTreeMap<InstanceId, v1::InstanceSpec>,
    wanted: Option<Wanted>,
    /// What an earlier life of the agent accepted last; its leases and fences hold until a spec comes.
    held: Option<Arc<v1::HostSpec>>,
    /// Instances whose ports shall be cut.
    cut: BTreeSet<InstanceId>,
    /// The network as it was last made, and when.
    network: Option<(v1::HostSpec, Instant)>,
    /// The session whose spec was accepted, until everybody was told what it says.
    confirming: Option<u64>,
    /// A spec that the ledger could not take yet.
    undecided: bool,
    /// Something could not be done and is tried again soon.
    unfinished: bool,
}

impl Reconciler {
    /// Takes over what was adopted: each gets an owner that only observes until a spec is confirmed.
    pub fn new(
        shared: Arc<Shared>,
        adopted: BTreeMap<InstanceId, Option<ProcessId>>,
        specs: watch::Receiver<Option<Received>>,
        removed: mpsc::Receiver<InstanceId>,
    ) -> std::io::Result<Self> {
        let held = shared.ledger.contents().accepted.map(|accepted| Arc::new(accepted.spec));
        let mut machines = BTreeMap::new();
        for (id, running) in adopted {
            // What was fenced in an earlier life is so in this one.
            let fenced = held.as_ref().is_some_and(|spec| cuts::is_fenced(spec, id));
            let desired = if fenced { Desired::Fence { port_cut: false } } else { Desired::Observe };
            machines.insert(id, Machine::own(id, Arc::clone(&shared), desired, running)?);
        }
        let cut = cuts::remember(&shared);
        Ok(Self {
            shared,
            specs,
            removed,
            machines,
            portless: BTreeSet::new(),
            leaving: BTreeMap::new(),
            wanted: None,
            held,
            cut,
            network: None,
            confirming: None,
            undecided: false,
            unfinished: false,
        })
    }

    /// Until the session's end of the channel is dropped.
    pub async fn run(mut self) {
        self.review_cuts();
        self.cut_before_the_first_spec().await;
        let mut compared = Instant::now();
        loop {
            let pause = if self.unfinished || self.undecided { RETRY_EVERY } else { COMPARE_EVERY };
            tokio::select! {
                changed = self.specs.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.take_spec().await;
                }
                Some(id) = self.removed.recv() => {
                    self.machines.remove(&id);
                    self.leaving.remove(&id);
                    self.portless.insert(id);
                }
                () = tokio::time::sleep_until((compared + pause).into()) => {
                    if self.undecided {
                        self.take_spec().await;
                    }
                }
                () = tokio::time::sleep(cuts::LOOK_EVERY) => {
                    self.note_contact();
                    if !self.review_cuts() {
                        continue;
                    }
                    self.cut_before_the_first_spec().await;
                }
            }
            self.review_cuts();
            self.apply().await;
            compared = Instant::now();
        }
    }

    /// Accepts the newest spec, or says why not. What was accepted before stays in force.
    async fn take_spec(&mut self) {
        let Some(Received { session, spec }) = self.specs.borrow_and_update().clone() else { return };
        self.undecided = false;
        let board = &self.shared.board;
        let held = self.shared.ledger.contents().accepted;
        let read = check_order(&spec, held.as_ref())
            .and_then(|()| Wanted::read(Arc::clone(&spec), self.shared.network.mtu()));
        let wanted = match read {
            Ok(wanted) => wanted,
            Err(refusal) => return board.set_problem("spec", Some(refusal.to_string())),
        };
        board.set_problem("spec", None);
        let accepted =
            Accepted { term: spec.term, generation: spec.generation, spec: without_secrets(&spec) };
        let written = self.shared.ledger.change(move |contents| contents.accepted = Some(accepted)).await;
        board.set_problem("ledger", written.as_ref().err().map(ToString::to_string));
        if written.is_err() {
            self.undecided = true;
            return;
        }
        // Before the host says that it has accepted the spec: what was proved under an earlier one counts no longer.
        for (id, machine) in self.machines.iter().filter(|(id, _)| cuts::is_fenced(&spec, **id)) {
            if machine.fence() {
                board.set_fenced(*id, false);
            }
        }
        board.set_accepted(spec.generation);
        board.keep_outcomes(&wanted.tasks);
        self.confirming = Some(session);
        if let Some(before) = self.wanted.replace(wanted) {
            for (id, assignment) in &before.instances {
                if self.machines.contains_key(id) {
                    self.leaving.insert(*id, assignment.spec.clone());
                }
            }
        } else if let Some(held) = held {
            // The first spec of this life: what the last life had is known from the ledger.
            let known =
                held.spec.instances.into_iter().filter_map(|one| Some((one.instance_id.parse().ok()?, one)));
            self.leaving.extend(known.filter(|(id, _)| self.machines.contains_key(id)));
        }
        if let Some(wanted) = &self.wanted {
            self.leaving.retain(|id, _| !wanted.instances.contains_key(id));
        }
    }

    async fn apply(&mut self) {
        let Some(wanted) = self.wanted.clone() else { return };
        let ids: BTreeSet<_> = wanted.instances.keys().copied().collect();
        // Before the network, which can take long: what is to end must not run on, or start, meanwhile.
        let (retired, _) = self.actions(&ids, false);
        for action in retired.into_iter().filter(|action| matches!(action, Action::Retire(_))) {
            self.perform(action, &wanted, None).await;
        }
        let network = self.ensure_network(&wanted.spec).await;
        self.shared.board.set_problem("network", network.as_ref().err().cloned());
        self.unfinished = network.is_err();
        let blocked = network.as_ref().err().map(|why| format!("its port could not be made: {why}"));
        let (known, new) = self.actions(&ids, network.is_ok());
        for action in known {
            self.perform(action, &wanted, blocked.as_deref()).await;
        }
        // Only now, when no owner can start from what an earlier session wanted.
        if let Some(session) = self.confirming.take() {
            self.shared.contact.confirm(session);
        }
        for action in new {
            self.perform(action, &wanted, blocked.as_deref()).await;
        }
    }

    /// What to do: for what is here, and what to make anew.
    fn actions(&self, ids: &BTreeSet<InstanceId>, network_is_current: bool) -> (Vec<Action>, Vec<Action>) {
        let heard = self.shared.contact.now();
        let confirmed = heard.confirmed || self.confirming == Some(heard.session);
        let heard = Heard { confirmed, ..heard };
        let actions = diff(ids, &self.existing(), network_is_current, heard, BootTime::now());
        actions.into_iter().partition(|action| !matches!(action, Action::Create(_)))
    }

    fn existing(&self) -> BTreeMap<InstanceId, Existing> {
        let owned = self.machines.iter().map(|(id, machine)| {
            (*id, if machine.is_retiring() { Existing::Leaving } else { Existing::Owned })
        });
        let removed = self.portless.iter().map(|id| (*id, Existing::Removed));
        removed.chain(owned).collect()
    }

    async fn perform(&mut self, action: Action, wanted: &Wanted, blocked: Option<&str>) {
        let run = |id| {
            let assignment = wanted.instances.get(id).map(Arc::clone)?;
            if assignment.spec.fenced {
                return Some(Desired::Fence { port_cut: blocked.is_none() });
            }
            Some(Desired::Run { assignment, blocked: blocked.map(ToOwned::to_owned) })
        };
        match action {
            Action::Create(id) => {
                let Some(desired) = run(&id) else { return };
                self.portless.remove(&id);
                match Machine::own(id, Arc::clone(&self.shared), desired, None) {
                    Ok(machine) => {
                        self.machines.insert(id, machine);
                        self.shared.board.set_problem("machine", None);
                    }
                    Err(error) => {
                        let text = format!("cannot prepare the folder of {id} in the run directory: {error}");
                        self.shared.board.set_machine(id, v1::MachineState::Preparing, &text, 0);
                        self.shared.board.set_problem("machine", Some(text));
                        self.unfinished = true;
                    }
                }
            }
            Action::Update(id) => {
                if let (Some(machine), Some(desired)) = (self.machines.get(&id), run(&id)) {
                    machine.want(desired);
                }
            }
            Action::Retire(id) => {
                tracing::info!(instance = %id, "no longer in the spec: it is stopped and removed");
                if let Some(machine) = self.machines.get(&id) {
                    machine.want(Desired::Retire);
                }
            }
            Action::Forget(id) => {
                let forgotten =
                    self.shared.ledger.change(move |contents| drop(contents.machines.remove(&id))).await;
                self.shared.board.set_problem("ledger", forgotten.as_ref().err().map(ToString::to_string));
                match forgotten {
                    Ok(()) => {
                        tracing::info!(instance = %id, "gone: no process, no volume, no port");
                        self.portless.remove(&id);
                        self.shared.board.set_gone(id);
                    }
                    Err(_) => self.unfinished = true,
                }
            }
            Action::Nothing(id, reason) => {
                tracing::debug!(instance = %id, ?reason, "nothing to do");
                self.unfinished |= matches!(reason, diff::Reason::MayNotStart(_));
            }
        }
    }

    /// Only when it changed, or was made long ago: a change of configuration must not wait for the kernel.
    async fn ensure_network(&mut self, spec: &v1::HostSpec) -> Result<(), String> {
        let leaving = self.leaving.iter().filter(|(id, _)| self.machines.contains_key(id));
        let mut part = network_part(spec, leaving.map(|(_, spec)| spec));
        cuts::mark(&mut part, &self.cut);
        if self.network.as_ref().is_some_and(|(made, at)| *made == part && at.elapsed() < COMPARE_EVERY) {
            return Ok(());
        }
        self.network = None;
        self.shared.network.ensure(&part).await?;
        for id in self.machines.keys() {
            self.shared.board.set_port_cut(*id, self.cut.contains(id));
        }
        self.network = Some((part, Instant::now()));
        Ok(())
    }
}

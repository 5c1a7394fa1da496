//! Proofs that fenced members cannot serve. In: what hosts say, when they were last granted something, an operator's word. Out: a proof for
//! each, or what is missing and what people can do about it. Used by takeovers.

use shardplane_proto::ids::Generation;

use super::{cluster::Turn, listed};
use crate::{
    command::{Decision, Proof, Proven},
    engine::Member,
    state::{Fence, State, lease_ends_after},
    time::Millis,
};

/// Proof that does not come for longer than this beyond the lease is an event.
const PROOF_LATE: Millis = Millis::seconds(60);

/// The desired state on which its host says that it is stopped, if it does.
pub(crate) fn stopped(old: &Member<'_>, fence: &Fence) -> Option<Generation> {
    let accepted = old.host_report.map(|report| report.accepted).unwrap_or_default();
    let says = old.fresh && old.report.is_some_and(|report| report.fenced);
    (says && accepted >= fence.generation).then_some(accepted)
}

/// The longest lease that a host may go by.
fn longest_lease(state: &State) -> Millis {
    state.longest_lease.max(state.settings.lease)
}

impl Turn<'_, '_, '_> {
    /// The proof that this member cannot serve, or what is missing.
    fn proof(&self, old: &Member<'_>, fence: &Fence) -> Result<Proof, String> {
        let id = old.instance.id;
        let name = old.host.map_or_else(|| old.instance.host.to_string(), |host| host.facts.name.clone());
        if old.host.is_none_or(|host| host.retired) && !old.heard {
            return Ok(Proof::HostRetired);
        }
        if old.heard {
            if let Some(generation) = stopped(old, fence) {
                return Ok(Proof::Stopped { generation });
            }
            let said = old.report.map(|report| report.message.as_str()).filter(|text| !text.is_empty());
            let said = said.map(|text| format!(" ({text})")).unwrap_or_default();
            return Err(format!(
                "host {name} has not said yet that it stopped instance {id}{said}; if it does not come to that, power the host off"
            ));
        }
        let granted = old
            .host_report
            .map_or(self.view.listens_since, |report| report.granted.max(self.view.listens_since));
        let lease = longest_lease(self.state);
        let (silent, over) = (self.view.now.since(granted), lease_ends_after(lease));
        if silent > over {
            return Ok(Proof::LeaseExpired { last_granted: granted, lease });
        }
        Err(format!(
            "the lease of host {name}, which runs instance {id}, is over {}; to be quicker, bring the host back, or power it off and `kc delete host {name}`",
            granted.plus(over)
        ))
    }

    /// A proof for each fenced member; none while one is missing, and people are told which.
    pub(super) fn proofs(&mut self, fenced: &[(&Member<'_>, &Fence)]) -> Option<Vec<Proven>> {
        let mut proofs = Vec::new();
        let mut missing = Vec::new();
        for (old, fence) in fenced {
            match self.proof(old, fence) {
                Ok(proof) => proofs.push(Proven { instance: old.instance.id, proof }),
                Err(why) => missing.push((old.instance.id, *fence, why)),
            }
        }
        if missing.is_empty() {
            return Some(proofs);
        }
        let late = Millis(lease_ends_after(longest_lease(self.state)).0 + PROOF_LATE.0);
        let mut untold = Vec::new();
        for (id, fence, why) in &missing {
            self.plan.wait(self.id, format!("a takeover waits for proof: {why}"));
            if fence.told.is_none() {
                if self.view.now.since(fence.since) > late {
                    untold.push(*id);
                } else {
                    self.plan.again_after(fence.since, Millis(late.0 + 1));
                }
            }
        }
        self.plan.again_after(self.view.now, Millis::seconds(1));
        if !untold.is_empty() {
            let whys: Vec<&str> = missing.iter().map(|(_, _, why)| why.as_str()).collect();
            let message = format!("a takeover waits for proof: {}", listed(&whys));
            self.plan.propose.push(Decision::AwaitProof { cluster: self.id, instances: untold, message });
        }
        None
    }
}

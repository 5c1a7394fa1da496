//! Applying fences and takeovers. In: the planner's decisions. Out: members that must not serve, and the one promoted in their place;
//! `Outdated` when a proof is missing or does not hold by the log.

use shardplane_proto::ids::{ClusterId, Generation, GroupId, InstanceId, OperationId};

use super::Step;
use crate::{
    command::{Applied, NewOperation, NewTask, Proof, Proven},
    engine::Fact,
    refusal::Refusal,
    state::{Fence, Instance, OperationKind, OperationState, Presence, Severity, State, lease_ends_after},
};

fn fact(instance: &Instance) -> Option<&Fact> {
    instance.fact.as_ref().map(|(_, fact)| fact)
}

fn claims(instance: &Instance) -> bool {
    fact(instance).is_some_and(Fact::claims_primary)
}

/// Wanted members of the cluster that are fenced.
fn fenced(state: &State, cluster: ClusterId) -> impl Iterator<Item = (&Instance, &Fence)> {
    let members = state.instances_of(cluster).filter(|instance| instance.wanted());
    members.filter_map(|instance| Some((instance, instance.fence.as_ref()?)))
}

/// Whether `new` leads in the place of `old`, which is fenced: by a higher epoch; because it was chosen to and does by now; or because the
/// old one was elected out of sight while others were promoted. The epoch alone does not tell: the old one may have raised its own
/// where nobody saw it.
pub(crate) fn succeeds(new: &Instance, old: &Instance, fence: &Fence) -> bool {
    let Some(theirs) = fact(new) else { return false };
    let newer = fence.heir == Some(new.id)
        || fence.elected_unseen()
        || fact(old).is_some_and(|olds| theirs.outranks(olds));
    newer && theirs.claims_primary() && new.wanted() && new.fence.is_none() && new.id != old.id
}

/// The shard whose takeover has to end before `heir` may take over `group`: whoever was chosen before may have been promoted, and leads
/// by now with a higher epoch, or is fenced, too.
pub(crate) fn under_way(
    state: &State,
    cluster: ClusterId,
    group: GroupId,
    heir: InstanceId,
) -> Option<GroupId> {
    let pending = |(old, fence): &(&Instance, &Fence)| {
        let before = fence.heir.filter(|before| *before != heir).and_then(|id| state.instances.get(&id));
        let settled = |before: &Instance| before.group != group && succeeds(before, old, fence);
        before.is_some_and(|before| before.wanted() && before.fence.is_none() && !settled(before))
    };
    fenced(state, cluster).find(pending).map(|(old, _)| old.group)
}

impl Step<'_> {
    pub(super) fn fence(
        &mut self,
        cluster: ClusterId,
        instances: &[InstanceId],
        away: &[InstanceId],
        operation: &NewOperation,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        for id in instances {
            let member = self.state.instances.get(id).filter(|i| i.wanted() && i.cluster == cluster);
            let member =
                member.ok_or_else(|| Refusal::outdated(format!("instance {id} is not wanted any more")))?;
            // Whoever is out of sight is fenced in any case: a majority may be there.
            if !away.contains(id) && claims(member) && self.heirs_of(member).next().is_none() {
                return Err(Refusal::outdated(format!("nobody could take the place of instance {id}")));
            }
        }
        let mut changed = false;
        match self.state.operations.get(&operation.id) {
            None => {
                changed = true;
                self.begin(cluster, operation);
                let message = operation.cause.clone();
                self.event(Severity::Warning, "MajorityLost", format!("cluster/{cluster}"), message);
            }
            Some(begun) if begun.state == OperationState::Running => {}
            Some(_) => {
                return Err(Refusal::outdated(format!("operation {} has ended", operation.id)));
            }
        }
        let (since, generation) = (self.state.now, Generation(self.index));
        let passed = fenced(self.state, cluster).any(|(_, fence)| fence.passed);
        for id in instances {
            let Some(instance) = self.state.instances.get_mut(id).filter(|i| i.fence.is_none()) else {
                continue;
            };
            let led = claims(instance);
            let operation = operation.id;
            let away = away.contains(id);
            let fence = Fence { since, generation, operation, away, led, heir: None, passed, told: None };
            instance.fence = Some(fence);
            let (host, group) = (instance.host, instance.group);
            self.touched.insert(host);
            changed = true;
            let message = format!(
                "instance {id} of shard {group} is fenced: it does not answer, and must not serve when another takes over"
            );
            self.event(Severity::Warning, "Fenced", format!("cluster/{cluster}"), message);
        }
        Ok(if changed { Applied::Changed } else { Applied::Unchanged })
    }

    /// Who could take the place of this primary, as far as the log knows.
    fn heirs_of<'s>(&'s self, old: &'s Instance) -> impl Iterator<Item = &'s Instance> {
        self.state.instances_of(old.cluster).filter(|other| {
            let follows = fact(other).zip(fact(old)).is_some_and(|(theirs, olds)| theirs.follows(olds));
            follows && other.group == old.group && self.may_take_over(other)
        })
    }

    fn may_take_over(&self, heir: &Instance) -> bool {
        let host = self.state.hosts.get(&heir.host);
        heir.wanted() && heir.fence.is_none() && host.is_some_and(|host| host.presence == Presence::Present)
    }

    pub(super) fn take_over(
        &mut self,
        cluster: ClusterId,
        group: GroupId,
        heir: InstanceId,
        proofs: &[Proven],
        operation: OperationId,
        task: &NewTask,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let outdated = |why: String| Err(Refusal::outdated(why));
        let begun = self.state.operations.get(&operation);
        if !begun.is_some_and(|o| o.kind == OperationKind::Takeover && o.state == OperationState::Running) {
            return outdated(format!("operation {operation} has ended"));
        }
        let Some(chosen) = self.state.instances.get(&heir).filter(|i| {
            i.cluster == cluster && i.group == group && self.may_take_over(i) && task.instance == heir
        }) else {
            return outdated(format!("instance {heir} cannot take over shard {group}"));
        };
        let mut follows = false;
        let mut latest: Option<&Instance> = None;
        let outranks = |one: &Instance, other: &Instance| {
            fact(one).zip(fact(other)).is_some_and(|(one, other)| one.outranks(other))
        };
        for (old, fence) in fenced(self.state, cluster) {
            let proven = proofs.iter().find(|proven| proven.instance == old.id);
            if !proven.is_some_and(|proven| self.holds(old, fence, proven.proof)) {
                return outdated(format!("it is not proved that instance {} cannot serve", old.id));
            }
            if old.group == group {
                follows |= fact(chosen).zip(fact(old)).is_some_and(|(new, old)| new.follows(old));
                if claims(old) && latest.is_none_or(|latest| outranks(old, latest)) {
                    latest = Some(old);
                }
            }
        }
        // Of those that led and are fenced, the one that led last has what was confirmed since.
        let stale = |latest: &Instance| {
            let comes_back = self.state.hosts.get(&latest.host).is_some_and(|host| !host.retired);
            let follows = fact(chosen).zip(fact(latest)).is_some_and(|(new, latest)| new.follows(latest));
            comes_back && !follows
        };
        if let Some(latest) = latest.filter(|latest| stale(latest)) {
            return outdated(format!("instance {heir} lacks what instance {} has taken", latest.id));
        }
        if let Some(other) = under_way(self.state, cluster, group, heir) {
            return outdated(format!("a takeover of shard {other} is under way"));
        }
        if !follows {
            return outdated(format!("instance {heir} follows nobody of shard {group} that is fenced"));
        }
        let ids: Vec<InstanceId> = fenced(self.state, cluster).map(|(old, _)| old.id).collect();
        for id in ids {
            if let Some(instance) = self.state.instances.get_mut(&id)
                && let Some(fence) = instance.fence.as_mut()
            {
                fence.passed = true;
                if instance.group == group {
                    fence.heir = Some(heir);
                }
            }
        }
        self.start_tasks(cluster, operation, None, std::slice::from_ref(task))?;
        let evidence: Vec<String> = proofs.iter().map(ToString::to_string).collect();
        let message =
            format!("instance {heir} takes over shard {group} without a vote: {}", evidence.join("; "));
        if let Some(operation) = self.state.operations.get_mut(&operation) {
            operation.note(message.clone());
        }
        self.event(Severity::Warning, "TakenOver", format!("cluster/{cluster}"), message);
        Ok(Applied::Changed)
    }

    /// Whether a proof holds, as far as the log can tell.
    fn holds(&self, old: &Instance, fence: &Fence, proof: Proof) -> bool {
        match proof {
            Proof::Stopped { generation } => generation >= fence.generation,
            Proof::LeaseExpired { last_granted, lease } => {
                let longest = self.state.longest_lease.max(self.state.settings.lease);
                lease >= longest && self.state.now.since(last_granted) > lease_ends_after(lease)
            }
            Proof::HostRetired => self.state.hosts.get(&old.host).is_none_or(|host| host.retired),
        }
    }

    pub(super) fn unfence(
        &mut self,
        cluster: ClusterId,
        instances: &[InstanceId],
        cause: &str,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let released: Vec<(InstanceId, Fence)> = fenced(self.state, cluster)
            .filter(|(old, _)| instances.contains(&old.id))
            .map(|(old, fence)| (old.id, fence.clone()))
            .collect();
        let mut successors = Vec::new();
        for (id, fence) in &released {
            let Some(old) = self.state.instances.get(id) else { continue };
            let successor = self
                .state
                .instances_of(cluster)
                .find(|other| other.group == old.group && succeeds(other, old, fence))
                .map(|other| other.id);
            successors.push((*id, successor.filter(|_| claims(old))));
            // One that followed may have been elected where nobody saw it, and yields to its successor. The last one that was chosen
            // has what was taken since, if anybody has: whoever else led its shard is fenced.
            let chosen = fenced(self.state, cluster)
                .any(|(other, fence)| other.id != *id && other.group == old.group && fence.heir == Some(*id));
            let unseen = fence.passed && !claims(old) && !chosen;
            if unseen || (fence.heir.is_some() && successor.is_none()) {
                return Err(Refusal::outdated(format!("instance {id} may not serve yet")));
            }
        }
        for (id, successor) in successors {
            let Some(instance) = self.state.instances.get_mut(&id) else { continue };
            instance.fence = None;
            instance.succeeded_by = successor.map(|successor| (successor, Generation(self.index)));
            if successor.is_some() {
                instance.config_generation = Generation(self.index);
            }
            let (host, group) = (instance.host, instance.group);
            self.touched.insert(host);
            let message = format!("instance {id} of shard {group} may serve again: {cause}");
            self.event(Severity::Normal, "Unfenced", format!("cluster/{cluster}"), message);
        }
        Ok(if released.is_empty() { Applied::Unchanged } else { Applied::Changed })
    }

    pub(super) fn await_proof(
        &mut self,
        cluster: ClusterId,
        instances: &[InstanceId],
        message: &str,
    ) -> Result<Applied, Refusal> {
        let now = self.state.now;
        let mut told = false;
        for id in instances {
            let instance = self.state.instances.get_mut(id);
            if let Some(fence) = instance.and_then(|instance| instance.fence.as_mut())
                && fence.told.is_none()
            {
                fence.told = Some(now);
                told = true;
            }
        }
        if !told {
            return Ok(Applied::Unchanged);
        }
        self.event(Severity::Warning, "WaitsForProof", format!("cluster/{cluster}"), message.to_owned());
        Ok(Applied::Changed)
    }
}

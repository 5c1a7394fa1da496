//! Applying the planner's decisions: the rules are checked again here, where all members agree on the state. In: a decision.
//! Out: the change, or `Outdated` and nothing changed.

use std::collections::BTreeSet;

use shardplane_proto::ids::{ClusterId, HostId, InstanceId, RequestId, ResourceId};

use super::Step;
use crate::{
    command::{Applied, Decision, NewOperation, NewTask, ReplaceCause, Replaced, Reservation},
    engine::{Class, ClusterSpec},
    refusal::Refusal,
    resource::{ChangeKind, Outcome},
    state::{Footprint, Host, OperationKind, OperationState, Presence, Severity, State, Task, TaskState},
};

impl Step<'_> {
    pub(super) fn decide(&mut self, decision: &Decision) -> Result<Applied, Refusal> {
        match decision {
            Decision::Place { cluster, reservations, retire, operation } => {
                self.place(*cluster, reservations, retire, operation)
            }
            Decision::AwaitPlace { cluster, request, operation, why } => {
                self.await_place(*cluster, *request, operation, why)
            }
            Decision::Retire { cluster, instances, cause } => {
                self.known(*cluster)?;
                self.not_the_last(*cluster, instances)?;
                self.not_a_primary(*cluster, instances)?;
                self.stand_down(*cluster, instances)?;
                self.retire(*cluster, instances, cause);
                Ok(Applied::Changed)
            }
            Decision::Reshard { cluster, request, layout, operation } => {
                self.reshard(*cluster, *request, layout, operation)
            }
            Decision::HaltReshard { cluster, operation, error } => {
                self.halt_reshard(*cluster, *operation, error)
            }
            Decision::Resharded { cluster, operation } => self.resharded(*cluster, *operation),
            Decision::RolesInForce { cluster, revision, refused } => {
                self.roles_in_force(*cluster, *revision, refused)
            }
            Decision::Dissolve { cluster, group } => self.dissolve(*cluster, *group),
            Decision::Shrink { cluster, instances, operation } => self.shrink(*cluster, instances, operation),
            Decision::LiftCordon { host } => self.lift_cordon(*host),
            Decision::RemindCordon { host } => self.remind_cordon(*host),
            Decision::Drained { host } => self.drained(*host),
            Decision::StartTasks { cluster, operation, new_operation, tasks } => {
                self.known(*cluster)?;
                self.start_tasks(*cluster, *operation, new_operation.as_ref(), tasks)
            }
            Decision::Roll { cluster, instance, revision, operation, new_operation } => {
                self.roll(*cluster, *instance, *revision, *operation, new_operation.as_ref())
            }
            Decision::Rolled { cluster, instance } => self.rolled(*cluster, *instance),
            Decision::HaltRollout { cluster, revision, why } => self.halt_rollout(*cluster, *revision, why),
            Decision::DropTasks { tasks } => {
                let changed = tasks
                    .iter()
                    .filter(|t| self.end_task(**t, TaskState::Superseded) == Applied::Changed)
                    .count();
                Ok(if changed > 0 { Applied::Changed } else { Applied::Unchanged })
            }
            Decision::Formed { cluster } => self.formed(*cluster),
            Decision::Satisfied { cluster, request } => self.satisfied(*cluster, *request),
            Decision::Fail { cluster, request, message } => self.fail(*cluster, *request, message),
            Decision::Remove { cluster } => self.remove(*cluster),
            Decision::DeclareLost { host, message } => {
                let now = self.state.now;
                let Some(host) =
                    self.state.hosts.get_mut(host).filter(|host| host.presence == Presence::Present)
                else {
                    return Err(Refusal::outdated(format!("host {host} is not there to be lost")));
                };
                host.presence = Presence::Lost { since: now };
                let subject = format!("host/{}", host.id);
                self.event(Severity::Warning, "HostLost", subject, message.clone());
                Ok(Applied::Changed)
            }
            Decision::HostFound { host } => self.host_found(*host),
            Decision::Fence { cluster, instances, away, operation } => {
                self.fence(*cluster, instances, away, operation)
            }
            Decision::Takeover { cluster, group, heir, proofs, operation, task } => {
                self.take_over(*cluster, *group, *heir, proofs, *operation, task)
            }
            Decision::Unfence { cluster, instances, cause } => self.unfence(*cluster, instances, cause),
            Decision::AwaitProof { cluster, instances, message } => {
                self.await_proof(*cluster, instances, message)
            }
            Decision::EndOperation { operation, error } => {
                let now = self.state.now;
                let running =
                    self.state.operations.get_mut(operation).filter(|o| o.state == OperationState::Running);
                let Some(operation) = running else { return Ok(Applied::Unchanged) };
                if operation.kind == OperationKind::Reshard {
                    return Err(Refusal::outdated("the moving of slots ends with its change".to_owned()));
                }
                operation.state = match error {
                    None => OperationState::Succeeded,
                    Some(error) => OperationState::Failed { error: error.clone() },
                };
                operation.ended = Some(now);
                Ok(Applied::Changed)
            }
        }
    }

    fn host_found(&mut self, id: HostId) -> Result<Applied, Refusal> {
        let lost = |host: &&mut Host| host.presence != Presence::Present;
        let Some(host) = self.state.hosts.get_mut(&id).filter(lost) else { return Ok(Applied::Unchanged) };
        host.presence = Presence::Present;
        host.retired = false;
        let message = format!("host {} is heard again", host.facts.name);
        self.disturb();
        self.event(Severity::Normal, "HostBack", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    /// The spec of a cluster that is not being deleted.
    pub(super) fn known(&self, cluster: ClusterId) -> Result<ClusterSpec, Refusal> {
        let resource = self.state.resources.get(&ResourceId::from(cluster));
        match resource {
            Some(resource) if !resource.deleting() => resource.cluster_spec().cloned(),
            Some(_) | None => None,
        }
        .ok_or_else(|| Refusal::outdated(format!("cluster {cluster} is gone or being deleted")))
    }

    fn place(
        &mut self,
        cluster: ClusterId,
        reservations: &[Reservation],
        retire: &[Replaced],
        operation: &NewOperation,
    ) -> Result<Applied, Refusal> {
        let spec = self.known(cluster)?;
        let growing = self.state.growing(cluster).map(|growing| growing.id);
        if growing != Some(operation.id) && self.state.operations.contains_key(&operation.id) {
            return Err(Refusal::outdated(format!("operation {} was begun before", operation.id)));
        }
        let before = self.state.clone();
        if let Err(refusal) = self.try_place(cluster, &spec, reservations, retire) {
            *self.state = before;
            return Err(refusal);
        }
        if growing != Some(operation.id) {
            self.begin(cluster, operation);
        }
        for replaced in retire.iter().filter(|replaced| replaced.cause == ReplaceCause::CannotRun) {
            self.note_move(cluster);
            self.note_bad_host(cluster, replaced.instance);
        }
        if operation.kind != OperationKind::Move {
            self.disturb_cluster(cluster);
        }
        self.touch_cluster(cluster);
        for Reservation { instance, .. } in reservations {
            let message =
                format!("instance {} of shard {} placed: {}", instance.id, instance.group, operation.cause);
            self.event(Severity::Normal, "Placed", format!("cluster/{cluster}"), message);
        }
        Ok(Applied::Changed)
    }

    fn try_place(
        &mut self,
        cluster: ClusterId,
        spec: &ClusterSpec,
        reservations: &[Reservation],
        retire: &[Replaced],
    ) -> Result<(), Refusal> {
        if self.state.clusters.get(&cluster).is_some_and(|cluster| cluster.formed) {
            let leaving: Vec<InstanceId> = retire.iter().map(|replaced| replaced.instance).collect();
            self.not_the_last(cluster, &leaving)?;
            self.not_a_primary(cluster, &leaving)?;
        }
        for Replaced { instance, cause } in retire {
            let host = self.state.instances.get(instance).and_then(|i| self.state.hosts.get(&i.host));
            let why = match cause {
                ReplaceCause::HostLost if host.is_some_and(|host| host.presence == Presence::Present) => {
                    return Err(Refusal::outdated(format!("the host of instance {instance} is back")));
                }
                ReplaceCause::HostLost => "its host was lost",
                ReplaceCause::CannotRun => "its host could not run it",
            };
            self.retire(cluster, &[*instance], why);
        }
        for reservation in reservations {
            let instance = &reservation.instance;
            let groups =
                self.state.clusters.get(&cluster).map(|cluster| cluster.groups(spec)).unwrap_or_default();
            let group = groups.into_iter().find(|g| g.id == instance.group);
            let class = group.as_ref().map_or(Class::Data, |group| group.class);
            fits(self.state, cluster, reservation, class)?;
            let mut members: BTreeSet<InstanceId> = self
                .state
                .instances_of(cluster)
                .filter(|i| i.group == instance.group && i.wanted())
                .map(|i| i.id)
                .collect();
            members.insert(instance.id);
            // One that is being replaced does not count: it goes when the new one is in sync.
            let replaced: Vec<InstanceId> = self
                .state
                .instances_of(cluster)
                .filter(|i| members.contains(&i.id))
                .filter_map(|i| i.replaces)
                .chain(instance.replaces)
                .collect();
            members.retain(|id| !replaced.contains(id));
            let room = group.map_or(0, |g| usize::try_from(g.members).unwrap_or(usize::MAX));
            if members.len() > room {
                return Err(Refusal::outdated(format!(
                    "shard {} has its {room} members already",
                    instance.group
                )));
            }
            let parameters = self.parameters_for_new(cluster);
            let instance = crate::state::Instance { parameters, ..instance.clone() };
            self.state.instances.insert(instance.id, instance.clone());
            if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
                cluster.instances.push(instance.id);
            }
        }
        Ok(())
    }

    /// The operation runs, or begins now.
    pub(super) fn ensure_operation(
        &mut self,
        cluster: ClusterId,
        operation: shardplane_proto::ids::OperationId,
        new: Option<&NewOperation>,
    ) -> Result<(), Refusal> {
        let running =
            |s: &State| s.operations.get(&operation).is_some_and(|o| o.state == OperationState::Running);
        if !running(self.state) {
            // One that has ended does not begin again: its steps were for a state that is over.
            let Some(new) = new.filter(|new| !self.state.operations.contains_key(&new.id)) else {
                return Err(Refusal::outdated(format!("operation {operation} has ended")));
            };
            self.begin(cluster, new);
        }
        Ok(())
    }

    pub(super) fn start_tasks(
        &mut self,
        cluster: ClusterId,
        operation: shardplane_proto::ids::OperationId,
        new: Option<&NewOperation>,
        tasks: &[NewTask],
    ) -> Result<Applied, Refusal> {
        self.ensure_operation(cluster, operation, new)?;
        let mut started = false;
        for new in tasks {
            let performer =
                self.state.instances.get(&new.instance).filter(|i| i.wanted() && i.cluster == cluster);
            let Some(host) = performer.map(|i| i.host) else { continue };
            let same = |task: &Task| task.instance == new.instance && task.payload == new.payload;
            if self.state.tasks.contains_key(&new.id) || self.state.running_tasks(cluster).any(same) {
                continue;
            }
            // What a former leader planned must not run beside what this one did.
            let engine = self.state.clusters.get(&cluster).map(|cluster| cluster.engine);
            let excluded = |task: &Task| {
                engine.is_some_and(|engine| engine.exclude_each_other(&task.payload, &new.payload))
            };
            if self.state.running_tasks(cluster).any(excluded) {
                continue;
            }
            let task = Task {
                id: new.id,
                operation,
                cluster,
                instance: new.instance,
                name: new.name.clone(),
                payload: new.payload.clone(),
                state: TaskState::Running,
                created: self.state.now,
                ended: None,
            };
            self.state.tasks.insert(new.id, task);
            if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
                cluster.tasks.push(new.id);
            }
            if let Some(operation) = self.state.operations.get_mut(&operation) {
                operation.tasks.push(new.id);
            }
            self.touched.insert(host);
            started = true;
        }
        Ok(if started { Applied::Changed } else { Applied::Unchanged })
    }

    fn formed(&mut self, id: ClusterId) -> Result<Applied, Refusal> {
        self.known(id)?;
        let Some(cluster) = self.state.clusters.get_mut(&id).filter(|cluster| !cluster.formed) else {
            return Ok(Applied::Unchanged);
        };
        cluster.formed = true;
        let (tells_members, serves) = (cluster.engine.tells_members(), cluster.engine.serves_text());
        if tells_members {
            self.touch_cluster(id);
        }
        self.event(Severity::Normal, "Formed", format!("cluster/{id}"), serves.to_owned());
        Ok(Applied::Changed)
    }

    /// A change that was accepted after the planner looked is not answered with what was true of the one before.
    pub(super) fn answers(&self, cluster: ClusterId, request: RequestId) -> Result<(), Refusal> {
        let resource = self.state.resources.get(&ResourceId::from(cluster));
        match resource.map(|resource| &resource.change) {
            Some(change) if change.request == request && change.outcome == Outcome::InFlight => Ok(()),
            Some(_) | None => Err(Refusal::outdated(format!(
                "change {request} of cluster {cluster} is not in flight any more"
            ))),
        }
    }

    fn satisfied(&mut self, id: ClusterId, request: RequestId) -> Result<Applied, Refusal> {
        self.known(id)?;
        self.answers(id, request)?;
        let Some(cluster) = self.state.clusters.get_mut(&id) else { return Ok(Applied::Unchanged) };
        if !cluster.leaving.is_empty() {
            return Err(Refusal::outdated(format!("a shard of cluster {id} that shall go is still there")));
        }
        cluster.formed = true;
        cluster.resized_from = None;
        self.settle(id.into(), &Outcome::Done);
        self.end_operations(id, None);
        self.event(
            Severity::Normal,
            "Stable",
            format!("cluster/{id}"),
            "the cluster is whole as its spec wants it".to_owned(),
        );
        Ok(Applied::Changed)
    }

    fn fail(&mut self, cluster: ClusterId, request: RequestId, message: &str) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        self.answers(cluster, request)?;
        let formed = self.state.clusters.get(&cluster).is_some_and(|c| c.formed);
        if !formed {
            let all: Vec<InstanceId> = self.state.instances_of(cluster).map(|i| i.id).collect();
            self.retire(cluster, &all, "the cluster could not be made");
        }
        self.settle(cluster.into(), &Outcome::Failed { message: message.to_owned() });
        self.end_operations(cluster, Some(message));
        self.event(Severity::Warning, "ChangeFailed", format!("cluster/{cluster}"), message.to_owned());
        Ok(Applied::Changed)
    }

    fn remove(&mut self, id: ClusterId) -> Result<Applied, Refusal> {
        let deleting = self
            .state
            .resources
            .get(&ResourceId::from(id))
            .is_some_and(|r| r.change.kind == ChangeKind::Delete);
        let lost = |state: &State, i: &crate::state::Instance| {
            state.hosts.get(&i.host).is_none_or(|host| host.presence != Presence::Present)
        };
        let left = self.state.instances_of(id).any(|i| !lost(self.state, i));
        if !deleting || left {
            return Err(Refusal::outdated(format!(
                "cluster {id} is not deleted, or not gone from every host yet"
            )));
        }
        self.settle(id.into(), &Outcome::Done);
        self.end_operations(id, None);
        // Instances on lost hosts stay known, so that nobody gets their address before their host has proved them gone.
        if let Some(cluster) = self.state.clusters.remove(&id) {
            self.forget_roles(&cluster.roles);
        }
        self.state.resources.remove(&ResourceId::from(id));
        self.event(
            Severity::Normal,
            "Deleted",
            format!("cluster/{id}"),
            "nothing of the cluster is left on any present host".to_owned(),
        );
        Ok(Applied::Changed)
    }
}

/// The hard rules for one reservation: host, capacity, address, and no more of its own group on the host than was accepted.
fn fits(state: &State, cluster: ClusterId, reservation: &Reservation, class: Class) -> Result<(), Refusal> {
    let instance = &reservation.instance;
    let refuse = |why: String| Err(Refusal::outdated(format!("instance {}: {why}", instance.id)));
    let host = state.hosts.get(&instance.host).filter(|host| host.presence == Presence::Present);
    let Some(host) = host else { return refuse(format!("host {} is not present", instance.host)) };
    if let Some(cordon) = &host.cordon {
        return refuse(format!("host {} is {cordon}", host.facts.name));
    }
    let short = state.promised(host.id).plus(instance.footprint).exceeds(host.facts.capacity);
    if !short.is_empty() {
        return refuse(format!("host {} is short of {}", host.facts.name, short.join(", ")));
    }
    if state.instances.contains_key(&instance.id) || instance.cluster != cluster {
        return refuse("its id is taken".to_owned());
    }
    let taken = state.instances.values().any(|i| i.subnet == instance.subnet && i.ipv4 == instance.ipv4);
    let resting = state.resting.get(&instance.subnet).is_some_and(|rest| rest.contains_key(&instance.ipv4));
    if taken || resting {
        return refuse(format!("address {} is not free", instance.ipv4));
    }
    let beside = state
        .instances_of(cluster)
        .filter(|i| i.wanted() && i.group == instance.group && i.host == instance.host)
        .count();
    if class == Class::Quorum && beside > 0 {
        return refuse(format!("host {} has another voter of its quorum", host.facts.name));
    }
    if beside > usize::try_from(reservation.own_group_on_host).unwrap_or(usize::MAX) {
        return refuse(format!("host {} holds more of its shard than was accepted", host.facts.name));
    }
    if instance.footprint == Footprint::default() {
        return refuse("it would be promised nothing".to_owned());
    }
    Ok(())
}

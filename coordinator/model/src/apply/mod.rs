//! Applying the log. In: entries in order. Out: the changed state and one answer a command. Called by every member alike, so
//! it reads no clock and uses no randomness. A command is judged by the state it meets, not by the one it was made for.

mod cordon;
mod decide;
pub(crate) mod fence;
mod forget;
mod grow;
mod leave;
mod notice;
mod operations;
pub(crate) mod parameters;
mod prune;
mod reshard;
mod roles;
mod shrink;
mod tokens;

use std::collections::BTreeSet;

use shardplane_proto::ids::{ClusterId, Generation, HostId, InstanceId, RequestId, ResourceId, TaskId};

use crate::{
    command::{Applied, Command, Delete, Entry, Put},
    refusal::Refusal,
    resource::{Change, ChangeKind, Outcome, Resource, Spec},
    state::{Cluster, Event, Intent, Request, Roles, Rollout, Settings, Severity, State, TaskState},
    validate,
};

/// One entry being applied: where the log stands, and which hosts must be told anew when it is done.
struct Step<'a> {
    state: &'a mut State,
    index: u64,
    touched: BTreeSet<HostId>,
}

impl State {
    /// Applies one entry of the log at `index`; one answer a command, in order.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Vec<Result<Applied, Refusal>> {
        self.now = self.now.max(entry.at);
        let mut step = Step { state: self, index, touched: BTreeSet::new() };
        let answers = entry.commands.iter().map(|command| step.command(command)).collect();
        let touched = std::mem::take(&mut step.touched);
        for host in touched {
            if let Some(host) = self.hosts.get_mut(&host) {
                host.generation = Generation(index);
            }
        }
        self.prune();
        answers
    }
}

impl Step<'_> {
    fn command(&mut self, command: &Command) -> Result<Applied, Refusal> {
        match command {
            Command::Put(put) => self.put(put),
            Command::Delete(delete) => self.delete(delete),
            Command::Decide(decision) => self.decide(decision),
            Command::Notice(notice) => Ok(self.notice(notice)),
            Command::ForgetHost(host) => self.forget_host(*host),
            Command::Cordon(cordon) => self.cordon(cordon),
            Command::Uncordon { host, by } => self.uncordon(*host, by),
            Command::CancelOperation { operation, by } => self.cancel_operation(*operation, by),
            Command::AddToken(token) => {
                self.state.tokens.insert(token.id, token.clone());
                Ok(Applied::Changed)
            }
            Command::RemoveToken(token) => self.remove_token(*token),
            Command::Configure(settings) => {
                if self.state.settings == *settings {
                    return Ok(Applied::Unchanged);
                }
                let first = self.state.settings == Settings::default();
                self.state.settings = settings.clone();
                self.state.longest_lease = self.state.longest_lease.max(settings.lease);
                if !first {
                    let message =
                        "the offers, lost_after or slot_moves are now those of the leader's configuration";
                    self.event(
                        Severity::Warning,
                        "SettingsChanged",
                        "coordinator".to_owned(),
                        message.to_owned(),
                    );
                }
                Ok(Applied::Changed)
            }
        }
    }

    fn put(&mut self, put: &Put) -> Result<Applied, Refusal> {
        let existing = self.state.resources.get(&put.id).cloned();
        if let Some(existing) = existing.as_ref().filter(|_| self.says_nothing_new(put)) {
            return Ok(Applied::Accepted { request: existing.change.request });
        }
        validate::check(self.state, put)?;
        let spec_changed =
            existing.as_ref().is_none_or(|e| e.spec != put.spec || e.change.outcome != Outcome::Done);
        let is_cluster = matches!(put.spec, Spec::Cluster(_));
        let lasts = is_cluster || matches!(put.spec, Spec::Role { .. });
        let outcome = if lasts && spec_changed { Outcome::InFlight } else { Outcome::Done };
        let change = Change {
            request: put.request,
            kind: ChangeKind::Put,
            at: self.state.now,
            by: put.by.clone(),
            outcome,
        };
        let (created, created_by) = existing
            .map_or((self.state.now, put.by.clone()), |existing| (existing.created, existing.created_by));
        let before = self.state.resources.get(&put.id).and_then(|resource| resource.cluster_spec().cloned());
        let resource = Resource {
            id: put.id,
            metadata: put.metadata.clone(),
            spec: put.spec.clone(),
            created,
            created_by,
            change,
        };
        self.record(&resource);
        match &put.spec {
            Spec::Cluster(spec) if spec_changed => {
                self.note_leaving(put.id.into(), before.as_ref(), spec);
                self.note_size(put.id.into(), before.as_ref(), spec);
                self.want_cluster(put.id.into(), spec.engine());
                self.want_parameters_of(put.id.into(), spec, put.request);
            }
            Spec::ParametersSet { parameters, .. } => self.parameters_edited(put.id, parameters),
            Spec::Role { role, .. } if spec_changed => self.want_role(put.id, role),
            Spec::VpcSubnet { .. } if !self.state.vnis.contains_key(&put.id) => {
                self.state.vnis.insert(put.id, State::FIRST_VNI + self.state.vnis_used);
                self.state.vnis_used += 1;
            }
            Spec::Folder
            | Spec::HostingProvider
            | Spec::Vpc { .. }
            | Spec::VpcSubnet { .. }
            | Spec::Role { .. }
            | Spec::Cluster(_) => {}
        }
        self.state.resources.insert(put.id, resource);
        Ok(Applied::Accepted { request: put.request })
    }

    /// Whether the resource is already what this asks for. A set whose rollout was halted somewhere is tried again.
    fn says_nothing_new(&self, put: &Put) -> bool {
        let halted = |id: &ClusterId| {
            self.state.clusters.get(id).is_some_and(|cluster| cluster.rollout.halted().is_some())
        };
        let again = matches!(put.spec, Spec::ParametersSet { .. })
            && self.state.attached_to(put.id).iter().any(halted);
        !again && validate::unchanged(self.state, put)
    }

    fn want_cluster(&mut self, id: ClusterId, engine: crate::engine::EngineKind) {
        let generation = Generation(self.index);
        let known = self.state.clusters.get_mut(&id);
        match known {
            Some(cluster) => (cluster.config_generation, cluster.disturbed) = (generation, generation),
            None => {
                let cluster = Cluster {
                    engine,
                    instances: Vec::new(),
                    tasks: Vec::new(),
                    formed: false,
                    config_generation: generation,
                    last_move: None,
                    bad_hosts: Vec::new(),
                    disturbed: generation,
                    rollout: Rollout::default(),
                    leaving: Vec::new(),
                    resized_from: None,
                    layout: None,
                    roles: Roles::default(),
                };
                self.state.clusters.insert(id, cluster);
            }
        }
        self.touch_cluster(id);
    }

    fn delete(&mut self, delete: &Delete) -> Result<Applied, Refusal> {
        validate::check_delete(self.state, delete)?;
        let Some(mut resource) = self.state.resources.get(&delete.id).cloned() else {
            return Ok(Applied::Unchanged);
        };
        let is_cluster = resource.cluster_spec().is_some();
        let role = resource.role().cloned();
        let lasts = is_cluster || role.is_some();
        self.finish_request(resource.change.request, &resource, "the resource was deleted meanwhile");
        resource.change = Change {
            request: delete.request,
            kind: ChangeKind::Delete,
            at: self.state.now,
            by: delete.by.clone(),
            outcome: if lasts { Outcome::InFlight } else { Outcome::Done },
        };
        self.record(&resource);
        if is_cluster {
            let cluster = ClusterId::from(delete.id);
            let all: Vec<InstanceId> = self.state.instances_of(cluster).map(|i| i.id).collect();
            self.retire(cluster, &all, "the cluster is being deleted");
            self.end_operations(cluster, Some("the cluster is being deleted"));
            self.state.resources.insert(delete.id, resource);
        } else if let Some(role) = role {
            self.state.resources.insert(delete.id, resource);
            self.drop_role(delete.id, &role);
        } else {
            self.state.resources.remove(&delete.id);
            self.state.vnis.remove(&delete.id);
            self.state.resting.remove(&delete.id);
        }
        Ok(Applied::Accepted { request: delete.request })
    }

    /// Keeps what became of a change, for polling.
    fn record(&mut self, resource: &Resource) {
        let change = &resource.change;
        let request = Request {
            resource: resource.id,
            kind: resource.kind(),
            change: change.kind,
            at: change.at,
            outcome: change.outcome.clone(),
        };
        self.state.requests.insert(change.request, request);
    }

    /// A change that was in flight when another overtook it has failed.
    fn finish_request(&mut self, id: RequestId, resource: &Resource, why: &str) {
        if resource.change.outcome == Outcome::InFlight
            && let Some(request) = self.state.requests.get_mut(&id)
        {
            request.outcome = Outcome::Failed { message: why.to_owned() };
        }
    }

    /// Sets how the change in flight of a resource stands.
    fn settle(&mut self, id: ResourceId, outcome: &Outcome) {
        if let Some(resource) = self.state.resources.get_mut(&id) {
            resource.change.outcome = outcome.clone();
            if let Some(request) = self.state.requests.get_mut(&resource.change.request) {
                request.outcome = outcome.clone();
            }
        }
    }

    /// Lets instances go: their hosts will be told, and what was asked of them is dropped.
    fn retire(&mut self, cluster: ClusterId, instances: &[InstanceId], cause: &str) {
        self.touch_cluster(cluster);
        let ids: BTreeSet<InstanceId> = instances.iter().copied().collect();
        for id in &ids {
            if let Some(instance) = self.state.instances.get_mut(id)
                && instance.wanted()
            {
                instance.intent = Intent::Retiring { cause: cause.to_owned() };
            }
        }
        let heirs: Vec<InstanceId> = self
            .state
            .instances_of(cluster)
            .filter(|i| i.replaces.is_some_and(|old| ids.contains(&old)))
            .map(|i| i.id)
            .collect();
        for heir in heirs {
            if let Some(instance) = self.state.instances.get_mut(&heir) {
                instance.replaces = None;
            }
        }
        let dropped: Vec<_> =
            self.state.running_tasks(cluster).filter(|t| ids.contains(&t.instance)).map(|t| t.id).collect();
        dropped.into_iter().for_each(|task| {
            self.end_task(task, TaskState::Superseded);
        });
        self.forget_emptied(&ids);
    }

    fn end_task(&mut self, id: TaskId, to: TaskState) -> Applied {
        let now = self.state.now;
        let Some(task) = self.state.tasks.get_mut(&id).filter(|task| task.state == TaskState::Running) else {
            return Applied::Unchanged;
        };
        task.state = to;
        task.ended = Some(now);
        let (cluster, instance, payload) = (task.cluster, task.instance, task.payload.clone());
        if let Some(instance) = self.state.instances.get(&instance) {
            self.touched.insert(instance.host);
        }
        // A step that fails for days keeps its last tries, not all.
        let same = |task: &&crate::state::Task| {
            task.instance == instance && task.payload == payload && task.state != TaskState::Running
        };
        let ended: Vec<TaskId> = self.state.tasks_of(cluster).filter(same).map(|task| task.id).collect();
        for old in ended.iter().rev().skip(State::TRIES_KEPT) {
            self.state.forget_task(*old);
        }
        Applied::Changed
    }

    /// Every host that carries an instance in a network of this cluster is told anew.
    fn touch_cluster(&mut self, cluster: ClusterId) {
        // Who the members are is a part of what each guest is configured with.
        if let Some(known) =
            self.state.clusters.get_mut(&cluster).filter(|known| known.engine.tells_members())
        {
            known.config_generation = Generation(self.index);
        }
        let vpcs: BTreeSet<ResourceId> = self.state.instances_of(cluster).map(|i| i.vpc).collect();
        let hosts = self.state.instances.values().filter(|i| vpcs.contains(&i.vpc)).map(|i| i.host);
        self.touched.extend(hosts);
    }

    fn event(&mut self, severity: Severity, reason: &str, subject: String, message: String) {
        let event = Event { at: self.state.now, severity, reason: reason.to_owned(), subject, message };
        self.state.next_event += 1;
        self.state.events.insert(self.state.next_event, event);
    }
}

//! Applying what concerns parameters. In: users' changes of sets and clusters, and the planner's steps of a rollout. Out: the newest
//! parameters of each cluster, one member at a time told of them, or `Outdated`: another is being told, or the member leads by now.

use std::collections::BTreeMap;

use shardplane_proto::ids::{ClusterId, Generation, InstanceId, OperationId, RequestId, ResourceId};

use super::Step;
use crate::{
    command::{Applied, NewOperation},
    engine::ClusterSpec,
    refusal::Refusal,
    resource::{Outcome, Spec},
    state::{
        Halted, Instance, OperationKind, OperationState, Parameters, Rolling, Severity, State, TaskState,
    },
};

/// Members named in a text; more are counted.
const NAMED: usize = 8;

impl Step<'_> {
    /// A cluster shall run what its spec names. `request` is the change that says so.
    pub(super) fn want_parameters_of(&mut self, cluster: ClusterId, spec: &ClusterSpec, request: RequestId) {
        let set = spec.parameters_set().and_then(|set| self.state.resources.get(&set));
        let values = match set.map(|set| &set.spec) {
            Some(Spec::ParametersSet { parameters, .. }) => parameters.clone(),
            Some(
                Spec::Folder
                | Spec::HostingProvider
                | Spec::Vpc { .. }
                | Spec::VpcSubnet { .. }
                | Spec::Role { .. }
                | Spec::Cluster(_),
            )
            | None => BTreeMap::new(),
        };
        self.want_parameters(cluster, values, Some(request));
    }

    /// Every cluster with this set shall run its new values.
    pub(super) fn parameters_edited(&mut self, set: ResourceId, values: &BTreeMap<String, String>) {
        for cluster in self.state.attached_to(set) {
            self.want_parameters(cluster, values.clone(), None);
        }
    }

    fn want_parameters(
        &mut self,
        id: ClusterId,
        values: BTreeMap<String, String>,
        request: Option<RequestId>,
    ) {
        let Some(cluster) = self.state.clusters.get_mut(&id) else { return };
        let rollout = &mut cluster.rollout;
        // The same values once more are another try of what was halted.
        if rollout.parameters.values == values && rollout.halted().is_none() {
            return;
        }
        let newest = Parameters { revision: Generation(self.index), values };
        (rollout.parameters, rollout.rolling, rollout.request) = (newest.clone(), None, request);
        if !cluster.formed || cluster.engine.shares_parameters() {
            // Nothing serves yet, or the engine itself brings them to each: nobody has to wait for anybody.
            let members = cluster.instances.clone();
            members.into_iter().for_each(|member| self.assign(member, &newest));
        }
        self.end_rollout(id, "newer parameters took the place of these");
    }

    /// What a new member starts with: the newest, unless those were halted; then what members have that they did not reach.
    pub(super) fn parameters_for_new(&self, cluster: ClusterId) -> Parameters {
        let Some(rollout) = self.state.clusters.get(&cluster).map(|cluster| &cluster.rollout) else {
            return Parameters::default();
        };
        let wanted = self.state.instances_of(cluster).filter(|instance| instance.wanted());
        let proven = wanted.map(|instance| &instance.parameters).min_by_key(|parameters| parameters.revision);
        let proven = proven.filter(|_| rollout.halted().is_some());
        proven.unwrap_or(&rollout.parameters).clone()
    }

    /// One member is told; its engine starts anew when one of the changed values takes that.
    fn assign(&mut self, id: InstanceId, newest: &Parameters) {
        let Some(instance) = self.state.instances.get_mut(&id) else { return };
        let engine = self.state.clusters.get(&instance.cluster).map(|cluster| cluster.engine);
        if engine.is_some_and(|engine| engine.needs_restart(&instance.parameters.values, &newest.values)) {
            instance.restart_generation = Generation(self.index);
        }
        instance.parameters = newest.clone();
        instance.config_generation = Generation(self.index);
        self.touched.insert(instance.host);
    }

    pub(super) fn roll(
        &mut self,
        cluster: ClusterId,
        id: InstanceId,
        revision: Generation,
        operation: OperationId,
        new: Option<&NewOperation>,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let outdated = |why: String| Err(Refusal::outdated(format!("instance {id} {why}")));
        let Some(known) = self.state.clusters.get(&cluster) else {
            return outdated("has no cluster".to_owned());
        };
        let newest = known.rollout.parameters.clone();
        if newest.revision != revision || known.rollout.halted().is_some() {
            return outdated("was to get parameters that are not rolled out any more".to_owned());
        }
        if let Some(other) = self.state.rolling(cluster) {
            return outdated(format!("has to wait for instance {}", other.instance));
        }
        let Some(member) = self.state.instances.get(&id).filter(|i| i.wanted() && i.cluster == cluster)
        else {
            return outdated("is leaving".to_owned());
        };
        if member.parameters.values == newest.values {
            return outdated("has the parameters already".to_owned());
        }
        let restarts = known.engine.needs_restart(&member.parameters.values, &newest.values);
        if restarts && leads_others(self.state, member) {
            return outdated(
                "became a primary meanwhile; another has to take over before it restarts".to_owned(),
            );
        }
        self.ensure_operation(cluster, operation, new)?;
        self.assign(id, &newest);
        let now = self.state.now;
        if let Some(known) = self.state.clusters.get_mut(&cluster) {
            known.rollout.rolling = Some(Rolling { instance: id, since: now });
        }
        Ok(Applied::Changed)
    }

    pub(super) fn rolled(&mut self, cluster: ClusterId, id: InstanceId) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let rollout = self.state.clusters.get_mut(&cluster).map(|known| &mut known.rollout);
        let Some(rollout) = rollout.filter(|r| r.rolling.is_some_and(|rolling| rolling.instance == id))
        else {
            return Ok(Applied::Unchanged);
        };
        rollout.rolling = None;
        if let Some(operation) = self.rollout_operation(cluster)
            && let Some(operation) = self.state.operations.get_mut(&operation)
        {
            let done = operation.counts.entry("members".to_owned()).or_default();
            *done = done.saturating_add(1);
        }
        Ok(Applied::Changed)
    }

    pub(super) fn halt_rollout(
        &mut self,
        cluster: ClusterId,
        revision: Generation,
        why: &str,
    ) -> Result<Applied, Refusal> {
        self.known(cluster)?;
        let rollout = self.state.clusters.get(&cluster).map(|known| &known.rollout);
        if rollout.is_none_or(|r| r.parameters.revision != revision || r.halted().is_some()) {
            return Err(Refusal::outdated(format!("cluster {cluster} has nothing of that to roll out")));
        }
        self.halt(cluster, why);
        Ok(Applied::Changed)
    }

    /// No further member gets the newest parameters; who has them keeps them.
    pub(super) fn halt(&mut self, id: ClusterId, why: &str) {
        let Some(newest) = self.state.clusters.get(&id).map(|cluster| cluster.rollout.parameters.clone())
        else {
            return;
        };
        let told: Vec<_> = self
            .state
            .instances_of(id)
            .filter(|i| i.wanted() && i.parameters.revision == newest.revision)
            .map(|i| i.id.to_string())
            .collect();
        let more = told.len().saturating_sub(NAMED);
        let names = told.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let has_them = match (told.is_empty(), more) {
            (true, _) => "no instance has the new parameters".to_owned(),
            (false, 0) => format!("the new parameters stay on instance {names}"),
            (false, more) => format!("the new parameters stay on instance {names} and {more} more"),
        };
        let why = format!(
            "the rollout of parameters is halted: {why}; {has_them}, all others keep theirs; correct the set, or attach another"
        );
        let Some(cluster) = self.state.clusters.get_mut(&id) else { return };
        cluster.rollout.rolling = None;
        cluster.rollout.halted = Some(Halted { revision: newest.revision, why: why.clone() });
        let request = cluster.rollout.request;
        self.end_rollout(id, &why);
        let resource = self.state.resources.get(&ResourceId::from(id));
        let asked = |change: &crate::resource::Change| {
            change.outcome == Outcome::InFlight && Some(change.request) == request
        };
        if resource.is_some_and(|resource| asked(&resource.change)) {
            self.settle(id.into(), &Outcome::Failed { message: why.clone() });
        }
        self.event(Severity::Warning, "RolloutHalted", format!("cluster/{id}"), why);
    }

    fn rollout_operation(&self, cluster: ClusterId) -> Option<OperationId> {
        let is = |o: &&crate::state::Operation| {
            o.cluster == cluster && o.kind == OperationKind::Rollout && o.state == OperationState::Running
        };
        self.state.operations.values().rev().find(is).map(|operation| operation.id)
    }

    fn end_rollout(&mut self, cluster: ClusterId, error: &str) {
        let Some(id) = self.rollout_operation(cluster) else { return };
        let Some(operation) = self.state.operations.get_mut(&id) else { return };
        operation.ended = Some(self.state.now);
        operation.state = OperationState::Failed { error: error.to_owned() };
        for task in operation.tasks.clone() {
            self.end_task(task, TaskState::Superseded);
        }
    }
}

/// Whether the log knows it as a primary of a group that has others.
pub(crate) fn leads_others(state: &State, member: &Instance) -> bool {
    let others = state
        .instances_of(member.cluster)
        .any(|other| other.id != member.id && other.group == member.group && other.wanted());
    others && member.fact.as_ref().is_some_and(|(_, fact)| fact.claims_primary())
}

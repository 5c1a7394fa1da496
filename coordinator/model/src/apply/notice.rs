//! Applying facts. In: what hosts and engines said. Out: the state that remembers it; a fact is never refused, at most it is old
//! news.

use shardplane_proto::ids::{Generation, HostId, InstanceId, ResourceId};

use super::Step;
use crate::{
    command::{Applied, Notice},
    engine::Fact,
    plan::image_for,
    resource::Resource,
    state::{Host, HostFacts, Instance, Operation, OperationKind, OperationState, Presence, Severity},
};

impl Step<'_> {
    pub(super) fn notice(&mut self, notice: &Notice) -> Applied {
        match notice {
            Notice::Host { host, facts } => self.host(*host, facts),
            Notice::Engine { instance, fact } => self.engine(*instance, fact),
            Notice::Gone { instance, host } => self.gone(*instance, *host),
            Notice::TaskEnded { task, ended } => self.task_ended(*task, ended),
            Notice::Event { severity, reason, subject, message } => {
                self.event(*severity, reason, subject.clone(), message.clone());
                Applied::Changed
            }
        }
    }

    fn host(&mut self, id: HostId, facts: &HostFacts) -> Applied {
        let now = self.state.now;
        let subject = format!("host/{id}");
        let Some(host) = self.state.hosts.get(&id).cloned() else {
            let host = Host {
                id,
                facts: facts.clone(),
                presence: Presence::Present,
                generation: Generation(self.index),
                created: now,
                cordon: None,
                retired: false,
            };
            self.state.hosts.insert(id, host);
            self.disturb();
            self.event(Severity::Normal, "HostJoined", subject, format!("host {} joined", facts.name));
            return Applied::Changed;
        };
        if host.presence == Presence::Present && host.facts == *facts {
            return Applied::Unchanged;
        }
        if host.presence != Presence::Present || host.facts.holds_other_than(facts) {
            self.disturb();
        }
        match host.presence {
            Presence::Lost { since } => {
                let message =
                    format!("host {} is back, {} after it was declared lost", facts.name, now.since(since));
                self.event(Severity::Normal, "HostBack", subject, message);
            }
            Presence::Present if host.facts.boot_id != facts.boot_id => {
                self.event(
                    Severity::Warning,
                    "HostRebooted",
                    subject,
                    format!("host {} was rebooted", facts.name),
                );
            }
            Presence::Present => {}
        }
        // Its peers reach its instances at its underlay address.
        if host.facts.underlay != facts.underlay {
            let all: Vec<HostId> = self.state.hosts.keys().copied().collect();
            self.touched.extend(all);
        }
        self.touched.insert(id);
        self.state
            .hosts
            .insert(id, Host { facts: facts.clone(), presence: Presence::Present, retired: false, ..host });
        self.repoint_images(id, facts);
        Applied::Changed
    }

    /// An image that was built anew under its version replaces the old one at the next start of its machines.
    fn repoint_images(&mut self, host: HostId, facts: &HostFacts) {
        let here: Vec<_> =
            self.state.instances.values().filter(|i| i.host == host && i.wanted()).cloned().collect();
        for mut instance in here {
            if facts.images.iter().any(|image| image.digest == instance.image_digest) {
                continue;
            }
            let cluster = self.state.clusters.get(&instance.cluster);
            let resource = self.state.resources.get(&ResourceId::from(instance.cluster));
            let (Some(cluster), Some(spec)) =
                (cluster, resource.and_then(|resource| resource.cluster_spec()))
            else {
                continue;
            };
            if let Some(image) = image_for(cluster.engine, &facts.images, spec.version()) {
                instance.image_digest.clone_from(&image.digest);
                self.state.instances.insert(instance.id, instance);
            }
        }
    }

    fn engine(&mut self, id: InstanceId, fact: &Fact) -> Applied {
        let now = self.state.now;
        let Some(instance) = self.state.instances.get_mut(&id) else { return Applied::Unchanged };
        let before = instance.fact.replace((now, fact.clone())).map(|(_, fact)| fact);
        if before.as_ref() == Some(fact) {
            return Applied::Unchanged;
        }
        let (cluster, group) = (instance.cluster, instance.group);
        // It has started since then.
        if instance.succeeded_by.take().is_some() {
            instance.config_generation = Generation(self.index);
            self.touched.insert(instance.host);
        }
        // What a member's guest is told depends on whether another is the primary.
        if before.as_ref().is_some_and(|before| before.claims_primary()) != fact.claims_primary() {
            if let Some(cluster) = self.state.clusters.get_mut(&cluster) {
                cluster.config_generation = Generation(self.index);
            }
            self.touch_cluster(cluster);
        }
        if let Some(before) =
            before.as_ref().filter(|before| !before.claims_primary() && fact.claims_primary())
        {
            self.office_passes(id, before);
        }
        let formed = self.state.clusters.get(&cluster).is_some_and(|cluster| cluster.formed);
        let kinds = [OperationKind::Move, OperationKind::Switchover];
        let ours = |o: &&Operation| {
            o.cluster == cluster && kinds.contains(&o.kind) && o.state == OperationState::Running
        };
        let took_over =
            fact.claims_primary() && !before.as_ref().is_some_and(|before| before.claims_primary());
        if took_over && self.state.operations.values().find(ours).is_none() {
            self.disturb_cluster(cluster);
        }
        if formed && fact.claims_primary() && !before.is_some_and(|before| before.claims_primary()) {
            let message = format!("instance {id} is now a primary of shard {group}");
            self.event(Severity::Warning, "PrimaryChanged", format!("cluster/{cluster}"), message);
        }
        Applied::Changed
    }

    /// Who followed an heir and leads by now is the heir of those that this one succeeded.
    fn office_passes(&mut self, to: InstanceId, before: &Fact) {
        let Some(new) = self.state.instances.get(&to) else { return };
        let (cluster, group) = (new.cluster, new.group);
        let followed = |other: &&Instance| other.fact.as_ref().is_some_and(|(_, fact)| before.follows(fact));
        let own = |other: &&Instance| other.group == group && other.id != to;
        let Some(from) = self.state.instances_of(cluster).filter(own).find(followed).map(|other| other.id)
        else {
            return;
        };
        let members: Vec<InstanceId> = self.state.instances_of(cluster).filter(own).map(|i| i.id).collect();
        for id in members {
            let Some(instance) = self.state.instances.get_mut(&id) else { continue };
            if let Some(heir) = instance.fence.as_mut().and_then(|fence| fence.heir.as_mut())
                && *heir == from
            {
                *heir = to;
            }
            if let Some((by, _)) = &mut instance.succeeded_by
                && *by == from
            {
                *by = to;
            }
        }
    }

    /// A retiring instance is proved gone: its place and, after a rest, its address are free.
    pub(super) fn gone(&mut self, id: InstanceId, host: HostId) -> Applied {
        let now = self.state.now;
        let Some(instance) = self.state.instances.get(&id).filter(|i| i.host == host && !i.wanted()).cloned()
        else {
            return Applied::Unchanged;
        };
        self.touch_cluster(instance.cluster);
        self.touched.insert(host);
        self.state.instances.remove(&id);
        // What a move leaves behind is no cause for the next one.
        let deleted =
            self.state.resources.get(&ResourceId::from(instance.cluster)).is_none_or(Resource::deleting);
        if deleted || instance.surplus() {
            self.disturb();
        }
        if let Some(cluster) = self.state.clusters.get_mut(&instance.cluster) {
            cluster.instances.retain(|member| *member != id);
        }
        if self.state.resources.contains_key(&instance.subnet) {
            let mut resting = self.state.resting.get(&instance.subnet).cloned().unwrap_or_default();
            resting.insert(instance.ipv4, now);
            self.state.resting.insert(instance.subnet, resting);
        }
        Applied::Changed
    }
}

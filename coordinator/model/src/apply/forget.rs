//! An operator's word that a lost host never returns. In: the host. Out: what it might still hold counts as gone, its record goes: at
//! once, or when replicas have taken over what it held.

use std::collections::BTreeSet;

use shardplane_proto::ids::{HostId, InstanceId};

use super::Step;
use crate::{
    command::Applied,
    refusal::{Refusal, RefusalCode},
    state::{Instance, Presence, Severity},
};

impl Step<'_> {
    pub(super) fn forget_host(&mut self, id: HostId) -> Result<Applied, Refusal> {
        let Some(host) = self.state.hosts.get(&id).cloned() else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no host {id}")));
        };
        let name = &host.facts.name;
        if host.presence == Presence::Present {
            let text =
                format!("host {name} is not lost; only a host that was declared lost can be forgotten");
            return Err(Refusal::new(RefusalCode::BadData, text));
        }
        let on_it = || self.state.instances.values().filter(|i| i.host == id && i.wanted());
        if let Some(last) = on_it().find(|instance| !self.has_live_copy(instance)) {
            let text = format!(
                "host {name} may hold the only copy of a shard: instance {} of cluster {} has no successor; delete the cluster or bring the host back",
                last.id, last.cluster
            );
            return Err(Refusal::new(RefusalCode::BadData, text));
        }
        if on_it().next().is_none() {
            self.forget_now(id);
            return Ok(Applied::Changed);
        }
        if host.retired {
            return Ok(Applied::Unchanged);
        }
        let message = format!(
            "host {name} never returns, says an operator; it is forgotten when other members have taken the place of its own"
        );
        if let Some(host) = self.state.hosts.get_mut(&id) {
            host.retired = true;
        }
        self.event(Severity::Warning, "HostRetired", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    /// Whether another member of its shard, on a host that is there, has copied it or has taken its place.
    fn has_live_copy(&self, instance: &Instance) -> bool {
        let Some((_, own)) = &instance.fact else { return false };
        let present =
            |host| self.state.hosts.get(host).is_some_and(|host| host.presence == Presence::Present);
        self.state.instances_of(instance.cluster).any(|other| {
            let fact = other.fact.as_ref().map(|(_, fact)| fact);
            other.group == instance.group
                && other.id != instance.id
                && other.wanted()
                && present(&other.host)
                && fact.is_some_and(|fact| fact.copies(own) || fact.claims_primary())
        })
    }

    /// Forgets retired hosts of these members on which nothing wanted is left.
    pub(super) fn forget_emptied(&mut self, members: &BTreeSet<InstanceId>) {
        let hosts: BTreeSet<HostId> =
            members.iter().filter_map(|id| self.state.instances.get(id)).map(|i| i.host).collect();
        for id in hosts {
            let retired = self.state.hosts.get(&id).is_some_and(|host| host.retired);
            if retired && !self.state.instances.values().any(|i| i.host == id && i.wanted()) {
                self.forget_now(id);
            }
        }
    }

    fn forget_now(&mut self, id: HostId) {
        let left = self.state.instances.values().filter(|i| i.host == id);
        let left: Vec<InstanceId> = left.map(|i| i.id).collect();
        for instance in left {
            self.gone(instance, id);
        }
        if let Some(host) = self.state.hosts.remove(&id) {
            let message = format!("host {} was forgotten by an operator", host.facts.name);
            self.event(Severity::Warning, "HostForgotten", format!("host/{id}"), message);
        }
    }
}

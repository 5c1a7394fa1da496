//! The operator's resources: hosts, instances, events. In: the state and what is observed. Out: messages of the
//! Operator service.

use shardplane_proto::{
    ids::{HostId, ResourceId},
    v1,
};

use super::{engine_word, machine_word};
use crate::{
    engine::{Member, Role},
    observed::{MemberReport, Observed},
    plan::{LeftPhase, cluster_view, left, stopped},
    state::{Drain, Fence, Footprint, Host, Intent, Presence, Severity, State},
    time::Timestamp,
};

fn capacity(footprint: Footprint) -> v1::Capacity {
    let Footprint { vcpu_percent, memory_mib, disk_gib, iops } = footprint;
    v1::Capacity { vcpu_percent, memory_mib, disk_gib, iops }
}

pub(super) fn host_name(state: &State, host: HostId) -> String {
    state.hosts.get(&host).map_or_else(|| host.to_string(), |host| host.facts.name.clone())
}

/// All hosts, or the one whose id or name is `filter`.
pub fn hosts(state: &State, observed: &Observed, now: Timestamp, filter: &str) -> v1::HostList {
    let shown = state
        .hosts
        .values()
        .filter(|h| filter.is_empty() || h.id.to_string() == filter || h.facts.name == filter);
    let items = shown
        .map(|host| v1::HostView {
            id: host.id.to_string(),
            name: host.facts.name.clone(),
            rack: host.facts.rack.clone(),
            zone: host.facts.zone.clone(),
            state: match host.presence {
                Presence::Lost { .. } => "Lost",
                Presence::Present if observed.hears(host.id, now) => "Ready",
                Presence::Present => "Silent",
            }
            .to_owned(),
            underlay_ipv4: host.facts.underlay.to_string(),
            vmm: host.facts.vmm.clone(),
            agent_version: host.facts.agent_version.clone(),
            capacity: Some(capacity(host.facts.capacity)),
            promised: Some(capacity(state.promised(host.id))),
            free: Some(capacity(host.facts.capacity.minus(state.promised(host.id)))),
            images: host
                .facts
                .images
                .iter()
                .map(|image| v1::ImageManifest {
                    engine: image.engine.clone(),
                    version: image.version.clone(),
                    digest: image.digest.clone(),
                    size_bytes: image.size,
                })
                .collect(),
            conditions: host
                .facts
                .conditions
                .iter()
                .map(|c| v1::HostCondition {
                    r#type: c.name.clone(),
                    status: c.status.clone(),
                    message: c.message.clone(),
                })
                .chain(host.facts.images.is_empty().then(|| v1::HostCondition {
                    r#type: "ImagesReady".to_owned(),
                    status: "False".to_owned(),
                    message: "the host has no image, so nothing can be placed on it; install one (images/build) and restart its agent".to_owned(),
                }))
                .chain(observed.hosts.get(&host.id).filter(|report| !report.problems.is_empty()).map(
                    |report| v1::HostCondition {
                        r#type: "SpecCarriedOut".to_owned(),
                        status: "False".to_owned(),
                        message: report.problems.join("; "),
                    },
                ))
                .collect(),
            instances: u32::try_from(state.instances.values().filter(|i| i.host == host.id).count())
                .unwrap_or(u32::MAX),
            last_report_time: observed
                .hosts
                .get(&host.id)
                .map(|report| report.at.to_string())
                .unwrap_or_default(),
            cordon: host.cordon.as_ref().map(|cordon| v1::CordonView {
                by: cordon.by.name.clone(),
                time: cordon.at.to_string(),
                reason: cordon.reason.clone(),
                until_time: cordon.until.map(|until| until.to_string()).unwrap_or_default(),
            }),
            drain: host.drain().map(|drain| drained(state, observed, now, host, drain)),
        })
        .collect();
    v1::HostList { items }
}

/// How far a drain is.
fn drained(state: &State, observed: &Observed, now: Timestamp, host: &Host, drain: &Drain) -> v1::DrainView {
    let instances: Vec<_> = left(state, observed, now, host.id)
        .into_iter()
        .map(|left| v1::LeftView {
            instance_id: left.instance.to_string(),
            cluster_id: left.cluster.to_string(),
            cluster_name: state
                .resources
                .get(&ResourceId::from(left.cluster))
                .map(|resource| resource.metadata.name.clone())
                .unwrap_or_default(),
            phase: match left.phase {
                LeftPhase::Waiting => "waiting",
                LeftPhase::Moving => "moving",
                LeftPhase::Leaving => "leaving",
                LeftPhase::Blocked => "blocked",
            }
            .to_owned(),
            message: left.why,
        })
        .collect();
    v1::DrainView {
        phase: if drain.done.is_some() { "drained" } else { "draining" }.to_owned(),
        force: drain.force,
        left: u32::try_from(instances.len()).unwrap_or(u32::MAX),
        instances,
    }
}

/// All instances, or those of the cluster or host whose id is `filter`.
pub fn instances(state: &State, observed: &Observed, now: Timestamp, filter: &str) -> v1::InstanceList {
    let mut items = Vec::new();
    for id in state.clusters.keys() {
        let Some(view) = cluster_view(state, observed, *id, now) else { continue };
        let roles = view.roles();
        for member in &view.members {
            let instance = member.instance;
            let matches = [id.to_string(), instance.host.to_string(), instance.id.to_string()];
            if !filter.is_empty() && !matches.iter().any(|m| m == filter) {
                continue;
            }
            let role = match roles
                .iter()
                .find(|(i, _)| *i == instance.id)
                .map_or(Role::Unknown, |(_, role)| *role)
            {
                Role::Primary => "primary",
                Role::Replica => "replica",
                Role::Voter => "voter",
                Role::Unknown => "",
            };
            let (intent, cause) = match &instance.intent {
                Intent::Wanted => ("wanted", String::new()),
                Intent::Retiring { cause } => ("retiring", cause.clone()),
            };
            let said =
                member.report.map(|r| format!("{} {}", r.message, r.engine_message)).unwrap_or_default();
            items.push(v1::InstanceView {
                id: instance.id.to_string(),
                cluster_id: id.to_string(),
                cluster_name: view.resource.metadata.name.clone(),
                shard_id: instance.group.to_string(),
                shard_index: member.group_index.and_then(|i| i32::try_from(i).ok()).unwrap_or(-1),
                engine: view.cluster.engine.name().to_owned(),
                host_id: instance.host.to_string(),
                host_name: host_name(state, instance.host),
                address: instance.ipv4.to_string(),
                mac: instance.mac.clone(),
                intent: intent.to_owned(),
                machine: current(member, |r| machine_word(r.machine)).to_owned(),
                engine_state: current(member, |r| engine_word(r.engine_state)).to_owned(),
                role: role.to_owned(),
                message: format!("{cause} {said}").trim().to_owned(),
                last_report_time: member.report.map(|r| r.at.to_string()).unwrap_or_default(),
                fence: instance.fence.as_ref().map(|fence| fenced(member, fence)),
            });
        }
    }
    v1::InstanceList { items }
}

/// What the log says about a fence, and what its host says.
fn fenced(member: &Member<'_>, fence: &Fence) -> v1::FenceView {
    v1::FenceView {
        time: fence.since.to_string(),
        operation_id: fence.operation.to_string(),
        heir_id: fence.heir.map(|heir| heir.to_string()).unwrap_or_default(),
        confirmed: stopped(member, fence).is_some(),
    }
}

/// What a report says, when it is recent enough to tell how things are.
fn current(member: &Member<'_>, word: impl Fn(&MemberReport) -> &'static str) -> &'static str {
    match member.report {
        Some(report) if member.fresh => word(report),
        Some(_) => "silent",
        None => "unknown",
    }
}

/// All events kept, or those whose subject contains `filter`; newest last.
pub fn events(state: &State, filter: &str) -> v1::EventList {
    let shown = state.events.iter().filter(|(_, event)| filter.is_empty() || event.subject.contains(filter));
    let items = shown
        .map(|(number, event)| v1::EventView {
            number: u32::try_from(*number).unwrap_or(u32::MAX),
            time: event.at.to_string(),
            severity: match event.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            }
            .to_owned(),
            reason: event.reason.clone(),
            subject: event.subject.clone(),
            message: event.message.clone(),
        })
        .collect();
    v1::EventList { items }
}

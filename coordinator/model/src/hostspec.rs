//! What a host shall look like. In: the state. Out: the whole desired state of one host, with networks, instances and tasks. The
//! session sends it whenever the host's generation has risen; secrets are opened here, at the last moment, by the caller's key.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::{
    ids::{HostId, ResourceId},
    v1,
};

use crate::{
    engine::{ClusterSpec, Secrets},
    net::Cidr,
    observed::Observed,
    plan::cluster_view,
    resource::Spec,
    state::{Instance, Sealed, State, TaskState},
};

/// Opens a sealed secret of a resource.
pub type Unseal<'a, E> = &'a dyn Fn(ResourceId, &Sealed) -> Result<String, E>;

/// The desired state of `host` under the leader of `term`; none when the host is unknown.
///
/// # Errors
/// What `unseal` says: the key does not fit.
pub fn host_spec<E>(
    state: &State,
    host: HostId,
    term: u64,
    unseal: Unseal<'_, E>,
) -> Result<Option<v1::HostSpec>, E> {
    let Some(known) = state.hosts.get(&host) else { return Ok(None) };
    let here: Vec<&Instance> = state.instances.values().filter(|i| i.host == host && i.wanted()).collect();
    let mut instances = Vec::new();
    for instance in &here {
        instances.extend(instance_spec(state, instance, unseal)?);
    }
    Ok(Some(v1::HostSpec {
        generation: known.generation.0,
        term,
        vpcs: networks(state, host, &here),
        instances,
    }))
}

fn instance_spec<E>(
    state: &State,
    instance: &Instance,
    unseal: Unseal<'_, E>,
) -> Result<Option<v1::InstanceSpec>, E> {
    let nothing = Observed::default();
    let Some(view) = cluster_view(state, &nothing, instance.cluster, state.now) else { return Ok(None) };
    let spec: &ClusterSpec = view.spec;
    let mut secrets = Secrets { own: unseal(view.resource.id, spec.secret())?, roles: BTreeMap::new() };
    for id in &view.cluster.roles.members {
        if let Some(sealed) = state.resources.get(id).and_then(|role| role.spec.secret()) {
            secrets.roles.insert(*id, unseal(*id, sealed)?);
        }
    }
    let tasks = state
        .tasks
        .values()
        .filter(|task| task.instance == instance.id && task.state == TaskState::Running)
        .map(|task| v1::GuestTask { task_id: task.id.to_string(), payload: task.payload.clone() });
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let id = instance.id.to_string();
    // Every member of a group that has another one: any may be elected where the coordinator cannot see it, hosts may be lost in any
    // combination, and a primary cut off with the majority of its cluster takes itself for the right one. The price: a primary that
    // lacks a copy does not outlive the coordinator by more than the lease. One whose copies all follow does.
    let copies_needed = view.copies_needed(instance);
    Ok(Some(v1::InstanceSpec {
        hostname: format!("{}-{}", view.cluster.engine.name(), &id[id.len() - 8..]),
        instance_id: id,
        engine: view.cluster.engine.name().to_owned(),
        image_digest: instance.image_digest.clone(),
        vcpus: instance.vcpus,
        vcpu_share: instance.vcpu_share,
        memory_mib: instance.footprint.memory_mib,
        iops: small(instance.footprint.iops),
        volume_gib: instance.footprint.disk_gib,
        vpc_id: instance.vpc.to_string(),
        subnet_id: instance.subnet.to_string(),
        mac: instance.mac.clone(),
        ipv4: instance.ipv4.to_string(),
        config_generation: view.cluster.config_generation.max(instance.config_generation).0,
        engine_config: view.guest_config(state, instance, &secrets),
        tasks: tasks.collect(),
        restart_generation: instance.restart_generation.0,
        fenced: instance.fence.is_some(),
        lease_ms: if copies_needed > 0 { state.settings.lease.0 } else { 0 },
        copies_needed,
    }))
}

/// Every subnet in use of the VPCs of the instances here, because subnets of one VPC are routed, with where the others of each
/// subnet are. Retiring ones are reached no more.
fn networks(state: &State, host: HostId, here: &[&Instance]) -> Vec<v1::VpcSpecOnHost> {
    let mut vpcs: BTreeMap<ResourceId, BTreeSet<ResourceId>> = BTreeMap::new();
    for instance in here {
        vpcs.entry(instance.vpc).or_default();
    }
    for instance in state.instances.values().filter(|instance| instance.wanted()) {
        if let Some(subnets) = vpcs.get_mut(&instance.vpc) {
            subnets.insert(instance.subnet);
        }
    }
    vpcs.into_iter()
        .map(|(vpc, subnets)| v1::VpcSpecOnHost {
            vpc_id: vpc.to_string(),
            subnets: subnets.into_iter().filter_map(|subnet| subnet_spec(state, host, subnet)).collect(),
        })
        .collect()
}

fn subnet_spec(state: &State, host: HostId, subnet: ResourceId) -> Option<v1::SubnetSpecOnHost> {
    let cidr: Cidr = match &state.resources.get(&subnet)?.spec {
        Spec::VpcSubnet { cidr, .. } => Some(*cidr),
        Spec::Folder
        | Spec::HostingProvider
        | Spec::Vpc { .. }
        | Spec::Cluster(_)
        | Spec::Role { .. }
        | Spec::ParametersSet { .. } => None,
    }?;
    let remotes =
        state.instances.values().filter(|i| i.subnet == subnet && i.host != host && i.wanted()).filter_map(
            |i| {
                let underlay = state.hosts.get(&i.host)?.facts.underlay;
                Some(v1::Remote {
                    mac: i.mac.clone(),
                    ipv4: i.ipv4.to_string(),
                    underlay_ipv4: underlay.to_string(),
                })
            },
        );
    Some(v1::SubnetSpecOnHost {
        subnet_id: subnet.to_string(),
        vni: *state.vnis.get(&subnet)?,
        ipv4_cidr: cidr.to_string(),
        gateway: cidr.gateway().to_string(),
        remotes: remotes.collect(),
    })
}

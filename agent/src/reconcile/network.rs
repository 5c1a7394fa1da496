//! The reconciler's view of the host's network, so that tests can do without a kernel's.
//!
//! In: the network part of a spec. Out: ports, or why they could not be made. [`crate::network`] does the work.

use std::{path::PathBuf, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use shardplane_proto::{
    causes::with_causes,
    ids::{InstanceId, ResourceId},
    v1,
};

use crate::network::{Network, PortKind, WantedNetwork, name};

/// Work on the kernel's network that takes longer is reported as a problem and tried again.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where a machine attaches to its subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// File of the network namespace.
    pub netns: PathBuf,
    /// The interface in it.
    pub interface: String,
}

/// A host's network.
pub trait HostNetwork: Send + Sync + 'static {
    /// Makes the network look as `spec` says, whole: what is not in it goes.
    fn ensure<'a>(&'a self, spec: &'a v1::HostSpec) -> BoxFuture<'a, Result<(), String>>;

    /// Where a machine of that VPC attaches; there after [`HostNetwork::ensure`].
    fn attachment(&self, instance: InstanceId, vpc: ResourceId) -> Attachment;

    /// MTU of machines in bytes.
    fn mtu(&self) -> u32;
}

impl HostNetwork for Network {
    fn ensure<'a>(&'a self, spec: &'a v1::HostSpec) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let wanted = WantedNetwork::from_spec(spec, self.ports()).map_err(|error| with_causes(&error))?;
            match tokio::time::timeout(DEADLINE, Network::ensure(self, &wanted)).await {
                Ok(Ok(changes)) => {
                    for step in changes.steps {
                        tracing::info!("network: {step}");
                    }
                    Ok(())
                }
                Ok(Err(error)) => Err(with_causes(&error)),
                Err(_) => Err(format!("the network was not as wanted within {} s", DEADLINE.as_secs())),
            }
        }
        .boxed()
    }

    fn attachment(&self, instance: InstanceId, vpc: ResourceId) -> Attachment {
        match self.ports() {
            PortKind::Veth => {
                Attachment { netns: self.machine_netns(instance), interface: "eth0".to_owned() }
            }
            PortKind::Tap => Attachment { netns: self.vpc_netns(vpc), interface: name::port(instance) },
        }
    }

    fn mtu(&self) -> u32 {
        Network::mtu(self)
    }
}

/// The part of a spec that the network depends on, for the wanted instances and those `leaving` that still run: a machine
/// keeps its port until it has stopped in order. One whose address or subnet is needed for something else loses it.
pub fn network_part<'a>(
    spec: &v1::HostSpec,
    leaving: impl IntoIterator<Item = &'a v1::InstanceSpec>,
) -> v1::HostSpec {
    let port = |instance: &v1::InstanceSpec| v1::InstanceSpec {
        instance_id: instance.instance_id.clone(),
        vpc_id: instance.vpc_id.clone(),
        subnet_id: instance.subnet_id.clone(),
        mac: instance.mac.clone(),
        ipv4: instance.ipv4.clone(),
        ..Default::default()
    };
    let mut part = v1::HostSpec {
        vpcs: spec.vpcs.clone(),
        instances: spec.instances.iter().map(port).collect(),
        ..Default::default()
    };
    for old in leaving {
        let vpc = part.vpcs.iter().find(|vpc| vpc.vpc_id == old.vpc_id);
        let subnet = vpc.and_then(|vpc| vpc.subnets.iter().find(|subnet| subnet.subnet_id == old.subnet_id));
        let Some(subnet) = subnet else { continue };
        let moved = subnet.remotes.iter().any(|remote| remote.mac == old.mac || remote.ipv4 == old.ipv4);
        let taken = part.instances.iter().any(|new| {
            new.instance_id == old.instance_id
                || new.subnet_id == old.subnet_id && (new.mac == old.mac || new.ipv4 == old.ipv4)
        });
        if !moved && !taken {
            part.instances.push(port(old));
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaving_machine_keeps_its_port_unless_something_needs_its_place() {
        let subnet = |remotes| v1::SubnetSpecOnHost { subnet_id: "s".into(), remotes, ..Default::default() };
        let spec = |remotes, instances| v1::HostSpec {
            vpcs: vec![v1::VpcSpecOnHost { vpc_id: "v".into(), subnets: vec![subnet(remotes)] }],
            instances,
            ..Default::default()
        };
        let instance = |id: &str, ip: &str| v1::InstanceSpec {
            instance_id: id.into(),
            vpc_id: "v".into(),
            subnet_id: "s".into(),
            mac: format!("mac of {ip}"),
            ipv4: ip.into(),
            engine_config: b"secret".to_vec(),
            ..Default::default()
        };
        let old = instance("old", "1");
        let count = |spec: &v1::HostSpec| network_part(spec, [&old]).instances.len();
        assert_eq!(count(&spec(vec![], vec![instance("new", "2")])), 2);
        assert_eq!(count(&spec(vec![], vec![instance("new", "1")])), 1);
        let remote = v1::Remote { ipv4: "1".into(), ..Default::default() };
        assert_eq!(count(&spec(vec![remote], vec![])), 0);
        assert_eq!(count(&v1::HostSpec::default()), 0);
        let part = network_part(&spec(vec![], vec![]), [&old]);
        assert!(part.instances.iter().all(|instance| instance.engine_config.is_empty()));
    }
}

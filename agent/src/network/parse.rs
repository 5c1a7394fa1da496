//! The border of the network: the coordinator's `HostSpec` becomes a [`WantedNetwork`].
//!
//! In: a protobuf message that may hold anything. Out: typed values, or the path of the first field that is wrong.
//! Called by the agent for every spec it accepts.

use std::{net::Ipv4Addr, str::FromStr};

use shardplane_proto::v1;

use super::{
    addr::{Ipv4Prefix, Mac},
    wanted::{PortKind, WantedNetwork, WantedPort, WantedRemote, WantedSubnet, WantedVpc},
};

/// A field of a `HostSpec` that cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The field's text has the wrong form.
    #[error("{path} of the host spec cannot be read")]
    Field {
        /// For example `vpcs[0].subnets[1].gateway`.
        path: String,
        /// What is wrong with the text.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An instance names a VPC or subnet that the spec does not describe.
    #[error("{path} of the host spec names {kind} {id}, which the spec does not describe")]
    Unknown {
        /// For example `instances[3].subnet_id`.
        path: String,
        /// vpc or subnet.
        kind: &'static str,
        /// The id.
        id: String,
    },
}

fn field<T>(path: impl FnOnce() -> String, text: &str) -> Result<T, SpecError>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    text.parse().map_err(|cause| SpecError::Field { path: path(), cause: Box::new(cause) })
}

impl WantedNetwork {
    /// Reads the network part of a spec; every instance gets a port of this kind, cut when it is fenced.
    pub fn from_spec(spec: &v1::HostSpec, kind: PortKind) -> Result<Self, SpecError> {
        let mut vpcs = Vec::with_capacity(spec.vpcs.len());
        for (v, vpc) in spec.vpcs.iter().enumerate() {
            let subnets = vpc.subnets.iter().enumerate();
            let subnets = subnets.map(|(s, subnet)| read_subnet(&format!("vpcs[{v}].subnets[{s}]"), subnet));
            vpcs.push(WantedVpc {
                vpc: field(|| format!("vpcs[{v}].vpc_id"), &vpc.vpc_id)?,
                subnets: subnets.collect::<Result<_, _>>()?,
            });
        }
        let mut wanted = Self { vpcs };
        for (i, instance) in spec.instances.iter().enumerate() {
            let port = WantedPort {
                instance: field(|| format!("instances[{i}].instance_id"), &instance.instance_id)?,
                mac: field(|| format!("instances[{i}].mac"), &instance.mac)?,
                ipv4: field(|| format!("instances[{i}].ipv4"), &instance.ipv4)?,
                kind,
                cut: instance.fenced,
            };
            wanted.subnet_of(i, instance)?.ports.push(port);
        }
        Ok(wanted)
    }

    fn subnet_of(&mut self, i: usize, instance: &v1::InstanceSpec) -> Result<&mut WantedSubnet, SpecError> {
        let vpc = field(|| format!("instances[{i}].vpc_id"), &instance.vpc_id)?;
        let subnet = field(|| format!("instances[{i}].subnet_id"), &instance.subnet_id)?;
        let unknown = |name, kind, id: &str| SpecError::Unknown {
            path: format!("instances[{i}].{name}"),
            kind,
            id: id.to_owned(),
        };
        let vpc = self.vpcs.iter_mut().find(|other| other.vpc == vpc);
        let vpc = vpc.ok_or_else(|| unknown("vpc_id", "vpc", &instance.vpc_id))?;
        let subnet = vpc.subnets.iter_mut().find(|other| other.subnet == subnet);
        subnet.ok_or_else(|| unknown("subnet_id", "subnet", &instance.subnet_id))
    }
}

fn read_subnet(path: &str, subnet: &v1::SubnetSpecOnHost) -> Result<WantedSubnet, SpecError> {
    let cidr: Ipv4Prefix = field(|| format!("{path}.ipv4_cidr"), &subnet.ipv4_cidr)?;
    let mut remotes = Vec::with_capacity(subnet.remotes.len());
    for (r, remote) in subnet.remotes.iter().enumerate() {
        remotes.push(WantedRemote {
            mac: field::<Mac>(|| format!("{path}.remotes[{r}].mac"), &remote.mac)?,
            ipv4: field::<Ipv4Addr>(|| format!("{path}.remotes[{r}].ipv4"), &remote.ipv4)?,
            underlay_ipv4: field(|| format!("{path}.remotes[{r}].underlay_ipv4"), &remote.underlay_ipv4)?,
        });
    }
    Ok(WantedSubnet {
        subnet: field(|| format!("{path}.subnet_id"), &subnet.subnet_id)?,
        vni: subnet.vni,
        cidr,
        gateway: field(|| format!("{path}.gateway"), &subnet.gateway)?,
        ports: Vec::new(),
        remotes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01arz3ndektsv4rrffq69g5fav";

    fn spec() -> v1::HostSpec {
        let remote = v1::Remote {
            mac: "02:00:00:00:00:02".into(),
            ipv4: "10.20.0.12".into(),
            underlay_ipv4: "172.31.0.2".into(),
        };
        let subnet = v1::SubnetSpecOnHost {
            subnet_id: ID.into(),
            vni: 7,
            ipv4_cidr: "10.20.0.0/24".into(),
            gateway: "10.20.0.1".into(),
            remotes: vec![remote],
        };
        let instance = v1::InstanceSpec {
            instance_id: ID.into(),
            vpc_id: ID.into(),
            subnet_id: ID.into(),
            mac: "02:00:00:00:00:01".into(),
            ipv4: "10.20.0.11".into(),
            ..v1::InstanceSpec::default()
        };
        let vpc = v1::VpcSpecOnHost { vpc_id: ID.into(), subnets: vec![subnet] };
        v1::HostSpec { vpcs: vec![vpc], instances: vec![instance], ..v1::HostSpec::default() }
    }

    fn refusal(change: impl FnOnce(&mut v1::HostSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        WantedNetwork::from_spec(&spec, PortKind::Veth).unwrap_err().to_string()
    }

    #[test]
    fn a_spec_becomes_ports_and_remotes() {
        let wanted = WantedNetwork::from_spec(&spec(), PortKind::Veth).unwrap();
        assert_eq!(wanted.check(), Ok(()));
        let subnet = &wanted.vpcs[0].subnets[0];
        assert_eq!((subnet.ports.len(), subnet.remotes.len(), subnet.vni), (1, 1, 7));
        assert_eq!(subnet.ports[0].mac.to_string(), "02:00:00:00:00:01");
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_path() {
        let found = refusal(|spec| spec.vpcs[0].subnets[0].remotes[0].mac = "x".into());
        assert!(found.starts_with("vpcs[0].subnets[0].remotes[0].mac "), "{found}");
        let found = refusal(|spec| spec.instances[0].ipv4 = "10.20.0".into());
        assert!(found.starts_with("instances[0].ipv4 "), "{found}");
        let found = refusal(|spec| spec.vpcs[0].subnets.clear());
        assert!(found.contains("names subnet 01arz3ndektsv4rrffq69g5fav"), "{found}");
        let found = refusal(|spec| spec.vpcs.clear());
        assert!(found.contains("names vpc 01arz3ndektsv4rrffq69g5fav"), "{found}");
    }
}

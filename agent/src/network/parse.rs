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
    /// Reads the network part of a spec; every instance gets a port of this kind.
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

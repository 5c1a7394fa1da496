//! From a spec of the coordinator to what this host is to run, or the reason to refuse it.
//!
//! In: a `HostSpec` and what was accepted before. Out: [`Wanted`]. Pure; called by the reconciler.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use shardplane_proto::{
    ids::{InstanceId, NotAnId},
    v1,
};

use crate::{ledger::Accepted, machine::Assignment};

/// Why a spec is not carried out at all.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// From a leader, or a moment, that is over.
    #[error(
        "refused generation {generation} of term {term}: generation {held_generation} of term {held_term} was accepted \
         before; an old leader sent it"
    )]
    Older {
        /// Its term.
        term: u64,
        /// Its generation.
        generation: u64,
        /// The accepted term.
        held_term: u64,
        /// The accepted generation.
        held_generation: u64,
    },
    /// An id that is none.
    #[error("refused generation {generation}: {source}")]
    Id {
        /// Its generation.
        generation: u64,
        /// Which.
        source: NotAnId,
    },
    /// The spec contradicts itself.
    #[error("refused generation {generation}: instance {instance} {what}")]
    Instance {
        /// Its generation.
        generation: u64,
        /// Whose part is wrong.
        instance: InstanceId,
        /// What is wrong.
        what: &'static str,
    },
}

/// An accepted spec.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// As it came, secrets included: in memory only.
    pub spec: Arc<v1::HostSpec>,
    /// Its instances.
    pub instances: BTreeMap<InstanceId, Arc<Assignment>>,
    /// All tasks of all instances.
    pub tasks: BTreeSet<String>,
}

/// May a spec be accepted after another? The same again may.
///
/// # Errors
/// When its (term, generation) is older.
pub fn check_order(spec: &v1::HostSpec, held: Option<&Accepted>) -> Result<(), Refusal> {
    match held {
        Some(held) if (spec.term, spec.generation) < (held.term, held.generation) => Err(Refusal::Older {
            term: spec.term,
            generation: spec.generation,
            held_term: held.term,
            held_generation: held.generation,
        }),
        Some(_) | None => Ok(()),
    }
}

impl Wanted {
    /// Reads a spec; `mtu` is for the guests.
    ///
    /// # Errors
    /// When it contradicts itself.
    pub fn read(spec: Arc<v1::HostSpec>, mtu: u32) -> Result<Self, Refusal> {
        let generation = spec.generation;
        let mut instances = BTreeMap::new();
        let mut tasks = BTreeSet::new();
        for one in &spec.instances {
            let id = one.instance_id.parse().map_err(|source| Refusal::Id { generation, source })?;
            let refuse = |what| Refusal::Instance { generation, instance: id, what };
            let subnets =
                spec.vpcs.iter().filter(|vpc| vpc.vpc_id == one.vpc_id).flat_map(|vpc| &vpc.subnets);
            let subnet = subnets.into_iter().find(|subnet| subnet.subnet_id == one.subnet_id);
            let subnet = subnet.ok_or_else(|| refuse("names a subnet that the spec does not describe"))?;
            let (_, prefix) = subnet
                .ipv4_cidr
                .split_once('/')
                .ok_or_else(|| refuse("is in a subnet without a prefix length"))?;
            let nic = v1::GuestNic {
                mac: one.mac.clone(),
                ipv4: format!("{}/{prefix}", one.ipv4),
                gateway: subnet.gateway.clone(),
                mtu,
            };
            tasks.extend(one.tasks.iter().map(|task| task.task_id.clone()));
            if instances.insert(id, Arc::new(Assignment { spec: one.clone(), nic })).is_some() {
                return Err(refuse("is listed twice"));
            }
        }
        Ok(Self { spec, instances, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(term: u64, generation: u64) -> v1::HostSpec {
        v1::HostSpec { term, generation, ..Default::default() }
    }

    /// SCH-5: an old leader's commands carry an old term.
    #[test]
    fn older_terms_and_generations_are_refused() {
        let held = Accepted { term: 5, generation: 10, spec: spec(5, 10) };
        for ((term, generation), accepted) in
            [((5, 10), true), ((5, 11), true), ((6, 1), true), ((5, 9), false), ((4, 99), false)]
        {
            let result = check_order(&spec(term, generation), Some(&held));
            assert_eq!(result.is_ok(), accepted, "term {term} generation {generation}");
            assert!(check_order(&spec(term, generation), None).is_ok());
        }
    }

    #[test]
    fn contradictions_are_refused_and_a_guest_gets_its_prefix() {
        let subnet = v1::SubnetSpecOnHost {
            subnet_id: "s".into(),
            ipv4_cidr: "10.0.0.0/24".into(),
            gateway: "10.0.0.1".into(),
            ..Default::default()
        };
        let vpcs = vec![v1::VpcSpecOnHost { vpc_id: "v".into(), subnets: vec![subnet] }];
        let one = v1::InstanceSpec {
            instance_id: InstanceId::from_u128(1).to_string(),
            vpc_id: "v".into(),
            subnet_id: "s".into(),
            ipv4: "10.0.0.5".into(),
            ..Default::default()
        };
        let read = |instances| {
            Wanted::read(Arc::new(v1::HostSpec { vpcs: vpcs.clone(), instances, ..spec(1, 1) }), 1450)
        };
        let wanted = read(vec![one.clone()]).unwrap();
        let nic = &wanted.instances[&InstanceId::from_u128(1)].nic;
        assert_eq!((nic.ipv4.as_str(), nic.gateway.as_str(), nic.mtu), ("10.0.0.5/24", "10.0.0.1", 1450));
        let lost = v1::InstanceSpec { subnet_id: "x".into(), ..one.clone() };
        let nobody = v1::InstanceSpec { instance_id: "x".into(), ..one.clone() };
        for instances in [vec![one.clone(), one.clone()], vec![lost], vec![nobody]] {
            assert!(read(instances).is_err());
        }
    }
}

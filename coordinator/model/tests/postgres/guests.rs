//! What guests of PostgreSQL clusters do, as far as the coordinator sees it: the truth that the planner cannot see. In: configs and tasks.
//! Out: reports and outcomes. A quorum is what its voters have agreed upon; a group's leader needs a quorum that serves.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1::{self, postgres_task::Step},
};

/// One voter as the quorum knows it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: String,
    pub ip: String,
    pub instance: String,
    pub learner: bool,
}

/// The quorum of a cluster, as agreed.
#[derive(Debug, Clone, Default)]
pub struct Quorum {
    pub members: Vec<Entry>,
    pub next: u64,
}

/// A group that holds data, as its DCS has it.
#[derive(Debug, Clone, Default)]
pub struct Group {
    pub leader: Option<InstanceId>,
    pub timeline: u64,
    /// Who has all acknowledged commits.
    pub sync: BTreeSet<InstanceId>,
    /// Turns that the leader was not there.
    pub missing: u32,
}

#[derive(Debug, Clone)]
pub struct Guest {
    pub config: v1::PostgresConfig,
    pub generation: u64,
    /// A voter: its id in the quorum. A data member: it has data.
    pub member: Option<String>,
    pub has_data: bool,
    pub restart_pending: bool,
    /// What waits for the restart is lower than what runs.
    pub lowers: bool,
}

/// The guests of one cluster.
#[derive(Debug, Default)]
pub struct Guests {
    pub guests: BTreeMap<InstanceId, Guest>,
    pub quorum: Quorum,
    /// Whom the first member began with.
    founders: BTreeSet<String>,
    /// Voters that are not up yet, though their hosts are.
    pub slow: BTreeSet<InstanceId>,
    pub groups: BTreeMap<GroupId, Group>,
    /// How often a database was made anew.
    pub inits: u32,
    /// How often a quorum was made anew.
    pub quorums: u32,
}

impl Guests {
    /// A guest is configured; a new one begins blank.
    pub fn configure(&mut self, id: InstanceId, generation: u64, config: &[u8]) {
        let config = v1::PostgresConfig::decode(config).unwrap();
        let blank = Guest {
            config: config.clone(),
            generation,
            member: None,
            has_data: false,
            restart_pending: false,
            lowers: false,
        };
        let guest = self.guests.entry(id).or_insert(blank);
        (guest.config, guest.generation) = (config, generation);
    }

    /// Its machine and its disk are gone.
    pub fn remove(&mut self, id: InstanceId) {
        self.guests.remove(&id);
    }

    fn quorum_config(&self, id: InstanceId) -> Option<&v1::PostgresQuorum> {
        match self.guests.get(&id)?.config.member.as_ref()? {
            v1::postgres_config::Member::Quorum(quorum) => Some(quorum),
            v1::postgres_config::Member::Data(_) => None,
        }
    }

    fn data_config(&self, id: InstanceId) -> Option<&v1::PostgresData> {
        match self.guests.get(&id)?.config.member.as_ref()? {
            v1::postgres_config::Member::Data(data) => Some(data),
            v1::postgres_config::Member::Quorum(_) => None,
        }
    }

    /// Whether a majority of the voters is there.
    pub fn quorum_serves(&self, up: &BTreeSet<InstanceId>) -> bool {
        let voters: Vec<&Entry> = self.quorum.members.iter().filter(|member| !member.learner).collect();
        let there = voters.iter().filter(|voter| {
            up.iter()
                .any(|id| self.guests.get(id).is_some_and(|guest| guest.member.as_ref() == Some(&voter.id)))
        });
        !voters.is_empty() && there.count() * 2 > voters.len()
    }

    /// One turn of everybody who is up.
    pub fn live(&mut self, up: &BTreeSet<InstanceId>) {
        let ids: Vec<InstanceId> = self.guests.keys().copied().filter(|id| up.contains(id)).collect();
        for id in &ids {
            let founders = self.quorum_config(*id).map(|quorum| quorum.founders.clone()).unwrap_or_default();
            if founders.is_empty() || self.slow.contains(id) || self.guests[id].member.is_some() {
                continue;
            }
            if self.quorum.members.is_empty() {
                self.quorums += 1;
                self.founders = founders.iter().map(|one| one.instance_id.clone()).collect();
                let voters = founders.iter().enumerate().map(|(n, voter)| Entry {
                    id: format!("{n:x}"),
                    ip: voter.ip.clone(),
                    instance: voter.instance_id.clone(),
                    learner: false,
                });
                self.quorum = Quorum { members: voters.collect(), next: 100 };
            }
            // Whoever begins with others than the first did ends up in another quorum.
            let same = founders.iter().all(|one| self.founders.contains(&one.instance_id));
            assert!(same && founders.len() == self.founders.len(), "{founders:?} is not {:?}", self.founders);
            let own = self.quorum.members.iter().find(|member| member.instance == id.to_string());
            let own = own.map(|member| member.id.clone());
            self.guests.get_mut(id).unwrap().member = own;
        }
        if !self.quorum_serves(up) {
            return;
        }
        for id in ids {
            let Some(data) = self.data_config(id).cloned() else { continue };
            let group = self.groups.entry(data.group_id.parse().unwrap()).or_default();
            let has_data = self.guests[&id].has_data;
            match group.leader {
                None if data.initialises && !has_data && group.timeline == 0 => {
                    self.inits += 1;
                    (group.leader, group.timeline) = (Some(id), 1);
                    self.guests.get_mut(&id).unwrap().has_data = true;
                }
                None if has_data && (group.sync.contains(&id) || group.sync.is_empty()) => {
                    (group.leader, group.timeline, group.missing) = (Some(id), group.timeline + 1, 0);
                    group.sync.remove(&id);
                }
                Some(leader) if leader != id && up.contains(&leader) => {
                    self.guests.get_mut(&id).unwrap().has_data = true;
                    group.sync.insert(id);
                }
                Some(_) | None => {}
            }
        }
        for group in self.groups.values_mut() {
            let gone = group.leader.is_some_and(|leader| !up.contains(&leader));
            group.missing = if gone { group.missing + 1 } else { 0 };
            // The leader key has expired.
            if group.missing > 20 {
                group.leader = None;
            }
            group.sync.retain(|id| up.contains(id) || gone);
        }
    }

    /// Performs a step.
    pub fn perform(
        &mut self,
        id: InstanceId,
        payload: &[u8],
        up: &BTreeSet<InstanceId>,
    ) -> Result<(), String> {
        let step = v1::PostgresTask::decode(payload).unwrap().step.unwrap();
        let serves = self.quorum_serves(up);
        match step {
            Step::AddLearner(_) | Step::Promote(_) | Step::RemoveVoter(_) if !serves => {
                Err("no quorum".to_owned())
            }
            Step::AddLearner(v1::postgres_task::AddLearner { voter }) => {
                let voter = voter.unwrap();
                self.quorum.next += 1;
                let id = format!("{:x}", self.quorum.next);
                let ip = voter.ip;
                assert!(!self.quorum.members.iter().any(|member| member.ip == ip), "added twice");
                // A member has its name from its first start on.
                self.quorum.members.push(Entry { id, ip, instance: String::new(), learner: true });
                Ok(())
            }
            Step::Join(v1::postgres_task::Join { members }) => {
                assert!(
                    members.iter().any(|member| member.instance_id == id.to_string()),
                    "joins without itself"
                );
                let ip = self.guests[&id].config.ip.clone();
                let own =
                    self.quorum.members.iter_mut().find(|member| member.ip == ip).ok_or("not a member")?;
                own.instance = id.to_string();
                let own = own.id.clone();
                self.guests.get_mut(&id).unwrap().member = Some(own);
                Ok(())
            }
            Step::Promote(v1::postgres_task::Promote { member_id }) => {
                let member = self.quorum.members.iter_mut().find(|member| member.id == member_id);
                member.ok_or("no such member")?.learner = false;
                Ok(())
            }
            Step::RemoveVoter(v1::postgres_task::RemoveVoter { member_id }) => {
                self.quorum.members.retain(|member| member.id != member_id);
                assert!(!self.quorum.members.is_empty(), "the last voter was removed");
                Ok(())
            }
            Step::Switchover(_) => {
                let group: GroupId = self.data_config(id).unwrap().group_id.parse().unwrap();
                let group = self.groups.get_mut(&group).unwrap();
                if !serves || !group.sync.contains(&id) {
                    return Err("not in sync".to_owned());
                }
                let old = group.leader.replace(id);
                group.timeline += 1;
                group.sync.remove(&id);
                group.sync.extend(old);
                Ok(())
            }
            Step::RestartEngine(_) => {
                self.guests.get_mut(&id).unwrap().restart_pending = false;
                Ok(())
            }
        }
    }

    /// What a guest reports.
    pub fn report(&self, id: InstanceId, up: &BTreeSet<InstanceId>) -> v1::PostgresReport {
        let guest = &self.guests[&id];
        let serves = self.quorum_serves(up);
        let member = match self.data_config(id) {
            None => {
                let own = self.quorum.members.iter().find(|member| Some(&member.id) == guest.member.as_ref());
                let members = self.quorum.members.iter().map(|member| v1::PostgresQuorumMember {
                    member_id: member.id.clone(),
                    instance_id: member.instance.clone(),
                    ip: member.ip.clone(),
                    learner: member.learner,
                });
                let serves = serves && own.is_some_and(|own| !own.learner);
                v1::postgres_report::Member::Quorum(v1::PostgresQuorumReport {
                    member_id: guest.member.clone().unwrap_or_default(),
                    blank: guest.member.is_none(),
                    serves,
                    learner: own.is_some_and(|own| own.learner),
                    members: if serves { members.collect() } else { Vec::new() },
                    ..v1::PostgresQuorumReport::default()
                })
            }
            Some(data) => {
                let group = self.groups.get(&data.group_id.parse().unwrap()).cloned().unwrap_or_default();
                let leads = group.leader == Some(id);
                let peers = group.sync.iter().filter(|peer| up.contains(peer)).map(|peer| v1::PostgresPeer {
                    instance_id: peer.to_string(),
                    state: "streaming".to_owned(),
                    lag: Some(0),
                    ..v1::PostgresPeer::default()
                });
                v1::postgres_report::Member::Data(v1::PostgresDataReport {
                    patroni_state: if guest.has_data { "running" } else { "starting" }.to_owned(),
                    role: if leads { "primary" } else { "replica" }.to_owned(),
                    leads: leads && serves,
                    timeline: group.timeline,
                    system_identifier: if guest.has_data { "7" } else { "" }.to_owned(),
                    peers: peers.collect(),
                    sync_members: group.sync.iter().map(ToString::to_string).collect(),
                    dcs_answers: serves,
                    pending_restart: guest.restart_pending,
                    lowers_standby_bound: guest.restart_pending && guest.lowers,
                    parameters_revision: data.parameters_revision,
                    roles_revision: data.roles_revision,
                    ..v1::PostgresDataReport::default()
                })
            }
        };
        v1::PostgresReport { member: Some(member) }
    }
}

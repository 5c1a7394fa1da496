//! The etcd quorum of a cluster. In: what its voters report. Out: the steps that keep three of them voting: a member that is not wanted any
//! more is removed first, then a blank one is added as a learner, joins, and is promoted. One whose disk was lost never comes back as
//! who it was: etcd would take its emptiness for what it has voted.

use shardplane_proto::{
    ids::InstanceId,
    v1::{self, postgres_task::Step as Body},
};

use super::{facts::voter_of, tasks::step};
use crate::engine::{Class, ClusterView, Member, Step};

/// Whether this is a member of the quorum.
pub fn is_of(view: &ClusterView<'_>, member: &Member<'_>) -> bool {
    view.groups.iter().any(|group| group.id == member.instance.group && group.class == Class::Quorum)
}

/// The voters that are wanted.
pub fn voters<'v>(view: &'v ClusterView<'_>) -> impl Iterator<Item = &'v Member<'v>> {
    view.wanted().filter(|member| is_of(view, member))
}

/// A voter that serves, with its report: who is asked to change the membership. The leader when it is heard.
fn server<'v>(view: &'v ClusterView<'_>) -> Option<(&'v Member<'v>, &'v v1::PostgresQuorumReport)> {
    let serving = voters(view)
        .filter_map(|m| voter_of(m).map(|report| (m, report)))
        .filter(|(_, r)| r.serves && !r.learner);
    serving.max_by_key(|(m, report)| (report.leads, std::cmp::Reverse(m.instance.id)))
}

/// Whether a majority of voters is there.
pub fn serves(view: &ClusterView<'_>) -> bool {
    server(view).is_some()
}

/// Whether a voter that serves knows this member as one that votes.
pub fn knows(view: &ClusterView<'_>, member_id: &str) -> bool {
    server(view).is_some_and(|(_, report)| {
        report.members.iter().any(|member| member.member_id == member_id && !member.learner)
    })
}

/// What the quorum needs next.
#[derive(Debug, Default)]
pub struct Needed {
    /// At most one change of the membership at a time.
    pub steps: Vec<Step>,
    /// What it waits for, for people.
    pub waiting: Vec<String>,
}

/// The next step of a cluster's quorum.
pub fn next(view: &ClusterView<'_>) -> Needed {
    let mut needed = Needed::default();
    let Some((server, known)) = server(view) else {
        let (answer, all) = (voters(view).filter(|m| voter_of(m).is_some()).count(), voters(view).count());
        needed.waiting.push(format!("no majority of the quorum serves; {answer} of its {all} voters answer"));
        return needed;
    };
    let id = server.instance.id;
    let wanted: Vec<&Member<'_>> = voters(view).collect();
    let is_wanted = |ip: &str| wanted.iter().any(|m| m.instance.ipv4.to_string() == ip);
    // An address is given out once in a while, so who has it is told by what it says of itself.
    let says = |member: &v1::PostgresQuorumMember| {
        wanted.iter().find(|m| m.instance.ipv4.to_string() == member.ip).and_then(|m| voter_of(m))
    };
    let wiped = |member: &v1::PostgresQuorumMember| {
        !member.instance_id.is_empty() && says(member).is_some_and(|report| report.blank)
    };
    let stale = known.members.iter().find(|member| !is_wanted(&member.ip) || wiped(member));
    if let Some(stale) = stale {
        let body = Body::RemoveVoter(v1::postgres_task::RemoveVoter { member_id: stale.member_id.clone() });
        needed.steps.push(step(id, format!("remove voter {}", stale.member_id), body));
        return needed;
    }
    for voter in &wanted {
        let (name, ip) = (voter.instance.id.to_string(), voter.instance.ipv4.to_string());
        let Some(report) = voter_of(voter) else { continue };
        let entry = known.members.iter().find(|member| member.ip == ip);
        match entry {
            None => {
                let body = v1::postgres_task::AddLearner {
                    voter: Some(v1::PostgresVoter { instance_id: name, ip }),
                };
                needed.steps.push(step(
                    id,
                    format!("add voter {} as a learner", voter.instance.id),
                    Body::AddLearner(body),
                ));
                return needed;
            }
            Some(_) if report.blank => {
                needed.steps.push(join(voter.instance.id, &wanted, known));
                return needed;
            }
            Some(entry) if entry.learner => {
                let body = v1::postgres_task::Promote { member_id: entry.member_id.clone() };
                needed.steps.push(step(
                    id,
                    format!("let voter {} vote", voter.instance.id),
                    Body::Promote(body),
                ));
                return needed;
            }
            Some(_) => {}
        }
    }
    for (name, alarm) in wanted
        .iter()
        .filter_map(|m| Some((m.instance.id, voter_of(m)?)))
        .flat_map(|(id, report)| report.alarms.iter().map(move |alarm| (id, alarm)))
    {
        needed.waiting.push(format!("voter {name} raises the alarm {alarm}"));
    }
    needed
}

/// A blank voter starts into the members that the quorum has.
fn join(voter: InstanceId, wanted: &[&Member<'_>], known: &v1::PostgresQuorumReport) -> Step {
    let name = |ip: &str| {
        wanted.iter().find(|m| m.instance.ipv4.to_string() == ip).map(|m| m.instance.id.to_string())
    };
    let members = known.members.iter().filter_map(|member| {
        Some(v1::PostgresVoter { instance_id: name(&member.ip)?, ip: member.ip.clone() })
    });
    let body = v1::postgres_task::Join { members: members.collect() };
    step(voter, "join the quorum".to_owned(), Body::Join(body))
}

//! Reading what members of a PostgreSQL cluster report. In: reports of data members and voters. Out: facts for the log, who leads, what the
//! members say about each other. Roles follow the leader key and timelines, never our plan.

use std::collections::BTreeMap;

use prost::Message as _;
use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{Generation, GroupId, InstanceId},
    v1,
};

use super::{quorum, spec::PostgresSpec};
use crate::engine::{self, ClusterView, Held, InForce, Member, PeerVerdict, Role};

/// What a member last reported.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// From one that holds data.
    Data(Box<v1::PostgresDataReport>),
    /// From a voter.
    Quorum(v1::PostgresQuorumReport),
}

/// The part of a report that the log keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PostgresFact {
    /// Of a member that holds data.
    Data {
        /// It holds the leader key and takes writes.
        leads: bool,
        /// Raw role of Patroni.
        role: String,
        /// Raw member state of Patroni.
        state: String,
        /// Of two that claim to lead the higher one is right.
        timeline: u64,
        /// PostgreSQL's own id of the data; empty before there are any.
        system: String,
    },
    /// Of a voter.
    Quorum {
        /// The engine's own id of the member; empty while it has none.
        member: String,
        /// It has no data, and waits to be told which members there are.
        blank: bool,
        /// It takes part in votes.
        votes: bool,
    },
}

impl PostgresFact {
    /// Whether it leads its group.
    pub fn claims_primary(&self) -> bool {
        matches!(self, PostgresFact::Data { leads: true, .. })
    }

    fn timeline(&self) -> u64 {
        match self {
            PostgresFact::Data { timeline, .. } => *timeline,
            PostgresFact::Quorum { .. } => 0,
        }
    }

    /// Whether this claim to lead is newer than the other.
    pub fn outranks(&self, other: &Self) -> bool {
        self.claims_primary() && self.timeline() > other.timeline()
    }

    /// Whether it follows one that leads.
    pub fn follows(&self, other: &Self) -> bool {
        matches!(self, PostgresFact::Data { leads: false, .. }) && other.claims_primary()
    }
}

/// Reads a report; none when it is not one, or says nothing yet.
pub fn read(bytes: &[u8]) -> Option<Report> {
    match v1::PostgresReport::decode(bytes).ok()?.member? {
        v1::postgres_report::Member::Data(data) => Some(Report::Data(Box::new(data))),
        v1::postgres_report::Member::Quorum(quorum) => Some(Report::Quorum(quorum)),
    }
}

impl Report {
    /// What the log keeps of it.
    pub fn fact(&self) -> PostgresFact {
        match self {
            Report::Data(data) => PostgresFact::Data {
                leads: data.leads,
                role: data.role.clone(),
                state: data.patroni_state.clone(),
                timeline: data.timeline,
                system: data.system_identifier.clone(),
            },
            Report::Quorum(quorum) => PostgresFact::Quorum {
                member: quorum.member_id.clone(),
                blank: quorum.blank,
                votes: !quorum.member_id.is_empty() && !quorum.learner && !quorum.blank,
            },
        }
    }

    /// Whether the parameters of its config are in force.
    pub fn parameters(&self) -> InForce {
        match self {
            Report::Data(data) => InForce {
                unapplied: data.unapplied_parameters.clone(),
                refused: data.refused_parameters.iter().map(|r| (r.name.clone(), r.error.clone())).collect(),
            },
            Report::Quorum(_) => InForce { unapplied: Vec::new(), refused: Vec::new() },
        }
    }
}

/// The newest fact of a member.
pub fn fact_of(member: &Member<'_>) -> Option<PostgresFact> {
    member.fact().and_then(|(_, fact)| fact.postgres().cloned())
}

/// The recent report of a member that holds data.
pub fn data_of<'a>(member: &'a Member<'_>) -> Option<&'a v1::PostgresDataReport> {
    match member.engine() {
        Some(engine::Report::Postgres(Report::Data(data))) => Some(data),
        Some(engine::Report::Postgres(Report::Quorum(_)) | engine::Report::Valkey(_)) | None => None,
    }
}

/// The recent report of a voter.
pub fn voter_of<'a>(member: &'a Member<'_>) -> Option<&'a v1::PostgresQuorumReport> {
    match member.engine() {
        Some(engine::Report::Postgres(Report::Quorum(quorum))) => Some(quorum),
        Some(engine::Report::Postgres(Report::Data(_)) | engine::Report::Valkey(_)) | None => None,
    }
}

/// The primary of each group: of the members that say that they lead, the one on the highest timeline; of those on the same, the one that is
/// heard.
pub fn primaries(view: &ClusterView<'_>) -> BTreeMap<GroupId, InstanceId> {
    let mut best: BTreeMap<GroupId, (u64, bool, InstanceId)> = BTreeMap::new();
    for member in &view.members {
        let Some(fact) = fact_of(member).filter(PostgresFact::claims_primary) else { continue };
        let claim = (fact.timeline(), member.fresh, member.instance.id);
        let held = best.entry(member.instance.group).or_insert(claim);
        if (claim.0, claim.1) > (held.0, held.1) {
            *held = claim;
        }
    }
    best.into_iter().map(|(group, (_, _, instance))| (group, instance)).collect()
}

/// Which role each member has.
pub fn roles(view: &ClusterView<'_>) -> Vec<(InstanceId, Role)> {
    let primaries = primaries(view);
    let role = |member: &Member<'_>| match fact_of(member) {
        Some(PostgresFact::Quorum { votes: true, .. }) => Role::Voter,
        Some(_) if primaries.get(&member.instance.group) == Some(&member.instance.id) => Role::Primary,
        Some(PostgresFact::Data { system, leads: false, .. }) if !system.is_empty() => Role::Replica,
        Some(PostgresFact::Quorum { .. } | PostgresFact::Data { .. }) | None => Role::Unknown,
    };
    view.members.iter().map(|member| (member.instance.id, role(member))).collect()
}

/// The member that leads a group, with its recent report.
pub fn leader<'v>(
    view: &'v ClusterView<'_>,
    group: GroupId,
) -> Option<(&'v Member<'v>, &'v v1::PostgresDataReport)> {
    let primary = *primaries(view).get(&group)?;
    let member = view.members.iter().find(|m| m.instance.id == primary)?;
    data_of(member).filter(|data| data.leads).map(|data| (member, data))
}

/// How many bytes a replica may be behind and still count as in sync: commits wait for it, and it replays what it has.
const LAG: u64 = 16 << 20;

/// Whether commits wait for this replica and it has next to nothing to replay; or whether this voter votes in a quorum that serves.
pub fn in_sync(view: &ClusterView<'_>, instance: InstanceId) -> bool {
    let Some(member) = view.members.iter().find(|m| m.instance.id == instance) else { return false };
    if let Some(voter) = voter_of(member) {
        return voter.serves && !voter.learner && quorum::knows(view, &voter.member_id);
    }
    let name = instance.to_string();
    let Some((_, leader)) = leader(view, member.instance.group) else { return false };
    let streams = leader.peers.iter().find(|peer| peer.instance_id == name).is_some_and(|peer| {
        let running = peer.state == "streaming" || peer.state == "running";
        running && peer.lag.is_some_and(|lag| lag <= LAG)
    });
    streams && data_of(member).is_some() && leader.sync_members.contains(&name)
}

/// What the other members say about `instance`.
pub fn peers_about(view: &ClusterView<'_>, instance: InstanceId) -> PeerVerdict {
    let Some(about) = view.members.iter().find(|m| m.instance.id == instance) else {
        return PeerVerdict::Unknown;
    };
    if fact_of(about).is_none() && !view.cluster.formed {
        // It never took part: nobody can miss it.
        return PeerVerdict::Failed;
    }
    if quorum::is_of(view, about) {
        // A quorum that serves without it has dealt with its loss.
        let serves = |m: &&Member<'_>| m.instance.id != instance && m.instance.wanted();
        let carried_on = view.members.iter().filter(serves).filter_map(voter_of).any(|voter| voter.serves);
        return if carried_on { PeerVerdict::Failed } else { PeerVerdict::Unknown };
    }
    let name = instance.to_string();
    match leader(view, about.instance.group) {
        // One that is let go itself carries nothing on.
        Some((primary, data)) if primary.instance.id != instance && primary.instance.wanted() => {
            let alive = data.peers.iter().any(|peer| {
                peer.instance_id == name && (peer.state == "streaming" || peer.state == "running")
            });
            if alive { PeerVerdict::Alive } else { PeerVerdict::Failed }
        }
        Some(_) | None => PeerVerdict::Unknown,
    }
}

/// Whether `heir` has everything that `old` has. Commits wait for one that is in sync, so whatever was acknowledged is there.
pub fn holds_all_of(view: &ClusterView<'_>, heir: InstanceId) -> bool {
    in_sync(view, heir)
}

/// Whether every group has a leader that takes writes and the quorum serves.
pub fn serves(view: &ClusterView<'_>) -> bool {
    let data = view.groups.iter().filter(|group| group.class == engine::Class::Data);
    data.into_iter().all(|group| leader(view, group.id).is_some()) && quorum::serves(view)
}

/// Whether this member leads its group, answers, and can be reached.
pub fn leads(view: &ClusterView<'_>, instance: InstanceId) -> bool {
    view.members.iter().any(|m| {
        m.instance.id == instance && m.instance.fence.is_none() && data_of(m).is_some_and(|data| data.leads)
    })
}

/// What each group has, in bytes; rows are not counted.
pub fn held(view: &ClusterView<'_>) -> BTreeMap<GroupId, Held> {
    let groups = view.data_groups().filter_map(|group| {
        let (_, data) = leader(view, group.id)?;
        Some((group.id, Held { slots: 0, keys: 0, bytes: data.used_bytes }))
    });
    groups.collect()
}

/// What the coordinator's leader says about roles.
pub fn roles_told(
    view: &ClusterView<'_>,
    spec: &PostgresSpec,
) -> Option<(Generation, Vec<(String, String)>)> {
    let coordinator = spec.shard_groups.first()?.id;
    let (_, report) = leader(view, coordinator)?;
    let refused = report.refused_roles.iter().map(|refusal| (refusal.name.clone(), refusal.error.clone()));
    Some((Generation(report.roles_revision), refused.collect()))
}

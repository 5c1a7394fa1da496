//! A cluster with all that is known of it, as the planner and the views ask about it. In: what the log says and what hosts report.
//! Out: roles, verdicts and next steps, whichever engine it is. Built by [`crate::plan::cluster_view`].

use std::collections::BTreeMap;

use shardplane_proto::ids::{Generation, GroupId, InstanceId, ResourceId};

use super::{Class, ClusterSpec, Fact, GroupSpec, Held, Layout, Report, Travel, postgres, valkey};
use crate::{
    observed::{HostReport, MemberReport},
    resource::Resource,
    state::{Cluster, Goal, Host, Instance, Operation, Presence, Settings, State, Task},
    time::{Millis, Timestamp},
};

/// What an instance does in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Takes the writes.
    Primary,
    /// Follows.
    Replica,
    /// Votes in a quorum, and holds no data of users.
    Voter,
    /// Nothing known, or not part of the cluster yet.
    Unknown,
}

/// One member of a cluster with all that is known of it.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// What the log says.
    pub instance: &'a Instance,
    /// Position of its group in [`ClusterView::groups`]; none for a group that is in neither the spec nor leaving.
    pub group_index: Option<usize>,
    /// Its host, if the log knows it.
    pub host: Option<&'a Host>,
    /// What its host reported since this leader listens.
    pub report: Option<&'a MemberReport>,
    /// Whether that report is recent and its host connected.
    pub fresh: bool,
    /// What its host said of itself since this leader listens.
    pub host_report: Option<&'a HostReport>,
    /// Whether its host is heard.
    pub heard: bool,
}

impl Member<'_> {
    /// The engine's report, when it is recent.
    pub fn engine(&self) -> Option<&Report> {
        self.report.filter(|_| self.fresh).and_then(|report| report.engine.as_ref())
    }

    /// The newest fact with its time: from a report or else from the log.
    pub fn fact(&self) -> Option<(Timestamp, Fact)> {
        match self.report.and_then(|r| r.engine.as_ref().map(|engine| (r.at, engine.fact()))) {
            Some(reported) => Some(reported),
            None => self.instance.fact.clone(),
        }
    }
}

/// A cluster with all that is known of it.
#[derive(Debug, Clone)]
pub struct ClusterView<'a> {
    /// Its resource.
    pub resource: &'a Resource,
    /// Its spec.
    pub spec: &'a ClusterSpec,
    /// What the state remembers of it.
    pub cluster: &'a Cluster,
    /// Its groups: those of the spec, then those that leave.
    pub groups: Vec<GroupSpec>,
    /// The operation that moves data between groups, while it runs.
    pub reshard: Option<&'a Operation>,
    /// Its tasks that are kept, oldest first.
    pub tasks: Vec<&'a Task>,
    /// The installation's settings.
    pub settings: &'a Settings,
    /// Its members in order of group, first primary first, then by id; retiring ones included.
    pub members: Vec<Member<'a>>,
    /// The time to judge ages by.
    pub now: Timestamp,
    /// This leader has just begun to listen: logged facts still stand for reports that had no time to come.
    pub gathering: bool,
    /// Since when this leader listens.
    pub listens_since: Timestamp,
}

/// Secrets of a cluster in clear, opened at the last moment.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The cluster's own.
    pub own: String,
    /// Passwords of its roles, by resource.
    pub roles: BTreeMap<ResourceId, String>,
}

/// One engine step that may start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Who performs it.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// The engine's own message.
    pub payload: Vec<u8>,
}

/// What an engine wants next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Next {
    /// Steps that may start now, all at once.
    pub steps: Vec<Step>,
    /// What it waits for and why; not empty when it is not whole and there are no steps.
    pub waiting: Vec<String>,
    /// Every wanted member takes its part, as far as recent reports tell.
    pub whole: bool,
    /// The same, but for what still moves between groups.
    pub settled: bool,
    /// The movement between groups goes no further: a step failed too often, with the engine's text.
    pub halt: Option<String>,
    /// When time alone would change this.
    pub again_at: Option<Timestamp>,
}

/// A replica that could take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heir {
    /// The replica.
    pub instance: InstanceId,
    /// Since when it does not hear whom it follows; none while it does.
    pub detached_since: Option<Timestamp>,
}

/// A group that has no working primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headless {
    /// The group.
    pub group: GroupId,
    /// Who was its primary last, by the newest claim.
    pub primary: InstanceId,
    /// Groups of the cluster that own slots and have, or had, a primary.
    pub primaries: usize,
    /// Those of them whose primary works.
    pub working: usize,
    /// It owns no slot, but a slot is half way to it: the engine elects nobody for it, whoever works.
    pub slotless: bool,
    /// Enough primaries work, and a replica may stand: the engine may elect one by itself.
    pub votes: bool,
    /// Since when the primary is silent.
    pub since: Timestamp,
    /// How long after that, or after the majority came back, the engine had its chance.
    pub patience: Millis,
    /// Who could take over, whoever has most of the data first.
    pub heirs: Vec<Heir>,
    /// Its members that do not serve although their hosts are heard: they may have more.
    pub unheard: Vec<InstanceId>,
}

/// What the other members say about one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerVerdict {
    /// They see it working, or some of them do.
    Alive,
    /// Nobody who can be heard sees it working, and the cluster has dealt with its loss.
    Failed,
    /// Too few can be heard to tell, or its group still waits for a new primary.
    Unknown,
}

impl ClusterView<'_> {
    /// Members that shall run.
    pub fn wanted(&self) -> impl Iterator<Item = &Member<'_>> {
        self.members.iter().filter(|member| member.instance.wanted())
    }

    /// The groups that hold data.
    pub fn data_groups(&self) -> impl Iterator<Item = &GroupSpec> {
        self.groups.iter().filter(|group| group.class == Class::Data)
    }

    /// What the members of a group are for.
    pub fn class_of(&self, group: GroupId) -> Class {
        self.groups.iter().find(|known| known.id == group).map_or(Class::Data, |known| known.class)
    }

    /// Which role each member has, by observation.
    pub fn roles(&self) -> Vec<(InstanceId, Role)> {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::roles(self),
            ClusterSpec::Postgres(_) => postgres::facts::roles(self),
        }
    }

    /// The next steps towards a whole cluster.
    pub fn next(&self) -> Next {
        match self.spec {
            ClusterSpec::Valkey(spec) => valkey::tasks::next(self, spec),
            ClusterSpec::Postgres(_) => postgres::tasks::next(self),
        }
    }

    /// What the other members say about this one.
    pub fn peers_about(&self, instance: InstanceId) -> PeerVerdict {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::peers_about(self, instance),
            ClusterSpec::Postgres(_) => postgres::facts::peers_about(self, instance),
        }
    }

    /// Whether this replica holds everything its primary has acknowledged to it, so that it may take over or count.
    pub fn in_sync(&self, instance: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::in_sync(self, instance),
            ClusterSpec::Postgres(_) => postgres::facts::in_sync(self, instance),
        }
    }

    /// Whether a group of a cluster that has served owns nothing, for certain: it is new, or it has given everything away. All who
    /// answer and the log say so, and nobody is silent who could say otherwise.
    pub fn is_empty(&self, group: GroupId) -> bool {
        self.cluster.formed
            && match self.spec {
                ClusterSpec::Valkey(_) => valkey::ownership::is_empty(self, group),
                ClusterSpec::Postgres(_) => false,
            }
    }

    /// Whether a group is one that leaves and has given everything away: nobody takes a place in it any more.
    pub fn goes_at_once(&self, group: GroupId) -> bool {
        self.cluster.leaving.iter().any(|leaving| leaving.id == group) && self.is_empty(group)
    }

    /// Where the groups of the spec shall have their data and how much has to move for it; none when it is there.
    ///
    /// # Errors
    /// What has to be known first, for people.
    pub fn layout(&self) -> Result<Option<(Layout, Goal)>, String> {
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                let shards: Vec<GroupId> = spec.shards.iter().map(|shard| shard.id).collect();
                let wanted = valkey::progress::wanted(self, &shards)?;
                let goal = |amount| Goal { what: "slots".to_owned(), amount };
                Ok(wanted.map(|(layout, slots)| (Layout::Valkey(layout), goal(slots))))
            }
            ClusterSpec::Postgres(_) => Ok(None),
        }
    }

    /// Whether data is still to move between groups.
    pub fn moves(&self) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::progress::of(self).is_some_and(|progress| progress.left > 0),
            ClusterSpec::Postgres(_) => false,
        }
    }

    /// How much of what the operation that runs shall move is where it shall be; none when none runs.
    pub fn moved(&self) -> Option<u64> {
        match self.spec {
            ClusterSpec::Valkey(_) => {
                valkey::progress::of(self).map(|progress| progress.goal - progress.left)
            }
            ClusterSpec::Postgres(_) => None,
        }
    }

    /// What the groups have that own something.
    pub fn held(&self) -> BTreeMap<GroupId, Held> {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::travel::held(self),
            ClusterSpec::Postgres(_) => postgres::facts::held(self),
        }
    }

    /// What would travel for a layout, as things are now.
    pub fn travels(&self, layout: &Layout) -> Vec<Travel> {
        match layout {
            Layout::Valkey(layout) => valkey::travel::travels(self, layout),
        }
    }

    /// Whether every group has a primary and the engine itself says that the cluster serves.
    pub fn serves(&self) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::serves(self),
            ClusterSpec::Postgres(_) => postgres::facts::serves(self),
        }
    }

    /// Whether `heir` has everything that `old` has, so that `old` may go without loss.
    pub fn holds_all_of(&self, heir: InstanceId, old: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::holds_all_of(self, heir, old),
            ClusterSpec::Postgres(_) => postgres::facts::holds_all_of(self, heir),
        }
    }

    /// The step that makes this in-sync replica the primary of its group without loss.
    pub fn switchover(&self, to: InstanceId) -> Step {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::tasks::switchover(to),
            ClusterSpec::Postgres(_) => postgres::tasks::switchover(to),
        }
    }

    /// Whether this member says that the engine's vote cannot make it a primary any more; it may be one already.
    pub fn stands_down(&self, instance: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::facts::stands_down(self, instance),
            ClusterSpec::Postgres(_) => false,
        }
    }

    /// The step that keeps this replica out of the engine's elections, or lets it stand again; none where one that ends in order hands on
    /// what it was elected to by itself.
    pub fn stand_down(&self, instance: InstanceId, on: bool) -> Option<Step> {
        match self.spec {
            ClusterSpec::Valkey(_) => Some(valkey::tasks::stand_down(instance, on)),
            ClusterSpec::Postgres(_) => None,
        }
    }

    /// Which revision of the cluster's roles is in force, by whoever brings them there, and what of it the engine has refused.
    pub fn roles_told(&self) -> Option<(Generation, Vec<(String, String)>)> {
        match self.spec {
            ClusterSpec::Valkey(_) => None,
            ClusterSpec::Postgres(spec) => postgres::facts::roles_told(self, spec),
        }
    }

    /// Groups without a working primary, in the order of the spec.
    pub fn headless(&self) -> Vec<Headless> {
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                let slowest = valkey::config::slowest(spec, self.wanted().map(|member| member.instance));
                valkey::takeover::headless(self, spec, slowest)
            }
            // Patroni elects whoever has every acknowledged commit; nobody else is ever promoted in its stead.
            ClusterSpec::Postgres(_) => Vec::new(),
        }
    }

    /// About how long a group is without a primary when its primary is lost: until the engine has elected another, or, where it cannot,
    /// until it counts as given up.
    pub fn without_primary(&self, votes: bool) -> Millis {
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                let slowest = valkey::config::slowest(spec, self.wanted().map(|member| member.instance));
                slowest.without_primary(votes)
            }
            ClusterSpec::Postgres(_) => postgres::WITHOUT_PRIMARY,
        }
    }

    /// How long a replica may take to notice that the host of its primary says nothing any more.
    pub fn notices_silence(&self) -> Millis {
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                valkey::config::slowest(spec, self.wanted().map(|member| member.instance)).link
            }
            ClusterSpec::Postgres(_) => postgres::WITHOUT_PRIMARY,
        }
    }

    /// Whether this member leads its group, answers, and can be reached.
    pub fn leads(&self, instance: InstanceId) -> bool {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::takeover::leads(self, instance),
            ClusterSpec::Postgres(_) => postgres::facts::leads(self, instance),
        }
    }

    /// The step that makes this replica the primary of its group without the engine's vote, where there is such a thing.
    pub fn takeover(&self, heir: InstanceId) -> Step {
        match self.spec {
            ClusterSpec::Valkey(_) => valkey::takeover::takeover(heir),
            ClusterSpec::Postgres(_) => postgres::tasks::switchover(heir),
        }
    }

    /// How many other members have to follow a primary of this group, so that none of them can have been promoted in its place: all that
    /// its host's networks reach, since a desired state tells both.
    ///
    /// None where the engine's own lease says who takes writes: the leader key of PostgreSQL.
    pub fn copies_needed(&self, instance: &Instance) -> u32 {
        if self.cluster.engine.has_its_own_lease() {
            return 0;
        }
        let others = self
            .wanted()
            .filter(|other| other.instance.group == instance.group && other.instance.id != instance.id);
        u32::try_from(others.count()).unwrap_or(u32::MAX)
    }

    /// What the guest of this instance is configured with.
    pub fn guest_config(&self, state: &State, instance: &Instance, secrets: &Secrets) -> Vec<u8> {
        let roles = self.roles();
        let primary_elsewhere = self.members.iter().find(|other| {
            other.instance.id != instance.id
                && other.instance.group == instance.group
                && other.instance.wanted()
                && other.host.is_some_and(|host| host.presence == Presence::Present)
                && roles.contains(&(other.instance.id, Role::Primary))
        });
        // Whoever took over from it has newer data, be it lost by now.
        let by = instance.succeeded_by.map(|(by, _)| by);
        let successor = || self.members.iter().find(|other| by == Some(other.instance.id));
        let primary_elsewhere = primary_elsewhere.or_else(successor);
        match self.spec {
            ClusterSpec::Valkey(spec) => {
                valkey::config::render(state, spec, instance, &secrets.own, primary_elsewhere)
            }
            ClusterSpec::Postgres(spec) => postgres::config::render(self, state, spec, instance, secrets),
        }
    }
}

//! How a follower is let go. In: a member that shall leave and a group that can do without it. Out: the step that takes it out of
//! elections, or that it may go now. A member that could still win an election between the decision and its stop would take the writes
//! of that moment with it. Called by moves and by fewer replicas; whoever stands down and does not leave is let stand again.

use shardplane_proto::ids::InstanceId;

use super::cluster::Turn;
use crate::{
    engine::{ClusterView, Fact, Member, Report, Role, Step},
    state::{Task, TaskState},
    time::Millis,
};

/// How much older than the outcome of a task a report may be that comes with it or after it.
const REPORTS_LATE: Millis = Millis::seconds(3);

/// How far a member is on its way out.
pub(super) enum Leave {
    /// It says that it follows and that no vote makes it a primary, or it never took part: it may go.
    Now,
    /// It has to be told first.
    After(Step),
    /// What has to be known first, for people.
    Wait(String),
}

impl Turn<'_, '_, '_> {
    /// How a member that is no primary leaves. From now on it is not told to stand again, as long as it is asked about.
    pub(super) fn leave(&mut self, id: InstanceId) -> Leave {
        let roles = self.view.roles();
        let role = roles.iter().find(|(other, _)| *other == id).map_or(Role::Unknown, |(_, role)| *role);
        let member = self.view.wanted().find(|m| m.instance.id == id);
        let said = member.and_then(Member::engine).map(Report::fact);
        let claims = said.as_ref().is_some_and(Fact::claims_primary);
        // The log judges by what it knows itself.
        let logged = member.and_then(|m| m.instance.fact.as_ref()).is_some_and(|(_, fact)| !fact.stands());
        self.leaving.insert(id);
        if let Some(task) = self.raised(id) {
            let text =
                format!("instance {id} was told: {}; it goes when it has said what it is then", task.name);
            self.plan.again_after(self.view.now, Millis::seconds(1));
            return Leave::Wait(text);
        }
        match role {
            _ if said.is_none() => Leave::Wait(format!("instance {id} has to answer before it goes")),
            Role::Primary => Leave::Wait(format!("instance {id} became a primary and stays")),
            Role::Replica if self.view.stands_down(id) && logged => Leave::Now,
            Role::Replica if self.view.stands_down(id) => {
                Leave::Wait(format!("instance {id} stands in no election, which is not in the log yet"))
            }
            Role::Replica => self.view.stand_down(id, true).map_or(Leave::Now, Leave::After),
            Role::Voter => Leave::Now,
            Role::Unknown if claims => {
                Leave::Wait(format!("instance {id} has to yield to its successor first"))
            }
            Role::Unknown => Leave::Now,
        }
    }

    /// A task that may make a primary of it, or let it win an election, and that its report need not show yet.
    fn raised(&self, id: InstanceId) -> Option<&Task> {
        let recent = |task: &&Task| {
            let over = task.ended.is_some_and(|ended| self.view.now.since(ended) > REPORTS_LATE);
            task.state == TaskState::Running || !over
        };
        let engine = self.view.cluster.engine;
        let own = self.state.tasks_of(self.id).filter(|task| task.instance == id);
        own.filter(recent).find(|task| engine.raises(&task.payload))
    }

    /// Those that stand down and do not leave after all are to stand again: whoever asked them may be another leader.
    pub(super) fn stand_again(&self) -> Vec<Step> {
        let stays = |id: &InstanceId| !self.leaving.contains(id) && self.view.stands_down(*id);
        let wanted = self.view.wanted().map(|m| m.instance.id);
        wanted.filter(stays).filter_map(|id| self.view.stand_down(id, false)).collect()
    }
}

/// Whether an instance is in sync and the engine's vote may choose it.
pub(super) fn may_succeed(view: &ClusterView<'_>, id: InstanceId) -> bool {
    view.in_sync(id) && !view.stands_down(id)
}

//! Groups come and go. In: a formed cluster whose spec has other groups than those that own its data. Out: the layout for the log once
//! every member takes its part, that an emptied group goes, that moving halts; or what has to be known first. The engine's steps do the
//! moving.

use super::cluster::{Then, Turn};
use crate::{
    command::Decision,
    engine::GroupSpec,
    state::{OperationKind, OperationState},
};

impl Turn<'_, '_, '_> {
    /// A group that leaves and owns nothing goes, whatever else is to do.
    pub(super) fn dissolve(&mut self) -> Then {
        let empty = |group: &&GroupSpec| self.view.is_empty(group.id);
        let Some(group) = self.view.cluster.leaving.iter().filter(|_| self.view.cluster.formed).find(empty)
        else {
            return Then::GoOn;
        };
        self.plan.propose.push(Decision::Dissolve { cluster: self.id, group: group.id });
        Then::Stop
    }

    /// What a change in flight still has to move, when the cluster is whole otherwise. `resting`: no member is on its way out or in.
    pub(super) fn reshard(&mut self, resting: bool) -> Then {
        for group in &self.view.cluster.leaving {
            self.plan.wait(self.id, format!("shard {} leaves when it owns nothing any more", group.id));
        }
        if self.view.cluster.layout.is_some() {
            return Then::Stop;
        }
        match self.view.layout() {
            Ok(None) if self.view.cluster.leaving.is_empty() => Then::GoOn,
            Ok(None) => Then::Stop,
            Ok(Some(_)) if !resting => {
                self.plan.wait(self.id, "slots move when no instance is on its way".to_owned());
                Then::Stop
            }
            Ok(Some((layout, goal))) => {
                let change = self.change_of_groups();
                let mut operation = self.operation(
                    OperationKind::Reshard,
                    format!("{change}: {} {} move", goal.amount, goal.what),
                );
                operation.goal = Some(goal);
                let request = self.view.resource.change.request;
                self.plan.propose.push(Decision::Reshard { cluster: self.id, request, layout, operation });
                Then::Stop
            }
            Err(why) => {
                self.plan.wait(self.id, why);
                Then::Stop
            }
        }
    }

    /// What the log shall know when everything has moved, asked of a whole cluster.
    pub(super) fn resharded(&self) -> Option<Decision> {
        let operation = self.view.reshard.filter(|_| self.view.cluster.leaving.is_empty())?;
        Some(Decision::Resharded { cluster: self.id, operation: operation.id })
    }

    /// Why data moves, for people.
    fn change_of_groups(&self) -> String {
        let leaving =
            self.view.cluster.leaving.iter().map(|group| format!("shard {} is taken away", group.id));
        let own = self.view.groups.iter().filter(|group| self.view.is_empty(group.id));
        let new = own.map(|group| format!("shard {} is added", group.id));
        let changes: Vec<String> = leaving.chain(new).collect();
        if changes.is_empty() { "the shards become even".to_owned() } else { changes.join(", ") }
    }

    /// What repaired a member while data moves has ended, although the change goes on.
    pub(super) fn end_repairs(&mut self) {
        let Some(reshard) = self.view.reshard else { return };
        let busy: Vec<_> = self.state.running_tasks(self.id).map(|task| task.operation).collect();
        let ended = self.state.operations.values().filter(|o| {
            o.cluster == self.id
                && o.state == OperationState::Running
                && o.id != reshard.id
                && o.kind.makes_members()
                && !busy.contains(&o.id)
        });
        let ends = ended.map(|o| Decision::EndOperation { operation: o.id, error: None });
        self.plan.propose.extend(ends);
    }
}

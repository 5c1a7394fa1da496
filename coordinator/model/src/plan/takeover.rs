//! Groups that have no primary and cannot elect one. In: the view, with what hosts say. Out: fences for whoever could still serve, then,
//! with a proof for each of them, a takeover of the most advanced replica, one group after the other; fences are taken away when
//! another leads, or when the old primary serves again before anybody took over. Every phase is in the log: a new leader goes on.

use shardplane_proto::ids::{InstanceId, OperationId, TaskId};

use super::{
    cluster::{Then, Turn, lost},
    listed,
    proof::stopped,
    tasks,
};
use crate::{
    apply::fence::{succeeds, under_way},
    command::{Decision, NewOperation, NewTask, Proof, Proven},
    engine::{Headless, Heir, Member},
    state::{Fence, Operation, OperationKind, OperationState, TaskState},
    time::{Millis, Timestamp},
};

/// A member that may have more is waited for that long after the fence; a fence that leads nowhere is taken away after it.
const BETTER_COMES: Millis = Millis::seconds(60);
/// Where the lease is the proof, its end counts only when the replica itself has not followed for that long: a primary that believes in
/// its copies is not cut, and it believes in one for 10 s after its last word; reports and the agent's look at them take a few more.
pub(super) const DETACHED: Millis = Millis::seconds(15);
/// One that was chosen and is silent for longer is fenced, too, and another is chosen.
const HEIR_RESTS: Millis = Millis::seconds(15);

type Fenced<'m, 'v> = (&'m Member<'v>, &'v Fence);

fn claims(member: &Member<'_>) -> bool {
    member.instance.fact.as_ref().is_some_and(|(_, fact)| fact.claims_primary())
}

impl<'v> Turn<'_, 'v, '_> {
    fn fenced(&self) -> Vec<Fenced<'v, 'v>> {
        let view: &'v _ = self.view;
        view.wanted().filter_map(|member| Some((member, member.instance.fence.as_ref()?))).collect()
    }

    fn takeover_operation(&self) -> Option<&Operation> {
        let running = |o: &&Operation| o.cluster == self.id && o.state == OperationState::Running;
        self.state.operations.values().filter(running).find(|o| o.kind == OperationKind::Takeover)
    }

    /// When the last replica was promoted by the operation that runs.
    fn last_takeover(&self) -> Timestamp {
        let tasks = self.takeover_operation().map(|operation| operation.tasks.as_slice()).unwrap_or_default();
        let created = tasks.iter().filter_map(|id| self.state.tasks.get(id)).map(|task| task.created);
        created.max().unwrap_or_default()
    }

    fn leader_of(&self, old: &Member<'_>) -> Option<&'v Member<'v>> {
        let view: &'v _ = self.view;
        view.wanted().find(|m| m.instance.group == old.instance.group && view.leads(m.instance.id))
    }

    pub(super) fn take_over(&mut self) -> Then {
        if !self.view.cluster.formed {
            return Then::GoOn;
        }
        let headless = self.view.headless();
        let fenced = self.fenced();
        if self.release(&fenced, &headless) {
            return Then::Stop;
        }
        let mut needing = Vec::new();
        for group in &headless {
            let chosen = fenced.iter().any(|(old, f)| old.instance.group == group.group && f.heir.is_some());
            // A majority that is there again after a takeover has its chance from then on.
            let from = if group.votes { group.since.max(self.last_takeover()) } else { group.since };
            let due = from.plus(group.patience);
            if chosen || self.view.now >= due {
                needing.push(group);
                continue;
            }
            let how = match (group.votes, group.slotless) {
                (true, _) => "the engine elects another",
                (false, true) => "it owns no slot yet, so the engine elects none",
                (false, false) => "no majority can elect another",
            };
            self.plan.wait(
                self.id,
                format!("shard {} has no primary; {how}, a takeover begins after {due}", group.group),
            );
            self.plan.again_after(due, Millis(0));
        }
        if needing.is_empty() {
            return if headless.is_empty() || fenced.is_empty() {
                self.operation_ends(&headless)
            } else {
                Then::Stop
            };
        }
        if self.fence(&needing, &fenced) {
            return Then::Stop;
        }
        let fenced_of = |group: &&&Headless| {
            !group.heirs.is_empty() && fenced.iter().any(|(old, _)| old.instance.group == group.group)
        };
        if let Some(group) = needing.iter().find(fenced_of).copied()
            && let Some(proofs) = self.proofs(&fenced)
        {
            self.promote(group, &fenced, proofs);
        }
        if fenced.is_empty() { Then::GoOn } else { Then::Stop }
    }

    /// A takeover whose groups all lead again has done its work.
    fn operation_ends(&mut self, headless: &[Headless]) -> Then {
        let ended = self.takeover_operation().filter(|_| headless.is_empty()).map(|operation| operation.id);
        if let Some(operation) = ended {
            self.plan.propose.push(Decision::EndOperation { operation, error: None });
            return Then::Stop;
        }
        Then::GoOn
    }

    /// Takes fences away that nothing needs any more.
    fn release(&mut self, fenced: &[Fenced<'v, 'v>], headless: &[Headless]) -> bool {
        let mut given_up = Vec::new();
        let mut succeeded = Vec::new();
        let mut unseen = Vec::new();
        for (old, fence) in fenced {
            let id = old.instance.id;
            let group = headless.iter().find(|group| group.group == old.instance.group);
            match self.leader_of(old) {
                Some(leader) if leader.instance.id == id => {
                    if fence.heir.is_none() {
                        given_up.push((id, "it answers again, and nobody has taken over"));
                    }
                }
                Some(leader) if claims(old) => {
                    if succeeds(leader.instance, old.instance, fence) {
                        // One that still runs would take writes between the opening of its port and the first word of its successor:
                        // it has to start anew, and an engine that starts listens first.
                        if !lost(old) && stopped(old, fence).is_some() {
                            succeeded.push(id);
                        }
                    } else {
                        self.plan.wait(
                            self.id,
                            format!(
                                "instance {id} stays fenced: the log does not know yet that another leads in its place"
                            ),
                        );
                    }
                }
                // It may have been elected where nobody saw it, and what it took there is older than what was taken since.
                Some(_) if fence.passed => {
                    if !lost(old) && stopped(old, fence).is_some() {
                        unseen.push(id);
                    }
                }
                // It was fenced because it is out of sight while other groups have no primary: as long as both is so, it would be
                // fenced again at once.
                Some(_) if fence.away && !old.heard && !headless.is_empty() => {}
                Some(_) => given_up.push((id, "its shard has a primary, and nobody has taken over")),
                None if fence.away && !fence.passed && old.heard => {
                    given_up.push((id, "its host is heard again, and nobody has taken over"));
                }
                None => {
                    let alone = group.is_none_or(|group| group.heirs.is_empty());
                    let late = self.view.now.since(fence.since) > BETTER_COMES;
                    let own = self.view.wanted().filter(|m| m.instance.group == old.instance.group);
                    let led = own.filter(|m| m.instance.id != id).any(claims);
                    let legal = claims(old) && !(led && fence.elected_unseen());
                    let free = fence.heir.is_none() && (legal || !fence.passed);
                    let chosen = fenced.iter().any(|(_, other)| other.heir == Some(id));
                    if alone && late && free && old.heard {
                        given_up.push((id, "no replica of its shard answers that could take over"));
                    } else if alone && late && chosen && old.heard && stopped(old, fence).is_some() {
                        given_up.push((id, "it was chosen to take over, and nobody else can"));
                    } else if alone && !late {
                        self.plan.again_after(fence.since, Millis(BETTER_COMES.0 + 1));
                    }
                }
            }
        }
        if !unseen.is_empty() {
            let cause = "it was out of sight while others were promoted";
            self.plan.propose.push(Decision::Retire {
                cluster: self.id,
                instances: unseen.clone(),
                cause: cause.to_owned(),
            });
        }
        if !succeeded.is_empty() {
            let cause = "another leads its shard since it was fenced".to_owned();
            self.plan.propose.push(Decision::Unfence {
                cluster: self.id,
                instances: succeeded.clone(),
                cause,
            });
        }
        if let Some((_, cause)) = given_up.first().copied() {
            let instances: Vec<InstanceId> = given_up.iter().map(|(id, _)| *id).collect();
            let all = fenced.len() == instances.len() + succeeded.len() + unseen.len();
            let untouched = self.takeover_operation().filter(|operation| operation.tasks.is_empty());
            let ends = untouched.filter(|_| all).map(|operation| operation.id);
            self.plan.propose.push(Decision::Unfence {
                cluster: self.id,
                instances,
                cause: cause.to_owned(),
            });
            if let Some(operation) = ends {
                let error = Some(format!("not needed any more: {cause}"));
                self.plan.propose.push(Decision::EndOperation { operation, error });
            }
        }
        !(unseen.is_empty() && succeeded.is_empty() && given_up.is_empty())
    }

    /// Fences the dead primaries of groups that have an heir, and everybody on hosts that are not heard: a majority may be among them, and
    /// elect whom it likes.
    fn fence(&mut self, needing: &[&Headless], fenced: &[Fenced<'v, 'v>]) -> bool {
        let mut due: Vec<&Headless> = Vec::new();
        for group in needing {
            if group.heirs.is_empty() {
                let text = format!(
                    "shard {} has no primary, and no replica that answers and has its data; bring back the host of instance {}",
                    group.group, group.primary
                );
                self.plan.wait(self.id, text);
            } else {
                due.push(group);
            }
        }
        if due.is_empty() {
            return false;
        }
        // One that retires is told to stop in any case.
        let wanted = |id: &InstanceId| self.view.wanted().any(|member| member.instance.id == *id);
        let primaries = due.iter().map(|group| group.primary).filter(wanted);
        let chosen = fenced.iter().filter_map(|(_, fence)| fence.heir);
        let silent_heir = |id: &InstanceId| {
            let silent = |m: &Member<'_>| m.report.and_then(|report| report.silent_since);
            let long = |since| self.view.now.since(since) > HEIR_RESTS;
            self.view.wanted().any(|m| m.instance.id == *id && silent(m).is_some_and(long))
        };
        let away: Vec<InstanceId> = self.view.wanted().filter(|m| !m.heard).map(|m| m.instance.id).collect();
        let mut instances: Vec<InstanceId> =
            primaries.chain(chosen.filter(silent_heir)).chain(away.iter().copied()).collect();
        instances.sort_unstable();
        instances.dedup();
        // One whose operation has ended is named once more, so that there is one that runs.
        if self.takeover_operation().is_some() {
            instances.retain(|id| !fenced.iter().any(|(old, _)| old.instance.id == *id));
        }
        let Some(first) = due.first().filter(|_| !instances.is_empty()) else { return false };
        let cause = if first.slotless {
            format!("shard {} owns no slot yet, so the engine elects nobody for it", first.group)
        } else if first.votes {
            let shards: Vec<_> = due.iter().map(|group| group.group).collect();
            format!("no replica of shard {} was elected in its time", listed(&shards))
        } else {
            let (lost, all) = (first.primaries - first.working, first.primaries);
            format!("{lost} of {all} primaries do not work, so the engine cannot elect others")
        };
        let running = self.takeover_operation();
        let operation = match running {
            Some(begun) => {
                NewOperation { id: begun.id, kind: begun.kind, cause: begun.cause.clone(), goal: None }
            }
            None => self.operation(OperationKind::Takeover, cause),
        };
        self.plan.propose.push(Decision::Fence { cluster: self.id, instances, away, operation });
        true
    }

    /// Promotes the best replica of a group whose fenced members are all proved harmless.
    fn promote(&mut self, group: &Headless, fenced: &[Fenced<'v, 'v>], proofs: Vec<Proven>) {
        let own = || fenced.iter().filter(|(old, _)| old.instance.group == group.group);
        let Some(since) = own().map(|(_, fence)| fence.since).max() else { return };
        let chosen = own().find_map(|(_, fence)| fence.heir);
        let Some(operation) = self.takeover_operation().map(|operation| operation.id) else { return };
        let standing = chosen.and_then(|id| group.heirs.iter().find(|heir| heir.instance == id));
        let Some(best) = standing.or(group.heirs.first()) else { return };
        if standing.is_none() && !group.unheard.is_empty() && self.view.now.since(since) <= BETTER_COMES {
            let text = format!(
                "shard {}: instance {} could take over, but {} may have more and does not answer; it is waited for until {}",
                group.group,
                best.instance,
                listed(&group.unheard),
                since.plus(BETTER_COMES)
            );
            self.plan.wait(self.id, text);
            self.plan.again_after(since, Millis(BETTER_COMES.0 + 1));
            return;
        }
        let by_lease = own().any(|(old, _)| {
            proofs.iter().any(|proven| {
                proven.instance == old.instance.id && matches!(proven.proof, Proof::LeaseExpired { .. })
            })
        });
        if by_lease && !self.detached(best) {
            self.plan.wait(
                self.id,
                format!(
                    "shard {}: instance {} may still hear the primary that it follows; it takes over {} s after its link is down",
                    group.group,
                    best.instance,
                    DETACHED.0 / 1000
                ),
            );
            self.plan.again_after(self.view.now, Millis::seconds(1));
            return;
        }
        self.start(group, best.instance, proofs, operation);
    }

    fn detached(&self, heir: &Heir) -> bool {
        heir.detached_since.is_some_and(|since| self.view.now.since(since) >= DETACHED)
    }

    fn start(&mut self, group: &Headless, heir: InstanceId, proofs: Vec<Proven>, operation: OperationId) {
        if let Some(other) = under_way(self.state, self.id, group.group, heir) {
            let text = format!("shard {}: the takeover of shard {other} has to show first", group.group);
            return self.plan.wait(self.id, text);
        }
        let step = self.view.takeover(heir);
        let same: Vec<_> = self
            .state
            .tasks_of(self.id)
            .filter(|task| task.instance == heir && task.payload == step.payload)
            .collect();
        let runs = same.iter().any(|task| task.state == TaskState::Running);
        let wait = same.iter().filter_map(|task| task.ended).max().map(|ended| (ended, tasks::pause(&same)));
        let text = format!("shard {}: {} on instance {heir}", group.group, step.name);
        if runs {
            self.plan.wait(self.id, text);
            return;
        }
        if let Some((ended, pause)) = wait
            && self.view.now.since(ended) < pause
        {
            self.plan.wait(self.id, text);
            self.plan.again_after(ended, pause);
            return;
        }
        let task = NewTask {
            id: TaskId::from_u128((self.ids)()),
            instance: heir,
            name: step.name,
            payload: step.payload,
        };
        self.plan.propose.push(Decision::Takeover {
            cluster: self.id,
            group: group.group,
            heir,
            proofs,
            operation,
            task,
        });
    }
}

//! Slots on their way. In: the layout of the log, the own words of the primaries, the slot tasks of the log. Out: at most one task that
//! moves slots at a time, what is waited for, and when to give up; `open_slots` closes those that nothing moves. Level-triggered like
//! all steps: a task that runs is asked for as long as it makes sense, then the next one follows from what the primaries say.

use std::collections::BTreeMap;

use prost::Message as _;
use shardplane_proto::{
    ids::{GroupId, InstanceId},
    v1::{
        self,
        valkey_task::{MoveSlots, Step as Body},
    },
};

use super::{
    BUS_PORT, PORT, SLOTS,
    facts::{fact_of, report_of, works},
    layout::{Run, SlotLayout},
    ownership::{Owned, heard, known},
    tasks::step,
};
use crate::{
    engine::{ClusterView, Layout, Member, Next, Step},
    state::{State, Task, TaskState},
};

/// Slots of one task.
const BATCH: u32 = 256;
/// A slot task that failed that often in a row is not tried again.
pub const TRIES: usize = State::TRIES_KEPT;
/// A step that is about slots.
enum SlotTask {
    Move(MoveSlots),
    Close,
}

/// What a payload asks for when it is about slots.
fn slot_task(payload: &[u8]) -> Option<SlotTask> {
    match v1::ValkeyTask::decode(payload).ok()?.step? {
        Body::MoveSlots(moves) => Some(SlotTask::Move(moves)),
        Body::CloseSlots(_) => Some(SlotTask::Close),
        Body::AssignSlots(_)
        | Body::Meet(_)
        | Body::Replicate(_)
        | Body::Forget(_)
        | Body::Failover(_)
        | Body::Takeover(_)
        | Body::StandDown(_) => None,
    }
}

/// Whether a payload moves or closes slots.
pub fn is_slot_task(payload: &[u8]) -> bool {
    slot_task(payload).is_some()
}

/// Whether two tasks of one cluster must not run at the same time: one of them moves slots, the other moves or closes some.
pub fn exclude_each_other(one: &[u8], other: &[u8]) -> bool {
    let moves = |task: &SlotTask| matches!(task, SlotTask::Move(_));
    match (slot_task(one), slot_task(other)) {
        (Some(one), Some(other)) => moves(&one) || moves(&other),
        (Some(_) | None, Some(_) | None) => false,
    }
}

/// A primary that answers.
#[derive(Clone, Copy)]
pub(super) struct Lead<'v> {
    pub(super) member: &'v Member<'v>,
    pub(super) report: &'v v1::ValkeyReport,
}

impl Lead<'_> {
    pub(super) fn address(&self) -> v1::ValkeyAddress {
        v1::ValkeyAddress { ip: self.member.instance.ipv4.to_string(), port: PORT, bus_port: BUS_PORT }
    }
}

pub(super) struct Picture<'v> {
    pub(super) view: &'v ClusterView<'v>,
    /// Of each shard, also one that does not answer.
    primaries: &'v BTreeMap<GroupId, InstanceId>,
    pub(super) leads: BTreeMap<GroupId, Lead<'v>>,
    owned: Vec<Owned>,
    /// In force, and not halted.
    pub(super) layout: Option<&'v SlotLayout>,
}

/// The layout that is in force.
pub fn layout<'v>(view: &ClusterView<'v>) -> Option<&'v SlotLayout> {
    view.cluster.layout.as_ref().map(|layout| match layout {
        Layout::Valkey(layout) => layout,
    })
}

/// Adds what slots need to `next`. `settled`: apart from slots every member takes its part.
pub fn next(
    view: &ClusterView<'_>,
    primaries: &BTreeMap<GroupId, InstanceId>,
    settled: bool,
    next: &mut Next,
) {
    let leads = view.wanted().filter_map(|member| {
        let leads = primaries.get(&member.instance.group) == Some(&member.instance.id);
        leads.then_some(())?;
        Some((member.instance.group, Lead { member, report: report_of(member)? }))
    });
    let halted = view.reshard.and_then(|operation| operation.halted.as_ref());
    let picture = Picture {
        view,
        primaries,
        leads: leads.collect(),
        owned: heard(view, primaries),
        layout: layout(view).filter(|_| halted.is_none()),
    };
    if let (Some(error), Some(operation)) = (halted, view.reshard) {
        next.waiting.push(format!(
            "the moving of slots has halted after {TRIES} tries ({error}); put right what stands in the way, cancel operation {} and put the same spec again",
            operation.id
        ));
    }
    if picture.under_way(next) || picture.gather(next) || picture.close(next) {
        return;
    }
    picture.go_on(settled, next);
}

impl<'v> Picture<'v> {
    fn running(&self) -> impl Iterator<Item = (&'v Task, SlotTask)> {
        let running = self.view.tasks.iter().filter(|task| task.state == TaskState::Running);
        running.filter_map(|task| Some((*task, slot_task(&task.payload)?)))
    }

    pub(super) fn owner(&self, slot: u32) -> Option<GroupId> {
        self.owned.iter().find(|run| (run.start..=run.end).contains(&slot)).map(|run| run.group)
    }

    fn group_of(&self, instance: InstanceId) -> Option<GroupId> {
        self.primaries.iter().find(|(_, primary)| **primary == instance).map(|(group, _)| *group)
    }

    /// The node id of a shard's primary, whether or not it answers.
    fn node_of(&self, group: GroupId) -> Option<String> {
        let primary = self.primaries.get(&group)?;
        let member = self.view.members.iter().find(|member| member.instance.id == *primary)?;
        fact_of(member).map(|fact| fact.node_id)
    }

    /// Asks again for slot tasks that run and still make sense. Answers whether any runs: then nothing else about slots begins.
    fn under_way(&self, next: &mut Next) -> bool {
        let mut any = false;
        for (task, asked) in self.running() {
            any = true;
            let fits = match &asked {
                SlotTask::Move(moves) => self.still_wanted(task, moves),
                SlotTask::Close => self.group_of(task.instance).is_some(),
            };
            if fits {
                let (instance, name, payload) = (task.instance, task.name.clone(), task.payload.clone());
                next.steps.push(Step { instance, name, payload });
            } else {
                next.waiting.push(format!("{} on instance {} has to end first", task.name, task.instance));
            }
        }
        any
    }

    /// Whether its performer and its target are still the primaries, and the layout still wants those slots there.
    fn still_wanted(&self, task: &Task, moves: &MoveSlots) -> bool {
        let is_target = |group: GroupId| self.node_of(group).is_some_and(|node| node == moves.target_node_id);
        if self.group_of(task.instance).is_none() {
            return self.strays().iter().any(|(stray, _)| {
                stray.member.instance.id == task.instance && is_target(stray.member.instance.group)
            });
        }
        let Some(layout) = self.layout else { return false };
        let (from, to) = (self.group_of(task.instance), layout.of(moves.start));
        from.is_some()
            && to.is_some()
            && from != to
            && layout.of(moves.end) == to
            && to.is_some_and(is_target)
    }

    /// Slots of a former primary that its successor never heard of: it was elected before it knew that they had come. Their keys are
    /// where they are owned.
    fn strays(&self) -> Vec<(Lead<'v>, Owned)> {
        let stray = |run: Owned| {
            let member = self.view.wanted().find(|member| member.instance.id == run.instance)?;
            let report = report_of(member).filter(|_| self.group_of(run.instance).is_none())?;
            Some((Lead { member, report }, run))
        };
        known(self.view).into_iter().filter_map(stray).collect()
    }

    /// Slots of former primaries go to their successors before anything else moves. Answers whether there are any.
    fn gather(&self, next: &mut Next) -> bool {
        let strays = self.strays();
        for (stray, run) in strays.iter().take(1) {
            let Some(successor) = self.leads.get(&run.group) else {
                next.waiting.push(format!(
                    "slot {} moves when shard {} has a primary that answers",
                    run.start, run.group
                ));
                break;
            };
            next.steps.push(self.move_to(stray, successor, run.start, run.end));
        }
        !strays.is_empty()
    }

    fn move_to(&self, source: &Lead<'_>, target: &Lead<'_>, start: u32, end: u32) -> Step {
        let end = end.min(start + BATCH - 1);
        let body = MoveSlots {
            start,
            end,
            target_node_id: target.report.node_id.clone(),
            target: Some(target.address()),
            keys_per_second: self.view.settings.slot_moves.keys_per_second,
        };
        let name = format!("move slots {start}-{end} to {}", target.member.instance.id);
        step(source.member.instance.id, name, Body::MoveSlots(body))
    }

    /// The next task that moves slots, or why none begins.
    fn go_on(&self, settled: bool, next: &mut Next) {
        let Some(layout) = self.layout else { return };
        let runs = layout.differences(&self.owned);
        let counted: u32 = self.owned.iter().map(Owned::count).sum();
        if runs.is_empty() && counted == SLOTS {
            return;
        }
        if counted < SLOTS {
            let missing = SLOTS - counted;
            next.waiting.push(format!("{missing} slots are claimed by no primary that answers"));
            return;
        }
        if !settled {
            let left = layout.travelling(&self.owned);
            next.waiting.push(format!("{left} slots have to move when every member takes its part again"));
            return;
        }
        let Some(run) = self.choose(layout, &runs) else { return };
        let (Some(source), Some(target)) = (self.leads.get(&run.from), self.leads.get(&run.to)) else {
            let silent = if self.leads.contains_key(&run.from) { run.to } else { run.from };
            next.waiting
                .push(format!("slot {} moves when shard {silent} has a primary that answers", run.start));
            return;
        };
        let sees = |peer: &v1::ValkeyPeer| peer.node_id == target.report.node_id && works(peer);
        if !source.report.peers.iter().any(sees) {
            next.waiting.push(format!(
                "slot {} moves when instance {} sees instance {} at work",
                run.start, source.member.instance.id, target.member.instance.id
            ));
            return;
        }
        let step = self.move_to(source, target, run.start, run.end);
        match self.failures(&step) {
            (tries, Some(error)) if tries >= TRIES => {
                next.halt = Some(format!("{} on instance {}: {error}", step.name, step.instance));
                next.waiting.push("the moving of slots halts".to_owned());
            }
            (_, _) => next.steps.push(step),
        }
    }

    /// Slots that are half way go first. Then those of the shard that lacks most, so that nobody takes in more than it gives.
    fn choose(&self, layout: &SlotLayout, runs: &[Run]) -> Option<Run> {
        let open = self.leads.values().flat_map(|lead| &lead.report.open_slots).map(|mark| mark.slot);
        if let Some(slot) = open.filter(|slot| runs.iter().any(|r| (r.start..=r.end).contains(slot))).min() {
            let run = runs.iter().find(|run| (run.start..=run.end).contains(&slot))?;
            return Some(Run { start: slot, ..*run });
        }
        let has = |shard: GroupId| -> u32 {
            self.owned.iter().filter(|run| run.group == shard).map(Owned::count).sum()
        };
        let lacks = |run: &Run| layout.size(run.to).saturating_sub(has(run.to));
        runs.iter().min_by_key(|run| (std::cmp::Reverse(lacks(run)), run.start)).copied()
    }

    /// How often in a row this step has failed since the slots began to move, and the engine's last text.
    fn failures(&self, step: &Step) -> (usize, Option<&'v String>) {
        let Some(operation) = self.view.reshard else { return (0, None) };
        let own = self.view.tasks.iter().rev().filter(|task| {
            task.operation == operation.id && task.instance == step.instance && task.payload == step.payload
        });
        let mut last = None;
        let mut tries = 0;
        for task in own {
            match &task.state {
                TaskState::Failed { error } => {
                    tries += 1;
                    last = last.or(Some(error));
                }
                TaskState::Running | TaskState::Superseded => {}
                TaskState::Succeeded => break,
            }
        }
        (tries, last)
    }
}

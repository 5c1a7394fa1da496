//! The tasks of this boot: one performed at a time, outcomes kept so that a repeated task is answered, not repeated.
//!
//! In: [`GuestTask`]s and their ends. Out: what to perform next, what to answer. Pure; owned by `run`.

use std::{collections::VecDeque, time::Duration};

use shardplane_proto::v1::{GuestTask, TaskOutcome};
use tokio::time::Instant;

use crate::{bounded::bounded, engine::Done};

const KEPT_OUTCOMES: usize = 256;
const MAX_WAITING: usize = 64;

/// From a task's arrival until it must have started, unless it waits for another one.
const DEADLINE: Duration = Duration::from_secs(15);

/// The tasks of this boot.
#[derive(Default)]
pub struct Tasks {
    waiting: VecDeque<(GuestTask, Instant)>,
    running: Option<String>,
    done: VecDeque<TaskOutcome>,
}

impl Tasks {
    /// Takes a task in. Some: answer with this at once. A full queue is answered but not remembered, so that a later
    /// try is performed.
    pub fn receive(&mut self, task: GuestTask, now: Instant) -> Option<TaskOutcome> {
        let id = &task.task_id;
        if let Some(outcome) = self.done.iter().find(|outcome| outcome.task_id == *id) {
            return Some(outcome.clone());
        }
        if self.running.as_ref() == Some(id) || self.waiting.iter().any(|(waiting, _)| waiting.task_id == *id)
        {
            return None;
        }
        if self.waiting.len() == MAX_WAITING {
            return Some(failure(
                task.task_id,
                format!("{MAX_WAITING} tasks wait already; send it again later"),
            ));
        }
        self.waiting.push_back((task, now));
        None
    }

    /// The next task to perform; none while one runs.
    pub fn next(&mut self) -> Option<GuestTask> {
        if self.running.is_some() {
            return None;
        }
        let (task, _) = self.waiting.pop_front()?;
        self.running = Some(task.task_id.clone());
        Some(task)
    }

    /// Whether a task is being performed.
    pub fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Records the end of the running task and returns what to answer.
    pub fn finish(&mut self, result: Result<(), String>, done: Done) -> Option<TaskOutcome> {
        let task_id = self.running.take()?;
        let outcome = match result {
            Ok(()) => TaskOutcome { task_id, ok: true, ..TaskOutcome::default() },
            Err(error) => failure(task_id, error),
        };
        Some(self.keep(TaskOutcome {
            counts: done.counts.into_iter().collect(),
            notes: done.notes,
            ..outcome
        }))
    }

    /// Fails the tasks that waited past their deadline. `why` says what they waited for. While a task runs, which has a
    /// deadline of its own, the others' time stands still.
    pub fn expire(&mut self, now: Instant, why: &str) -> Vec<TaskOutcome> {
        let mut expired = Vec::new();
        if self.running.is_some() {
            return expired;
        }
        while let Some((task, _)) =
            self.waiting.pop_front_if(|(_, since)| now.duration_since(*since) >= DEADLINE)
        {
            let error = format!("not started within {} s: {why}", DEADLINE.as_secs());
            expired.push(self.keep(failure(task.task_id, error)));
        }
        expired
    }

    /// Every kept outcome, oldest first.
    pub fn outcomes(&self) -> impl Iterator<Item = &TaskOutcome> {
        self.done.iter()
    }

    fn keep(&mut self, outcome: TaskOutcome) -> TaskOutcome {
        if self.done.len() == KEPT_OUTCOMES {
            self.done.pop_front();
        }
        self.done.push_back(outcome.clone());
        outcome
    }
}

fn failure(task_id: String, error: String) -> TaskOutcome {
    TaskOutcome { task_id, ok: false, error: bounded(error), ..TaskOutcome::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::MAX_TEXT;

    fn task(id: &str) -> GuestTask {
        GuestTask { task_id: id.to_owned(), payload: Vec::new() }
    }

    #[test]
    fn one_at_a_time_and_a_repeated_task_is_answered_from_memory() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        assert_eq!(tasks.receive(task("a"), now), None);
        assert_eq!(tasks.receive(task("a"), now), None);
        assert_eq!(tasks.receive(task("b"), now), None);
        assert_eq!(tasks.next().unwrap().task_id, "a");
        assert!(tasks.next().is_none());
        assert_eq!(tasks.receive(task("a"), now), None, "it runs");
        let outcome = tasks.finish(Err("ERR no".into()), Done::default()).unwrap();
        assert_eq!((outcome.ok, outcome.error.as_str()), (false, "ERR no"));
        assert!(failure("long".into(), "x".repeat(9999)).error.len() <= MAX_TEXT);
        assert_eq!(tasks.receive(task("a"), now), Some(outcome));
        assert_eq!(tasks.next().unwrap().task_id, "b");
        assert!(tasks.receive(task("c"), now).is_none());
        assert!(tasks.expire(now + 2 * DEADLINE, "b runs").is_empty(), "one that waits for another has time");
        let mut done = Done::default();
        done.count("keys", 3);
        done.count("keys", 4);
        for _ in 0..2 {
            done.note("a large key".into());
        }
        let outcome = tasks.finish(Ok(()), done).unwrap();
        assert!(outcome.ok);
        assert_eq!((outcome.counts["keys"], outcome.notes.as_slice()), (7, &["a large key".to_owned()][..]));
        assert_eq!(tasks.receive(task("b"), now), Some(outcome), "it is done");
        assert_eq!(tasks.next().unwrap().task_id, "c");
        tasks.finish(Ok(()), Done::default());
        assert_eq!(tasks.outcomes().count(), 3);
        assert!(tasks.next().is_none());
    }

    #[test]
    fn queue_and_memory_are_bounded_and_waiting_has_a_deadline() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        for n in 0..MAX_WAITING {
            assert_eq!(tasks.receive(task(&n.to_string()), now), None);
        }
        let refused = tasks.receive(task("x"), now).unwrap();
        assert!(!refused.ok && tasks.outcomes().count() == 0);
        assert!(tasks.expire(now + DEADLINE / 2, "the engine holds").is_empty());
        let expired = tasks.expire(now + DEADLINE, "the engine holds");
        assert_eq!(expired.len(), MAX_WAITING);
        assert_eq!(expired[0].error, "not started within 15 s: the engine holds");
        for n in 0..2 * KEPT_OUTCOMES {
            tasks.receive(task(&format!("n{n}")), now);
            tasks.next();
            tasks.finish(Ok(()), Done::default());
        }
        assert_eq!(tasks.outcomes().count(), KEPT_OUTCOMES);
    }
}

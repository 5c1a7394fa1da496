//! What a leader changes in its group: settings in the DCS, roles in the database. In: what is wanted. Out: what came of it, for reports. Apart from
//! the reports, which may not wait: statements wait for locks of users and for replicas. One at a time; what breaks off is done again, and what
//! was done outlives a change of the config.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use shardplane_proto::v1::{PostgresData, PostgresRefusal};
use tokio::time::Instant;

use super::{
    conf,
    patroni::Patroni,
    roles::Roles,
    settings,
    sql::{Patience, connect},
};
use crate::engine::EngineError;

/// Roles are looked at again after that, should somebody have changed one in the database.
const AGAIN: Duration = Duration::from_secs(30);

/// What came of the work.
#[derive(Debug, Default, Clone)]
pub struct Done {
    /// Of the parameters with this revision: what the engine refuses.
    settings: Option<(u64, Vec<PostgresRefusal>)>,
    /// The roles' revision, the timeline they were brought to on, when, and what was refused.
    roles: Option<(u64, u64, Instant, Vec<PostgresRefusal>)>,
    /// Why the last try broke off.
    pub trouble: String,
}

impl Done {
    /// What the engine refuses of the parameters with this revision; none when they were not judged yet.
    pub fn refused(&self, revision: u64) -> Option<&[PostgresRefusal]> {
        self.settings
            .as_ref()
            .filter(|(judged, _)| *judged == revision)
            .map(|(_, refused)| refused.as_slice())
    }

    /// The revision that the roles are at on this timeline, with what was refused of it.
    pub fn roles(&self, timeline: u64) -> Option<(u64, &[PostgresRefusal])> {
        let (revision, on, _, refused) = self.roles.as_ref()?;
        (*on == timeline).then_some((*revision, refused.as_slice()))
    }

    fn roles_due(&self, data: &PostgresData, timeline: u64) -> bool {
        let done = self.roles.as_ref().is_some_and(|(revision, on, at, _)| {
            (*revision, *on) == (data.roles_revision, timeline) && at.elapsed() < AGAIN
        });
        // The roles of a cluster are those of the coordinator's group.
        data.group_number == 0 && !done
    }
}

/// The work of one member.
#[derive(Default)]
pub struct Work {
    done: Mutex<Done>,
    busy: AtomicBool,
}

/// What is worked on.
pub struct Job {
    pub data: PostgresData,
    pub superuser: String,
    pub patroni: Patroni,
    pub timeline: u64,
}

/// However the work ends, the next may begin.
struct Busy(Arc<Work>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of it so far.
    pub fn done(&self) -> Done {
        self.lock().clone()
    }

    /// Begins what is due, unless it is at work. `differs`: the DCS does not have the wanted settings.
    pub fn begin(self: &Arc<Self>, job: Job, differs: bool) {
        let done = self.done();
        let due = differs
            || done.refused(job.data.parameters_revision).is_none()
            || done.roles_due(&job.data, job.timeline);
        if !due || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let busy = Busy(Arc::clone(self));
        tokio::spawn(async move {
            let result = busy.0.perform(&job).await;
            busy.0.lock().trouble = match result {
                Ok(()) => String::new(),
                Err(error) => error.to_string(),
            };
        });
    }

    async fn perform(&self, job: &Job) -> Result<(), EngineError> {
        let client = connect(&job.superuser, "postgres", Patience::Waits).await?;
        let data = &job.data;
        if self.done().refused(data.parameters_revision).is_none() {
            let refused = settings::refused(&client, data).await?;
            self.lock().settings = Some((data.parameters_revision, refused));
        }
        let done = self.done();
        let refused = done.refused(data.parameters_revision).unwrap_or_default();
        let names: Vec<String> = refused.iter().map(|refusal| refusal.name.clone()).collect();
        let known = job.patroni.shared().await?;
        if let Some(changes) = settings::changes(&known, &conf::shared(data, &names)) {
            job.patroni.share(changes).await?;
        }
        if done.roles_due(data, job.timeline) {
            let refused = Roles { client: &client, password: &job.superuser }.ensure(data).await?;
            self.lock().roles = Some((data.roles_revision, job.timeline, Instant::now(), refused));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_counts_for_its_revision_and_timeline_alone() {
        let refusal = PostgresRefusal { name: "jit".to_owned(), error: "no".to_owned() };
        let done = Done {
            settings: Some((4, vec![refusal])),
            roles: Some((7, 2, Instant::now(), Vec::new())),
            trouble: String::new(),
        };
        assert_eq!(done.refused(4).map(<[_]>::len), Some(1));
        assert!(done.refused(5).is_none());
        assert_eq!(done.roles(2).map(|(revision, _)| revision), Some(7));
        // Another leader may lack what this one had written.
        assert!(done.roles(3).is_none());
        let data = |roles_revision, group_number| PostgresData {
            roles_revision,
            group_number,
            ..Default::default()
        };
        assert!(
            !done.roles_due(&data(7, 0), 2)
                && done.roles_due(&data(8, 0), 2)
                && done.roles_due(&data(7, 0), 3)
        );
        assert!(!done.roles_due(&data(8, 1), 2));
    }
}

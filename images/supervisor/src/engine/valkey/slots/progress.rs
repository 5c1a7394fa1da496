//! How far the running task is: written by the task, read by the report.

use std::sync::{Mutex, PoisonError};

use shardplane_proto::v1::{ValkeyLargeKey, ValkeySlotMove};

/// Shared between one config's task and its reports. After a change of config in the middle of a task the reports are
/// without it until the next task.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<ValkeySlotMove>>);

impl Progress {
    /// What a report says.
    pub fn now(&self) -> Option<ValkeySlotMove> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut ValkeySlotMove)) {
        change(self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default());
    }

    /// The task is at this slot, which has so many keys left.
    pub fn at(&self, slot: u32, keys_left: u64) {
        self.change(|progress| {
            if progress.slot != slot {
                progress.large_key = None;
            }
            (progress.slot, progress.keys_left) = (slot, keys_left);
        });
    }

    /// So many keys went.
    pub fn keys(&self, went: u64) {
        self.change(|progress| {
            progress.keys_done += went;
            progress.keys_left = progress.keys_left.saturating_sub(went);
        });
    }

    /// A slot is done.
    pub fn slot_done(&self) {
        self.change(|progress| progress.slots_done += 1);
    }

    /// A large key is on its way.
    pub fn large(&self, key: ValkeyLargeKey) {
        self.change(|progress| progress.large_key = Some(key));
    }

    /// The task that `Running` stands for is over when that goes, however it ends.
    pub fn start(&self, task_id: &str) -> Running<'_> {
        let fresh = ValkeySlotMove { task_id: task_id.to_owned(), ..ValkeySlotMove::default() };
        self.change(|progress| *progress = fresh);
        Running(self)
    }
}

/// A task that shows its progress.
pub struct Running<'a>(&'a Progress);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_while_the_task_runs() {
        let progress = Progress::default();
        assert_eq!(progress.now(), None);
        {
            let _running = progress.start("t1");
            progress.at(5, 100);
            progress.large(ValkeyLargeKey { name: "k".into(), ..Default::default() });
            progress.keys(60);
            let now = progress.now().unwrap();
            assert_eq!((now.slot, now.keys_left, now.keys_done, now.slots_done), (5, 40, 60, 0));
            assert!(now.large_key.is_some() && now.task_id == "t1");
            progress.slot_done();
            progress.at(6, 0);
            let now = progress.now().unwrap();
            assert_eq!((now.slots_done, now.large_key), (1, None));
        }
        assert_eq!(progress.now(), None);
    }
}

//! What the agent must not forget: the newest spec it accepted and which machines it started.
//!
//! In: changes, each on disk before it is acted upon. Out: the same after a restart. Secrets never get here: the spec is
//! stored without engine configuration and tasks. The reconciler stores specs, the machine owners their starts.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use shardplane_proto::{ids::InstanceId, v1};

use crate::{
    durable::{self, Step},
    identity::MachineUuid,
};

/// Version of the file's layout.
const FORMAT: u32 = 1;

/// A process that cannot be confused with a later one of the same number (within one boot).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The pid in the agent's pid namespace.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks after boot at which it started.
    pub start_ticks: u64,
}

/// One start of a machine, recorded before it happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Identity of this start.
    pub uuid: MachineUuid,
    /// Boot of the host in which it happened.
    pub boot_id: String,
    /// Absent until the launcher has answered.
    pub process: Option<ProcessId>,
}

/// What is known of one instance on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// How often it was started on this host.
    pub starts: u32,
    /// The last start; absent when it is known to be over.
    pub run: Option<Run>,
}

/// The newest accepted spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// Term of the leader that sent it.
    pub term: u64,
    /// Its generation.
    pub generation: u64,
    /// Without engine configuration and tasks.
    pub spec: v1::HostSpec,
}

/// The ledger's contents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// Layout of the file.
    pub format: u32,
    /// Newest accepted spec; absent before the first.
    pub accepted: Option<Accepted>,
    /// Instances that have, or may have, something on this host.
    pub machines: BTreeMap<InstanceId, MachineRecord>,
}

/// Why the ledger could not be written. Nothing was changed in memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the ledger {path}: {source}; nothing new is started until it can be written")]
pub struct LedgerError {
    path: String,
    source: io::Error,
}

type Probe = dyn Fn(Step) -> io::Result<()> + Send + Sync;

/// The ledger of one agent.
pub struct Ledger {
    path: PathBuf,
    contents: Mutex<Contents>,
    /// Held over a write, so that two changes cannot pass each other; readers do not wait for the disk.
    writing: Mutex<()>,
    probe: Box<Probe>,
}

/// What opening found.
#[derive(Debug, PartialEq, Eq)]
pub enum Opened {
    /// A whole ledger, or none yet.
    Sound,
    /// A damaged one, which is now at this path.
    MovedAside(PathBuf),
}

impl Ledger {
    /// Opens `state_dir/ledger.json`. A damaged ledger is moved aside: what runs is then found by search.
    ///
    /// # Errors
    /// When the file cannot be read or moved.
    pub fn open(state_dir: &Path) -> io::Result<(Arc<Self>, Opened)> {
        Self::open_with(state_dir, Box::new(|_| Ok(())))
    }

    fn open_with(state_dir: &Path, probe: Box<Probe>) -> io::Result<(Arc<Self>, Opened)> {
        let path = state_dir.join("ledger.json");
        let (contents, opened) = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Contents>(&bytes) {
                Ok(contents) if contents.format == FORMAT => (contents, Opened::Sound),
                Ok(_) | Err(_) => {
                    let aside = free_name(&path);
                    fs::rename(&path, &aside)?;
                    durable::sync_folder_of(&path)?;
                    (Contents::default(), Opened::MovedAside(aside))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Contents::default(), Opened::Sound),
            Err(error) => return Err(error),
        };
        let contents = Mutex::new(Contents { format: FORMAT, ..contents });
        Ok((Arc::new(Self { path, contents, writing: Mutex::new(()), probe }), opened))
    }

    /// A copy of everything.
    pub fn contents(&self) -> Contents {
        self.lock().clone()
    }

    /// What is known of one instance.
    pub fn machine(&self, instance: InstanceId) -> Option<MachineRecord> {
        self.lock().machines.get(&instance).cloned()
    }

    /// Changes the contents: on disk first, in memory after. Blocks on the disk; see [`Ledger::change`].
    ///
    /// # Errors
    /// When the disk refuses; the contents in memory are then as before.
    pub fn change_blocking(&self, change: impl FnOnce(&mut Contents)) -> Result<(), LedgerError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.contents();
        let mut next = held.clone();
        change(&mut next);
        if next == held {
            return Ok(());
        }
        let failed = |source| LedgerError { path: self.path.display().to_string(), source };
        let bytes = serde_json::to_vec_pretty(&next).map_err(|error| failed(error.into()))?;
        durable::replace_with(&self.path, &bytes, &*self.probe).map_err(failed)?;
        *self.lock() = next;
        Ok(())
    }

    /// As [`Ledger::change_blocking`], away from the async threads.
    ///
    /// # Errors
    /// As there.
    pub async fn change(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Contents) + Send + 'static,
    ) -> Result<(), LedgerError> {
        let ledger = Arc::clone(self);
        tokio::task::spawn_blocking(move || ledger.change_blocking(change)).await.unwrap_or_else(|error| {
            let source = io::Error::other(error);
            Err(LedgerError { path: self.path.display().to_string(), source })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The spec as it may be stored: without what can hold secrets.
pub fn without_secrets(spec: &v1::HostSpec) -> v1::HostSpec {
    let mut spec = spec.clone();
    for instance in &mut spec.instances {
        instance.engine_config.clear();
        instance.tasks.clear();
    }
    spec
}

fn free_name(path: &Path) -> PathBuf {
    let numbered = (1..1000u32).map(|n| path.with_extension(format!("json.damaged-{n}")));
    let mut free = numbered.filter(|name| !name.exists());
    free.next().unwrap_or_else(|| path.with_extension("json.damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(starts: u32) -> MachineRecord {
        let run = Run { uuid: MachineUuid::generate(), boot_id: "b".into(), process: None };
        MachineRecord { starts, run: Some(run) }
    }

    #[test]
    fn a_crash_at_any_step_leaves_the_old_or_the_new_ledger() {
        let id = InstanceId::from_u128(7);
        for step in [Step::Begin, Step::HalfWritten, Step::Synced, Step::Renamed] {
            let dir = tempfile::tempdir().unwrap();
            let (ledger, _) = Ledger::open(dir.path()).unwrap();
            let old = record(1);
            let first = old.clone();
            ledger.change_blocking(|c| drop(c.machines.insert(id, first))).unwrap();
            drop(ledger);

            let crash = move |at| if at == step { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
            let (ledger, _) = Ledger::open_with(dir.path(), Box::new(crash)).unwrap();
            let new = record(2);
            let second = new.clone();
            let error = ledger.change_blocking(|c| drop(c.machines.insert(id, second))).unwrap_err();
            assert!(error.to_string().contains("ledger.json"), "{error}");
            assert_eq!(
                ledger.machine(id),
                Some(old.clone()),
                "memory keeps the old after a failure at {step:?}"
            );

            let (ledger, opened) = Ledger::open(dir.path()).unwrap();
            assert_eq!(opened, Opened::Sound, "{step:?}");
            let expected = if step == Step::Renamed { new } else { old };
            assert_eq!(ledger.machine(id), Some(expected), "{step:?}");
        }
    }

    #[test]
    fn a_damaged_ledger_is_moved_aside() {
        for text in ["", "{", r#"{"format":9,"accepted":null,"machines":{}}"#] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("ledger.json"), text).unwrap();
            let (ledger, opened) = Ledger::open(dir.path()).unwrap();
            let Opened::MovedAside(aside) = opened else { panic!("{text:?} was taken for sound") };
            assert_eq!(fs::read_to_string(aside).unwrap(), text);
            assert!(ledger.contents().machines.is_empty());
        }
    }

    #[test]
    fn secrets_do_not_reach_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, _) = Ledger::open(dir.path()).unwrap();
        let secret = b"swordfish".to_vec();
        let task = v1::GuestTask { task_id: "t".into(), payload: secret.clone() };
        let instance = v1::InstanceSpec {
            instance_id: InstanceId::from_u128(1).to_string(),
            engine_config: secret,
            tasks: vec![task],
            ..Default::default()
        };
        let spec = v1::HostSpec { generation: 3, term: 2, instances: vec![instance], ..Default::default() };
        let accepted = Accepted { term: 2, generation: 3, spec: without_secrets(&spec) };
        ledger.change_blocking(|c| c.accepted = Some(accepted)).unwrap();
        let (again, _) = Ledger::open(dir.path()).unwrap();
        let accepted = again.contents().accepted.unwrap();
        assert_eq!((accepted.term, accepted.generation, accepted.spec.instances.len()), (2, 3, 1));
        assert!(accepted.spec.instances.iter().all(|i| i.engine_config.is_empty() && i.tasks.is_empty()));
    }
}

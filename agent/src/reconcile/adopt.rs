//! What already runs when the agent starts, found before anything is obeyed.
//!
//! In: the ledger, a search for processes, the volumes. Out: every instance that has something here, with its process when
//! it lives; the ledger agrees afterwards. Nothing is stopped, except launchers that a dead agent left half-way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use shardplane_proto::ids::InstanceId;

use crate::{
    ledger::{Contents, Ledger, ProcessId, Run},
    vmm::{Found, FoundKind, LostReason, Verdict, Vmm},
    volumes::Volumes,
};

/// How long a killed launcher may take to end.
const LAUNCHER_DEADLINE: Duration = Duration::from_secs(5);

/// What is known of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted {
    /// The ledger and the process agree.
    Known(ProcessId),
    /// It was found by its tag only.
    Unknown(Found),
    /// The ledger or a volume knows it; nothing runs.
    Absent(Option<LostReason>),
}

/// The decision about all instances, and second machines of one instance, which should not be.
pub fn decide(
    contents: &Contents,
    verdicts: &BTreeMap<InstanceId, Verdict>,
    found: &[Found],
    volumes: &[InstanceId],
) -> (BTreeMap<InstanceId, Adopted>, Vec<Found>) {
    let machines = || found.iter().filter(|one| one.kind == FoundKind::Machine);
    let mut ids: BTreeSet<InstanceId> = contents.machines.keys().chain(volumes).copied().collect();
    ids.extend(machines().map(|one| one.tag.instance));
    let mut second = Vec::new();
    let mut adopted = BTreeMap::new();
    for id in ids {
        // The search sorts by age: without a ledger the oldest is taken, as it holds the volume.
        let mut of_it = machines().filter(|one| one.tag.instance == id);
        let one = match verdicts.get(&id) {
            Some(Verdict::Ours(process)) => {
                second.extend(of_it.filter(|one| one.process != *process).cloned());
                Adopted::Known(*process)
            }
            Some(Verdict::Lost(_)) | None => match of_it.next() {
                Some(first) => {
                    second.extend(of_it.cloned());
                    Adopted::Unknown(first.clone())
                }
                None => Adopted::Absent(match verdicts.get(&id) {
                    Some(Verdict::Lost(reason)) => Some(*reason),
                    Some(Verdict::Ours(_)) | None => None,
                }),
            },
        };
        adopted.insert(id, one);
    }
    (adopted, second)
}

/// Adopts. The board gets the problem of a second machine.
///
/// # Errors
/// When the search is not possible: an agent that does not know what runs must not go on.
pub async fn adopt(
    vmm: &Arc<dyn Vmm>,
    ledger: &Arc<Ledger>,
    volumes: &Volumes,
    boot_id: &str,
) -> anyhow::Result<(BTreeMap<InstanceId, Option<ProcessId>>, Vec<Found>)> {
    end_launchers(vmm).await?;
    let contents = ledger.contents();
    let mut verdicts = BTreeMap::new();
    for (id, record) in &contents.machines {
        if let Some(run) = &record.run {
            let verdict =
                vmm.inspect(*id, run).with_context(|| format!("cannot look at the machine of {id}"))?;
            verdicts.insert(*id, verdict);
        }
    }
    let found = vmm.find().context("cannot search for running machines")?;
    let volumes = volumes.list().context("cannot list the volumes")?;
    let (adopted, second) = decide(&contents, &verdicts, &found, &volumes);
    for (id, one) in &adopted {
        match one {
            Adopted::Known(process) => tracing::info!(instance = %id, pid = process.pid, "adopted a machine"),
            Adopted::Unknown(found) => {
                tracing::warn!(instance = %id, pid = found.process.pid, "adopted a machine that the ledger does not know");
            }
            Adopted::Absent(Some(reason)) => tracing::warn!(instance = %id, "the machine is lost: {reason}"),
            Adopted::Absent(None) => tracing::info!(instance = %id, "known, not running"),
        }
    }
    let running = adopted.iter().map(|(id, one)| (*id, process_of(one))).collect();
    let boot_id = boot_id.to_owned();
    let written = ledger.change(move |contents| record(contents, &adopted, &boot_id)).await;
    if let Err(error) = written {
        // What runs is known now; the next change writes it.
        tracing::error!("{error}");
    }
    Ok((running, second))
}

fn process_of(adopted: &Adopted) -> Option<ProcessId> {
    match adopted {
        Adopted::Known(process) => Some(*process),
        Adopted::Unknown(found) => Some(found.process),
        Adopted::Absent(_) => None,
    }
}

fn record(contents: &mut Contents, adopted: &BTreeMap<InstanceId, Adopted>, boot_id: &str) {
    for (id, one) in adopted {
        let record = contents.machines.entry(*id).or_default();
        match one {
            Adopted::Known(_) => {}
            Adopted::Unknown(Found { tag, process, .. }) => {
                record.starts = record.starts.max(1);
                record.run =
                    Some(Run { uuid: tag.uuid, boot_id: boot_id.to_owned(), process: Some(*process) });
            }
            Adopted::Absent(_) => record.run = None,
        }
    }
}

/// A launcher of a dead agent would make a machine after the search, and a VMM that it did not tell everything never gets one;
/// nobody waits for either.
async fn end_launchers(vmm: &Arc<dyn Vmm>) -> anyhow::Result<()> {
    for found in vmm.find().context("cannot search for running machines")? {
        if !vmm.is_finished(&found) {
            tracing::warn!(instance = %found.tag.instance, pid = found.process.pid, "ending a start that was left half-way");
            vmm.kill(found.process).context("cannot end a launcher that a dead agent left")?;
            let death = vmm.death(found.process);
            tokio::time::timeout(LAUNCHER_DEADLINE, death)
                .await
                .with_context(|| format!("the launcher {} was killed but does not end", found.process.pid))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardplane_proto::ids::HostId;

    use super::*;
    use crate::{
        identity::{MachineTag, MachineUuid},
        ledger::MachineRecord,
    };

    const ID: InstanceId = InstanceId::from_u128(1);

    fn machine(pid: i32, kind: FoundKind) -> Found {
        let tag = MachineTag { host: HostId::from_u128(9), instance: ID, uuid: MachineUuid::generate() };
        Found { tag, process: ProcessId { pid, start_ticks: 1 }, kind }
    }

    /// OMI-2 and HOST-2: memory lost, or the host restarted.
    #[test]
    fn what_runs_is_adopted_with_or_without_memory() {
        let recorded = Contents {
            machines: BTreeMap::from([(ID, MachineRecord { starts: 3, run: None })]),
            ..Contents::default()
        };
        let empty = Contents::default();
        let (one, two) = (machine(10, FoundKind::Machine), machine(11, FoundKind::Machine));
        let launcher = machine(12, FoundKind::Launcher);
        let ours = BTreeMap::from([(ID, Verdict::Ours(two.process))]);
        let lost = BTreeMap::from([(ID, Verdict::Lost(LostReason::OtherBoot))]);
        let none = BTreeMap::new();
        let both = [one.clone(), two.clone()];
        for (contents, verdicts, found, volumes, expected, seconds) in [
            (&recorded, &ours, &both[1..], &[ID][..], Some(Adopted::Known(two.process)), 0),
            (&recorded, &ours, &both[..], &[], Some(Adopted::Known(two.process)), 1),
            (&recorded, &lost, &[], &[ID], Some(Adopted::Absent(Some(LostReason::OtherBoot))), 0),
            (&recorded, &lost, &both[..1], &[], Some(Adopted::Unknown(one.clone())), 0),
            (&empty, &none, &both[..], &[], Some(Adopted::Unknown(one.clone())), 1),
            (&empty, &none, &[launcher][..], &[], None, 0),
            (&empty, &none, &[], &[ID], Some(Adopted::Absent(None)), 0),
            (&empty, &none, &[], &[], None, 0),
        ] {
            let (adopted, second) = decide(contents, verdicts, found, volumes);
            assert_eq!((adopted.get(&ID), second.len()), (expected.as_ref(), seconds));
        }
    }
}

//! The proof that nothing of an instance runs.
//!
//! In: an instance. Out: proof by a search that needs no memory, or which process would not end. Owners ask before a start
//! (two machines on one volume would destroy it) and before a volume goes; sweep asks for everything.

use std::{io, sync::Arc, time::Duration};

use shardplane_proto::ids::InstanceId;

use crate::vmm::{Found, Vmm};

/// Rounds of search and kill.
const ROUNDS: u32 = 5;
/// How long one round waits for the killed.
const DEATH_DEADLINE: Duration = Duration::from_secs(5);

/// Kills what runs of `instance` (of all instances with `None`) until a search finds nothing.
///
/// # Errors
/// What could not be searched, killed or seen ending. Nothing is then proved.
pub async fn make_absent(vmm: &Arc<dyn Vmm>, instance: Option<InstanceId>) -> Result<(), String> {
    let mut last = Vec::new();
    for _ in 0..ROUNDS {
        let mut found =
            search(vmm).await.map_err(|error| format!("cannot search for its processes: {error}"))?;
        found.retain(|one| instance.is_none_or(|id| one.tag.instance == id));
        if found.is_empty() {
            return Ok(());
        }
        for one in &found {
            tracing::info!(instance = %one.tag.instance, pid = one.process.pid, "killing the machine's process");
            vmm.kill(one.process)
                .map_err(|error| format!("cannot kill process {}: {error}", one.process.pid))?;
        }
        let deaths = futures::future::join_all(found.iter().map(|one| vmm.death(one.process)));
        // Whoever is still there is found by the next round.
        let _late = tokio::time::timeout(DEATH_DEADLINE, deaths).await;
        last = found;
    }
    let pids: Vec<_> = last.iter().map(|one| one.process.pid.to_string()).collect();
    Err(format!(
        "process {} was killed but does not end; look at it with ps and at the disk it uses",
        pids.join(", ")
    ))
}

async fn search(vmm: &Arc<dyn Vmm>) -> io::Result<Vec<Found>> {
    let vmm = Arc::clone(vmm);
    tokio::task::spawn_blocking(move || vmm.find()).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

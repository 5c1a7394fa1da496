//! The steps of one start, in an order that a crash at any point can be recovered from.
//!
//! In: an assignment. Out: a running process that the ledger knows, or why not. Only the owner starts.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Assignment, Desired, absence::make_absent, owner::Owner};
use crate::{
    boot_time::BootTime,
    contact::may_start,
    identity::{MachineTag, MachineUuid},
    ledger::{ProcessId, Run},
    vmm::{Limits, MachineSpec, Nic},
};

impl Owner {
    pub(super) async fn start(&self, assignment: &Arc<Assignment>) -> Result<ProcessId, String> {
        let shared = &self.shared;
        let spec = &assignment.spec;
        let began = Instant::now();
        // HOST-14: judged by the file as it is now, before anything is made for the start.
        let image = self.image(&spec.image_digest).await?;
        make_absent(&shared.vmm, Some(self.id)).await?;
        let absent = Instant::now();
        let volume = self.volume(spec.volume_gib).await?;
        let has_volume = Instant::now();
        let vpc = spec.vpc_id.parse().map_err(|error| format!("the id of its VPC is none: {error}"))?;
        let port = shared.network.attachment(self.id, vpc);
        let uuid = MachineUuid::generate();
        let machine = MachineSpec {
            tag: MachineTag { host: shared.host, instance: self.id, uuid },
            hostname: spec.hostname.clone(),
            image,
            volume,
            nic: Nic { netns: port.netns, interface: port.interface, mac: assignment.nic.mac.clone() },
            host_dir: shared.machines_dir.join(self.id.to_string()),
            limits: Limits {
                vcpus: spec.vcpus,
                vcpu_share: spec.vcpu_share,
                memory_mib: spec.memory_mib,
                iops: spec.iops,
            },
        };
        // Recorded first: an agent that dies from here on knows what to search for.
        self.record_start(uuid, None).await?;
        // The volume may have taken long; the coordinator may have been lost meanwhile.
        may_start(shared.contact.now(), BootTime::now()).map_err(|rule| rule.to_string())?;
        if !matches!(&*self.desired.borrow(), Desired::Run { .. }) {
            return Err("not started: a newer spec no longer has it".to_owned());
        }
        let recorded = Instant::now();
        match shared.vmm.start(&machine).await {
            Ok(process) => {
                let ran = Instant::now();
                if let Err(why) = self.record_start(uuid, Some(process)).await {
                    // It runs, and a later agent finds it by its tag: killing it would be worse than not having its number.
                    tracing::error!(instance = %self.id, "{why}");
                }
                let ms = |time: Duration| time.as_secs_f32() * 1000.0;
                tracing::info!(
                    instance = %self.id,
                    "started in {:.1} ms: proved absent in {:.1} ms, volume in {:.1} ms, recorded in {:.1} ms and {:.1} ms, run in {:.1} ms",
                    ms(began.elapsed()), ms(absent - began), ms(has_volume - absent), ms(recorded - has_volume),
                    ms(ran.elapsed()), ms(ran - recorded)
                );
                Ok(process)
            }
            Err(error) => {
                // A launcher that was ended may have left PID 1 behind.
                if let Err(why) = make_absent(&shared.vmm, Some(self.id)).await {
                    tracing::error!(instance = %self.id, "after a failed start: {why}");
                }
                self.record_end().await;
                Err(error.to_string())
            }
        }
    }

    async fn image(&self, digest: &str) -> Result<PathBuf, String> {
        let (shared, digest) = (Arc::clone(&self.shared), digest.to_owned());
        let looked =
            tokio::task::spawn_blocking(move || shared.images.verified(&digest).map(Path::to_path_buf));
        looked.await.map_err(|error| error.to_string())?
    }

    async fn volume(&self, gib: u64) -> Result<PathBuf, String> {
        let (volumes, id) = (self.shared.volumes.clone(), self.id);
        let made = tokio::task::spawn_blocking(move || volumes.ensure(id, gib)).await;
        made.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    async fn record_start(&self, uuid: MachineUuid, process: Option<ProcessId>) -> Result<(), String> {
        let (id, boot_id) = (self.id, self.shared.boot_id.clone());
        let written = self.shared.ledger.change(move |contents| {
            let record = contents.machines.entry(id).or_default();
            if process.is_some() {
                record.starts += 1;
            }
            record.run = Some(Run { uuid, boot_id, process });
        });
        let result = written.await.map_err(|error| error.to_string());
        self.shared.board.set_problem("ledger", result.clone().err());
        result
    }

    pub(super) async fn record_end(&self) {
        let id = self.id;
        let written = self.shared.ledger.change(move |contents| {
            if let Some(record) = contents.machines.get_mut(&id) {
                record.run = None;
            }
        });
        if let Err(error) = written.await {
            // An old record does no harm: pid, start time and uuid will not agree.
            tracing::warn!(instance = %self.id, "{error}");
        }
    }
}

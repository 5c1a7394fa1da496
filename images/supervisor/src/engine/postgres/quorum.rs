//! A voter: etcd under one config. In: `PostgresQuorum`. Out: `PostgresQuorumReport`. Files: `/run/postgres/etcd.json` and certificates (tmpfs),
//! `/data/etcd/data`, `/data/etcd/join`: with whom it joins a quorum that exists. Blank and not told to form one it stands still until
//! it is told: one whose disk was lost must never come back as who it was.

use std::{fs, path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use prost::Message as _;
use serde_json::json;
use shardplane_proto::v1::{
    GuestConfig, PostgresConfig, PostgresQuorum, PostgresReport, PostgresTask, PostgresVoter,
    postgres_report, postgres_task::Step,
};

use super::{
    CERTIFICATE, RUN_DIR, certificate_files,
    client::Service,
    etcd::{Etcd, PEER_PORT, PORT},
    refuse_task,
    secrets::{Certificate, Secrets},
};
use crate::{
    engine::{
        Done, ENGINE_UID, Engine, EngineError, Hold, Launch, Report, Stop,
        files::{directory, read, replace},
    },
    machine,
};

const PROGRAM: &str = "/usr/bin/etcd";
const WAITER: &str = "/usr/sbin/shardplane-supervisor";
const CONF: &str = "/run/postgres/etcd.json";
const DIR: &str = "/data/etcd";
const DATA_DIR: &str = "/data/etcd/data";
const JOIN: &str = "/data/etcd/join";
const LOG: &str = "/data/log/etcd.log";
/// What etcd writes when it was removed while it was away.
const REMOVED: &str = "removed from the cluster";

/// etcd under one config.
pub struct Quorum {
    config: PostgresConfig,
    founders: Vec<PostgresVoter>,
    certificate: Certificate,
    etcd: Etcd,
}

/// Whether this machine has no data of etcd.
fn blank() -> bool {
    !Path::new(DATA_DIR).join("member").exists()
}

fn peers(voters: &[PostgresVoter]) -> String {
    let peer = |voter: &PostgresVoter| format!("{}=https://{}:{PEER_PORT}", voter.instance_id, voter.ip);
    voters.iter().map(peer).collect::<Vec<_>>().join(",")
}

impl Quorum {
    /// Takes a config in.
    pub fn new(config: PostgresConfig, quorum: &PostgresQuorum) -> Result<Self, EngineError> {
        let secrets = Secrets::new(&config.secret, &config.cluster_id)?;
        let certificate = secrets.certificate(&config.ip)?;
        let etcd = Etcd::new(Service::new(format!("https://{}:{PORT}", config.ip), &certificate, None)?);
        Ok(Self { founders: quorum.founders.clone(), certificate, etcd, config })
    }

    /// The members to start with: none when it has to wait for them.
    fn members(&self) -> Result<Option<(String, &'static str)>, EngineError> {
        let told = read(JOIN)?;
        if !told.is_empty() {
            return Ok(Some((told, "existing")));
        }
        // With data the list is not looked at.
        let starts = !self.founders.is_empty() || !blank();
        Ok(starts.then(|| (peers(&self.founders), "new")))
    }

    fn conf(&self, members: &str, state: &str) -> String {
        let ip = &self.config.ip;
        let (client, peer) = (format!("https://{ip}:{PORT}"), format!("https://{ip}:{PEER_PORT}"));
        let security = json!({
            "cert-file": CERTIFICATE.chain, "key-file": CERTIFICATE.key, "trusted-ca-file": CERTIFICATE.ca,
            "client-cert-auth": true,
        });
        json!({
            "name": self.config.instance_id,
            "data-dir": DATA_DIR,
            "listen-client-urls": client, "advertise-client-urls": client,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
            "initial-cluster": members, "initial-cluster-state": state,
            "initial-cluster-token": self.config.cluster_id,
            "client-transport-security": security, "peer-transport-security": security,
            // Patroni's keys are few and change often: old revisions are of no use.
            "auto-compaction-mode": "periodic", "auto-compaction-retention": "10m",
            "quota-backend-bytes": 256 << 20,
            "heartbeat-interval": 200, "election-timeout": 2000,
            "logger": "zap", "log-outputs": ["stderr"], "log-level": "warn",
        })
        .to_string()
    }

    async fn act(&self, step: Step) -> Result<(), EngineError> {
        match step {
            Step::AddLearner(task) => {
                let voter = task.voter.ok_or_else(|| EngineError::Refused("nobody is named".to_owned()))?;
                self.etcd.add_learner(&voter.ip).await
            }
            Step::Join(task) => {
                if !blank() {
                    return Ok(());
                }
                if !task.members.iter().any(|member| member.instance_id == self.config.instance_id) {
                    return Err(EngineError::Refused("the members to join do not have this one".to_owned()));
                }
                replace(Path::new(JOIN), &peers(&task.members))
            }
            Step::Promote(task) => self.etcd.promote(&task.member_id).await,
            Step::RemoveVoter(task) => self.etcd.remove(&task.member_id).await,
            Step::Switchover(_) | Step::RestartEngine(_) => Err(refuse_task("a voter")),
        }
    }
}

impl Engine for Quorum {
    fn prepare(&self) -> Result<Option<Hold>, EngineError> {
        directory(Path::new(RUN_DIR), 0o700, ENGINE_UID)?;
        directory(Path::new(DIR), 0o700, ENGINE_UID)?;
        directory(Path::new("/data/log"), 0o755, 0)?;
        certificate_files(&self.certificate)?;
        if let Some((members, state)) = self.members()? {
            directory(Path::new(DATA_DIR), 0o700, ENGINE_UID)?;
            replace(Path::new(CONF), &self.conf(&members, state))?;
        }
        Ok(None)
    }

    fn start(&self) -> Launch {
        // A file that cannot be read has stopped the preparation already.
        let waits = self.members().is_ok_and(|members| members.is_none());
        let (program, arguments) = if waits {
            (WAITER, vec![machine::WAIT.to_owned(), JOIN.to_owned()])
        } else {
            (PROGRAM, vec!["--config-file".to_owned(), CONF.to_owned()])
        };
        let (uid, log) = (ENGINE_UID, LOG.into());
        Launch { program: program.into(), arguments, uid, log, is_secret: |_| false }
    }

    fn report(&self) -> BoxFuture<'_, Result<Report, EngineError>> {
        Box::pin(async move {
            // One that forms the quorum or joins it has nothing to be told, though its disk is blank for another moment.
            let waits = self.members()?.is_none();
            let report = if waits { Etcd::blank() } else { self.etcd.report().await? };
            let read_only = !report.serves;
            let mut meaning = report.clone();
            meaning.db_bytes = 0;
            let encode = |quorum| {
                PostgresReport { member: Some(postgres_report::Member::Quorum(quorum)) }.encode_to_vec()
            };
            Ok(Report { message: encode(report), meaning: encode(meaning), live_copies: 0, read_only })
        })
    }

    fn deadline(&self, _payload: &[u8]) -> Duration {
        Duration::from_secs(15)
    }

    fn perform<'a>(
        &'a self,
        payload: &'a [u8],
        _done: &'a mut Done,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let task = PostgresTask::decode(payload).ok().and_then(|task| task.step);
            self.act(task.ok_or_else(|| refuse_task("this supervisor"))?).await
        })
    }

    fn apply<'a>(&'a self, next: &'a GuestConfig) -> BoxFuture<'a, Result<Arc<dyn Engine>, EngineError>> {
        // A quorum's members are changed by steps; what the config says of them is for the next start.
        Box::pin(async move { super::open(next) })
    }

    fn hold_writes(&self, _length: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        // Raft does: what a voter that stood still believes is settled by the others' votes.
        Box::pin(async { Ok(()) })
    }

    fn release_writes(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async { Ok(()) })
    }

    fn stop(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        Box::pin(async { Ok(Stop::AtSignal) })
    }

    fn restart_waits(&self, _latest: &Report) -> Option<&'static str> {
        None
    }

    fn stop_for_restart(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        self.stop()
    }

    fn without_what_failed(&self, last_words: &str) -> Option<Arc<dyn Engine>> {
        // With whom it was to join is no longer so when it was removed before it had begun.
        let joins_in_vain = blank() && Path::new(JOIN).exists();
        if !joins_in_vain && !last_words.contains(REMOVED) {
            return None;
        }
        // Whoever it was is gone from the quorum for ever; it waits, blank, to be somebody else.
        tracing::warn!("etcd is no member of its quorum: it waits to be told anew");
        fs::remove_dir_all(DATA_DIR).ok()?;
        let _ = fs::remove_file(JOIN);
        let quorum = PostgresQuorum { founders: Vec::new() };
        let engine: Arc<dyn Engine> = Arc::new(Self::new(self.config.clone(), &quorum).ok()?);
        Some(engine)
    }
}

//! A member that holds data: PostgreSQL under Patroni. In: `PostgresData`. Out: Patroni's process. Files: `/run/postgres` (tmpfs: configuration with
//! passwords, certificates, the socket), `/data/postgres/data`, `/data/log/postgres.log`. Patroni runs initdb, copies, elections and
//! restarts; this sees to what it is told and to what it says.

use std::{path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use prost::Message as _;
use shardplane_proto::v1::{
    GuestConfig, PostgresConfig, PostgresData, PostgresTask, postgres_config::Member,
};
use tokio::sync::Mutex;

use super::{
    RUN_DIR, certificate_files,
    client::Service,
    conf, open,
    patroni::Patroni,
    perform, read, refuse_task,
    report::Memory,
    secrets::{Certificate, Purpose, Secrets},
    work::Work,
};
use crate::engine::{
    Done, ENGINE_UID, Engine, EngineError, Hold, Launch, Report, Stop,
    files::{directory, replace},
};

const PROGRAM: &str = "/usr/bin/patroni";
const CONF: &str = "/run/postgres/patroni.json";
const DIR: &str = "/data/postgres";
const LOG: &str = "/data/log/postgres.log";

/// Patroni under one config.
pub struct Data {
    pub(super) config: PostgresConfig,
    pub(super) data: PostgresData,
    pub(super) patroni: Patroni,
    pub(super) superuser: String,
    pub(super) memory: Mutex<Memory>,
    pub(super) work: Arc<Work>,
    certificate: Certificate,
    secrets: Secrets,
}

impl Data {
    /// Takes a config in; `work` is what a member under an earlier one has done, and is at.
    pub fn new(config: PostgresConfig, data: PostgresData, work: Arc<Work>) -> Result<Self, EngineError> {
        let secrets = Secrets::new(&config.secret, &config.cluster_id)?;
        let certificate = secrets.certificate(&config.ip)?;
        let rest = (conf::REST_USER.to_owned(), secrets.password(Purpose::Rest)?);
        let base = format!("https://{}:{}", config.ip, conf::REST_PORT);
        let patroni = Patroni::new(Service::new(base, &certificate, Some(rest))?);
        let superuser = secrets.password(Purpose::Superuser)?;
        let memory = Mutex::new(Memory::default());
        Ok(Self { config, data, patroni, superuser, memory, work, certificate, secrets })
    }

    fn write_conf(&self) -> Result<(), EngineError> {
        replace(Path::new(CONF), &conf::patroni(&self.config, &self.data, &self.secrets)?)
    }
}

impl Engine for Data {
    fn prepare(&self) -> Result<Option<Hold>, EngineError> {
        directory(Path::new(RUN_DIR), 0o700, ENGINE_UID)?;
        directory(Path::new(DIR), 0o700, ENGINE_UID)?;
        directory(Path::new("/data/log"), 0o755, 0)?;
        certificate_files(&self.certificate)?;
        self.write_conf()?;
        // Values are judged by writing them there; whoever ended in the middle has left some.
        let judged = Path::new(conf::DATA_DIR).join("postgresql.auto.conf");
        if judged.exists() {
            replace(&judged, "")?;
        }
        Ok(None)
    }

    fn start(&self) -> Launch {
        Launch {
            program: PROGRAM.into(),
            arguments: vec![CONF.to_owned()],
            uid: ENGINE_UID,
            log: LOG.into(),
            // Statements of users may be logged with what they hold; the file is the guest's own, and what people are shown is without.
            is_secret: |line| line.to_ascii_lowercase().contains("password"),
        }
    }

    fn report(&self) -> BoxFuture<'_, Result<Report, EngineError>> {
        Box::pin(self.ask())
    }

    fn deadline(&self, payload: &[u8]) -> Duration {
        perform::deadline(PostgresTask::decode(payload).ok().and_then(|task| task.step).as_ref())
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
        Box::pin(async move {
            let config = read(next)?;
            let Some(Member::Data(data)) = config.member.clone() else { return open(next) };
            let next = Self::new(config, data, Arc::clone(&self.work))?;
            next.write_conf()?;
            self.patroni.reload().await?;
            let engine: Arc<dyn Engine> = Arc::new(next);
            Ok(engine)
        })
    }

    fn hold_writes(&self, _length: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        // Nothing that this member acknowledges can be lost to a successor: whoever may be elected is one that its commits wait for, and
        // one that was elected confirms none of them any more. Patroni takes its office away when the leader key is gone.
        Box::pin(async { Ok(()) })
    }

    fn release_writes(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        Box::pin(async { Ok(()) })
    }

    fn stop(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        Box::pin(async {
            self.hand_over().await;
            Ok(Stop::AtSignal)
        })
    }

    fn restart_waits(&self, _latest: &Report) -> Option<&'static str> {
        None
    }

    fn stop_for_restart(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        self.stop()
    }

    fn without_what_failed(&self, _last_words: &str) -> Option<Arc<dyn Engine>> {
        None
    }
}

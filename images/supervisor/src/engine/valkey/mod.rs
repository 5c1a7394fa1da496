//! Valkey in cluster mode.
//!
//! In: `ValkeyConfig`, `ValkeyTask`. Out: `ValkeyReport`. Files: `/run/valkey/valkey.conf` (tmpfs, holds the password),
//! `/data/valkey` (data and nodes.conf), `/data/log/valkey.log`. Called through [`Engine`] by `run`.

use std::{net::Ipv4Addr, path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use prost::Message as _;
use shardplane_proto::v1::{
    GuestConfig, ValkeyConfig, ValkeyDirective, ValkeyRefusal, ValkeyReport, ValkeyTask,
};

use self::control::Control;
use super::{
    Done, ENGINE_UID, Engine, EngineError, Hold, Launch, Report, Stop,
    files::{directory, read, replace},
};
use crate::nic;

mod conf;
mod control;
mod directives;
mod hold;
mod mend;
mod parse;
mod perform;
mod report;
mod slots;
mod standing;
mod yielding;

const PROGRAM: &str = "/usr/bin/valkey-server";
const CONF_DIR: &str = "/run/valkey";
const CONF: &str = "/run/valkey/valkey.conf";
const DATA_DIR: &str = "/data/valkey";
const NODES_CONF: &str = "/data/valkey/nodes.conf";
/// The number of the last fence that this node started after, see `yielding`.
const FENCES: &str = "/data/valkey/fences";
const LOG_DIR: &str = "/data/log";
const LOG: &str = "/data/log/valkey.log";

/// A primary answers SHUTDOWN only after it gave its replicas shutdown-timeout to catch up.
const SHUTDOWN_ANSWER: Duration = Duration::from_secs(60);

/// Valkey under one config.
pub struct Valkey {
    config: ValkeyConfig,
    own: Option<Ipv4Addr>,
    /// Without what the engine refused.
    conf: String,
    refused: Vec<ValkeyRefusal>,
    control: Control,
    progress: slots::Progress,
}

impl Valkey {
    /// Takes a config in. Refused when it cannot be written as a valkey.conf.
    pub fn new(config: &GuestConfig) -> Result<Self, EngineError> {
        let own = match &config.nic {
            Some(nic) => {
                Some(nic::parse(nic).map_err(|error| EngineError::Refused(error.to_string()))?.address)
            }
            None => None,
        };
        let config = ValkeyConfig::decode(config.engine_config.as_slice()).map_err(|error| {
            EngineError::Refused(format!("the engine config is no ValkeyConfig: {error}"))
        })?;
        let conf = conf::render(&config, own)?;
        let control = Control::new(&config)?;
        Ok(Self { config, own, conf, refused: Vec::new(), control, progress: slots::Progress::default() })
    }

    /// The same without these directives, which have the value of `before` if there is one.
    fn without(&self, refused: Vec<ValkeyRefusal>, before: &[ValkeyDirective]) -> Result<Self, EngineError> {
        let directives = directives::without(&self.config.directives, &refused, before);
        let conf = conf::render(&ValkeyConfig { directives, ..self.config.clone() }, self.own)?;
        let control = Control::new(&self.config)?;
        let progress = slots::Progress::default();
        Ok(Self { config: self.config.clone(), own: self.own, conf, refused, control, progress })
    }

    fn write_conf(&self) -> Result<(), EngineError> {
        directory(Path::new(CONF_DIR), 0o755, 0)?;
        replace(Path::new(CONF), &format!("{}{}", self.conf, standing::line()))
    }
}

fn secret_line(line: &str) -> bool {
    // A config error quotes the line of valkey.conf; every directive with a password has "pass" or "auth" in its name.
    line.starts_with(">>>") && (line.contains("pass") || line.contains("auth"))
}

impl Engine for Valkey {
    fn prepare(&self) -> Result<Option<Hold>, EngineError> {
        directory(Path::new(DATA_DIR), 0o700, ENGINE_UID)?;
        directory(Path::new(LOG_DIR), 0o755, 0)?;
        self.write_conf()?;
        let mut nodes = read(NODES_CONF)?;
        let fences = read(FENCES)?.trim().parse().unwrap_or(0);
        if let Some(text) = yielding::yielded(&nodes, &self.config, fences) {
            tracing::warn!("another member took over: this one starts as its replica");
            replace(Path::new(NODES_CONF), &text)?;
            nodes = text;
        }
        let succeeded = self.config.other_primary.as_ref().map_or(0, |other| other.succeeded);
        if succeeded > fences {
            replace(Path::new(FENCES), &succeeded.to_string())?;
        }
        if let Some(mended) = mend::mend(&nodes) {
            tracing::warn!(
                "nodes.conf has replicas with another shard id than their primary: they get the primary's"
            );
            replace(Path::new(NODES_CONF), &mended)?;
            nodes = mended;
        }
        Ok(hold::hold(&nodes, &self.config))
    }

    fn start(&self) -> Launch {
        Launch {
            program: PROGRAM.into(),
            arguments: vec![CONF.to_owned()],
            uid: ENGINE_UID,
            log: LOG.into(),
            is_secret: secret_line,
        }
    }

    fn report(&self) -> BoxFuture<'_, Result<Report, EngineError>> {
        Box::pin(report::report(&self.control, &self.config.directives, &self.refused, &self.progress))
    }

    fn deadline(&self, payload: &[u8]) -> Duration {
        perform::deadline(ValkeyTask::decode(payload).ok().and_then(|task| task.step).as_ref())
    }

    fn perform<'a>(
        &'a self,
        payload: &'a [u8],
        done: &'a mut Done,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let task = ValkeyTask::decode(payload)
                .map_err(|error| EngineError::Refused(format!("the task is no ValkeyTask: {error}")))?;
            let step = task.step.ok_or_else(|| {
                EngineError::Refused(
                    "the task has no step this supervisor knows; build the image anew".to_owned(),
                )
            })?;
            let (control, config, progress) = (&self.control, &self.config, &self.progress);
            perform::perform(slots::Context { control, config, progress, done }, step).await
        })
    }

    fn apply<'a>(&'a self, next: &'a GuestConfig) -> BoxFuture<'a, Result<Arc<dyn Engine>, EngineError>> {
        Box::pin(async move {
            let mut next = Self::new(next)?;
            // First the file: should the engine die midway it starts with the new config.
            next.write_conf()?;
            let refused = directives::apply(&self.control, &self.config, &next.config).await?;
            if !refused.is_empty() {
                // An engine that reads in its file what it refuses does not start.
                next = next.without(refused, &self.config.directives)?;
                next.write_conf()?;
            }
            let next: Arc<dyn Engine> = Arc::new(next);
            Ok(next)
        })
    }

    fn hold_writes(&self, length: Duration) -> BoxFuture<'_, Result<(), EngineError>> {
        let milliseconds = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let mut pause = redis::pipe();
        pause.cmd("CLIENT").arg("PAUSE").arg(milliseconds).arg("WRITE").ignore();
        Box::pin(async move { self.control.ask(&pause).await })
    }

    fn release_writes(&self) -> BoxFuture<'_, Result<(), EngineError>> {
        let mut unpause = redis::pipe();
        unpause.cmd("CLIENT").arg("UNPAUSE").ignore();
        Box::pin(async move { self.control.ask(&unpause).await })
    }

    fn restart_waits(&self, latest: &Report) -> Option<&'static str> {
        if !self.refused.is_empty() {
            return Some("the engine refused a part of its config, so it is not restarted for the rest");
        }
        let report = ValkeyReport::decode(latest.message.as_slice()).ok()?;
        let leads = report.role == "master" && !report.slots.is_empty() && self.config.has_replicas;
        leads.then_some("it leads its shard: it restarts when a replica has taken over")
    }

    fn stop_for_restart(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        // A node that writes no append-only file would come back empty, and it may be the only one.
        if self.config.persistent { self.stop() } else { Box::pin(self.shutdown(Some("SAVE"))) }
    }

    fn without_what_failed(&self, last_words: &str) -> Option<Arc<dyn Engine>> {
        let refusal = directives::refused_at_start(last_words)?;
        let set = |d: &ValkeyDirective| d.name.eq_ignore_ascii_case(&refusal.name);
        let again = self.refused.iter().any(|known| known.name == refusal.name);
        if again || conf::is_owned(&refusal.name) || !self.config.directives.iter().any(set) {
            return None;
        }
        let refused = self.refused.iter().cloned().chain([refusal]).collect();
        let engine: Arc<dyn Engine> = Arc::new(self.without(refused, &[]).ok()?);
        Some(engine)
    }

    fn stop(&self) -> BoxFuture<'_, Result<Stop, EngineError>> {
        Box::pin(self.shutdown(None))
    }
}

impl Valkey {
    async fn shutdown(&self, mode: Option<&'static str>) -> Result<Stop, EngineError> {
        let mut connection = self.control.connect(SHUTDOWN_ANSWER).await?;
        let mut pause = Duration::from_millis(50);
        loop {
            // Answered only when it is refused; success closes the connection.
            let answer: Result<(), _> = redis::cmd("SHUTDOWN").arg(mode).exec_async(&mut connection).await;
            let refusal = answer.map_err(control::engine_error);
            // A replica that was just synchronised refuses until its first append-only file is written. The caller's
            // deadline bounds the retries.
            match refusal {
                Err(error) if control::says(&error, "errors trying to shutdown") => {
                    tracing::info!("engine cannot end yet: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                done => return done.map(|()| Stop::Told),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::secret_line;

    #[test]
    fn a_quoted_password_is_a_secret_and_a_refused_login_is_not() {
        assert!(secret_line(r#">>> 'requirepass "s3cret" extra'"#));
        assert!(!secret_line("1:S 30 Nov 2026 16:00:00.000 # Unable to AUTH to PRIMARY: -WRONGPASS"));
    }
}

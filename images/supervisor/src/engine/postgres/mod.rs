//! PostgreSQL under Patroni, or a voter of its quorum.
//!
//! In: `PostgresConfig`, `PostgresTask`. Out: `PostgresReport`. The image is the same for both; the config says which one a guest is.
//! `quorum` and `etcd` are the voter; `data`, `conf`, `patroni`, `settings`, `roles`, `work` and `perform` the member that holds data.

use std::{path::Path, sync::Arc};

use prost::Message as _;
use shardplane_proto::v1::{GuestConfig, PostgresConfig, postgres_config::Member};

use super::{Engine, EngineError, files::replace};

mod client;
mod conf;
mod data;
mod etcd;
mod patroni;
mod perform;
mod quorum;
mod report;
mod roles;
mod secrets;
mod settings;
mod sql;
mod work;

/// tmpfs: configuration, certificates, the socket.
const RUN_DIR: &str = "/run/postgres";

/// Where the member's certificate is.
struct CertificateFiles {
    ca: &'static str,
    chain: &'static str,
    key: &'static str,
}

const CERTIFICATE: CertificateFiles = CertificateFiles {
    ca: "/run/postgres/ca.pem",
    chain: "/run/postgres/certificate.pem",
    key: "/run/postgres/key.pem",
};

fn certificate_files(certificate: &secrets::Certificate) -> Result<(), EngineError> {
    replace(Path::new(CERTIFICATE.ca), &certificate.ca)?;
    replace(Path::new(CERTIFICATE.chain), &certificate.chain)?;
    replace(Path::new(CERTIFICATE.key), &certificate.key)
}

fn refuse_task(who: &str) -> EngineError {
    EngineError::Refused(format!("{who} does not know this task"))
}

/// The engine's own config.
///
/// # Errors
/// When it is none.
fn read(config: &GuestConfig) -> Result<PostgresConfig, EngineError> {
    PostgresConfig::decode(config.engine_config.as_slice())
        .map_err(|error| EngineError::Refused(format!("the engine config is no PostgresConfig: {error}")))
}

/// The engine under this config.
///
/// # Errors
/// What of it cannot be followed.
pub fn open(config: &GuestConfig) -> Result<Arc<dyn Engine>, EngineError> {
    let config = read(config)?;
    match config.member.clone() {
        Some(Member::Quorum(quorum)) => Ok(Arc::new(quorum::Quorum::new(config, &quorum)?)),
        Some(Member::Data(data)) => Ok(Arc::new(data::Data::new(config, data, Arc::default())?)),
        None => Err(EngineError::Refused("the engine config says neither data nor quorum".to_owned())),
    }
}

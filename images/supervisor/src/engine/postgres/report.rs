//! What a member that holds data says. In: Patroni's and PostgreSQL's answers. Out: the engine's report. While PostgreSQL copies or recovers, what
//! Patroni says is enough; its own answers come when it runs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use shardplane_proto::v1::{PostgresDataReport, PostgresPeer, PostgresReport, postgres_report};
use tokio::time::Instant;

use super::{
    conf,
    data::Data,
    patroni::{Own, Peer},
    settings::{self, Shortfall},
    sql::{Patience, connect, engine_error},
    work::Job,
};
use crate::engine::{EngineError, Report};

/// What is asked again only now and then.
const AGAIN: Duration = Duration::from_secs(30);

/// What a report need not ask each time.
#[derive(Default)]
pub struct Memory {
    client: Option<tokio_postgres::Client>,
    used: Option<(Instant, u64)>,
}

impl Data {
    /// The report.
    ///
    /// # Errors
    /// When Patroni does not answer.
    pub(super) async fn ask(&self) -> Result<Report, EngineError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let own = self.patroni.own(now).await?;
        let peers = self.patroni.peers().await.unwrap_or_default();
        let mut report = self.of_patroni(&own, &peers);
        if own.state == "running" || own.state == "streaming" {
            match self.of_engine(&own, &mut report).await {
                Ok(()) => {}
                // Patroni has said how it is; that PostgreSQL is busy is no reason to say nothing.
                Err(error) => report.trouble = error.to_string(),
            }
        }
        let mut meaning = report.clone();
        (meaning.lsn, meaning.received_lsn, meaning.used_bytes) = (0, 0, 0);
        meaning.peers.iter_mut().for_each(|peer| peer.lag = peer.lag.map(|lag| lag >> 24));
        let live_copies =
            if own.leads { u32::try_from(report.sync_members.len()).unwrap_or(u32::MAX) } else { 0 };
        let encode =
            |data| PostgresReport { member: Some(postgres_report::Member::Data(data)) }.encode_to_vec();
        Ok(Report { message: encode(report), meaning: encode(meaning), live_copies, read_only: !own.leads })
    }

    fn of_patroni(&self, own: &Own, peers: &[Peer]) -> PostgresDataReport {
        let major = own.version / 10_000;
        PostgresDataReport {
            patroni_state: peers
                .iter()
                .find(|peer| peer.name == self.config.instance_id)
                .map_or_else(|| own.state.clone(), |peer| peer.state.clone()),
            role: own.role.clone(),
            leads: own.leads,
            timeline: own.timeline,
            lsn: own.lsn,
            received_lsn: own.received,
            system_identifier: own.system.clone(),
            server_version: if major > 0 {
                format!("{major}.{}", own.version % 10_000)
            } else {
                String::new()
            },
            peers: peers
                .iter()
                .map(|peer| PostgresPeer {
                    instance_id: peer.name.clone(),
                    role: peer.role.clone(),
                    state: peer.state.clone(),
                    timeline: peer.timeline,
                    lag: peer.lag,
                })
                .collect(),
            leader: peers.iter().find(|peer| peer.leads()).map(|peer| peer.name.clone()).unwrap_or_default(),
            dcs_answers: own.dcs_answers,
            paused: own.paused,
            failsafe_active: own.failsafe,
            sync_members: peers.iter().filter(|peer| peer.counts()).map(|peer| peer.name.clone()).collect(),
            pending_restart: own.pending_restart,
            ..PostgresDataReport::default()
        }
    }

    async fn of_engine(&self, own: &Own, report: &mut PostgresDataReport) -> Result<(), EngineError> {
        let mut memory = self.memory.lock().await;
        let client = match memory.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => connect(&self.superuser, "postgres", Patience::Asks).await?,
        };
        let data = &self.data;
        let done = self.work.done();
        let refused = done.refused(data.parameters_revision).unwrap_or_default();
        if own.leads {
            let names: Vec<String> = refused.iter().map(|refusal| refusal.name.clone()).collect();
            let known = self.patroni.shared().await?;
            let differs = settings::changes(&known, &conf::shared(data, &names)).is_some();
            let (data, superuser, patroni) = (data.clone(), self.superuser.clone(), self.patroni.clone());
            self.work.begin(Job { data, superuser, patroni, timeline: own.timeline }, differs);
            report.refused_parameters = refused.to_vec();
            if let Some((revision, refused)) = done.roles(own.timeline) {
                (report.roles_revision, report.refused_roles) = (revision, refused.to_vec());
            }
            report.trouble.clone_from(&done.trouble);
            if memory.used.is_none_or(|(at, _)| at.elapsed() > AGAIN) {
                let query = "SELECT coalesce(sum(pg_database_size(oid)), 0)::bigint FROM pg_database";
                let used: i64 = client.query_one(query, &[]).await.map_err(engine_error)?.get(0);
                memory.used = Some((Instant::now(), u64::try_from(used).unwrap_or(0)));
            }
            report.used_bytes = memory.used.map_or(0, |(_, used)| used);
        }
        let Shortfall { unapplied, lowers_standby_bound } =
            settings::shortfall(&client, data, refused).await?;
        (report.unapplied_parameters, report.lowers_standby_bound) = (unapplied, lowers_standby_bound);
        report.parameters_revision = data.parameters_revision;
        memory.client = Some(client);
        Ok(())
    }
}

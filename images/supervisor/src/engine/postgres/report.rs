//! What a member that holds data says. In: Patroni's and PostgreSQL's answers. Out: the engine's report. While PostgreSQL copies or recovers, what
//! Patroni says is enough; its own answers come when it runs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use shardplane_proto::v1::{
    PostgresDataReport, PostgresPeer, PostgresRefusal, PostgresReport, postgres_report,
};
use tokio::time::Instant;

use super::{
    conf,
    data::Data,
    patroni::{Own, Peer},
    roles::Roles,
    settings::{self, Shortfall},
    sql::{connect, engine_error},
};
use crate::engine::{EngineError, Report};

/// What is done again only now and then.
const AGAIN: Duration = Duration::from_secs(30);

/// What a member has found out and need not ask each time; it outlives a change of the config.
#[derive(Default)]
pub struct Memory {
    pub client: Option<tokio_postgres::Client>,
    /// Of the parameters with this revision, as this leader's PostgreSQL judges them.
    refused: Option<(u64, Vec<PostgresRefusal>)>,
    /// The roles' revision and the timeline they were brought to on, when, and what was refused.
    roles: Option<(u64, u64, Instant, Vec<PostgresRefusal>)>,
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
            None => connect(&self.superuser, "postgres").await?,
        };
        let data = &self.data;
        if own.leads {
            if memory.refused.as_ref().is_none_or(|(revision, _)| *revision != data.parameters_revision) {
                let refused = settings::refused(&client, data).await?;
                memory.refused = Some((data.parameters_revision, refused));
            }
            let refused = memory.refused.as_ref().map(|(_, refused)| refused.clone()).unwrap_or_default();
            let names: Vec<String> = refused.iter().map(|refusal| refusal.name.clone()).collect();
            let known = self.patroni.shared().await?;
            if let Some(changes) = settings::changes(&known, &conf::shared(data, &names)) {
                self.patroni.share(changes).await?;
            }
            report.refused_parameters = refused;
            self.roles(&mut memory, &client, own, report).await?;
            let due = memory.used.is_none_or(|(at, _)| at.elapsed() > AGAIN);
            if due {
                let query = "SELECT coalesce(sum(pg_database_size(oid)), 0)::bigint FROM pg_database";
                let used: i64 = client.query_one(query, &[]).await.map_err(engine_error)?.get(0);
                memory.used = Some((Instant::now(), u64::try_from(used).unwrap_or(0)));
            }
            report.used_bytes = memory.used.map_or(0, |(_, used)| used);
        }
        let refused = memory.refused.as_ref().filter(|(revision, _)| *revision == data.parameters_revision);
        let refused = refused.map(|(_, refused)| refused.clone()).unwrap_or_default();
        let Shortfall { unapplied, lowers_standby_bound } =
            settings::shortfall(&client, data, &refused).await?;
        (report.unapplied_parameters, report.lowers_standby_bound) = (unapplied, lowers_standby_bound);
        report.parameters_revision = data.parameters_revision;
        memory.client = Some(client);
        Ok(())
    }

    /// The roles of the cluster are those of the coordinator's group.
    async fn roles(
        &self,
        memory: &mut Memory,
        client: &tokio_postgres::Client,
        own: &Own,
        report: &mut PostgresDataReport,
    ) -> Result<(), EngineError> {
        let data = &self.data;
        if data.group_number != 0 {
            return Ok(());
        }
        let done = memory.roles.as_ref().is_some_and(|(revision, timeline, at, _)| {
            (*revision, *timeline) == (data.roles_revision, own.timeline) && at.elapsed() < AGAIN
        });
        if !done {
            let refused = Roles { client, password: &self.superuser }.ensure(data).await?;
            memory.roles = Some((data.roles_revision, own.timeline, Instant::now(), refused));
        }
        report.roles_revision = data.roles_revision;
        report.refused_roles = memory.roles.as_ref().map(|(.., refused)| refused.clone()).unwrap_or_default();
        Ok(())
    }
}

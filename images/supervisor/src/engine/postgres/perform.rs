//! Steps of a member that holds data. In: a step. Out: Patroni's answer. All that has to be true is looked at before anything is done: after it
//! nothing depends on a member that has just been let go (UBI-9).

use std::time::Duration;

use shardplane_proto::v1::postgres_task::Step;

use super::{data::Data, patroni::Peer, refuse_task};
use crate::engine::EngineError;

/// A replica that is further behind does not lead: it would keep clients waiting for as long as it replays.
const MOST_BEHIND: u64 = 16 << 20;
const SWITCHOVER: Duration = Duration::from_secs(40);
const RESTART: Duration = Duration::from_secs(120);
/// Handing over before a stop has to leave time for the stop.
const HAND_OVER: Duration = Duration::from_secs(8);

/// How long a step may take.
pub fn deadline(step: Option<&Step>) -> Duration {
    match step {
        Some(Step::Switchover(_)) => SWITCHOVER + Duration::from_secs(5),
        Some(Step::RestartEngine(_)) => RESTART + Duration::from_secs(5),
        Some(Step::AddLearner(_) | Step::Join(_) | Step::Promote(_) | Step::RemoveVoter(_)) | None => {
            Duration::from_secs(15)
        }
    }
}

/// Whether this replica may take over now.
fn may_lead(own: &str, peers: &[Peer]) -> Result<(), EngineError> {
    let refused = |text: String| Err(EngineError::Refused(text));
    let Some(peer) = peers.iter().find(|peer| peer.name == own) else {
        return refused("this member is not in its group".to_owned());
    };
    if peer.state != "streaming" && peer.state != "running" {
        return refused(format!("this replica does not follow its leader: it is {}", peer.state));
    }
    match peer.lag {
        Some(lag) if lag <= MOST_BEHIND => {}
        Some(lag) => return refused(format!("this replica is {lag} bytes behind, more than {MOST_BEHIND}")),
        None => return refused("nobody knows how far this replica is behind".to_owned()),
    }
    if !peer.counts() {
        return refused("commits do not wait for this replica yet, so it may lack some".to_owned());
    }
    Ok(())
}

impl Data {
    pub(super) async fn act(&self, step: Step) -> Result<(), EngineError> {
        match step {
            Step::Switchover(_) => {
                let peers = self.patroni.peers().await?;
                let own = &self.config.instance_id;
                let leader = peers.iter().find(|peer| peer.leads()).map(|peer| peer.name.clone());
                let leader =
                    leader.ok_or_else(|| EngineError::Refused("its group has no leader".to_owned()))?;
                if leader == *own {
                    return Ok(());
                }
                may_lead(own, &peers)?;
                self.patroni.switchover(&leader, Some(own), SWITCHOVER).await
            }
            Step::RestartEngine(_) => self.patroni.restart_pending(RESTART).await,
            Step::AddLearner(_) | Step::Join(_) | Step::Promote(_) | Step::RemoveVoter(_) => {
                Err(refuse_task("a member that holds data"))
            }
        }
    }

    /// Before it ends: a replica in sync leads already, so clients wait for seconds and not for the key to expire.
    pub(super) async fn hand_over(&self) {
        let Ok(peers) = self.patroni.peers().await else { return };
        let own = &self.config.instance_id;
        let leads = peers.iter().any(|peer| peer.leads() && peer.name == *own);
        let heir = peers.iter().find(|peer| peer.name != *own && may_lead(&peer.name, &peers).is_ok());
        if let Some(heir) = heir.filter(|_| leads)
            && let Err(error) = self.patroni.switchover(own, Some(&heir.name), HAND_OVER).await
        {
            tracing::warn!("ends without handing over: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PG-4.
    #[test]
    fn pg_4_a_replica_that_lags_or_that_commits_do_not_wait_for_is_refused_with_the_reason() {
        let peer = |role: &str, state: &str, lag| Peer {
            name: "b".to_owned(),
            role: role.to_owned(),
            state: state.to_owned(),
            timeline: 1,
            lag,
        };
        let says = |peer: Peer| may_lead("b", &[peer]).map_err(|error| error.to_string());
        assert_eq!(says(peer("quorum_standby", "streaming", Some(0))), Ok(()));
        assert!(
            says(peer("quorum_standby", "streaming", Some(3 << 30)))
                .unwrap_err()
                .contains("3221225472 bytes behind")
        );
        assert!(says(peer("replica", "streaming", Some(0))).unwrap_err().contains("do not wait"));
        assert!(
            says(peer("quorum_standby", "creating replica", None)).unwrap_err().contains("creating replica")
        );
        assert!(may_lead("c", &[]).is_err());
    }
}

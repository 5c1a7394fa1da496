//! What a drain or the loss of a host would lead to, for people. In: the planner's answer. Out: a message of the Operator service.

use shardplane_proto::{
    ids::{ClusterId, HostId, ResourceId},
    v1,
};

use super::operator::host_name;
use crate::{
    observed::Observed,
    plan::{Question, foresee},
    state::State,
    time::Timestamp,
};

/// The answer for one host.
pub fn host_plan(
    state: &State,
    observed: &Observed,
    now: Timestamp,
    host: HostId,
    question: Question,
) -> v1::HostPlan {
    let name = |cluster: ClusterId| {
        let resource = state.resources.get(&ResourceId::from(cluster));
        resource.map(|resource| resource.metadata.name.clone()).unwrap_or_default()
    };
    let (moves, clusters) = foresee(state, observed, now, host, question);
    let moves = moves.into_iter().map(|foreseen| {
        let (to_host, blocker) = match foreseen.to {
            Ok(to) => (host_name(state, to), String::new()),
            Err(why) => (String::new(), why),
        };
        v1::PlannedMove {
            instance_id: foreseen.instance.to_string(),
            cluster_id: foreseen.cluster.to_string(),
            cluster_name: name(foreseen.cluster),
            to_host,
            blocker,
        }
    });
    let clusters = clusters.into_iter().map(|outlook| v1::PlannedCluster {
        id: outlook.cluster.to_string(),
        name: name(outlook.cluster),
        anti_affinity_ok: outlook.anti_affinity_ok,
        primary_spread_ok: outlook.primary_spread_ok,
    });
    v1::HostPlan {
        what: match question {
            Question::Drain { .. } => "drain",
            Question::Loss => "loss",
        }
        .to_owned(),
        host: host_name(state, host),
        moves: moves.collect(),
        clusters: clusters.collect(),
    }
}

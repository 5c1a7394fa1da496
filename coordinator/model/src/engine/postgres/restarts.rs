//! Restarts that parameters wait for. In: members that report so. Out: one member at a time, in the order that hot standby bears: where a
//! value that a standby may not have lower than its leader was raised, replicas first; else the leader first, which is then a switchover's
//! pause at most. Called when everything else is settled.

use shardplane_proto::v1::{self, postgres_task::Step as Body};

use super::{
    facts::{self, data_of, leader},
    quorum::Needed,
    tasks::step,
};
use crate::engine::{Class, ClusterView, Member};

/// The next restart of a cluster, and what all members are still to be told.
pub fn next(view: &ClusterView<'_>) -> Needed {
    let mut needed = Needed::default();
    for group in view.groups.iter().filter(|group| group.class == Class::Data) {
        let Some((primary, report)) = leader(view, group.id) else { continue };
        let own = || view.wanted().filter(|m| m.instance.group == group.id);
        let pending = |m: &&Member<'_>| data_of(m).is_some_and(|data| data.pending_restart);
        let replicas = || own().filter(|m| m.instance.id != primary.instance.id);
        // A leader's restart tells replicas of a lowered value; until then they would not start with it.
        let lowers = report.lowers_standby_bound;
        let first = if lowers {
            own()
                .filter(|m| m.instance.id == primary.instance.id)
                .find(pending)
                .or_else(|| replicas().find(pending))
        } else {
            replicas().find(pending).or_else(|| own().find(pending))
        };
        let Some(member) = first else { continue };
        let id = member.instance.id;
        let others_follow =
            replicas().filter(|m| m.instance.id != id).all(|m| facts::in_sync(view, m.instance.id));
        if others_follow {
            let body = Body::RestartEngine(v1::postgres_task::RestartEngine {});
            needed.steps.push(step(id, "restart for changed parameters".to_owned(), body));
        } else {
            needed
                .waiting
                .push(format!("instance {id} restarts for changed parameters when the others follow"));
        }
    }
    needed
}

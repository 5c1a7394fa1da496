//! Which hosts are lost. In: when each was last heard. Out: `DeclareLost` for those that were silent longer than the grace, never
//! for silence before this leader began to listen.

use super::Plan;
use crate::{
    command::Decision,
    observed::Observed,
    state::{Presence, State},
    time::{Millis, Timestamp},
};

pub(super) fn plan(state: &State, observed: &Observed, now: Timestamp, plan: &mut Plan) {
    let grace = state.settings.lost_after;
    for host in state.hosts.values() {
        match host.presence {
            Presence::Lost { .. } if observed.hears(host.id, now) => {
                plan.propose.push(Decision::HostFound { host: host.id });
            }
            Presence::Lost { .. } => {}
            Presence::Present => {
                let heard = observed.last_heard(host.id);
                let silent = now.since(heard);
                if silent > grace {
                    let message = format!(
                        "host {} was not heard for {silent}; what no longer serves on it is rebuilt elsewhere",
                        host.facts.name
                    );
                    plan.propose.push(Decision::DeclareLost { host: host.id, message });
                } else if !observed.hears(host.id, now) {
                    plan.again_after(heard, Millis(grace.0 + 1));
                }
            }
        }
    }
}

//! Which hosts are lost, and which cordons have had their time. In: when each host was last heard, and the time. Out: `DeclareLost`
//! for those that were silent longer than the grace, never for silence before this leader began to listen; ends and reminders of cordons.

use super::Plan;
use crate::{
    command::Decision,
    observed::Observed,
    state::{Cordon, Host, Presence, State},
    time::{Millis, Timestamp},
};

pub(super) fn plan(state: &State, observed: &Observed, now: Timestamp, plan: &mut Plan) {
    let grace = state.settings.lost_after;
    for host in state.hosts.values() {
        if let Some(cordon) = &host.cordon {
            cordon_stands(state, host, cordon, now, plan);
        }
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

/// A cordon ends when it was made to, and is brought to mind when it was not; a drained host that is empty is said to be.
fn cordon_stands(state: &State, host: &Host, cordon: &Cordon, now: Timestamp, plan: &mut Plan) {
    match cordon.until {
        Some(until) if until <= now => {
            plan.propose.push(Decision::LiftCordon { host: host.id });
            return;
        }
        Some(until) => plan.again_after(until, Millis(0)),
        None if now.since(cordon.told) >= Cordon::REMINDS => {
            plan.propose.push(Decision::RemindCordon { host: host.id });
        }
        None => plan.again_after(cordon.told, Cordon::REMINDS),
    }
    let under_way = cordon.drain.as_ref().is_some_and(|drain| drain.done.is_none());
    if under_way && !state.instances.values().any(|instance| instance.host == host.id) {
        plan.propose.push(Decision::Drained { host: host.id });
    }
}

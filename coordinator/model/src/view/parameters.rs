//! Whether the members of a cluster run the parameters they shall. In: reports, and what the log says each was told. Out: a verdict with
//! a message that names who does not, and the engine's text where it has one. Worked out from reports: what nobody confirms is not so.

use super::spread::Spread;
use crate::{
    engine::{ClusterView, Member},
    plan::shortfall,
};

/// Every wanted member has the newest parameters in force.
pub fn in_sync(view: &ClusterView<'_>) -> Spread {
    let rollout = &view.cluster.rollout;
    let behind = |m: &&Member<'_>| m.instance.parameters.values != rollout.parameters.values;
    let all = view.wanted().count();
    let missing: Vec<String> = view.wanted().filter(|m| !behind(m)).filter_map(shortfall).collect();
    let waiting = view.wanted().filter(behind).count();
    let done = all - waiting - missing.len();
    let count = format!("{done} of {all} members have the newest parameters in force");
    if done == all && all > 0 {
        return Spread { ok: true, message: count };
    }
    const SHOWN: usize = 3;
    let mut message = match rollout.halted() {
        Some(halted) => format!("{}; {count}", halted.why),
        None => count,
    };
    for line in missing.iter().take(SHOWN) {
        message.push_str("; ");
        message.push_str(line);
    }
    Spread { ok: false, message }
}

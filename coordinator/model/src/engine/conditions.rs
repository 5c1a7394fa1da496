//! Conditions that every cluster has, and its price. In: a cluster's view. Out: members of its status. Used by the engines' status.

use std::collections::BTreeSet;

use shardplane_proto::v1;

use super::{ClusterView, Needs};
use crate::{state::Settings, view::parameters};

/// Hours of a month for prices: 365 days / 12.
const HOURS_A_MONTH: f64 = 730.0;

/// A condition that is true or false.
pub fn condition(name: &str, ok: bool, message: String) -> v1::Condition {
    v1::Condition { r#type: name.to_owned(), status: if ok { "True" } else { "False" }.to_owned(), message }
}

/// Whether every wanted member answers.
pub fn members_answer(view: &ClusterView<'_>) -> v1::Condition {
    let (answering, wanted) = (view.wanted().filter(|m| m.engine().is_some()).count(), view.wanted().count());
    let message = format!("{answering} of {wanted} instances answer");
    condition("MembersAnswer", answering == wanted && wanted > 0, message)
}

/// Whether the newest parameters are in force everywhere.
pub fn parameters_in_sync(view: &ClusterView<'_>) -> v1::Condition {
    let parameters = parameters::in_sync(view);
    condition("ParametersInSync", parameters.ok, parameters.message)
}

/// Whether nothing is waited for.
pub fn nothing_waits(waiting: &[String]) -> v1::Condition {
    condition("NothingWaits", waiting.is_empty(), waiting.join("; "))
}

/// Whether the hosts keep its members to what they are promised.
pub fn limits_enforced(view: &ClusterView<'_>) -> v1::Condition {
    let limits: Vec<String> = view
        .wanted()
        .filter_map(|m| m.host)
        .filter(|host| {
            host.facts.conditions.iter().any(|c| c.name == "LimitsEnforced" && c.status == "False")
        })
        .map(|host| host.facts.name.clone())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let message = if limits.is_empty() {
        String::new()
    } else {
        format!("not on hosts {}: see `kc get host`", limits.join(", "))
    };
    condition("LimitsEnforced", limits.is_empty(), message)
}

/// The price of all members that the groups are to have; what the platform provides on its own account costs nothing.
pub fn pricing(view: &ClusterView<'_>, settings: &Settings) -> v1::Pricing {
    let hour = view.groups.iter().map(|group| match view.spec.needs(group.class) {
        Needs::Offers { vm, volume, volume_gib } => {
            let vm = settings.vm_offers.get(&vm).map_or(0.0, |offer| offer.price_hour);
            let gib = settings.volume_offers.get(&volume).map_or(0.0, |offer| offer.price_gib_hour);
            f64::from(group.members) * (vm + gib * f64::from(volume_gib))
        }
        Needs::Fixed { .. } => 0.0,
    });
    let hour = hour.sum::<f64>();
    v1::Pricing { hour, day: hour * 24.0, month: hour * HOURS_A_MONTH }
}

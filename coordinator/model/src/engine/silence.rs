//! What is said of a member that does not answer. In: a member. Out: one line for people. Used by the engines' next steps.

use super::{ClusterView, Member};

/// Why nothing is known of this member now.
pub fn silence(view: &ClusterView<'_>, member: &Member<'_>) -> String {
    let instance = member.instance;
    let host = member.host.map_or_else(|| instance.host.to_string(), |host| host.facts.name.clone());
    match member.report {
        None => format!("instance {} on host {host}: nothing reported yet", instance.id),
        Some(report) if !member.fresh => {
            format!("instance {} on host {host}: last report {} ago", instance.id, view.now.since(report.at))
        }
        Some(report) => {
            let words = [report.message.as_str(), report.engine_message.as_str()];
            let said = words.into_iter().filter(|m| !m.is_empty()).collect::<Vec<_>>().join("; ");
            let state = crate::view::machine_word(report.machine);
            let engine = crate::view::engine_word(report.engine_state);
            let tail = if said.is_empty() { String::new() } else { format!(" ({said})") };
            format!("instance {} on host {host}: machine {state}, engine {engine}{tail}", instance.id)
        }
    }
}

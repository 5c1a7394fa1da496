//! The rules that need more than the message itself. In: parsed specs and the installation's settings. Out: every violation with its path.

use super::spec::PostgresSpec;
use crate::{engine::offers, refusal::Violation, state::Settings};

/// Rules of a create: the offers exist, and the installation can give what is asked for.
pub fn create(spec: &PostgresSpec, settings: &Settings) -> Vec<Violation> {
    let mut wrong = offers::check(&spec.vm_offer, &spec.volume_offer, spec.volume_size_gib, settings);
    if spec.create_public_ipv4 {
        let text = "is true; this installation has no public IPv4 pool, so only false is allowed";
        wrong.push(Violation::new("spec.createPublicIpv4", text));
    }
    wrong
}

/// Rules of a change.
pub fn modify(_old: &PostgresSpec, _new: &PostgresSpec) -> Vec<Violation> {
    Vec::new()
}

//! The catalogue's part of a create. In: the offers a spec names, and the installation's. Out: violations with their paths. Used by every
//! engine's rules.

use crate::{refusal::Violation, state::Settings};

/// The offers exist, and the volume is not larger than its offer allows. An empty name has its own violation already.
pub fn check(vm: &str, volume: &str, gib: u32, settings: &Settings) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let known = |ids: Vec<&String>| ids.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if !vm.is_empty() && !settings.vm_offers.contains_key(vm) {
        let offers = known(settings.vm_offers.keys().collect());
        let text = format!("{vm:?} is not in the catalogue, which has {offers}");
        wrong.push(Violation::new("spec.vmOfferId", text));
    }
    match settings.volume_offers.get(volume) {
        None if volume.is_empty() => {}
        None => {
            let offers = known(settings.volume_offers.keys().collect());
            let text = format!("{volume:?} is not in the catalogue, which has {offers}");
            wrong.push(Violation::new("spec.volumeOfferId", text));
        }
        Some(offer) if gib > offer.max_size_gib => {
            let text = format!("is {gib}; allowed is 1 to {} for the offer {volume}", offer.max_size_gib);
            wrong.push(Violation::new("spec.volumeSizeGiB", text));
        }
        Some(_) => {}
    }
    wrong
}

//! Ports that are cut: by the spec, or because a lease ran out.
//!
//! In: the newest accepted spec, be it of an earlier life, reports of guests, the contact. Out: the reconciler's set of cut ports, and
//! the same set in the network part of a spec. The rule itself is in [`crate::lease`].

use std::{collections::BTreeSet, fmt::Write as _, fs, path::PathBuf, sync::Arc, time::Duration};

use shardplane_proto::{ids::InstanceId, v1};

use super::Reconciler;
use crate::{
    boot_time::BootTime,
    contact::Heard,
    lease::{self, Cut},
    machine::Shared,
};

/// How often leases are looked at; the coordinator counts on it when it waits for one to end.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether a spec says that this instance is fenced.
pub(super) fn is_fenced(spec: &v1::HostSpec, id: InstanceId) -> bool {
    let text = id.to_string();
    spec.instances.iter().any(|one| one.fenced && one.instance_id == text)
}

/// Cuts these ports in a network part, also those of machines on their way out.
pub(super) fn mark(part: &mut v1::HostSpec, cut: &BTreeSet<InstanceId>) {
    let ids: BTreeSet<String> = cut.iter().map(ToString::to_string).collect();
    for port in &mut part.instances {
        port.fenced = ids.contains(&port.instance_id);
    }
}

/// The file that tells the next life of the agent from when leases count, and which ports are cut. Lost with the boot, like the machines.
fn contact_file(shared: &Shared) -> PathBuf {
    shared.machines_dir.with_file_name("contact")
}

/// Takes over from the last life of the agent when the coordinator last granted something: an agent that was away for longer than the
/// lease cuts at once. Answers the ports that were cut: a welcome that came since renews leases, and confirms none of them.
pub(super) fn remember(shared: &Shared) -> BTreeSet<InstanceId> {
    let text = fs::read_to_string(contact_file(shared)).unwrap_or_default();
    let mut words = text.split_whitespace();
    if words.next() != Some(&*shared.boot_id) {
        return BTreeSet::new();
    }
    if let Some(nanos) = words.next().and_then(|nanos| nanos.parse().ok()) {
        shared.contact.granted(BootTime::after(Duration::from_nanos(nanos)).min(BootTime::now()));
    }
    let cut: BTreeSet<InstanceId> = words.filter_map(|id| id.parse().ok()).collect();
    for id in &cut {
        tracing::warn!(instance = %id, "its port was cut, and stays so until the coordinator confirms it");
    }
    cut
}

impl Reconciler {
    /// Notes for the next life what this one knows. It is tried again at every look; until then the host says so, since the older note
    /// lacks the ports that were cut since.
    pub(super) fn note_contact(&self) {
        let Some(granted) = self.shared.contact.now().granted else { return };
        let file = contact_file(&self.shared);
        let fresh = file.with_extension("new");
        let mut note = format!("{} {}", self.shared.boot_id, granted.nanos());
        for id in &self.cut {
            // Writing into a String cannot fail.
            let _ = write!(note, " {id}");
        }
        let written = fs::write(&fresh, note).and_then(|()| fs::rename(&fresh, &file));
        let problem = written.err().map(|error| {
            format!(
                "cannot note the last contact and the ports that are cut in {}: {error}; a restart of the agent may open one too early",
                file.display()
            )
        });
        self.shared.board.set_problem("contact", problem);
    }

    fn leased(&self) -> Option<Arc<v1::HostSpec>> {
        self.wanted.as_ref().map(|wanted| Arc::clone(&wanted.spec)).or_else(|| self.held.clone())
    }

    /// Decides anew which ports are cut. True when that changed.
    pub(super) fn review_cuts(&mut self) -> bool {
        let Some(spec) = self.leased() else { return false };
        let heard = self.shared.contact.now();
        let confirmed = heard.confirmed || self.confirming == Some(heard.session);
        let (heard, now) = (Heard { confirmed, ..heard }, BootTime::now());
        let mut cut = BTreeSet::new();
        let mut known = BTreeSet::new();
        for one in &spec.instances {
            let Ok(id) = one.instance_id.parse::<InstanceId>() else { continue };
            known.insert(id);
            let before = self.cut.contains(&id);
            let guest = self.shared.board.guest(id);
            match lease::decide(one, guest.as_ref(), heard, before, now) {
                Some(why) => {
                    if !before {
                        tracing::warn!(instance = %id, "its port is cut: {}", reason(why));
                    }
                    cut.insert(id);
                }
                None if before => tracing::info!(instance = %id, "its port is opened again"),
                None => {}
            }
        }
        // One that is not in the spec any more, and on its way out, stays cut.
        let leaving = |id: &&InstanceId| !known.contains(*id) && self.machines.contains_key(*id);
        cut.extend(self.cut.iter().filter(leaving));
        let changed = cut != self.cut;
        self.cut = cut;
        if changed {
            // Before the network follows: what a life has cut the next one knows.
            self.note_contact();
        }
        changed
    }

    /// In a life that has had no spec yet only cuts are made: everything else is as the last life left it.
    pub(super) async fn cut_before_the_first_spec(&mut self) {
        let Some(held) = self.held.clone().filter(|_| self.wanted.is_none() && !self.cut.is_empty()) else {
            return;
        };
        let cut = self.ensure_network(&held).await;
        self.unfinished = cut.is_err();
        self.shared.board.set_problem("network", cut.err());
    }
}

fn reason(why: Cut) -> &'static str {
    match why {
        Cut::Fenced => "it is fenced",
        Cut::LeaseOver => {
            "its lease ran out without a word of the coordinator, and not all its copies follow it"
        }
    }
}

//! The leader's side of sessions. In: what hosts say, late or never. Out: what is observed; hosts welcomed, kept alive and told their
//! specs. Timings are the real coordinator's.

use std::collections::BTreeMap;

use shardplane_model::{
    command::{Command, Notice},
    hostspec::host_spec,
    observed::HostReport,
    state::State,
};
use shardplane_proto::{ids::Generation, ids::HostId, v1};

use super::{
    host::SimHost,
    leader::Leader,
    mesh::Mesh,
    wire::{Said, Told},
    world::STEP,
};

/// A host that says nothing for that long has no session any more.
const SILENCE: u64 = 5_000;
/// A spec that was not accepted is sent again after that long.
const RESEND: u64 = 5_000;
/// What the host may rest on ends before the leader's patience.
const MARGIN: u64 = SILENCE + 1_000;
/// Between two messages of a deposed leader.
const LINGERS_EVERY: u64 = 1_000;

fn spec_of(state: &State, host: HostId, term: u64) -> Option<v1::HostSpec> {
    let clear = |sealed: &shardplane_model::state::Sealed| String::from_utf8(sealed.0.clone());
    host_spec(state, host, term, &|_, sealed| clear(sealed)).unwrap()
}

impl Leader {
    fn disconnected(&mut self, host: &mut SimHost) {
        if let Some(report) = self.observed.hosts.get_mut(&host.id) {
            report.connected = false;
        }
        if host.session.is_some() {
            host.session_ends();
        }
    }

    pub(super) fn hear(&mut self, hosts: &mut [SimHost], mesh: &Mesh, now: u64) {
        for (index, host) in hosts.iter_mut().enumerate() {
            if !host.up || host.control_cut {
                self.disconnected(host);
                continue;
            }
            if host.session != Some(self.term) && !self.opens(host, now) {
                continue;
            }
            let turn = self.reports_every / STEP;
            if host.acts(now) && (now / STEP + index as u64).is_multiple_of(turn) {
                let said = host.said(mesh, now);
                host.wire.say(now, said);
            }
            for said in host.wire.heard(now) {
                self.take(host.id, said, now);
            }
            let last = self.observed.hosts.get(&host.id).map_or(0, |report| report.at.0);
            if self.stamp(now).0.saturating_sub(last) > SILENCE {
                self.disconnected(host);
                host.connect_at = now + 1_000 + host.wire.rng.below(2_000);
                continue;
            }
            if now.is_multiple_of(1_000) {
                let granted = self.stamp(now);
                if let Some(report) = self.observed.hosts.get_mut(&host.id) {
                    report.granted = granted;
                }
                let answers = self.newest.get(&host.id).copied();
                host.wire.tell(now, Told::Heartbeat { term: self.term, answers });
            }
        }
    }

    /// Opens a session when the host asks for one now.
    fn opens(&mut self, host: &mut SimHost, now: u64) -> bool {
        let wire = &host.wire;
        if now < host.connect_at || !host.acts(now) || wire.up_cut || wire.down_cut {
            self.disconnected(host);
            return false;
        }
        host.session_ends();
        host.session = Some(self.term);
        let facts = host.facts.clone();
        self.apply(now, vec![Command::Notice(Notice::Host { host: host.id, facts })]);
        let report = HostReport {
            connected: true,
            at: self.stamp(now),
            accepted: Generation(host.generation()),
            complete: false,
            problems: Vec::new(),
            granted: self.stamp(now),
        };
        self.newest.remove(&host.id);
        self.observed.hosts.insert(host.id, report);
        let lost_after = self.state.settings.lost_after.0;
        let lost_after = lost_after.saturating_sub(MARGIN).max(lost_after / 4);
        // The opening of a session is one round trip that came through.
        let (delay, lost) = (std::mem::take(&mut host.wire.delay), std::mem::take(&mut host.wire.lost));
        host.wire.tell(now, Told::Welcome { term: self.term, lost_after });
        (host.wire.delay, host.wire.lost) = (delay, lost);
        self.told.remove(&host.id);
        self.deliver(host, now);
        true
    }

    fn take(&mut self, host: HostId, said: Said, now: u64) {
        let at = self.stamp(now);
        let report = HostReport {
            connected: true,
            at,
            accepted: Generation(said.accepted),
            complete: true,
            problems: Vec::new(),
            granted: self.observed.hosts.get(&host).map_or(at, |report| report.granted),
        };
        self.newest.insert(host, said.sent);
        self.observed.hosts.insert(host, report);
        let lasting: BTreeMap<_, _> =
            self.observed.members.iter().map(|(id, member)| (*id, member.lasting())).collect();
        self.observed.members.retain(|_, member| member.host != host);
        for (id, member) in said.members {
            self.observed.members.insert(id, member.heard(lasting.get(&id).cloned(), at));
        }
        self.outcomes.extend(said.outcomes);
    }

    /// Tells a host its newest desired state, unless it was told a moment ago.
    pub(super) fn deliver(&mut self, host: &mut SimHost, now: u64) {
        let newest = self.state.hosts.get(&host.id).map(|host| host.generation);
        let Some(newest) = newest else { return };
        let due = |(generation, at): &(Generation, u64)| newest > *generation || now - at > RESEND;
        if self.told.get(&host.id).is_none_or(due)
            && let Some(spec) = spec_of(&self.state, host.id, self.term)
        {
            host.wire.tell(now, Told::Spec(spec));
            self.told.insert(host.id, (newest, now));
        }
    }

    /// Whoever led before still tells hosts what it knew.
    pub(super) fn linger(&mut self, hosts: &mut [SimHost], now: u64) {
        let Some(old) = self.deposed.as_ref() else { return };
        if now >= old.until {
            self.deposed = None;
            return;
        }
        if !now.is_multiple_of(LINGERS_EVERY) {
            return;
        }
        for host in hosts.iter_mut().filter(|host| host.up && !host.control_cut) {
            if host.wire.rng.below(3) == 0
                && let Some(spec) = spec_of(&old.state, host.id, old.term)
            {
                host.wire.tell(now, Told::Spec(spec));
            }
        }
    }
}

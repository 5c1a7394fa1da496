//! Applying cordons and drains. In: an operator's word, or the planner's that a cordon ended, still stands, or left nothing on its host.
//! Out: the host's cordon, and an event that says so.

use shardplane_proto::ids::HostId;

use super::Step;
use crate::{
    command::{Applied, CordonHost, DrainMode},
    refusal::{Refusal, RefusalCode, Violation},
    resource::User,
    state::{Cordon, Drain, Host, Severity},
};

/// Longest reason, in characters.
const LONGEST_REASON: usize = 255;

impl Step<'_> {
    pub(super) fn cordon(&mut self, asked: &CordonHost) -> Result<Applied, Refusal> {
        let now = self.state.now;
        if asked.reason.chars().count() > LONGEST_REASON || asked.reason.chars().any(char::is_control) {
            let text = format!("has at most {LONGEST_REASON} characters and no control characters");
            return Err(Refusal::bad_data(vec![Violation::new("reason", text)]));
        }
        if asked.until.is_some_and(|until| until <= now) {
            return Err(Refusal::bad_data(vec![Violation::new("forSeconds", "ends before it begins")]));
        }
        let host = self.known_host(asked.host)?;
        let before = host.cordon.clone();
        let standing = before.as_ref().and_then(|cordon| cordon.drain.clone());
        if asked.drain.is_none() && asked.until.is_some() && standing.is_some() {
            let (name, id) = (&host.facts.name, asked.host);
            let text = format!(
                "host {name} is drained, and stays closed until somebody opens it; uncordon first: kc uncordon {name}, or POST /api/v1/hosts/{id}:uncordon"
            );
            return Err(Refusal::bad_data(vec![Violation::new("forSeconds", text)]));
        }
        // Asking for a drain once more is how its progress is read: it takes nothing back.
        let drain = match (asked.drain, standing) {
            (None, standing) => standing,
            (Some(mode), None) => Some(Drain { force: mode == DrainMode::Force, done: None }),
            (Some(mode), Some(drain)) => {
                Some(Drain { force: drain.force || mode == DrainMode::Force, ..drain })
            }
        };
        let (reason, until) = match (&before, asked.drain) {
            (Some(cordon), Some(_)) => {
                let said = if asked.reason.is_empty() { &cordon.reason } else { &asked.reason };
                (said.clone(), asked.until.or(cordon.until))
            }
            (Some(_) | None, _) => (asked.reason.clone(), asked.until),
        };
        let same = before
            .as_ref()
            .is_some_and(|cordon| cordon.reason == reason && cordon.until == until && cordon.drain == drain);
        if same {
            return Ok(Applied::Unchanged);
        }
        let cordon = Cordon { by: asked.by.clone(), at: now, reason, until, told: now, drain };
        let (name, said) = (host.facts.name.clone(), cordon.to_string());
        host.cordon = Some(cordon);
        let (word, message) = match asked.drain {
            Some(_) => ("HostDraining", format!("host {name} is drained; {said}")),
            None => ("HostCordoned", format!("host {name} is {said}")),
        };
        self.event(Severity::Normal, word, format!("host/{}", asked.host), message);
        Ok(Applied::Changed)
    }

    pub(super) fn uncordon(&mut self, id: HostId, by: &User) -> Result<Applied, Refusal> {
        let host = self.known_host(id)?;
        let name = host.facts.name.clone();
        if host.cordon.take().is_none() {
            return Ok(Applied::Unchanged);
        }
        self.disturb();
        let message = format!("host {name} gets instances again, says {}", by.name);
        self.event(Severity::Normal, "HostUncordoned", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    /// The time of a cordon has come. A host that is drained loses only the time: it is opened by an operator.
    pub(super) fn lift_cordon(&mut self, id: HostId) -> Result<Applied, Refusal> {
        let now = self.state.now;
        let over = |host: &Host| host.cordon.as_ref().and_then(|c| c.until).is_some_and(|until| until <= now);
        let Some(host) = self.state.hosts.get_mut(&id).filter(|host| over(host)) else {
            return Err(Refusal::outdated(format!("host {id} has no cordon that is over")));
        };
        let name = host.facts.name.clone();
        if let Some(cordon) = host.cordon.as_mut().filter(|cordon| cordon.drain.is_some()) {
            cordon.until = None;
            let message = format!(
                "host {name} is drained and stays cordoned, though its time is over; kc uncordon {name} opens it"
            );
            self.event(Severity::Normal, "CordonStands", format!("host/{id}"), message);
            return Ok(Applied::Changed);
        }
        host.cordon = None;
        self.disturb();
        let message = format!("host {name} gets instances again: its cordon was made to end now");
        self.event(Severity::Normal, "HostUncordoned", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    pub(super) fn remind_cordon(&mut self, id: HostId) -> Result<Applied, Refusal> {
        let now = self.state.now;
        let host = self.state.hosts.get_mut(&id);
        let Some((name, cordon)) =
            host.and_then(|host| Some((host.facts.name.clone(), host.cordon.as_mut()?)))
        else {
            return Err(Refusal::outdated(format!("host {id} has no cordon")));
        };
        if now.since(cordon.told) < Cordon::REMINDS {
            return Ok(Applied::Unchanged);
        }
        cordon.told = now;
        let message = format!("host {name} is still {cordon}; kc uncordon {name} opens it again");
        self.event(Severity::Warning, "CordonStands", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    pub(super) fn drained(&mut self, id: HostId) -> Result<Applied, Refusal> {
        let now = self.state.now;
        let left = self.state.instances.values().any(|instance| instance.host == id);
        let host = self.state.hosts.get_mut(&id).filter(|_| !left);
        let name = host.as_ref().map(|host| host.facts.name.clone()).unwrap_or_default();
        let Some(drain) = host.and_then(|host| host.cordon.as_mut()).and_then(|cordon| cordon.drain.as_mut())
        else {
            return Err(Refusal::outdated(format!("host {id} is not being drained, or not empty")));
        };
        if drain.done.is_some() {
            return Ok(Applied::Unchanged);
        }
        drain.done = Some(now);
        let message = format!("nothing is left on host {name}; it stays cordoned until kc uncordon {name}");
        self.event(Severity::Normal, "HostDrained", format!("host/{id}"), message);
        Ok(Applied::Changed)
    }

    fn known_host(&mut self, id: HostId) -> Result<&mut Host, Refusal> {
        let missing = || Refusal::new(RefusalCode::NotFound, format!("there is no host {id}"));
        self.state.hosts.get_mut(&id).ok_or_else(missing)
    }
}

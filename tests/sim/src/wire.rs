//! The messages between a host and whoever leads. In: what each says. Out: the same later, or never, or twice, or in another order.

use std::collections::VecDeque;

use shardplane_model::{command::Ended, observed::MemberReport};
use shardplane_proto::{
    ids::{InstanceId, TaskId},
    v1,
};

use super::rng::Rng;

/// From the host.
#[derive(Debug, Clone)]
pub struct Said {
    /// By the host's clock.
    pub sent: u64,
    pub accepted: u64,
    pub members: Vec<(InstanceId, MemberReport)>,
    pub outcomes: Vec<(TaskId, Ended)>,
}

/// To the host.
#[derive(Debug, Clone)]
pub enum Told {
    Welcome {
        term: u64,
        lost_after: u64,
    },
    /// With when the newest report that came was sent, by the host's clock.
    Heartbeat {
        term: u64,
        answers: Option<u64>,
    },
    Spec(v1::HostSpec),
}

#[derive(Debug)]
pub struct Wire {
    pub rng: Rng,
    /// Nothing goes from the host to the leader.
    pub up_cut: bool,
    /// Nothing goes from the leader to the host.
    pub down_cut: bool,
    /// Milliseconds that a message takes at most.
    pub delay: u64,
    /// Of a thousand messages.
    pub lost: u64,
    /// Of a thousand specs.
    pub twice: u64,
    /// Specs overtake each other.
    pub reorders: bool,
    up: VecDeque<(u64, Said)>,
    down: Vec<(u64, Told)>,
}

impl Wire {
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            up_cut: false,
            down_cut: false,
            delay: 0,
            lost: 0,
            twice: 0,
            reorders: false,
            up: VecDeque::new(),
            down: Vec::new(),
        }
    }

    /// All is well again; what is under way still arrives.
    pub fn mend(&mut self) {
        (self.up_cut, self.down_cut, self.delay, self.lost, self.twice, self.reorders) =
            (false, false, 0, 0, 0, false);
    }

    pub fn is_sound(&self) -> bool {
        !self.up_cut
            && !self.down_cut
            && self.delay == 0
            && self.lost == 0
            && self.twice == 0
            && !self.reorders
    }

    /// The session is over: what was under way is gone.
    pub fn breaks(&mut self) {
        self.up.clear();
        self.down.clear();
    }

    fn loses(&mut self) -> bool {
        self.lost > 0 && self.rng.below(1_000) < self.lost
    }

    pub fn say(&mut self, now: u64, said: Said) {
        if self.up_cut || self.loses() {
            return;
        }
        let at = now + self.rng.below(self.delay + 1);
        let behind = self.up.back().map_or(at, |(before, _)| at.max(*before));
        self.up.push_back((behind, said));
    }

    pub fn tell(&mut self, now: u64, told: Told) {
        if self.down_cut || self.loses() {
            return;
        }
        let spec = matches!(told, Told::Spec(_));
        if spec && self.twice > 0 && self.rng.below(1_000) < self.twice {
            let again = now + self.rng.below(10_000);
            self.down.push((again, told.clone()));
        }
        let at = now + self.rng.below(self.delay + 1);
        let last = self.down.iter().map(|(at, _)| *at).max().unwrap_or(at);
        let at = if spec && self.reorders { at + self.rng.below(3_000) } else { at.max(last) };
        self.down.push((at, told));
    }

    /// What the leader hears now.
    pub fn heard(&mut self, now: u64) -> Vec<Said> {
        let due = self.up.iter().take_while(|(at, _)| *at <= now).count();
        self.up.drain(..due).map(|(_, said)| said).collect()
    }

    /// What the host hears now.
    pub fn received(&mut self, now: u64) -> Vec<Told> {
        let mut due: Vec<(u64, Told)> = self.down.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, told)| told).collect()
    }
}

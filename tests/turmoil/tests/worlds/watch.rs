//! What must hold at every moment. In: the members, as they are between two steps. Out: the first promise that was broken. Called by the
//! world after each step.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use shardplane_model::state::State;

use crate::{agent, member::Seat};

/// A heartbeat may be this old when it arrives: it waits for the next look of its session and travels.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// What was seen so far.
#[derive(Default)]
pub struct Watch {
    /// Who led in each term, and when that was seen first.
    pub leaders: BTreeMap<u64, (u64, Duration)>,
    /// Hash of the state at each index, and its stamp.
    states: HashMap<u64, (u64, u64)>,
    /// Index that each member had applied last, in which boot.
    applied: HashMap<u64, (u64, u64)>,
    /// How many states were compared with the one of another member.
    pub compared: u64,
    pub elections: u64,
}

/// A state's fingerprint.
pub fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(state).unwrap().hash(&mut hasher);
    hasher.finish()
}

impl Watch {
    /// Looks at all members; answers a new leader.
    pub fn look(&mut self, now: Duration, seats: &[Arc<Seat>]) -> Result<Option<(u64, u64)>, String> {
        let mut news = None;
        for seat in seats {
            let Some(raft) = seat.raft() else { continue };
            if let Some(term) = seat.leads() {
                match self.leaders.get(&term) {
                    Some((leader, _)) if *leader != seat.id => {
                        return Err(format!("members {leader} and {} both lead in term {term}", seat.id));
                    }
                    Some(_) => {}
                    None => {
                        self.leaders.insert(term, (seat.id, now));
                        self.elections += 1;
                        news = Some((term, seat.id));
                    }
                }
            }
            let index = raft.applied().borrow().0;
            let boot = seat.platter.state().boot;
            let last = self.applied.insert(seat.id, (boot, index));
            match last {
                Some((was, before)) if was == boot && index < before => {
                    return Err(format!("member {} went back from {before} to {index}", seat.id));
                }
                Some((was, before)) if was == boot && index == before => {}
                Some(_) | None => self.compare(seat.id, index, &raft.local())?,
            }
        }
        Ok(news)
    }

    fn compare(&mut self, member: u64, index: u64, state: &State) -> Result<(), String> {
        let found = (hash(state), state.now.0);
        match self.states.insert(index, found) {
            Some(known) if known != found => {
                return Err(format!("member {member} has another state at {index} than another one"));
            }
            Some(_) => self.compared += 1,
            None => {}
        }
        Ok(())
    }

    /// A leader that says a quorum confirmed it must not have had a successor well before that.
    pub fn hear(&self, diary: &agent::Shared) -> Result<(), String> {
        for (at, term) in agent::open(diary).heartbeats.drain(..) {
            let later = self.leaders.range(term + 1..).find(|(_, (_, since))| *since + HEARTBEAT < at);
            if let Some((newer, (leader, since))) = later {
                return Err(format!(
                    "a heartbeat of term {term} at {at:?}, while member {leader} led in term {newer} since {since:?}"
                ));
            }
        }
        Ok(())
    }
}

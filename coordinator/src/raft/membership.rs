//! Which change of the membership is right. In: who votes, who learns, who is ready. Out: the next change, or why a wish is
//! refused. Pure; `members` carries it out.
//!
//! An even number of voters tolerates no more losses than the odd number below it, and two voters tolerate none at all. So
//! a new member stays a learner (it has all data and no vote) until a second one is ready, and both become voters in one
//! change: the cluster goes from 1 to 3 without ever standing on 2. For the same reason the removal of a voter that would
//! leave an even number is refused unless a learner takes its place or the caller says that another one goes next.

use std::collections::{BTreeMap, BTreeSet};

/// A member without a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Learner {
    pub(crate) address: String,
    /// It answers under its id, serves, and has nearly all of the log.
    pub(crate) ready: bool,
}

/// Who is in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Address by id.
    pub(crate) voters: BTreeMap<u64, String>,
    /// By id.
    pub(crate) learners: BTreeMap<u64, Learner>,
}

impl Members {
    /// Where a member is reached.
    pub(crate) fn address(&self, id: u64) -> Option<&str> {
        let learner = || self.learners.get(&id).map(|learner| &learner.address);
        self.voters.get(&id).or_else(learner).map(String::as_str)
    }
}

/// A change that leaves an odd number of voters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Promotion {
    /// These learners become voters.
    Add(BTreeSet<u64>),
    /// A learner takes the place of a voter whose address it answers at: the voter lost its data and came back under a
    /// new id.
    Replace { voter: u64, learner: u64 },
}

/// Whether learners should become voters now.
pub(crate) fn promotion(members: &Members) -> Option<Promotion> {
    let ready = || members.learners.iter().filter(|(_, learner)| learner.ready);
    for (id, learner) in ready() {
        if let Some((voter, _)) = members.voters.iter().find(|(_, address)| **address == learner.address) {
            return Some(Promotion::Replace { voter: *voter, learner: *id });
        }
    }
    let wanted = if members.voters.len().is_multiple_of(2) { 1 } else { 2 };
    let chosen: BTreeSet<u64> = ready().map(|(id, _)| *id).take(wanted).collect();
    (chosen.len() == wanted).then_some(Promotion::Add(chosen))
}

/// How a member is taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It has no vote.
    Learner,
    /// The voters afterwards.
    Voters(BTreeSet<u64>),
}

/// Why a member is not taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    Unknown,
    OnlyVoter,
    /// This even number of voters would be left.
    Even(usize),
}

/// How to take `id` out.
pub(crate) fn removal(members: &Members, id: u64, allow_even: bool) -> Result<Removal, Kept> {
    if members.learners.contains_key(&id) {
        return Ok(Removal::Learner);
    }
    if !members.voters.contains_key(&id) {
        return Err(Kept::Unknown);
    }
    let mut left: BTreeSet<u64> = members.voters.keys().copied().filter(|voter| *voter != id).collect();
    if left.is_empty() {
        return Err(Kept::OnlyVoter);
    }
    if left.len().is_multiple_of(2) {
        match members.learners.iter().find(|(_, learner)| learner.ready) {
            Some((learner, _)) => {
                left.insert(*learner);
            }
            None if allow_even => {}
            None => return Err(Kept::Even(left.len())),
        }
    }
    Ok(Removal::Voters(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(voters: &[u64], learners: &[(u64, &str, bool)]) -> Members {
        let learner = |(id, address, ready): &(u64, &str, bool)| {
            (*id, Learner { address: (*address).to_owned(), ready: *ready })
        };
        Members {
            voters: voters.iter().map(|id| (*id, format!("v{id}"))).collect(),
            learners: learners.iter().map(learner).collect(),
        }
    }

    #[test]
    fn one_becomes_three_and_never_two() {
        assert_eq!(promotion(&members(&[1], &[(2, "b", true)])), None);
        assert_eq!(promotion(&members(&[1], &[(2, "b", true), (3, "c", false)])), None);
        let three = members(&[1], &[(2, "b", true), (3, "c", true), (4, "d", true)]);
        assert_eq!(promotion(&three), Some(Promotion::Add([2, 3].into())));
    }

    #[test]
    fn an_even_cluster_takes_one_to_become_odd() {
        assert_eq!(promotion(&members(&[1, 2], &[(3, "c", true)])), Some(Promotion::Add([3].into())));
    }

    #[test]
    fn a_wiped_voter_is_replaced_by_what_answers_at_its_address() {
        let wiped = members(&[1, 2, 3], &[(9, "v3", true)]);
        assert_eq!(promotion(&wiped), Some(Promotion::Replace { voter: 3, learner: 9 }));
        assert_eq!(promotion(&members(&[1, 2, 3], &[(9, "v3", false)])), None);
    }

    #[test]
    fn an_even_rest_is_refused_unless_a_learner_steps_in_or_it_is_wanted() {
        let three = members(&[1, 2, 3], &[]);
        assert_eq!(removal(&three, 3, false), Err(Kept::Even(2)));
        assert_eq!(removal(&three, 3, true), Ok(Removal::Voters([1, 2].into())));
        assert_eq!(removal(&members(&[1, 2], &[]), 2, false), Ok(Removal::Voters([1].into())));
        let spare = members(&[1, 2, 3], &[(4, "d", true)]);
        assert_eq!(removal(&spare, 3, false), Ok(Removal::Voters([1, 2, 4].into())));
        assert_eq!(removal(&spare, 4, false), Ok(Removal::Learner));
        assert_eq!(removal(&members(&[1], &[]), 1, true), Err(Kept::OnlyVoter));
        assert_eq!(removal(&three, 7, true), Err(Kept::Unknown));
    }
}

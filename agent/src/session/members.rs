//! Which member of the coordinator to try next.
//!
//! In: how the last attempt ended. Out: an address. Pure; used by the session.

use super::stream::End;

/// Redirections followed without a pause; members that send each other's addresses must not spin.
const MAX_REDIRECTS: u32 = 3;

/// The members in turn, or the leader that one of them named.
#[derive(Debug)]
pub struct Members {
    addresses: Vec<String>,
    turn: usize,
    leader: Option<String>,
    redirects: u32,
}

impl Members {
    /// At least one address.
    pub fn new(addresses: Vec<String>) -> Self {
        Self { addresses, turn: 0, leader: None, redirects: 0 }
    }

    /// Whom to try.
    pub fn next(&mut self) -> String {
        match self.leader.clone() {
            Some(leader) => leader,
            None => self.addresses.get(self.turn % self.addresses.len().max(1)).cloned().unwrap_or_default(),
        }
    }

    /// Takes the end of an attempt. Says whether to pause before the next.
    pub fn ended(&mut self, end: &End) -> bool {
        match end {
            End::Redirected { leader } => {
                self.leader = Some(leader.clone());
                self.redirects += 1;
                if self.redirects <= MAX_REDIRECTS {
                    return false;
                }
                self.redirects = 0;
                self.leader = None;
                self.turn += 1;
                true
            }
            End::Refused { .. } | End::Broken { .. } => {
                // A broken session is tried once more where it was; then the next in turn.
                let was_redirected = self.leader.take().is_some();
                self.redirects = 0;
                if !was_redirected {
                    self.turn += 1;
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_tried_in_turn_and_leaders_followed_a_bounded_number_of_times() {
        let mut members = Members::new(vec!["a".into(), "b".into()]);
        let refused = End::Refused { why: String::new() };
        let redirected = End::Redirected { leader: "c".into() };
        assert_eq!(members.next(), "a");
        assert!(members.ended(&refused));
        assert_eq!(members.next(), "b");
        assert!(!members.ended(&redirected));
        assert_eq!(members.next(), "c");
        assert!(members.ended(&refused));
        assert_eq!(members.next(), "b");
        let pauses: Vec<_> = (0..4).map(|_| members.ended(&redirected)).collect();
        assert_eq!(pauses, [false, false, false, true]);
        assert_eq!(members.next(), "a");
    }
}

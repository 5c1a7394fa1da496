//! What two nodes say of one slot, and what follows from it.
//!
//! In: CLUSTER NODES of both. Out: the next step of a move or of a close. Pure; called by `mover` and `close`, which look again
//! after each step, so that whatever an earlier try left behind leads to the same end.

use crate::engine::valkey::parse::{Mark, Node};

/// One node's own word on one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Side {
    /// Its node id.
    pub id: String,
    /// It is a primary.
    pub is_primary: bool,
    /// Its config epoch: of two that claim a slot, the higher one is believed by the others.
    pub epoch: u64,
    /// Who owns the slot, as it sees it.
    pub owner: Option<String>,
    /// Its mark on the slot.
    pub mark: Option<Mark>,
}

impl Side {
    /// Reads it out of the node's CLUSTER NODES. None when the node does not list itself.
    pub fn read(nodes: &[Node], slot: u32) -> Option<Self> {
        let own = nodes.iter().find(|node| node.is("myself"))?;
        Some(Self {
            id: own.id.clone(),
            is_primary: own.is("master"),
            epoch: own.config_epoch,
            owner: nodes.iter().find(|node| node.owns(slot)).map(|node| node.id.clone()),
            mark: own.open.iter().find(|(open, _)| *open == slot).map(|(_, mark)| mark.clone()),
        })
    }

    fn claims(&self) -> bool {
        self.owner.as_deref() == Some(self.id.as_str())
    }
}

/// The next step of moving a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// The target owns it, nobody marks it.
    Arrived,
    /// The target owns it and the source agrees; marks are left over.
    Tidy,
    /// The target owns it and the source does not know yet.
    HandOver,
    /// The source owns it, marked or not: open it, move the keys, hand it over.
    Carry,
    /// Nothing may be done.
    Refuse(String),
}

/// The next step of moving `slot` from one node to another.
pub fn next_move(slot: u32, from: &Side, to: &Side) -> Move {
    for side in [from, to] {
        if !side.is_primary {
            return Move::Refuse(format!("slot {slot} cannot move: node {} is no primary", side.id));
        }
    }
    match (from.claims(), to.claims()) {
        (false, true) if from.mark.is_none() && to.mark.is_none() => Move::Arrived,
        (false, true) => Move::Tidy,
        (true, true) if to.epoch > from.epoch => Move::HandOver,
        (true, true) => Move::Refuse(both(slot, from, to)),
        (true, false) => match &from.mark {
            // Its keys may be at that other node already: only a close with it brings them back.
            Some(Mark::MigratingTo(other)) if *other != to.id => Move::Refuse(format!(
                "slot {slot} is on its way to node {other}; it must be closed before it can go to node {}",
                to.id
            )),
            Some(Mark::MigratingTo(_) | Mark::ImportingFrom(_)) | None => Move::Carry,
        },
        (false, false) => Move::Refuse(format!(
            "slot {slot} belongs neither to node {} nor to node {}: they see it at {} and {}",
            from.id,
            to.id,
            name(from.owner.as_deref()),
            name(to.owner.as_deref())
        )),
    }
}

/// One of the two nodes of a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The node that performs the task.
    Local,
    /// The other one.
    Peer,
}

/// The next step of closing a slot between the node that performs the task and its peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Close {
    /// Nobody marks it.
    Closed,
    /// The local node owns it and a move is under way: back when the peer has no key of it, else forward and back.
    RollBack,
    /// The owner does not mark it, the other one does: what the other one holds of it is seen by no client.
    Stray {
        /// Who owns it.
        owner: Whose,
    },
    /// Marks on a node that cannot move anything: taken away when no key is lost by it.
    Unmark,
    /// The peer owns it already and the local node does not know yet.
    HandOver,
    /// Its owner, the peer, moves it: the peer's own task closes it.
    OfPeer,
    /// Nothing may be done.
    Refuse(String),
}

/// The next step of closing `slot`. Without a peer: the other node is gone.
pub fn next_close(slot: u32, local: &Side, peer: Option<&Side>) -> Close {
    if !local.is_primary {
        return Close::Refuse(format!("slot {slot} cannot be closed: node {} is no primary", local.id));
    }
    let Some(peer) = peer.filter(|peer| peer.is_primary) else {
        return if local.mark.is_some() { Close::Unmark } else { Close::Closed };
    };
    let marked = (local.mark.as_ref(), peer.mark.as_ref());
    match (local.claims(), peer.claims()) {
        (true, true) if peer.epoch > local.epoch => Close::HandOver,
        (true, true) => Close::Refuse(both(slot, local, peer)),
        (true, false) => match marked {
            (Some(Mark::MigratingTo(to)), _) if *to == peer.id => Close::RollBack,
            // On its way to a third one: not with this peer.
            (Some(Mark::MigratingTo(to)), _) => {
                Close::Refuse(format!("slot {slot} is on its way to node {to}, not to node {}", peer.id))
            }
            (Some(Mark::ImportingFrom(_)) | None, Some(_)) => Close::Stray { owner: Whose::Local },
            (Some(Mark::ImportingFrom(_)), None) => Close::Unmark,
            (None, None) => Close::Closed,
        },
        (false, true) => match marked {
            (_, Some(Mark::MigratingTo(to))) if *to == local.id => Close::OfPeer,
            (Some(_), _) => Close::Stray { owner: Whose::Peer },
            (None, Some(_) | None) => Close::Closed,
        },
        (false, false) if local.mark.is_some() => Close::Unmark,
        (false, false) => Close::Closed,
    }
}

fn both(slot: u32, one: &Side, other: &Side) -> String {
    format!(
        "slot {slot} is claimed by node {} (epoch {}) and by node {} (epoch {}): the nodes settle that among themselves first",
        one.id, one.epoch, other.id, other.epoch
    )
}

fn name(id: Option<&str>) -> &str {
    id.unwrap_or("nobody")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::valkey::parse;

    const A: &str = "a";
    const B: &str = "b";
    const C: &str = "c";

    fn side(id: &str, owner: Option<&str>, mark: Option<Mark>) -> Side {
        Side { id: id.into(), is_primary: true, epoch: 1, owner: owner.map(str::to_owned), mark }
    }

    fn to(id: &str) -> Option<Mark> {
        Some(Mark::MigratingTo(id.into()))
    }

    fn from(id: &str) -> Option<Mark> {
        Some(Mark::ImportingFrom(id.into()))
    }

    /// Every owner each of the two may see, and every mark each may have.
    fn all() -> Vec<(Side, Side)> {
        let owners = [None, Some(A), Some(B), Some(C)];
        let marks_of = |other: &str| [None, to(other), from(other), to(C), from(C)];
        let mut all = Vec::new();
        for owner_a in owners {
            for owner_b in owners {
                for mark_a in marks_of(B) {
                    for mark_b in marks_of(A) {
                        all.push((side(A, owner_a, mark_a.clone()), side(B, owner_b, mark_b)));
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_move_follows_from_owner_and_marks_in_all_400_combinations() {
        for (a, b) in all() {
            let next = next_move(7, &a, &b);
            let what = format!("{a:?} {b:?}: {next:?}");
            match (a.owner.as_deref() == Some(A), b.owner.as_deref() == Some(B)) {
                (false, true) if a.mark.is_none() && b.mark.is_none() => {
                    assert_eq!(next, Move::Arrived, "{what}")
                }
                (false, true) => assert_eq!(next, Move::Tidy, "{what}"),
                (true, false) if a.mark == to(C) => {
                    assert!(
                        matches!(&next, Move::Refuse(why) if why.contains("on its way to node c")),
                        "{what}"
                    );
                }
                (true, false) => assert_eq!(next, Move::Carry, "{what}"),
                (true, true) => {
                    assert!(matches!(&next, Move::Refuse(why) if why.contains("claimed by")), "{what}");
                    let newer = Side { epoch: 2, ..b.clone() };
                    assert_eq!(next_move(7, &a, &newer), Move::HandOver);
                    assert_ne!(next_move(7, &Side { epoch: 3, ..a }, &newer), Move::HandOver);
                }
                (false, false) => {
                    assert!(matches!(&next, Move::Refuse(why) if why.contains("neither")), "{what}");
                }
            }
        }
    }

    #[test]
    fn a_close_follows_from_owner_and_marks_in_all_400_combinations() {
        for (a, b) in all() {
            let next = next_close(7, &a, Some(&b));
            let what = format!("{a:?} {b:?}: {next:?}");
            match (a.owner.as_deref() == Some(A), b.owner.as_deref() == Some(B)) {
                (true, true) => {
                    assert!(matches!(next, Close::Refuse(_)), "{what}");
                    assert_eq!(next_close(7, &a, Some(&Side { epoch: 2, ..b.clone() })), Close::HandOver);
                }
                (true, false) if a.mark == to(B) => assert_eq!(next, Close::RollBack, "{what}"),
                (true, false) if a.mark == to(C) => assert!(matches!(next, Close::Refuse(_)), "{what}"),
                (true, false) if b.mark.is_some() => {
                    assert_eq!(next, Close::Stray { owner: Whose::Local }, "{what}");
                }
                (false, true) if b.mark == to(A) => assert_eq!(next, Close::OfPeer, "{what}"),
                (false, true) if a.mark.is_some() => {
                    assert_eq!(next, Close::Stray { owner: Whose::Peer }, "{what}");
                }
                (false, true) => assert_eq!(next, Close::Closed, "{what}"),
                (true | false, false) if a.mark.is_some() => assert_eq!(next, Close::Unmark, "{what}"),
                (true | false, false) => assert_eq!(next, Close::Closed, "{what}"),
            }
            // With a peer that is gone, or no primary any more, only the local marks count.
            let alone = if a.mark.is_some() { Close::Unmark } else { Close::Closed };
            assert_eq!(next_close(7, &a, None), alone);
            assert_eq!(next_close(7, &a, Some(&Side { is_primary: false, ..b })), alone);
        }
    }

    #[test]
    fn replicas_are_refused() {
        let (a, b) = (side(A, Some(A), None), side(B, Some(A), None));
        let replica = |side: &Side| Side { is_primary: false, ..side.clone() };
        assert!(
            matches!(next_move(7, &replica(&a), &b), Move::Refuse(why) if why.contains("node a is no primary"))
        );
        assert!(
            matches!(next_move(7, &a, &replica(&b)), Move::Refuse(why) if why.contains("node b is no primary"))
        );
        assert!(matches!(next_close(7, &replica(&a), Some(&b)), Close::Refuse(_)));
    }

    #[test]
    fn a_side_is_read_out_of_cluster_nodes() {
        let nodes = parse::nodes(
            "0245661d4bf70a334e7ccc0054180439e256ba57 10.0.0.2:6379@16379 master - 0 0 2 connected 8192-16383\n\
             6e731a511d84d1a3938221280d95474aa68545ca 10.0.0.1:6379@16379 myself,master - 0 0 5 connected 0-8191 \
             [100->-0245661d4bf70a334e7ccc0054180439e256ba57]\n",
        );
        let own = Side::read(&nodes, 100).unwrap();
        assert_eq!((own.epoch, own.is_primary, own.claims()), (5, true, true));
        assert_eq!(own.mark, to("0245661d4bf70a334e7ccc0054180439e256ba57"));
        let other = Side::read(&nodes, 9000).unwrap();
        assert_eq!(other.owner.as_deref(), Some("0245661d4bf70a334e7ccc0054180439e256ba57"));
        assert!(!other.claims() && other.mark.is_none());
        assert!(Side::read(&nodes[..1], 0).is_none());
    }
}

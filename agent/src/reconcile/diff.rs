//! What to do about the difference between what is wanted and what exists: one action or one reason an instance.
//!
//! In: plain values. Out: [`Action`]s. Pure; the reconciler carries them out in one `match`.

use std::collections::{BTreeMap, BTreeSet};

use shardplane_proto::ids::InstanceId;

use crate::{
    boot_time::BootTime,
    contact::{Heard, StartRule, may_start},
};

/// What exists of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It has an owner that keeps it.
    Owned,
    /// It has an owner that removes it.
    Leaving,
    /// Process and volume are gone, the port perhaps not yet.
    Removed,
}

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Make an owner, which starts it.
    Create(InstanceId),
    /// Tell its owner what the spec says now.
    Update(InstanceId),
    /// Tell its owner to stop and remove it.
    Retire(InstanceId),
    /// The port is gone too: forget it and say so.
    Forget(InstanceId),
    /// Do nothing, for this reason.
    Nothing(InstanceId, Reason),
}

/// Why nothing is done.
#[derive(Debug, PartialEq, Eq)]
pub enum Reason {
    /// It may be wanted or not: no spec of this session was accepted.
    NotConfirmed,
    /// It is wanted, but what was there before is still on its way out.
    StillBeingRemoved,
    /// Its owner removes it already.
    AlreadyRetiring,
    /// It is wanted and not there, but must not be started now.
    MayNotStart(StartRule),
    /// It is gone but for its port, which could not be removed yet.
    PortIsLeft,
}

/// Compares with the instances of the newest accepted spec. `network_is_current`: ports are as it says.
pub fn diff(
    wanted: &BTreeSet<InstanceId>,
    existing: &BTreeMap<InstanceId, Existing>,
    network_is_current: bool,
    heard: Heard,
    now: BootTime,
) -> Vec<Action> {
    let all: BTreeSet<InstanceId> = wanted.iter().chain(existing.keys()).copied().collect();
    let decide = |id: InstanceId| match (existing.get(&id), heard.confirmed, wanted.contains(&id)) {
        (Some(_), false, _) => Action::Nothing(id, Reason::NotConfirmed),
        (Some(Existing::Owned), true, true) => Action::Update(id),
        (Some(Existing::Owned), true, false) => Action::Retire(id),
        (Some(Existing::Leaving), true, true) => Action::Nothing(id, Reason::StillBeingRemoved),
        (Some(Existing::Leaving), true, false) => Action::Nothing(id, Reason::AlreadyRetiring),
        (Some(Existing::Removed), true, false) if network_is_current => Action::Forget(id),
        (Some(Existing::Removed), true, false) => Action::Nothing(id, Reason::PortIsLeft),
        (Some(Existing::Removed) | None, _, _) => match may_start(heard, now) {
            Ok(()) => Action::Create(id),
            Err(rule) => Action::Nothing(id, Reason::MayNotStart(rule)),
        },
    };
    all.into_iter().map(decide).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ID: InstanceId = InstanceId::from_u128(1);

    #[test]
    fn every_case_has_its_action_or_its_reason() {
        let now = BootTime::now();
        let lost_after = Duration::from_secs(10);
        let silent = StartRule::Silent { silent: lost_after, lost_after };
        let later = now + lost_after;
        use Existing::{Leaving, Owned, Removed};
        use Reason::{AlreadyRetiring, MayNotStart, NotConfirmed, PortIsLeft, StillBeingRemoved};
        let nothing = |reason| Action::Nothing(ID, reason);
        for (confirmed, is_wanted, existing, network, at, expected) in [
            (true, true, None, true, now, Action::Create(ID)),
            (true, true, Some(Owned), true, now, Action::Update(ID)),
            (true, true, Some(Owned), false, later, Action::Update(ID)),
            (true, true, Some(Leaving), true, now, nothing(StillBeingRemoved)),
            (true, true, Some(Removed), true, now, Action::Create(ID)),
            (true, true, None, true, later, nothing(MayNotStart(silent))),
            (false, true, None, true, now, nothing(MayNotStart(StartRule::Unconfirmed))),
            (true, false, Some(Owned), true, now, Action::Retire(ID)),
            (true, false, Some(Leaving), true, now, nothing(AlreadyRetiring)),
            (true, false, Some(Removed), true, now, Action::Forget(ID)),
            (true, false, Some(Removed), false, now, nothing(PortIsLeft)),
            (false, false, Some(Owned), true, now, nothing(NotConfirmed)),
            (false, false, Some(Owned), true, later, nothing(NotConfirmed)),
        ] {
            let ids = if is_wanted { BTreeSet::from([ID]) } else { BTreeSet::new() };
            let there =
                Heard { last: Some(now), lost_after: Some(lost_after), session: 1, confirmed, granted: None };
            let existing: BTreeMap<_, _> = existing.map(|one| (ID, one)).into_iter().collect();
            assert_eq!(diff(&ids, &existing, network, there, at), [expected]);
        }
    }
}

//! Which ports are cut: a member that was, or may have been, replaced elsewhere must reach nobody.
//!
//! In: the instance's part of the accepted spec, what its guest says, and when the coordinator last granted something. Out: why its
//! port is cut, if it is. Pure; the reconciler asks once a second and has the network done.
//!
//! The coordinator promotes a replica without the engine's vote only when the old primary is proved harmless. For a host that it
//! cannot hear the proof is that the lease is over: this rule is the other half of it. A machine is never ended because the
//! coordinator is away; its port opens again when the coordinator has confirmed that it is still wanted.

use std::time::Duration;

use shardplane_proto::v1;

use crate::{boot_time::BootTime, contact::Heard};

/// Why a port is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The spec says fenced.
    Fenced,
    /// The lease ran out while not all its copies followed.
    LeaseOver,
}

/// Whether this port is to be cut. `cut` is whether it is now.
///
/// A member that only follows is left alone although nobody follows it: it takes no writes, and cut off it would take a copy away from
/// its primary, which would then be cut for that. A guest that says nothing may take writes.
pub fn decide(
    spec: &v1::InstanceSpec,
    guest: Option<&v1::GuestReport>,
    heard: Heard,
    cut: bool,
    now: BootTime,
) -> Option<Cut> {
    if spec.fenced {
        return Some(Cut::Fenced);
    }
    if spec.lease_ms == 0 {
        return (cut && !heard.confirmed).then_some(Cut::LeaseOver);
    }
    let lease = Duration::from_millis(spec.lease_ms);
    let valid = heard.granted.is_some_and(|granted| now.saturating_duration_since(granted) < lease);
    if cut {
        // What an earlier session wanted may have been given to another since: only this one's spec opens it.
        return (!(valid && heard.confirmed)).then_some(Cut::LeaseOver);
    }
    let all_follow = guest.is_some_and(|guest| guest.read_only || guest.live_copies >= spec.copies_needed);
    (!valid && !all_follow).then_some(Cut::LeaseOver)
}

/// Whether a guest that stood still may take writes again, by a report from after that: nobody can have been promoted in its place, or its
/// port is cut, as `cut` says, and opens only with a new spec. A welcome alone is not enough: the spec that follows it may say fenced.
pub fn may_write(
    spec: &v1::InstanceSpec,
    guest: &v1::GuestReport,
    heard: Heard,
    cut: bool,
    now: BootTime,
) -> bool {
    let leased = spec.fenced || spec.lease_ms > 0;
    // Copies that may have been promoted meanwhile count for nothing.
    let live_copies = if guest.copies_since_wake { guest.live_copies } else { 0 };
    let guest = v1::GuestReport { live_copies, ..guest.clone() };
    let followed = live_copies >= spec.copies_needed && !spec.fenced;
    cut || !leased || followed || (heard.confirmed && decide(spec, Some(&guest), heard, false, now).is_none())
}

/// What a guest is granted in answer to its report that said `boot_ms`: how long it may take writes should this agent say nothing more.
/// Nothing while the coordinator has not confirmed it, its port is cut, or the lease is over.
pub fn grant(
    spec: &v1::InstanceSpec,
    boot_ms: u64,
    heard: Heard,
    cut: bool,
    now: BootTime,
) -> Option<v1::GuestLease> {
    if cut || spec.fenced || !heard.confirmed {
        return None;
    }
    if spec.lease_ms == 0 {
        return Some(v1::GuestLease { answers_boot_ms: boot_ms, ..v1::GuestLease::default() });
    }
    let since = now.saturating_duration_since(heard.granted?);
    let left = Duration::from_millis(spec.lease_ms).checked_sub(since).filter(|left| !left.is_zero())?;
    let remaining_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    Some(v1::GuestLease { answers_boot_ms: boot_ms, remaining_ms, copies_needed: spec.copies_needed })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn spec(fenced: bool, lease_ms: u64) -> v1::InstanceSpec {
        v1::InstanceSpec { fenced, lease_ms, copies_needed: 2, ..Default::default() }
    }

    fn guest(live_copies: u32, read_only: bool) -> v1::GuestReport {
        v1::GuestReport { live_copies, read_only, ..Default::default() }
    }

    #[test]
    fn without_contact_only_a_primary_that_lacks_a_copy_is_cut() {
        let start = BootTime::now();
        let heard = Heard { granted: Some(start), confirmed: true, ..Heard::default() };
        let (valid, over) = (start + Duration::from_secs(29), start + LEASE);
        let leased = spec(false, 30_000);
        for (guest, at, expected) in [
            (Some(guest(0, false)), valid, None),
            (Some(guest(2, false)), over, None),
            (Some(guest(1, false)), over, Some(Cut::LeaseOver)),
            (Some(guest(0, true)), over, None),
            (None, valid, None),
            (None, over, Some(Cut::LeaseOver)),
        ] {
            assert_eq!(decide(&leased, guest.as_ref(), heard, false, at), expected, "{guest:?}");
        }
        assert_eq!(decide(&leased, None, Heard::default(), false, start), Some(Cut::LeaseOver));
        assert_eq!(decide(&spec(false, 0), None, Heard::default(), false, over), None);
        assert_eq!(decide(&spec(true, 0), Some(&guest(2, false)), heard, false, valid), Some(Cut::Fenced));
    }

    #[test]
    fn a_cut_port_opens_with_a_confirmed_spec_and_not_with_copies_or_a_welcome() {
        let start = BootTime::now();
        let leased = spec(false, 30_000);
        let follow = guest(2, false);
        let confirmed = Heard { granted: Some(start), confirmed: true, ..Heard::default() };
        let welcomed = Heard { confirmed: false, ..confirmed };
        for (heard, at, expected) in [
            (confirmed, start, None),
            (confirmed, start + LEASE, Some(Cut::LeaseOver)),
            (welcomed, start, Some(Cut::LeaseOver)),
            (welcomed, start + LEASE, Some(Cut::LeaseOver)),
        ] {
            assert_eq!(decide(&leased, Some(&follow), heard, true, at), expected, "{heard:?}");
        }
        assert_eq!(decide(&spec(false, 0), None, confirmed, true, start), None);
        assert_eq!(decide(&spec(false, 0), None, welcomed, true, start), Some(Cut::LeaseOver));
    }

    #[test]
    fn a_guest_is_granted_what_is_left_of_a_lease_that_is_confirmed() {
        let start = BootTime::now();
        let confirmed = Heard { granted: Some(start), confirmed: true, ..Heard::default() };
        let welcomed = Heard { confirmed: false, ..confirmed };
        let leased = spec(false, 30_000);
        let given = |spec: &v1::InstanceSpec, heard, cut, seconds| {
            grant(spec, 7, heard, cut, start + Duration::from_secs(seconds))
                .map(|lease| (lease.answers_boot_ms, lease.remaining_ms, lease.copies_needed))
        };
        assert_eq!(given(&leased, confirmed, false, 12), Some((7, 18_000, 2)));
        assert_eq!(given(&spec(false, 0), confirmed, false, 99), Some((7, 0, 0)), "it needs none");
        assert_eq!(given(&leased, confirmed, false, 30), None);
        assert_eq!(given(&leased, welcomed, false, 1), None, "the spec to come may say fenced");
        assert_eq!(given(&leased, confirmed, true, 1), None);
        assert_eq!(given(&spec(true, 30_000), confirmed, false, 1), None);
        assert_eq!(given(&leased, Heard { granted: None, ..confirmed }, false, 1), None);
    }

    #[test]
    fn a_guest_that_stood_still_writes_again_when_nobody_can_have_been_promoted() {
        let start = BootTime::now();
        let confirmed = Heard { granted: Some(start), confirmed: true, ..Heard::default() };
        let welcomed = Heard { confirmed: false, ..confirmed };
        let (follow, alone) = (guest(2, false), guest(0, false));
        let followed = v1::GuestReport { copies_since_wake: true, ..guest(2, false) };
        let leased = spec(false, 30_000);
        for (guest, heard, cut, at, expected) in [
            (&alone, confirmed, false, start, true),
            (&alone, welcomed, false, start, false),
            (&alone, confirmed, false, start + LEASE, false),
            (&alone, confirmed, true, start + LEASE, true),
            (&follow, confirmed, false, start + LEASE, false),
            (&followed, confirmed, false, start + LEASE, true),
            (&follow, welcomed, false, start + LEASE, false),
            (&followed, welcomed, false, start + LEASE, true),
        ] {
            assert_eq!(may_write(&leased, guest, heard, cut, at), expected, "{guest:?} {heard:?} {cut}");
        }
        assert!(
            may_write(&spec(false, 0), &alone, welcomed, false, start + LEASE),
            "nobody could be promoted"
        );
        assert!(!may_write(&spec(true, 0), &followed, confirmed, false, start), "fenced, and not yet cut");
    }
}

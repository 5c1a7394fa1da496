//! SCH-6, SCH-7, SCH-8: members that cannot be reached, leave while they lead, or would make an even number.

use std::time::Duration;

use tokio::net::TcpListener;

use super::{Machine, PATIENCE, add, has_token, leader_of, single, three, timing, until, voters, write};
use crate::{
    dial::Dialer,
    raft::{MemberError, RemoteError, Role, remote},
    secrets::ClusterKey,
};

#[tokio::test(flavor = "multi_thread")]
async fn sch_6_who_cannot_be_reached_is_not_added_and_writes_go_on() {
    let mut machines = vec![single(timing()).await];
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let refused = machines[0].raft().keeper.add(2, &closed, PATIENCE).await.unwrap_err();
    assert!(matches!(refused, MemberError::Unreachable { id: 2, .. }), "{refused}");
    let itself = machines[0].address.to_string();
    let refused = machines[0].raft().keeper.add(2, &itself, PATIENCE).await.unwrap_err();
    assert_eq!(refused, MemberError::OtherMember { id: 2, address: itself, found: 1 });
    assert_eq!(machines[0].raft().members().len(), 1);
    write(&machines, 1).await;
    machines[0].kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_6_who_does_not_catch_up_in_time_is_taken_out_again() {
    let mut machines = vec![single(timing()).await];
    let mut slow = Machine::start_new(2, timing()).await;
    let late = machines[0].raft().keeper.add(2, &slow.address.to_string(), Duration::ZERO).await.unwrap_err();
    assert_eq!(late, MemberError::NotCaughtUp { id: 2, seconds: 0 });
    assert_eq!(machines[0].raft().members().len(), 1);
    write(&machines, 1).await;
    machines[0].kill().await;
    slow.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_7_a_leader_hands_over_before_it_leaves_and_is_told() {
    let mut machines = three(timing()).await;
    write(&machines, 1).await;
    let old = leader_of(&machines).await;
    let id = machines[old].id;
    let left = machines[old].raft().keeper.remove(id, true).await.unwrap();
    assert!(left.iter().all(|member| member.id != id), "{left:?}");
    assert!(left.iter().any(|member| member.leader), "{left:?}");
    machines[old].raft().told_to_leave().await;
    assert!(machines[old].raft().dismissed());
    machines[old].kill().await;
    write(&machines, 2).await;
    for machine in machines.iter_mut().filter(|machine| machine.running.is_some()) {
        until("the rest has all", || async { has_token(machine.raft(), 2) }).await;
        machine.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_8_two_never_vote_unless_somebody_insists() {
    let mut machines = vec![single(timing()).await, Machine::start_new(2, timing()).await];
    add(&machines[0], &machines[1]).await;
    let only = machines[0].raft().keeper.remove(1, true).await.unwrap_err();
    assert_eq!(only, MemberError::OnlyVoter { id: 1 });
    assert_eq!(voters(&machines[0]), [1]);
    machines.push(Machine::start_new(3, timing()).await);
    // Any member may be asked; the way to the leader is followed.
    let (key, third) = (ClusterKey::for_tests(1), machines[2].address.to_string());
    remote::join(Dialer::tcp(), &key, &machines[1].address.to_string(), 3, &third, PATIENCE).await.unwrap();
    until("three vote", || async { voters(&machines[0]) == [1, 2, 3] }).await;

    let even = machines[0].raft().keeper.remove(3, false).await.unwrap_err();
    assert_eq!(even, MemberError::Even { id: 3, left: 2 });
    let even = remote::leave(Dialer::tcp(), &key, &third, 3, false, PATIENCE).await.unwrap_err();
    assert!(matches!(even, RemoteError::Refused(MemberError::Even { .. })), "{even}");
    machines[0].raft().keeper.remove(3, true).await.unwrap();
    assert_eq!(voters(&machines[0]), [1, 2]);
    machines[0].raft().keeper.remove(2, false).await.unwrap();
    assert_eq!(voters(&machines[0]), [1]);
    for machine in &mut machines {
        machine.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_voter_comes_back_under_a_new_id_and_takes_its_old_place() {
    let mut machines = three(timing()).await;
    write(&machines, 1).await;
    let leader = leader_of(&machines).await;
    let wiped = (leader + 1) % 3;
    let old_id = machines[wiped].id;
    machines[wiped].kill().await;
    let address = machines[wiped].address;
    machines[wiped].id = 9;
    machines[wiped].dir = tempfile::tempdir().unwrap();
    machines[wiped].launch(TcpListener::bind(address).await.unwrap(), crate::raft::Storage::New).await;
    add(&machines[leader], &machines[wiped]).await;
    let replaced = || async {
        let voters = voters(&machines[leader]);
        voters.len() == 3 && voters.contains(&9) && !voters.contains(&old_id)
    };
    until("the new id votes in place of the old", replaced).await;
    until("it has the data", || async { has_token(machines[wiped].raft(), 1) }).await;
    let role = machines[wiped].raft().role().borrow().clone();
    assert!(matches!(role, Role::Follower { leader: Some(_) }), "{role:?}");
    for machine in &mut machines {
        machine.kill().await;
    }
}

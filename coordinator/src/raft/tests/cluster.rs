//! Three members over real gRPC on localhost: loss of the leader, restarts, a follower far behind, a leader of the past.

use shardplane_model::{
    command::{Applied, Command},
    state::Settings,
};

use super::{
    Machine, add, add_token, has_token, leader_of, outcome_is_known, single, three, timing, until, write,
};
use crate::{
    dial::Dialer,
    raft::{
        ProposeError, ReadError, Role, Timing,
        client::Peers,
        proof::Prover,
        wire::{Method, ProbeAnswer},
    },
    secrets::ClusterKey,
};

async fn kill_all(machines: Vec<Machine>) {
    for mut machine in machines {
        if machine.running.is_some() {
            machine.kill().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_keeps_what_was_acknowledged_and_refuses_nothing() {
    let mut machines = three(timing()).await;
    for number in 1..=10 {
        write(&machines, number).await;
    }
    let old = leader_of(&machines).await;
    let Role::Leader { term: old_term } = *machines[old].raft().role().borrow() else { panic!("it leads") };
    machines[old].kill().await;
    let new = leader_of(&machines).await;
    assert_ne!(new, old);
    let Role::Leader { term } = *machines[new].raft().role().borrow() else { panic!("it leads") };
    assert!(term > old_term);
    assert_eq!(machines[new].raft().read().await.unwrap().tokens.len(), 10);
    write(&machines, 11).await;

    machines[old].restart().await;
    until("the old leader follows and has all", || async { has_token(machines[old].raft(), 11) }).await;
    let refused = machines[old].raft().propose(vec![add_token(12)]).await.unwrap_err();
    let address = machines[new].address.to_string();
    assert_eq!(refused, ProposeError::NotLeader { leader: Some(address.clone()) });
    assert_eq!(
        machines[old].raft().read().await.unwrap_err(),
        ReadError::NotLeader { leader: Some(address) }
    );
    kill_all(machines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_restart_with_their_data() {
    let mut machines = three(timing()).await;
    for number in 1..=5 {
        write(&machines, number).await;
    }
    for machine in &mut machines {
        machine.kill().await;
    }
    for machine in &mut machines {
        machine.restart().await;
    }
    let leader = leader_of(&machines).await;
    assert_eq!(machines[leader].raft().read().await.unwrap().tokens.len(), 5);
    for machine in &machines {
        until("every member has all", || async { has_token(machine.raft(), 5) }).await;
    }
    kill_all(machines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_says_so_and_acknowledges_nothing() {
    let mut machines = three(timing()).await;
    write(&machines, 1).await;
    let leader = leader_of(&machines).await;
    for (index, machine) in machines.iter_mut().enumerate() {
        if index != leader {
            machine.kill().await;
        }
    }
    let alone = machines[leader].raft().clone();
    assert_eq!(alone.read().await.unwrap_err(), ReadError::NoQuorum);
    let mut role = alone.role();
    role.wait_for(|role| *role == Role::Follower { leader: None }).await.unwrap();
    let refused = alone.propose(vec![add_token(2)]).await.unwrap_err();
    assert_eq!(refused, ProposeError::NoQuorum);
    assert!(outcome_is_known(&refused));

    // With a quorum it goes on, and what it refused never happened.
    let back = machines.iter().position(|machine| machine.running.is_none()).unwrap();
    machines[back].restart().await;
    write(&machines, 3).await;
    let leader = leader_of(&machines).await;
    let state = machines[leader].raft().read().await.unwrap();
    assert_eq!(state.tokens.len(), 2);
    kill_all(machines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_far_behind_gets_a_snapshot() {
    let few = Timing { snapshot_every: 30, entries_kept: 5, ..timing() };
    let mut machines = three(few).await;
    let leader = leader_of(&machines).await;
    let behind = (leader + 1) % 3;
    machines[behind].kill().await;
    for number in 1..=120 {
        write(&machines, number).await;
    }
    let leader = leader_of(&machines).await;
    let core = machines[leader].raft().core.clone();
    until("the leader has purged", || async {
        core.metrics().borrow().purged.is_some_and(|at| at.index > 60)
    })
    .await;
    machines[behind].restart().await;
    until("it has all", || async { has_token(machines[behind].raft(), 120) }).await;
    assert_eq!(machines[behind].raft().local(), machines[leader].raft().local());
    let snapshot = machines[behind].raft().core.metrics().borrow().snapshot;
    assert!(snapshot.is_some_and(|at| at.index > 60), "{snapshot:?}");
    // It restarts from the snapshot that it was sent.
    machines[behind].kill().await;
    machines[behind].restart().await;
    until("it still has all", || async { has_token(machines[behind].raft(), 120) }).await;
    kill_all(machines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_proposals_share_entries_and_each_gets_its_own_answers() {
    let mut machine = single(timing()).await;
    let before = machine.raft().applied().borrow().0;
    let proposals = (1..=200u128).map(|number| {
        let raft = machine.raft().clone();
        let nothing_new = || Command::Configure(Settings::default());
        let commands = match number % 2 {
            0 => vec![add_token(number), nothing_new()],
            _ => vec![nothing_new(), add_token(number), add_token(number)],
        };
        async move { (number, raft.propose(commands).await.unwrap()) }
    });
    for (number, answers) in futures::future::join_all(proposals).await {
        let expected = match number % 2 {
            0 => vec![Ok(Applied::Changed), Ok(Applied::Unchanged)],
            _ => vec![Ok(Applied::Unchanged), Ok(Applied::Changed), Ok(Applied::Changed)],
        };
        assert_eq!(answers, expected, "token {number}");
    }
    let entries = machine.raft().applied().borrow().0 - before;
    assert!(entries < 50, "200 proposals took {entries} entries");
    assert_eq!(machine.raft().read().await.unwrap().tokens.len(), 200);
    machine.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_another_key_is_not_heard() {
    let mut machine = single(timing()).await;
    let address = machine.address.to_string();
    let second = std::time::Duration::from_secs(5);
    let stranger = Peers::new(Prover::new(&ClusterKey::for_tests(2)), Dialer::tcp());
    let refused = stranger.call::<_, ProbeAnswer>(&address, 0, Method::Probe, &(), second).await;
    assert!(refused.unwrap_err().to_string().contains("does not hold this cluster's key"));
    let member = Peers::new(Prover::new(&ClusterKey::for_tests(1)), Dialer::tcp());
    let answer = member.call::<_, ProbeAnswer>(&address, 0, Method::Probe, &(), second).await.unwrap();
    assert_eq!(answer.id, 1);
    let misled = member.call::<_, ProbeAnswer>(&address, 9, Method::Probe, &(), second).await;
    assert!(misled.unwrap_err().to_string().contains("meant for another member"));
    machine.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_holds_up_no_write() {
    let mut machines = vec![single(timing()).await];
    let mut learner = Machine::start_new(2, timing()).await;
    add(&machines[0], &learner).await;
    write(&machines, 1).await;
    until("the learner has all", || async { has_token(learner.raft(), 1) }).await;
    learner.kill().await;
    write(&machines, 2).await;
    machines[0].kill().await;
}

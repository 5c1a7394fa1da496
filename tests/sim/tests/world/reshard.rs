//! A shard more and a shard less: slots move, no more than they must, are told of while they do, and stop when somebody cancels or the
//! engine refuses.

use std::collections::BTreeSet;

use shardplane_model::{
    command::Decision,
    engine::Report,
    plan::{self, Plan},
    refusal::RefusalCode,
    resource::Outcome,
    state::{OperationKind, OperationState, TaskState},
};
use shardplane_proto::ids::GroupId;
use shardplane_sim::{
    node,
    world::{World, cluster},
};

use super::scene::{Scene, shard};

#[test]
fn three_to_four_moves_no_more_than_it_must_and_tells_how_far_it_is() {
    let mut scene = Scene::new(1, 4, 3, 1);
    let before = scene.owning().len();
    scene.put(4);
    let refused = scene.world.put_cluster(cluster(scene.id, World::SUBNET, 5, 1)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceIsScheduling);
    scene.until_moved(1000);
    assert_eq!(before, 3);
    let operation = scene.running().unwrap();
    let goal = operation.goal.clone().unwrap();
    assert!(goal.what == "slots" && goal.amount <= 5462, "{goal:?}");
    assert!(operation.cause.contains("is added"), "{operation:?}");
    assert_eq!(scene.world.leader.state.uncancellable(&operation), None);
    let status = scene.world.status(scene.id);
    let settled = status.conditions.iter().find(|c| c.r#type == "SlotsSettled").unwrap();
    assert!(settled.status == "False" && settled.message.contains("slots have moved"), "{settled:?}");
    assert!(settled.message.contains("to go"), "{settled:?}");
    assert_eq!(status.shards.iter().map(|s| s.slot_count).sum::<i32>(), 16_384);
    scene.settles(600);
    scene.assert_even(4);
    let operation = scene.reshards().remove(0);
    assert_eq!(operation.state, OperationState::Succeeded);
    assert_eq!(operation.counts["slots"], goal.amount, "no slot moved twice");
    let placed =
        scene.world.leader.state.operations.values().find(|o| o.kind == OperationKind::Grow).unwrap();
    assert!(placed.state == OperationState::Succeeded && placed.ended < operation.ended);
    assert!(placed.cause.contains("a shard is added"));
}

#[test]
fn four_to_three_lets_the_shard_go_when_it_owns_nothing() {
    for gone in [0, 1, 3] {
        let mut scene = Scene::new(2 + gone as u64, 4, 4, 1);
        let mut spec = cluster(scene.id, World::SUBNET, 4, 1);
        let leaving: GroupId = spec.spec.as_mut().unwrap().shards.remove(gone).id.parse().unwrap();
        scene.world.put_cluster(spec).unwrap();
        scene.until_moved(500);
        let shown = scene.world.status(scene.id).shards;
        assert!(
            shown.len() == 4 && shown[3].id == leaving.to_string() && shown[3].slot_count > 0,
            "{shown:?}"
        );
        scene.settles(900);
        scene.assert_even(3);
        let state = &scene.world.leader.state;
        assert!(state.instances.values().all(|i| i.group != leaving));
        assert_eq!(state.events.values().filter(|e| e.reason == "ShardRemoved").count(), 1);
        assert_eq!(scene.reshards()[0].state, OperationState::Succeeded);
    }
}

#[test]
fn a_cancelled_move_stays_where_it_is_and_the_same_spec_goes_on() {
    let mut scene = Scene::new(50, 4, 3, 1);
    scene.put(4);
    scene.until_moved(1200);
    let half_way = |scene: &Scene| {
        let nodes = scene.world.nodes_of(scene.id);
        nodes.iter().any(|node| node.primary.is_none() && !node.importing.is_empty())
    };
    scene.until(60, "a slot is half way", half_way);
    // The task breaks off there, and somebody cancels before it is tried again.
    scene.world.mesh.refuses = true;
    scene.run(1);
    let operation = scene.cancel();
    assert!(half_way(&scene));
    scene.world.mesh.refuses = false;
    let Outcome::Failed { message } = scene.outcome() else { panic!("{:?}", scene.outcome()) };
    assert!(
        message.contains("cancelled by tester") && message.contains("put the same spec again"),
        "{message}"
    );
    assert!(matches!(
        scene.world.leader.state.operations[&operation].state,
        OperationState::Cancelled { .. }
    ));
    scene.until(60, "nothing is on its way", |scene| {
        scene.world.leader.last.is_empty()
            && scene.world.nodes_of(scene.id).iter().all(|n| n.migrating.is_empty() && n.importing.is_empty())
    });
    let counts = |scene: &Scene| -> Vec<i32> {
        scene.world.status(scene.id).shards.iter().map(|s| s.slot_count).collect()
    };
    let stays = counts(&scene);
    scene.run(60);
    assert_eq!(counts(&scene), stays, "nothing moves");
    assert!(stays[3] >= 1200 && stays[3] < 4096, "{stays:?}");
    scene.put(4);
    scene.until_moved(100);
    let goal = scene.running().unwrap().goal.unwrap().amount;
    assert!(goal <= 5462 - 1200, "{goal}");
    scene.settles(600);
    scene.assert_even(4);
}

#[test]
fn a_cancelled_move_goes_back_when_the_spec_does() {
    for (from, to) in [(3, 4), (4, 3)] {
        let mut scene = Scene::new(60 + from as u64, 5, from, 1);
        scene.put(to);
        scene.until_moved(900);
        scene.cancel();
        scene.run(5);
        scene.put(from);
        scene.settles(900);
        scene.assert_even(from);
        let states: Vec<_> = scene.reshards().into_iter().map(|o| o.state).collect();
        assert!(
            matches!(&states[..], [OperationState::Cancelled { .. }, OperationState::Succeeded]),
            "{states:?}"
        );
    }
}

#[test]
fn val_10_a_move_that_always_fails_halts_with_the_engines_text_and_can_be_cancelled() {
    let mut scene = Scene::new(70, 4, 3, 1);
    scene.put(4);
    scene.until_moved(300);
    scene.world.mesh.refuses = true;
    let took = scene.until(400, "it halts", |scene| scene.running().is_some_and(|o| o.halted.is_some()));
    assert!(
        (30_000..=60_000).contains(&took),
        "{took} ms: long enough for a passing trouble, not for whoever waits"
    );
    let operation = scene.running().unwrap();
    let tasks = |scene: &Scene| {
        let tasks = scene.world.leader.state.tasks.values();
        tasks.filter(|task| task.name.starts_with("move slots")).map(|task| task.id).collect::<BTreeSet<_>>()
    };
    let (tried, halted) = (tasks(&scene), operation.halted.unwrap());
    assert!(halted.contains("ERR refused"), "{halted}");
    let failed = scene.world.leader.state.tasks.values();
    let failed = failed.filter(|t| matches!(&t.state, TaskState::Failed { error } if error == "ERR refused"));
    assert_eq!(failed.filter(|t| t.name.starts_with("move slots")).count(), 8);
    scene.run(1200);
    assert_eq!(tasks(&scene), tried, "nothing is tried in 20 minutes");
    let events = scene.world.leader.state.events.values().filter(|e| e.reason == "ReshardHalted");
    assert_eq!(events.count(), 1);
    let status = scene.world.status(scene.id);
    let settled = status.conditions.iter().find(|c| c.r#type == "SlotsSettled").unwrap();
    assert!(settled.status == "False" && settled.message.contains("ERR refused"), "{settled:?}");
    // Somebody puts right what stood in the way.
    scene.world.mesh.refuses = false;
    scene.cancel();
    scene.put(4);
    scene.settles(600);
    scene.assert_even(4);
}

#[test]
fn deleting_while_slots_move_leaves_nothing() {
    let mut scene = Scene::new(80, 4, 3, 1);
    scene.put(4);
    scene.until_moved(500);
    scene.world.delete(scene.id).unwrap();
    scene.world.run(60);
    assert!(scene.world.leader.state.clusters.is_empty() && scene.world.mesh.nodes.is_empty());
    assert!(matches!(scene.reshards()[0].state, OperationState::Failed { .. }));
}

#[test]
fn drains_wait_for_slots_on_their_way() {
    let mut scene = Scene::new(95, 5, 3, 1);
    scene.put(4);
    scene.until_moved(300);
    let host = scene.host_of_primary(shard(scene.id, 0));
    scene.world.drain(host, shardplane_model::command::DrainMode::KeepSpread);
    while scene.running().is_some() {
        scene.step();
        let moved = scene.world.leader.decided.iter().any(|(_, decision)| {
            matches!(decision, Decision::Place { operation, .. } if operation.kind == OperationKind::Move)
        });
        assert!(!moved, "a member moves while slots do");
    }
    scene.until(400, "drained", |scene| scene.world.drained(host));
    scene.settles(300);
    scene.assert_even(4);
}

#[test]
fn who_does_not_see_the_target_at_work_is_not_asked_to_move_anything_to_it() {
    let mut scene = Scene::new(71, 4, 3, 1);
    scene.put(4);
    scene.until(120, "slots shall move", |scene| scene.running().is_some());
    let new = scene.nodes_of(shard(scene.id, 3))[0];
    let leader = &mut scene.world.leader;
    let now = leader.stamp(scene.world.now);
    let mut number = 0;
    let mut ids = || {
        number += 1;
        number
    };
    let moves = |plan: &Plan| {
        let is = |decision: &Decision| matches!(decision, Decision::StartTasks { tasks, .. } if tasks.iter().any(|t| t.name.starts_with("move slots")));
        plan.propose.iter().any(is)
    };
    assert!(moves(&plan::plan(&leader.state, &leader.observed, now, &mut ids)));
    let mut torn = leader.observed.clone();
    for member in torn.members.values_mut() {
        let Some(Report::Valkey(report)) = &mut member.engine else { continue };
        report.peers.iter_mut().filter(|p| p.node_id == node::text(new)).for_each(|p| p.connected = false);
    }
    let plan = plan::plan(&leader.state, &torn, now, &mut ids);
    let told = plan
        .waiting
        .values()
        .flatten()
        .any(|why| why.contains("moves when instance") && why.contains("at work"));
    assert!(!moves(&plan) && told, "{plan:#?}");
    scene.settles(600);
    scene.assert_even(4);
}

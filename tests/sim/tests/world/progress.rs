//! What an operation says of how far it is, as whoever polls it sees it: never less than a moment before.

use std::collections::BTreeMap;

use shardplane_model::{
    observed::Observed,
    state::{Operation, State},
    view,
};
use shardplane_proto::v1;

use super::scene::Scene;

/// What was seen last.
#[derive(Default)]
struct Seen {
    counts: BTreeMap<String, u64>,
    progress: u32,
    falls: Vec<String>,
}

impl Seen {
    fn look(
        &mut self,
        scene: &Scene,
        of: &Operation,
        state: &State,
        observed: &Observed,
    ) -> v1::OperationView {
        let now = scene.world.leader.stamp(scene.world.now);
        let view = view::operation(state, observed, now, of.id).unwrap();
        let mut fell = view.progress < self.progress;
        for (what, amount) in &self.counts {
            fell |= view.counts.get(what).is_none_or(|now| now < amount);
        }
        if fell {
            let (counts, progress) = (&view.counts, view.progress);
            let was = (&self.counts, self.progress);
            self.falls.push(format!("at {}: {was:?}, then {counts:?} {progress}%", scene.world.now));
        }
        (self.counts, self.progress) = (view.counts.clone(), view.progress);
        view
    }
}

#[test]
fn it_never_falls_while_slots_move() {
    for (seed, from, to) in [(100, 3, 4), (101, 4, 3), (102, 4, 5)] {
        let mut scene = Scene::new(seed, 5, from, 1);
        scene.put(to);
        scene.until(120, "slots move", |scene| scene.running().is_some());
        let operation = scene.running().unwrap();
        let mut seen = Seen::default();
        let mut told = 0;
        while scene.running().is_some() {
            let (state, observed) = (scene.world.leader.state.clone(), scene.world.leader.observed.clone());
            let ended = |state: &State| state.operations[&operation.id].counts.clone();
            let before = ended(&state);
            scene.step();
            // A report and the end of a step reach whoever answers one after the other, in either order: the log may be behind what is
            // heard, or ahead of it.
            let leader = &scene.world.leader;
            let torn = if scene.world.now.is_multiple_of(500) {
                (&state, &leader.observed)
            } else {
                (&leader.state, &observed)
            };
            told += usize::from(ended(&leader.state) != before);
            seen.look(&scene, &operation, torn.0, torn.1);
            seen.look(&scene, &operation, &leader.state, &leader.observed);
            assert!(scene.world.now < 1_764_000_000_000 + 900_000, "it ends");
        }
        assert_eq!(seen.falls, Vec::<String>::new(), "from {from} to {to} shards");
        let last = seen.look(&scene, &operation, &scene.world.leader.state, &scene.world.leader.observed);
        assert_eq!((last.phase.as_str(), last.progress), ("succeeded", 100));
        assert!(told > 10 && last.counts["keys"] > 0, "{told} steps ended; {:?}", last.counts);
    }
}

#[test]
fn slots_that_moved_are_counted_by_a_new_leader_before_it_has_heard_anything() {
    let mut scene = Scene::new(103, 5, 3, 1);
    scene.put(4);
    scene.until_moved(1000);
    let operation = scene.running().unwrap();
    let mut seen = Seen::default();
    let before = seen.look(&scene, &operation, &scene.world.leader.state, &scene.world.leader.observed);
    scene.world.change_leader(0);
    seen.look(&scene, &operation, &scene.world.leader.state, &scene.world.leader.observed);
    assert!(seen.counts["slots"] >= before.counts["slots"], "{before:?} {:?}", seen.counts);
}

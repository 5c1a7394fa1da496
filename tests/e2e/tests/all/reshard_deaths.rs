//! Whoever takes part in a move of slots dies in the middle of it, one after the other: the move goes on from the log, and no slot, no
//! key and no acknowledged write is lost or doubled.

use std::{env, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Instance, Shape, id, measured, on_stage, process, slots};
use shardplane_harness::{World, WorldOptions, wait_until};

use crate::{
    REPAIR, SOON,
    reshard::{conserved, settled},
    story::writer,
};

/// Keys that are there before.
const KEYS: u64 = 30_000;

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    /// The seed is printed, and can be given again by `SHARDPLANE_SEED`.
    fn new() -> Self {
        let given = env::var("SHARDPLANE_SEED").ok().and_then(|seed| seed.parse().ok());
        let fresh = || id().bytes().rev().take(8).fold(0, |sum: u64, byte| (sum << 5) ^ u64::from(byte));
        let seed = given.unwrap_or_else(fresh);
        println!("SHARDPLANE_SEED={seed}");
        Self(seed)
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        // The constants of Knuth's MMIX; the upper bits are the random ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (self.0 >> 33) % (to - from)
    }
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    Leader,
    SourceAgent,
    SourceGuest,
    TargetGuest,
    SourceHost,
}

/// Who is struck, and between how many percent of the slots.
const VICTIMS: [(Victim, u64, u64); 5] = [
    (Victim::Leader, 2, 12),
    (Victim::SourceAgent, 14, 28),
    (Victim::SourceGuest, 34, 46),
    (Victim::TargetGuest, 52, 64),
    (Victim::SourceHost, 70, 82),
];
/// What a task that was broken off may have moved without being counted.
const OF_A_TASK: u64 = 256;

/// A task that moves slots now.
struct Moving {
    source: Instance,
    target: Instance,
    name: String,
}

#[test]
fn val_7_whoever_dies_in_a_move_no_slot_and_no_key_is_lost() {
    on_stage(WorldOptions::named("move-deaths"), |world| {
        let mut dice = Dice::new();
        let (mut cluster, _) = Cluster::create(world, &Shape::of(3, 1))?;
        let before = cluster.wait_agreed(SOON)?;
        slots::load(&cluster, "old", KEYS)?;
        let writer = writer(&cluster, "deaths", &[])?;
        writer.progresses(100, SOON)?;

        cluster.add_shard();
        let request = cluster.api.submit("valkey", &cluster.manifest)?;
        for (victim, from, to) in VICTIMS {
            let percent = dice.within(from, to);
            let moving = moment(&cluster, percent)?;
            println!("{victim:?} is struck after {percent} %, in the middle of {:?}", moving.name);
            strike(world, victim, &moving, &mut dice)?;
            goes_on(&cluster, victim)?;
        }
        let took = cluster.api.settle("valkey", &request, 2 * REPAIR)?;
        measured("the end of the move after the last death", took);
        settled(&cluster)?;
        let now = cluster.wait_agreed(SOON)?;
        println!("operations: {:?}", cluster.operations()?);
        // A replica may have been made anew since, at another address; whoever is still there is who it was.
        let same = |at: &String, node: &String| now.get(at).is_none_or(|known| known == node);
        ensure!(before.iter().all(|(at, node)| same(at, node)), "{before:?} became {now:?}");
        conserved(&cluster, writer, "deaths", &[("old", KEYS)])
    });
}

/// The move goes on and everybody is back before the next one dies: two losses must not meet in one shard.
fn goes_on(cluster: &Cluster<'_>, victim: Victim) -> Result<()> {
    let left = moved(cluster)?;
    let more = || match moved(cluster) {
        Ok(now) if now > left + OF_A_TASK || done(cluster) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let ((), took) = wait_until("slots moving again", REPAIR, more)?;
    measured(format!("{victim:?} killed: slots move again"), took);
    let back = || match cluster.instances() {
        Ok(all) if all.iter().all(|i| i.machine == "running" && !i.role.is_empty()) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until("all members being back", REPAIR, back)?;
    Ok(())
}

fn done(cluster: &Cluster<'_>) -> bool {
    cluster.operation("reshard").is_ok_and(|operation| operation["phase"] == "succeeded")
}

/// Slots that have moved so far.
fn moved(cluster: &Cluster<'_>) -> Result<u64> {
    let operation = cluster.operation("reshard")?;
    Ok(operation["counts"]["slots"].as_u64().unwrap_or(0))
}

/// Waits until so much of the goal is reached and a task moves slots.
fn moment(cluster: &Cluster<'_>, percent: u64) -> Result<Moving> {
    let look = || -> Result<Moving> {
        let operation = cluster.operation("reshard")?;
        let goal = operation["goal"]["amount"].as_u64().context("no goal")?;
        let moved = operation["counts"]["slots"].as_u64().unwrap_or(0);
        ensure!(operation["phase"] == "running" && moved * 100 >= goal * percent, "{moved} slots of {goal}");
        let steps = operation["steps"].as_array().context("no steps")?;
        let moves =
            |name: &str| name.strip_prefix("move slots ")?.split_once(" to ").map(|(_, to)| to.to_owned());
        let running = steps.iter().filter(|step| step["phase"] == "running");
        let mut found =
            running.filter_map(|step| Some((step, step["name"].as_str()?, moves(step["name"].as_str()?)?)));
        let (step, name, target) = found.next().context("nothing moves")?;
        let all = cluster.instances()?;
        let one = |id: &str| {
            let found = cluster.all_instances()?.into_iter().find(|i| i.id == id);
            found.with_context(|| format!("no instance {id} in {all:?}"))
        };
        let source = one(step["instanceId"].as_str().unwrap_or_default())?;
        Ok(Moving { source, target: one(&target)?, name: name.to_owned() })
    };
    let what = format!("{percent} % of the slots being moved");
    Ok(wait_until(&what, REPAIR, || look().map_err(|error| format!("{error:#}")))?.0)
}

fn strike(world: &World, victim: Victim, moving: &Moving, dice: &mut Dice) -> Result<()> {
    let host = moving.source.host;
    match victim {
        Victim::Leader => {
            let leader = world.leader()?.context("nobody leads")?;
            world.kill_coordinator(leader)?;
            world.start_coordinator(leader)
        }
        Victim::SourceAgent => {
            world.kill_agent(host)?;
            // The length of the fault: its guest may end its task meanwhile, or not.
            thread::sleep(Duration::from_millis(dice.within(0, 6000)));
            world.start_agent(host)
        }
        Victim::SourceGuest => process::murder(process::init_of(&moving.source.id)?),
        Victim::TargetGuest => process::murder(process::init_of(&moving.target.id)?),
        Victim::SourceHost => {
            world.kill_host(host)?;
            world.start_host(host)
        }
    }
}

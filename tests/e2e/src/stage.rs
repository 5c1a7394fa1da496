//! A world for one test. In: its size and what happens in it. Out: a pass, or a panic with the cause and the ends of all logs. At
//! most two worlds exist at once: more would starve each other on two cores and every deadline with them.

use std::{
    fmt::Display,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use shardplane_harness::{World, WorldOptions};

use crate::id;

const MOST_WORLDS: u32 = 2;

static WORLDS: Mutex<u32> = Mutex::new(0);
static ONE_ENDED: Condvar = Condvar::new();

struct Turn;

impl Turn {
    fn take() -> Self {
        let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
        while *worlds >= MOST_WORLDS {
            worlds = ONE_ENDED.wait(worlds).unwrap_or_else(PoisonError::into_inner);
        }
        *worlds += 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *WORLDS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ONE_ENDED.notify_one();
    }
}

/// Makes a world, lets something happen in it, and removes it. Without root it says so and does nothing.
///
/// # Panics
/// When the world cannot be made or what happens in it is an error: the logs are shown then.
pub fn on_stage(options: WorldOptions, act: impl FnOnce(&World) -> Result<()>) {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: {} needs root for network namespaces", options.name);
        return;
    }
    let _turn = Turn::take();
    let id = id();
    // Several runs may go on at once on one machine.
    let options = WorldOptions { name: format!("{}-{}", options.name, &id[id.len() - 6..]), ..options };
    let result = World::up(&options).context("the world could not be made").and_then(|world| {
        let result = act(&world);
        if let Err(error) = &result {
            // Before the logs, which follow when the world is dropped in this panic.
            panic!("{error:?}");
        }
        result
    });
    if let Err(error) = result {
        panic!("{error:?}");
    }
}

/// Prints a figure for the report.
pub fn measured(what: impl Display, took: Duration) {
    println!("measured: {what}: {:.1} s", took.as_secs_f64());
}

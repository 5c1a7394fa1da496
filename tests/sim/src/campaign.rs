//! Many histories, as many at a time as there are cores. In: the first seed and how many simulated hours. Out: what was simulated in all,
//! and for each history that broke a rule its seed, the command that replays it and its last lines.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
};

use super::story::{Options, Story, Summary};

/// Of a campaign.
#[derive(Debug, Default)]
pub struct Totals {
    pub seeds: u64,
    pub all: Summary,
    pub failures: Vec<String>,
}

/// Of faults in each history, before it heals.
pub const MINUTES: u64 = 20;
/// More failures than this end it: they have one cause.
const MOST_FAILURES: usize = 8;

/// One history. Its failure is a text for people.
///
/// # Errors
/// What broke, with the way to see it again.
pub fn history(options: Options) -> Result<Summary, String> {
    let mut story = Story::new(options);
    let lived = catch_unwind(AssertUnwindSafe(|| story.live()));
    lived.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text: String = text.unwrap_or_default().chars().take(4_000).collect();
        let lines: Vec<&str> = story.world.leader.trace.lines.iter().map(String::as_str).collect();
        format!(
            "seed {} breaks a rule: {text}\nreplay it with: cargo sim --seed {} --minutes {} --trace\nits last lines:\n{}",
            options.seed,
            options.seed,
            options.minutes,
            lines.join("\n")
        )
    })
}

fn add(totals: &mut Totals, summary: Summary) {
    let all = &mut totals.all;
    totals.seeds += 1;
    all.millis += summary.millis;
    all.entries += summary.entries;
    summary.faults.into_iter().for_each(|(fault, n)| *all.faults.entry(fault).or_default() += n);
    for (ask, (made, accepted)) in summary.asks {
        let sum = all.asks.entry(ask).or_default();
        *sum = (sum.0 + made, sum.1 + accepted);
    }
    all.clients.acknowledged += summary.clients.acknowledged;
    all.clients.stray += summary.clients.stray;
    all.clients.excused += summary.clients.excused;
}

/// Histories from `first` on, each of `minutes`, until `hours` are simulated.
pub fn run(first: u64, hours: u64, minutes: u64) -> Totals {
    let state = Mutex::new((first, Totals::default()));
    let goal = hours * 3_600_000;
    let work = || {
        loop {
            let seed = {
                let mut state = state.lock().unwrap();
                let done = state.1.all.millis >= goal || state.1.failures.len() >= MOST_FAILURES;
                if done {
                    return;
                }
                state.0 += 1;
                state.0 - 1
            };
            let result = history(Options { seed, minutes, hosts: None, trace: false });
            let mut state = state.lock().unwrap();
            match result {
                Ok(summary) => add(&mut state.1, summary),
                Err(failure) => state.1.failures.push(failure),
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    state.into_inner().unwrap().1
}

/// What was simulated, in one line a subject.
pub fn told(totals: &Totals) -> String {
    let all = &totals.all;
    let count = |map: &BTreeMap<_, u64>| map.values().sum::<u64>();
    let faults: Vec<String> = all.faults.iter().map(|(fault, n)| format!("{fault:?} {n}")).collect();
    let asks: Vec<String> =
        all.asks.iter().map(|(ask, (made, accepted))| format!("{ask:?} {accepted} of {made}")).collect();
    format!(
        "measured: {} simulated hours in {} seeds, {} log entries\nmeasured: {} faults: {}\nmeasured: requests: {}\nmeasured: {} writes acknowledged, {} of them to a primary that was cut off, {} let go by the engine's contract, 0 lost otherwise",
        all.millis / 3_600_000,
        totals.seeds,
        all.entries,
        count(&all.faults),
        faults.join(", "),
        asks.join(", "),
        all.clients.acknowledged,
        all.clients.stray,
        all.clients.excused,
    )
}

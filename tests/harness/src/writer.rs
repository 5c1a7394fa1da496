//! A client that writes throughout. In: a cluster to which bad things happen. Out: which writes were acknowledged (done, and on a
//! replica too), and whether every one of them is there afterwards.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{ValkeyClient, wait_until};

/// How long a write may take to reach a replica before it counts as not acknowledged.
const WAIT: Duration = Duration::from_millis(500);
/// Between two writes. Enough for hundreds a second and little enough to leave the machine to what is tested.
const PACE: Duration = Duration::from_millis(2);
/// After a write that failed.
const BACKOFF: Duration = Duration::from_millis(20);

/// A running writer.
#[derive(Debug)]
pub struct Writer {
    prefix: String,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Written>,
}

/// What a writer has done.
#[derive(Debug, Clone)]
pub struct Written {
    prefix: String,
    /// Numbers that were acknowledged.
    pub acknowledged: BTreeSet<u64>,
    /// Writes without an acknowledgement; they may or may not be there.
    pub uncertain: u64,
    /// Longest time between two acknowledgements.
    pub longest_gap: Duration,
    /// The last error.
    pub last_error: Option<String>,
}

fn key(prefix: &str, number: u64) -> String {
    format!("{prefix}:{number}")
}

impl Writer {
    /// Starts to write keys `<prefix>:0`, `<prefix>:1`, … each with its number as value.
    ///
    /// # Errors
    /// When the first write is not acknowledged within 10 s.
    pub fn start(mut client: ValkeyClient, prefix: &str) -> Result<Self> {
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end, prefix_there) = (Arc::clone(&acknowledged), Arc::clone(&stop), prefix.to_owned());
        let thread = thread::spawn(move || write(&mut client, &prefix_there, &count, &end));
        let writer = Self { prefix: prefix.to_owned(), acknowledged, stop, thread };
        writer.progresses(1, Duration::from_secs(10))?;
        Ok(writer)
    }

    /// Acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until `more` further writes are acknowledged.
    ///
    /// # Errors
    /// When they are not in time.
    pub fn progresses(&self, more: u64, deadline: Duration) -> Result<Duration> {
        let wanted = self.acknowledged() + more;
        let what = format!("{more} more acknowledged writes of {}", self.prefix);
        let ((), took) = wait_until(&what, deadline, || match self.acknowledged() {
            enough if enough >= wanted => Ok(()),
            few => Err(few),
        })?;
        Ok(took)
    }

    /// Stops.
    ///
    /// # Errors
    /// When the writer panicked.
    pub fn stop(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the writer {} panicked", self.prefix))
    }
}

fn write(client: &mut ValkeyClient, prefix: &str, count: &AtomicU64, stop: &AtomicBool) -> Written {
    let mut written = Written {
        prefix: prefix.to_owned(),
        acknowledged: BTreeSet::new(),
        uncertain: 0,
        longest_gap: Duration::ZERO,
        last_error: None,
    };
    let mut last = Instant::now();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match client.set_durably(&key(prefix, number), &number.to_string(), WAIT) {
            Ok(true) => {
                if !written.acknowledged.is_empty() {
                    written.longest_gap = written.longest_gap.max(last.elapsed());
                }
                last = Instant::now();
                written.acknowledged.insert(number);
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(PACE);
            }
            Ok(false) => written.uncertain += 1,
            Err(error) => {
                written.uncertain += 1;
                written.last_error = Some(format!("{error:#}"));
                thread::sleep(BACKOFF);
            }
        }
    }
    written
}

impl Written {
    /// Checks that every acknowledged write is there, with its value.
    ///
    /// # Errors
    /// Names what is missing or wrong, or says which key could not be read for `deadline`.
    pub fn verify(&self, client: &mut ValkeyClient, deadline: Duration) -> Result<()> {
        let mut wrong = Vec::new();
        for number in &self.acknowledged {
            let key = key(&self.prefix, *number);
            let (value, _) = wait_until(&format!("an answer about {key}"), deadline, || client.get(&key))
                .context("the cluster does not answer")?;
            if value.as_deref() != Some(number.to_string().as_str()) {
                wrong.push(format!("{key} is {value:?}"));
            }
        }
        ensure!(
            wrong.is_empty(),
            "{} of {} acknowledged writes are lost: {}",
            wrong.len(),
            self.acknowledged.len(),
            wrong[..wrong.len().min(20)].join(", ")
        );
        Ok(())
    }
}

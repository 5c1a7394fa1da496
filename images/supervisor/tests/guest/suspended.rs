//! A guest that stood still, as on a host that was suspended, and one whose agent is dead when its lease ends: whoever wrote to it before may
//! write again only when its host has confirmed that nobody was promoted meanwhile.
//!
//! In: the whole machine stopped by signals and continued, under clients that write. Out: how long it still took writes, as a figure, and
//! assertions about it.

use std::{
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use shardplane_proto::v1::{
    EngineState, GuestConfirm, GuestLease, to_guest,
    valkey_task::{AssignSlots, Step},
};
use tokio::task::JoinHandle;

use crate::{
    host::{Guest, client, until},
    isolated, signal,
};

/// Clients that write at the same time; more than one round of the engine's loop takes up.
const CLIENTS: u32 = 8;
/// A guest is to hold writes within that on a busy machine too; without a hold they would go on for as long as clients ask.
const HELD_WITHIN: Duration = Duration::from_millis(500);

/// When writes were acknowledged.
type Acknowledged = Arc<Mutex<Vec<Instant>>>;

/// Clients that write as fast as they are answered. A write that is held is waited for.
async fn writers(guest: &Guest, acknowledged: &Acknowledged) -> Vec<JoinHandle<()>> {
    let mut writers = Vec::new();
    for number in 0..CLIENTS {
        let mut client = client(guest).await;
        client.set_response_timeout(Duration::from_secs(60));
        let acknowledged = acknowledged.clone();
        writers.push(tokio::spawn(async move {
            for value in 0u64.. {
                let set = redis::cmd("SET").arg(format!("{{3560}}{number}")).arg(value).to_owned();
                if set.exec_async(&mut client).await.is_ok() {
                    acknowledged.lock().unwrap().push(Instant::now());
                }
            }
        }));
    }
    writers
}

/// A cluster of one guest that owns every slot.
async fn serving(image: &Path, dir: &Path) -> Guest {
    let guest = Guest::boot_up(image, dir, 11).await;
    guest.configure(1, |_| ()).await;
    guest.engine("an answer", |r| r.role == "master").await;
    let all = AssignSlots { start: 0, end: 16383, config_epoch: 1 };
    guest.perform_ok("assign", Step::AssignSlots(all)).await;
    guest.engine("an ok state", |r| r.cluster_state == "ok").await;
    guest
}

/// The machine stands still for that long; answers when it went on.
async fn stand_still(guest: &Guest, length: Duration) -> Instant {
    let engine = until("the engine's pid", || guest.engine_pid()).await;
    let supervisor = until("the supervisor's pid", || guest.supervisor_pid()).await;
    for pid in [engine, supervisor] {
        signal(pid, Signal::SIGSTOP);
    }
    // The pause itself is what is tested.
    tokio::time::sleep(length).await;
    let woke = Instant::now();
    // The engine first: the worse order.
    for pid in [engine, supervisor] {
        signal(pid, Signal::SIGCONT);
    }
    woke
}

fn after(acknowledged: &Acknowledged, from: Instant) -> Vec<Duration> {
    acknowledged.lock().unwrap().iter().filter(|at| **at > from).map(|at| *at - from).collect()
}

#[test]
fn a_guest_that_stood_still_takes_writes_when_its_host_confirms() {
    isolated("suspended::a_guest_that_stood_still_takes_writes_when_its_host_confirms", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let guest = serving(&image, dir.path()).await;
        guest.confirms.store(false, Ordering::Relaxed);
        let acknowledged = Acknowledged::default();
        let writers = writers(&guest, &acknowledged).await;
        until("writes", || (acknowledged.lock().unwrap().len() > 100).then_some(())).await;
        let newest = || guest.said.lock().unwrap().reports.last().cloned().unwrap();

        let woke = stand_still(&guest, Duration::from_millis(400)).await;
        until("writes after a short pause", || (after(&acknowledged, woke).len() > 1000).then_some(())).await;
        assert_eq!(newest().held_wake, 0, "a short pause is nothing");

        for wake in 1..=3 {
            let woke = stand_still(&guest, Duration::from_millis(2500)).await;
            until("a report of it", || (newest().held_wake == wake).then_some(())).await;
            let report = newest();
            assert!(report.message.contains("stood still"), "{}", report.message);
            assert_eq!((report.state(), report.engine_report.is_empty()), (EngineState::Running, false));
            // An older word, and the time until the engine would have gone on by itself.
            guest.send(to_guest::Body::Confirm(GuestConfirm { wake: wake - 1 })).await;
            tokio::time::sleep(Duration::from_secs(if wake == 1 { 12 } else { 1 })).await;
            let slipped = after(&acknowledged, woke);
            let last = slipped.iter().max().copied().unwrap_or_default();
            println!("measured: writes taken after the wake {}, the last after {last:?}", slipped.len());
            assert!(last < HELD_WITHIN, "writes were taken for {last:?}");
            let asked = Instant::now();
            guest.send(to_guest::Body::Confirm(GuestConfirm { wake })).await;
            until("writes again", || (after(&acknowledged, asked).len() > 100).then_some(())).await;
            println!("measured: taken again {:?} after the host's word", after(&acknowledged, asked)[0]);
            until("no more of it", || (newest().held_wake == 0).then_some(())).await;
        }
        for writer in writers {
            writer.abort();
        }
        guest.stop().await;
    });
}

#[test]
fn a_guest_whose_host_says_nothing_more_takes_no_writes_when_its_lease_is_over() {
    isolated(
        "suspended::a_guest_whose_host_says_nothing_more_takes_no_writes_when_its_lease_is_over",
        async |image| {
            let dir = tempfile::tempdir().unwrap();
            let guest = serving(&image, dir.path()).await;
            let newest = || guest.said.lock().unwrap().reports.last().cloned().unwrap();
            let grant = |remaining_ms, copies_needed| {
                let answers_boot_ms = newest().boot_ms;
                to_guest::Body::Lease(GuestLease { answers_boot_ms, remaining_ms, copies_needed })
            };
            guest.send(grant(3_000, 1)).await;
            let acknowledged = Acknowledged::default();
            let writers = writers(&guest, &acknowledged).await;
            until("writes", || (acknowledged.lock().unwrap().len() > 100).then_some(())).await;
            until("the end of the lease", || newest().message.contains("lease is over").then_some(())).await;
            let over = Instant::now();
            // Longer than the engine would hold them by itself.
            tokio::time::sleep(Duration::from_secs(12)).await;
            let late = after(&acknowledged, over + HELD_WITHIN);
            assert!(late.is_empty(), "{} writes after the end of the lease", late.len());
            // Without a need for copies there is no need for a lease.
            for word in [grant(60_000, 1), grant(0, 0)] {
                let asked = Instant::now();
                guest.send(word).await;
                until("writes", || (after(&acknowledged, asked).len() > 100).then_some(())).await;
            }
            until("no more of it", || newest().message.is_empty().then_some(())).await;
            for writer in writers {
                writer.abort();
            }
            guest.stop().await;
        },
    );
}

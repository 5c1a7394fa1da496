//! Slots on their way between real engines, with clients at work, stalls and deaths in the middle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::sys::signal::Signal;
use prost::Message as _;
use shardplane_proto::v1::{
    GuestTask, ValkeyReport, ValkeyTask, to_guest,
    valkey_open_slot::Direction,
    valkey_task::{CloseSlot, CloseSlots, Step},
};

use crate::{
    client::tag,
    cluster::Cluster,
    host::{self, Guest, other_primary},
    isolated,
    load::{Load, assert_seeded, cmd, keys_in, seed, set_slot},
    signal,
};

#[test]
fn slots_move_under_clients_and_nothing_is_lost_or_doubled() {
    isolated("slots::slots_move_under_clients_and_nothing_is_lost_or_doubled", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        let slots = (0, 19);
        seed(&cluster, slots, 50).await;
        let load = Load::start(&cluster, slots.0..=slots.1, 40);

        // A limit, so that it takes more than one task.
        let mut keys = 0;
        let mut shown = false;
        for turn in 0.. {
            assert!(turn < 10, "the slots do not arrive");
            let outcome =
                cluster.guests[0].perform(&format!("move-{turn}"), cluster.to(1, slots.0, slots.1, 90)).await;
            assert!(outcome.ok, "{}", outcome.error);
            keys += outcome.counts.get("keys").copied().unwrap_or(0);
            shown |= cluster.guests[0].said.lock().unwrap().reports.iter().any(|report| {
                let engine = ValkeyReport::decode(report.engine_report.as_slice()).unwrap();
                engine.slot_move.is_some_and(|now| now.keys_done > 0) && !engine.open_slots.is_empty()
            });
            let report = cluster.guests[0].engine("no move any more", |r| r.slot_move.is_none()).await;
            if report.slots.iter().all(|range| range.start > slots.1) {
                assert!(turn > 0, "the limit bounds a task");
                break;
            }
        }
        assert!(shown, "the reports showed the move");
        assert!(keys >= 20 * 58, "{keys} keys were counted");
        let again = cluster.guests[0].perform("again", cluster.to(1, slots.0, slots.1, 0)).await;
        assert!(again.ok && again.counts.is_empty(), "{again:?}");

        let book = load.check(&cluster).await;
        println!(
            "measured: {} confirmed writes and removals during a move, {} of them by ASK, slowest {:?}",
            book.writes, book.asked, book.slowest
        );
        assert!(book.asked > 0, "clients met open slots");
        assert_seeded(&cluster, slots, 50).await;
        cluster.assert_settled([1, 4], slots).await;
    });
}

#[test]
fn a_target_that_stalls_brings_nothing_back() {
    isolated("slots::a_target_that_stalls_brings_nothing_back", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        let slots = (0, 0);
        seed(&cluster, slots, 0).await;
        // Several, as one that waits for the target that stalls can do no harm meanwhile.
        let loads = ["one", "two", "three", "four", "five", "six"]
            .map(|name| Load::named(name, &cluster, slots.0..=slots.1, 400));
        while keys_in(&cluster, 0, 0).await < 1000 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let pid = cluster.guests[1].engine_pid().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let stalls = tokio::spawn({
            let over = over.clone();
            async move {
                let mut stalls = 0;
                // Longer than a MIGRATE waits, shorter than the others need to take it for dead.
                while !over.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(150)).await;
                    signal(pid, Signal::SIGSTOP);
                    tokio::time::sleep(Duration::from_millis(600)).await;
                    signal(pid, Signal::SIGCONT);
                    stalls += 1;
                }
                stalls
            }
        });
        let mut notes = Vec::new();
        for turn in 0.. {
            assert!(turn < 20, "the slots do not arrive");
            let step = cluster.to(1, slots.0, slots.1, 400);
            let outcome = cluster.guests[0].perform(&format!("move-{turn}"), step).await;
            println!("move-{turn}: {} {:?} {:?}", outcome.ok, outcome.counts, outcome.error);
            notes.extend(outcome.notes);
            let report = cluster.guests[0].engine("no move any more", |r| r.slot_move.is_none()).await;
            if report.slots.iter().all(|range| range.start > slots.1) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        let stalls = stalls.await.unwrap();
        for load in loads {
            let book = load.check(&cluster).await;
            println!(
                "measured: {stalls} stalls, {} writes and removals, slowest {:?}",
                book.writes, book.slowest
            );
        }
        assert!(notes.iter().any(|note| note.contains("did not take keys in time")), "{notes:?}");
        assert_seeded(&cluster, slots, 0).await;
        cluster.assert_settled([1, 4], slots).await;
    });
}

#[test]
fn a_move_survives_the_death_of_anyone() {
    isolated("slots::a_move_survives_the_death_of_anyone", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        for (round, victim) in ["source", "target", "supervisor"].into_iter().enumerate() {
            let slots = (round as u32 * 10, round as u32 * 10 + 5);
            seed(&cluster, slots, 40).await;
            let (source, target) = (cluster.primary(0, 3).await, cluster.primary(1, 4).await);
            let load = Load::start(&cluster, slots.0..=slots.1, 20);
            let step = cluster.to(target, slots.0, slots.1, 60);
            let payload = ValkeyTask { step: Some(step) }.encode_to_vec();
            let task = GuestTask { task_id: format!("{victim}-dies"), payload };
            cluster.guests[source].send(to_guest::Body::Task(task)).await;
            let half_moved = |r: &ValkeyReport| {
                r.slot_move.as_ref().is_some_and(|now| now.slots_done >= 1 && now.keys_left > 5)
                    && !r.open_slots.is_empty()
            };
            cluster.guests[source].engine("a slot that is half moved", half_moved).await;
            match victim {
                "source" => signal(cluster.guests[source].engine_pid().unwrap(), Signal::SIGKILL),
                "target" => signal(cluster.guests[target].engine_pid().unwrap(), Signal::SIGKILL),
                _ => {
                    let number = cluster.guests[source].number;
                    let guest_dir = cluster.guests[source].dir.clone();
                    cluster.guests[source].die();
                    let guest = Guest::boot_up(&image, &guest_dir, number).await;
                    guest.configure(1, |_| ()).await;
                    cluster.guests[source] = guest;
                }
            }
            // The dead one's shard gets another primary first.
            let (shard, dead) = if victim == "target" { ([1, 4], target) } else { ([0, 3], source) };
            let heir = shard.into_iter().find(|n| *n != dead).unwrap();
            let report = cluster.guests[heir]
                .engine("the heir's role", |r| r.role == "master" && r.cluster_state == "ok")
                .await;
            cluster.bring(&format!("after-{victim}"), ([0, 3], [1, 4]), slots).await;
            // What the coordinator tells a member when it sees another in its office.
            let office = other_primary(&cluster.guests[heir], &report);
            cluster.guests[dead]
                .configure(round as u64 + 2, |config| config.other_primary = Some(office))
                .await;
            let back = cluster.guests[dead].engine("its first word", |_| true).await;
            assert_eq!(back.role, "slave", "{victim} came back with slots {:?}", back.slots);
            for n in shard {
                cluster.guests[n].engine("two members in sync", |r| r.link_up || r.good_replicas == 1).await;
            }
            let book = load.check(&cluster).await;
            println!(
                "measured: {victim} died: {} writes and removals, slowest {:?}",
                book.writes, book.slowest
            );
            assert_seeded(&cluster, slots, 40).await;
            cluster.assert_settled([1, 4], slots).await;
        }
    });
}

#[test]
fn open_slots_are_closed_whatever_state_they_are_in() {
    isolated("slots::open_slots_are_closed_whatever_state_they_are_in", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        let slots = (0, 6);
        seed(&cluster, slots, 5).await;
        let (a, b) = (cluster.ids[0].clone(), cluster.ids[1].clone());
        let close = |slot: u32, peer: Option<usize>| CloseSlot {
            slot,
            peer_node_id: peer.map_or_else(String::new, |n| cluster.ids[n].clone()),
            peer: peer.map(|n| cluster.address(n)),
        };
        let load = Load::start(&cluster, [0, 1, 3, 4, 5, 6], 10);
        // Without the other node's mark a slot makes no new keys: 2 has no clients for now.
        // 0: marked, nothing moved. 1: some keys moved. 2: only the owner's mark. 3: a stray mark without keys.
        // 4: a stray mark with keys of which the owner has one as well. 5: the other owns it already. 6: nothing.
        for slot in [0, 1, 3, 4, 5] {
            set_slot(&cluster, 1, slot, &["IMPORTING", &a]).await;
        }
        for slot in [0, 1, 2, 4, 5] {
            set_slot(&cluster, 0, slot, &["MIGRATING", &b]).await;
        }
        let keys = |slot: u32, most: u64| {
            let mut command = redis::cmd("CLUSTER");
            command.arg("GETKEYSINSLOT").arg(slot).arg(most);
            command
        };
        for (slot, most) in [(1, 6), (4, 4), (5, 1000)] {
            let mut owner = cluster.direct(0).await;
            let names: Vec<String> = match slot {
                4 => (0..most).map(|n| format!("filling:{{{}}}:{n}", tag(4))).collect(),
                _ => keys(slot, most).query_async(&mut owner).await.unwrap(),
            };
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg(cluster.address(1).ip).arg(6379).arg("").arg(0).arg(1000).arg("REPLACE");
            migrate.arg("AUTH2").arg("default").arg(host::password()).arg("KEYS").arg(&names);
            let () = migrate.query_async(&mut owner).await.unwrap();
        }
        set_slot(&cluster, 1, 5, &["NODE", &b]).await;
        let report = cluster.guests[0].engine("its marks", |r| r.open_slots.len() >= 4).await;
        let to_b = Some(Direction::MigratingTo(b.clone()));
        assert!(report.open_slots.iter().all(|open| open.direction == to_b), "{:?}", report.open_slots);
        cluster.guests[3].engine("a replica that reports no marks", |r| r.open_slots.is_empty()).await;
        let before = load.check(&cluster).await;
        assert!(before.asked > 0);
        // The owner loses its mark, and a client makes a key anew that the other node has.
        set_slot(&cluster, 0, 4, &["STABLE"]).await;
        let conflicting = format!("filling:{{{}}}:0", tag(4));
        let () = cmd(&["SET", &conflicting, &"y".repeat(100)])
            .query_async(&mut cluster.direct(0).await)
            .await
            .unwrap();

        let load = Load::start(&cluster, 0..=3, 10);
        let tasks = CloseSlots { slots: [0, 1, 2, 5, 6].map(|slot| close(slot, Some(1))).to_vec() };
        for id in ["close", "close-again"] {
            let outcome = cluster.guests[0].perform(id, Step::CloseSlots(tasks.clone())).await;
            assert!(outcome.ok, "{id}: {}", outcome.error);
        }
        let strays = CloseSlots { slots: [3, 4].map(|slot| close(slot, Some(0))).to_vec() };
        let outcome = cluster.guests[1].perform("close-strays", Step::CloseSlots(strays)).await;
        assert!(outcome.ok, "{}", outcome.error);
        let note = outcome.notes.iter().find(|note| note.starts_with("slot 4")).unwrap();
        assert!(note.contains("went home") && note.contains("1 that it has itself"), "{note}");
        load.check(&cluster).await;
        for (key, value) in before.values {
            if !(0..=3).any(|slot| key.contains(&format!("{{{}}}", tag(slot)))) {
                let (found, _): (Option<String>, _) =
                    cluster.client().ask(&key, &cmd(&["GET", &key]), false).await;
                assert_eq!(found, value, "{key}");
            }
        }
        assert_seeded(&cluster, slots, 5).await;
        let get = cmd(&["GET", &conflicting]);
        let (value, _): (String, _) = cluster.client().ask(&conflicting, &get, false).await;
        assert_eq!(value, "y".repeat(100), "what the owner has is not overwritten");
        for range in [(0, 4), (6, 6)] {
            cluster.assert_settled([0, 3], range).await;
        }
        cluster.assert_settled([1, 4], (5, 5)).await;

        // A peer that is gone: the owner's mark can go, a stray one only where it hides nothing.
        set_slot(&cluster, 0, 0, &["MIGRATING", &cluster.ids[2]]).await;
        let alone = CloseSlots { slots: vec![close(0, None)] };
        cluster.guests[0].perform_ok("close-alone", Step::CloseSlots(alone.clone())).await;
        set_slot(&cluster, 2, 0, &["IMPORTING", &a]).await;
        cluster.guests[2].perform_ok("unmark", Step::CloseSlots(alone)).await;
        cluster.assert_settled([0, 3], (0, 4)).await;
    });
}

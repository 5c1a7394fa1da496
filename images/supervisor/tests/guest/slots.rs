//! Slots on their way between real engines, with clients at work and deaths in the middle.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use prost::Message as _;
use redis::Cmd;
use shardplane_proto::v1::{
    GuestTask, ValkeyTask, to_guest,
    valkey_open_slot::Direction,
    valkey_task::{CloseSlot, CloseSlots, Failover, StandDown, Step, Takeover},
};
use tokio::task::JoinHandle;

use crate::{
    client::{Client, tag},
    cluster::Cluster,
    host::{Guest, config_of, until},
    isolated, signal,
};

fn cmd(words: &[&str]) -> Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

/// A write, again until a replica confirms it: after a failover there is none for a while.
async fn confirm(client: &mut Client, key: &str, write: &Cmd) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, confirmed): (redis::Value, _) = client.ask(key, write, true).await;
        if confirmed >= 1 {
            return;
        }
        assert!(Instant::now() < deadline, "no replica confirms a write of {key}");
    }
}

/// Clients that write, confirm and remove keys of some slots while something happens to these.
struct Load {
    stop: Arc<AtomicBool>,
    writer: JoinHandle<Book>,
}

/// What the clients were told: the value of each key, None when it was removed; and how often they were sent on.
struct Book {
    values: BTreeMap<String, Option<String>>,
    asked: u64,
    writes: u64,
    slowest: Duration,
}

impl Load {
    fn start(cluster: &Cluster, slots: impl IntoIterator<Item = u32>, keys_a_slot: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut client, stopped) = (cluster.client(), stop.clone());
        let tags: Vec<String> = slots.into_iter().map(tag).collect();
        let writer = tokio::spawn(async move {
            let mut book = Book { values: BTreeMap::new(), asked: 0, writes: 0, slowest: Duration::ZERO };
            for n in 0_u32.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                // A walk over all keys in an order that is not the order of the slots.
                let step = n.wrapping_mul(2_654_435_761) >> 8;
                let key = format!("load:{{{}}}:{}", tags[step as usize % tags.len()], step / 7 % keys_a_slot);
                let began = Instant::now();
                if n % 3 == 2 {
                    confirm(&mut client, &key, &cmd(&["DEL", &key])).await;
                    let (found, _): (Option<String>, _) = client.ask(&key, &cmd(&["GET", &key]), false).await;
                    assert_eq!(found, None, "{key} was removed");
                    book.values.insert(key, None);
                } else {
                    if let Some(expected) = book.values.get(&key) {
                        let (found, _): (Option<String>, _) =
                            client.ask(&key, &cmd(&["GET", &key]), false).await;
                        assert_eq!(found, *expected, "{key} before write {n}");
                    }
                    let value = n.to_string();
                    confirm(&mut client, &key, &cmd(&["SET", &key, &value])).await;
                    book.values.insert(key, Some(value));
                }
                book.slowest = book.slowest.max(began.elapsed());
                book.writes += 1;
            }
            book.asked = client.asked;
            book
        });
        Self { stop, writer }
    }

    /// Stops the clients and reads every key once more.
    async fn check(self, cluster: &Cluster) -> Book {
        self.stop.store(true, Ordering::Relaxed);
        let book = self.writer.await.unwrap();
        let mut client = cluster.client();
        for (key, expected) in &book.values {
            let (found, _): (Option<String>, _) = client.ask(key, &cmd(&["GET", key]), false).await;
            assert_eq!(found, *expected, "{key} at the end");
        }
        book
    }
}

/// Keys of every type in each slot, some with a time to live.
async fn seed(cluster: &Cluster, slots: (u32, u32), filling: u32) {
    let mut client = cluster.client();
    for slot in slots.0..=slots.1 {
        let tag = tag(slot);
        let key = |kind: &str| format!("{kind}:{{{tag}}}");
        for words in [
            vec!["SET".into(), key("string"), "v".into()],
            vec!["SET".into(), key("mortal"), "v".into(), "PX".into(), "600000".into()],
            vec!["HSET".into(), key("hash"), "a".into(), "1".into(), "b".into(), "2".into()],
            vec!["RPUSH".into(), key("list"), "a".into(), "b".into()],
            vec!["SADD".into(), key("set"), "a".into(), "b".into()],
            vec!["ZADD".into(), key("sorted"), "1".into(), "a".into(), "2".into(), "b".into()],
            vec!["XADD".into(), key("stream"), "1-1".into(), "f".into(), "v".into()],
            vec!["PFADD".into(), key("sketch"), "a".into(), "b".into()],
        ] {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _: (redis::Value, _) = client.ask(words[1], &cmd(&words), false).await;
        }
        for n in 0..filling {
            let key = format!("filling:{{{tag}}}:{n}");
            let _: (redis::Value, _) = client.ask(&key, &cmd(&["SET", &key, &"x".repeat(100)]), false).await;
        }
    }
}

async fn assert_seeded(cluster: &Cluster, slots: (u32, u32), filling: u32) {
    let mut client = cluster.client();
    for slot in slots.0..=slots.1 {
        let tag = tag(slot);
        let key = |kind: &str| format!("{kind}:{{{tag}}}");
        for (question, expected) in [
            (vec!["STRLEN".into(), key("string")], 1..=1),
            (vec!["PTTL".into(), key("mortal")], 400_000..=600_000),
            (vec!["PTTL".into(), key("string")], -1..=-1),
            (vec!["HLEN".into(), key("hash")], 2..=2),
            (vec!["LLEN".into(), key("list")], 2..=2),
            (vec!["SCARD".into(), key("set")], 2..=2),
            (vec!["ZCARD".into(), key("sorted")], 2..=2),
            (vec!["XLEN".into(), key("stream")], 1..=1),
            (vec!["PFCOUNT".into(), key("sketch")], 2..=2),
        ] {
            let words: Vec<&str> = question.iter().map(String::as_str).collect();
            let (found, _): (i64, _) = client.ask(words[1], &cmd(&words), false).await;
            assert!(expected.contains(&found), "{question:?}: {found}");
        }
        for n in 0..filling {
            let key = format!("filling:{{{tag}}}:{n}");
            let (found, _): (u64, _) = client.ask(&key, &cmd(&["STRLEN", &key]), false).await;
            assert_eq!(found, 100, "{key}");
        }
    }
}

async fn keys_in(cluster: &Cluster, n: usize, slot: u32) -> u64 {
    redis::cmd("CLUSTER")
        .arg("COUNTKEYSINSLOT")
        .arg(slot)
        .query_async(&mut cluster.direct(n).await)
        .await
        .unwrap()
}

async fn set_slot(cluster: &Cluster, n: usize, slot: u32, words: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SETSLOT").arg(slot).arg(words);
    let () = command.query_async(&mut cluster.direct(n).await).await.unwrap();
}

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
                let engine =
                    shardplane_proto::v1::ValkeyReport::decode(report.engine_report.as_slice()).unwrap();
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
            let half_moved = |r: &shardplane_proto::v1::ValkeyReport| {
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
            cluster.guests[heir]
                .engine("the heir's role", |r| r.role == "master" && r.cluster_state == "ok")
                .await;
            cluster.bring(&format!("after-{victim}"), ([0, 3], [1, 4]), slots).await;
            // One that comes back when its slots went to two others may be a primary of nothing, which the coordinator makes a
            // replica.
            let back = cluster.guests[dead]
                .engine("its loss of the slots", |r| r.role == "slave" || r.slots.is_empty())
                .await;
            println!("{victim} came back as {} with {} keys", back.role, back.keys);
            if back.role == "master" {
                let primary_node_id = cluster.ids[heir].clone();
                let replicate =
                    Step::Replicate(shardplane_proto::v1::valkey_task::Replicate { primary_node_id });
                cluster.guests[dead].perform_ok(&format!("replicate-{victim}"), replicate).await;
            }
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
            migrate.arg("AUTH2").arg("default").arg(crate::host::password()).arg("KEYS").arg(&names);
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

#[test]
fn one_large_hash() {
    isolated("slots::one_large_hash", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let patient = |config: &mut shardplane_proto::v1::ValkeyConfig| config.node_timeout_ms = 1500;
        let cluster = Cluster::form(&image, dir.path(), 3, patient).await;
        let key = format!("large:{{{}}}", tag(0));
        let mut owner = cluster.direct(0).await;
        owner.set_response_timeout(Duration::from_secs(20));
        let script = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do server.call('HSET', KEYS[1], 'field:' .. n, 'value:' .. n) end";
        const FIELDS: u64 = 1_500_000;
        for start in (1..=FIELDS).step_by(20_000) {
            let mut fill = redis::cmd("EVAL");
            fill.arg(script).arg(1).arg(&key).arg(start).arg(start + 19_999);
            let () = fill.query_async(&mut owner).await.unwrap();
        }
        // As configured 1.5 seconds: too large to be moved, which is told before the slot is opened.
        let refused = cluster.guests[0].perform("too-large", cluster.to(1, 0, 0, 0)).await;
        assert!(!refused.ok, "{refused:?}");
        for part in ["large:{", "MiB", "cluster-node-timeout", &cluster.ids[0]] {
            assert!(refused.error.contains(part), "{}", refused.error);
        }
        cluster.assert_settled([0, 0], (0, 0)).await;
        assert_eq!((keys_in(&cluster, 0, 0).await, keys_in(&cluster, 1, 0).await), (1, 0));

        for guest in &cluster.guests {
            guest
                .configure(2, |config| {
                    config.node_timeout_ms = 15_000;
                    config.directives.push(crate::directive("cluster-node-timeout", "15000"));
                })
                .await;
            until("the other timeout", || {
                let said = guest.said.lock().unwrap();
                said.reports.last().filter(|report| report.config_generation == 2).map(|_| ())
            })
            .await;
        }
        for guest in &cluster.guests {
            guest.engine("a whole cluster", |r| r.cluster_state == "ok").await;
        }
        let began = Instant::now();
        let outcome = cluster.guests[0].perform("large", cluster.to(1, 0, 0, 0)).await;
        let took = began.elapsed();
        assert!(outcome.ok, "{}", outcome.error);
        assert!(
            outcome.notes.iter().any(|note| note.contains("stops both primaries")),
            "{:?}",
            outcome.notes
        );
        println!("measured: a hash of {FIELDS} fields went in {took:?}: {:?}", outcome.notes);
        let told = cluster.guests[0].said.lock().unwrap().reports.iter().any(|report| {
            let report = shardplane_proto::v1::ValkeyReport::decode(report.engine_report.as_slice()).unwrap();
            report
                .slot_move
                .and_then(|now| now.large_key)
                .is_some_and(|large| large.name.starts_with("large:"))
        });
        println!("the large key was {} the reports", if told { "in" } else { "not in" });
        let (fields, _): (u64, _) = cluster.client().ask(&key, &cmd(&["HLEN", &key]), false).await;
        assert_eq!(fields, FIELDS);
        cluster.assert_settled([1, 1], (0, 0)).await;
    });
}

#[test]
fn what_stops_a_move_is_told_in_the_engines_words() {
    isolated("slots::what_stops_a_move_is_told_in_the_engines_words", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::form(&image, dir.path(), 3, |_| ()).await;
        seed(&cluster, (0, 0), 150).await;
        let acl = async |n: usize, rule: &str| {
            let () = cmd(&["ACL", "SETUSER", "default", rule])
                .query_async(&mut cluster.direct(n).await)
                .await
                .unwrap();
        };
        let mut connections = [cluster.direct(0).await, cluster.direct(1).await];
        let mut fails = async |id: &str, step: Step| {
            let outcome = cluster.guests[0].perform(id, step).await;
            assert!(!outcome.ok, "{id} succeeded");
            println!("{id}: {}", outcome.error);
            let mut keys = 0;
            for connection in &mut connections {
                let count: u64 =
                    cmd(&["CLUSTER", "COUNTKEYSINSLOT", "0"]).query_async(connection).await.unwrap();
                keys += count;
            }
            assert_eq!(keys, 158, "{id}");
            outcome.error
        };
        acl(1, "-restore-asking").await;
        let error = fails("no-permission", cluster.to(1, 0, 0, 0)).await;
        assert!(error.contains("NOPERM"), "{error}");
        cluster.assert_settled([0, 0], (0, 0)).await;
        acl(1, "+restore-asking").await;

        let direct = &mut cluster.direct(1).await;
        acl(1, "resetpass").await;
        let error = fails("another-password", cluster.to(1, 0, 0, 0)).await;
        assert!(error.contains("WRONGPASS"), "{error}");
        let () = cmd(&["ACL", "SETUSER", "default", &format!(">{}", crate::host::password())])
            .query_async(direct)
            .await
            .unwrap();

        let mut unknown = cluster.to(1, 0, 0, 0);
        if let Step::MoveSlots(task) = &mut unknown {
            task.target_node_id = "0".repeat(40);
        }
        let error = fails("unknown-target", unknown).await;
        assert!(error.contains(&cluster.ids[1]), "{error}");
        let mut nowhere = cluster.to(1, 0, 0, 0);
        if let Step::MoveSlots(task) = &mut nowhere {
            task.target = Some(shardplane_proto::v1::ValkeyAddress {
                ip: "10.77.0.99".into(),
                port: 6379,
                bus_port: 16379,
            });
        }
        let error = fails("nobody-there", nowhere).await;
        assert!(error.contains("10.77.0.99:6379"), "{error}");
        set_slot(&cluster, 0, 0, &["MIGRATING", &cluster.ids[2]]).await;
        let error = fails("busy", cluster.to(1, 0, 0, 0)).await;
        assert!(error.contains(&format!("on its way to node {}", cluster.ids[2])), "{error}");
        set_slot(&cluster, 0, 0, &["STABLE"]).await;
        let error = fails("not-its-own", cluster.to(1, 16000, 16000, 0)).await;
        assert!(error.contains("neither"), "{error}");

        // The target has no room: what went before it was full stays there, the rest here, and the task says so.
        let full = async |bytes: &str| {
            let set = cmd(&["CONFIG", "SET", "maxmemory", bytes]);
            let () = set.query_async(&mut cluster.direct(1).await).await.unwrap();
        };
        full("1").await;
        let error = fails("no-room", cluster.to(1, 0, 0, 0)).await;
        assert!(error.contains("OOM") && error.contains(&cluster.ids[0]), "{error}");
        cluster.assert_settled([0, 0], (0, 0)).await;
        full("0").await;

        // A target that hangs costs the source neither its office nor its answers for long.
        let pid = cluster.guests[1].engine_pid().unwrap();
        let payload = ValkeyTask { step: Some(cluster.to(1, 0, 0, 50)) }.encode_to_vec();
        cluster.guests[0].send(to_guest::Body::Task(GuestTask { task_id: "hangs".into(), payload })).await;
        cluster.guests[0]
            .engine("a slot under way", |r| r.slot_move.as_ref().is_some_and(|now| now.keys_done > 20))
            .await;
        signal(pid, Signal::SIGSTOP);
        let outcome = until("the end of the task", || {
            let said = cluster.guests[0].said.lock().unwrap();
            said.outcomes.iter().find(|outcome| outcome.task_id == "hangs").cloned()
        })
        .await;
        signal(pid, Signal::SIGCONT);
        println!("hangs: {}", outcome.error);
        assert!(!outcome.ok && outcome.error.contains("10.77.0.12:6379"), "{}", outcome.error);
        cluster.guests[0]
            .engine("still the primary", |r| r.role == "master" && r.cluster_state == "ok")
            .await;
        cluster.bring("after-the-hang", ([0, 0], [1, 1]), (0, 0)).await;
        assert_seeded(&cluster, (0, 0), 150).await;
        cluster.assert_settled([1, 1], (0, 0)).await;
    });
}

#[test]
fn a_replica_stands_down_and_takes_over() {
    isolated("slots::a_replica_stands_down_and_takes_over", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        let report = cluster.guests[0].state(shardplane_proto::v1::EngineState::Running).await;
        assert_eq!(report.live_copies, 1);
        let refused = cluster.guests[0].perform("primary", Step::StandDown(StandDown { on: true })).await;
        assert!(refused.error.contains("is a primary"), "{}", refused.error);
        for (turn, on) in [true, true, false, true].into_iter().enumerate() {
            let step = Step::StandDown(StandDown { on });
            cluster.guests[3].perform_ok(&format!("stand-down-{turn}"), step).await;
            cluster.guests[3].engine("what it was told", |r| r.stands_down == on).await;
            let name = "cluster-replica-no-failover";
            assert_eq!(config_of(&cluster.guests[3], name).await[name], if on { "yes" } else { "no" });
        }
        // Its primary dies for good: it stands in no election, and still takes over when told.
        let number = cluster.guests[0].number;
        let directory = cluster.guests[0].dir.clone();
        cluster.guests[0].die();
        cluster.guests[3].engine("the loss", |r| r.role == "slave" && r.cluster_state == "fail").await;
        let seen = cluster.guests[3].said.lock().unwrap().reports.len();
        until("eight more reports", || cluster.guests[3].said.lock().unwrap().reports.get(seen + 7).cloned())
            .await;
        cluster.guests[3].engine("no election", |r| r.role == "slave").await;
        for id in ["take-over", "take-over-again"] {
            cluster.guests[3].perform_ok(id, Step::Takeover(Takeover {})).await;
        }
        let heir = cluster.guests[3].engine("its office", |r| r.role == "master" && r.slots.len() == 1).await;
        cluster.guests[1].engine("a whole cluster", |r| r.cluster_state == "ok").await;
        let epochs: Vec<u64> = heir.peers.iter().map(|peer| peer.config_epoch).collect();
        assert!(epochs.iter().all(|epoch| *epoch < heir.config_epoch), "{epochs:?} {}", heir.config_epoch);
        // The old primary comes back as a replica, and takes office again in an ordinary switchover.
        let guest = Guest::boot_up(&image, &directory, number).await;
        guest.configure(2, |config| config.other_primary_epoch = heir.config_epoch).await;
        guest.engine("a replica", |r| r.role == "slave" && r.link_up && !r.stands_down).await;
        guest.perform_ok("failover", Step::Failover(Failover {})).await;
        cluster.guests[0] = guest;
        cluster.guests[3].engine("a replica", |r| r.role == "slave" && r.link_up && r.stands_down).await;
    });
}

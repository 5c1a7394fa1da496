//! What a move cannot do, and offices: large keys, refusals in the engine's words, standing down and taking over.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use prost::Message as _;
use shardplane_proto::v1::{
    EngineState, GuestTask, ValkeyAddress, ValkeyConfig, ValkeyReport, ValkeyTask, to_guest,
    valkey_task::{Failover, StandDown, Step, Takeover},
};

use crate::{
    client::tag,
    cluster::Cluster,
    directive,
    host::{self, Guest, config_of, other_primary, until},
    isolated,
    load::{assert_seeded, cmd, keys_in, seed, set_slot},
    signal,
};

#[test]
fn one_large_hash() {
    isolated("limits::one_large_hash", async |image| {
        let dir = tempfile::tempdir().unwrap();
        // The engines have the patience of the end from the start, the supervisor believes in less.
        let patient = |config: &mut ValkeyConfig| {
            config.node_timeout_ms = 1500;
            config.directives.push(directive("cluster-node-timeout", "15000"));
        };
        let cluster = Cluster::form(&image, dir.path(), 3, patient).await;
        let key = format!("large:{{{}}}", tag(0));
        let mut owner = cluster.direct(0).await;
        owner.set_response_timeout(Duration::from_secs(20));
        let script = "for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do server.call('HSET', KEYS[1], 'field:' .. n, 'value:' .. n) end";
        const FIELDS: u64 = 1_500_000;
        for start in (1..=FIELDS).step_by(5_000) {
            let mut fill = redis::cmd("EVAL");
            fill.arg(script).arg(1).arg(&key).arg(start).arg(start + 4_999);
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
                    config.directives.push(directive("cluster-node-timeout", "15000"));
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
            let report = ValkeyReport::decode(report.engine_report.as_slice()).unwrap();
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
    isolated("limits::what_stops_a_move_is_told_in_the_engines_words", async |image| {
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
        assert!(error.contains("NOPERM") && error.contains("slot 0 is closed again"), "{error}");
        cluster.assert_settled([0, 0], (0, 0)).await;
        acl(1, "+restore-asking").await;

        let direct = &mut cluster.direct(1).await;
        acl(1, "resetpass").await;
        let error = fails("another-password", cluster.to(1, 0, 0, 0)).await;
        assert!(error.contains("WRONGPASS"), "{error}");
        let () = cmd(&["ACL", "SETUSER", "default", &format!(">{}", host::password())])
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
            task.target = Some(ValkeyAddress { ip: "10.77.0.99".into(), port: 6379, bus_port: 16379 });
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
        assert!(outcome.error.contains("slot 0 is open: "), "{}", outcome.error);
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
    isolated("limits::a_replica_stands_down_and_takes_over", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        let report = cluster.guests[0].state(EngineState::Running).await;
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
        // Its engine starts anew, which had been told and has no file of its own.
        signal(cluster.guests[3].engine_pid().unwrap(), Signal::SIGKILL);
        until("a second start", || {
            let said = cluster.guests[3].said.lock().unwrap();
            said.reports.last().filter(|r| r.engine_starts == 2 && r.state() == EngineState::Running).cloned()
        })
        .await;
        cluster.guests[3].engine("what it was told before", |r| r.stands_down && r.link_up).await;
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
        let office = other_primary(&cluster.guests[3], &heir);
        guest.configure(2, |config| config.other_primary = Some(office)).await;
        guest.engine("a replica", |r| r.role == "slave" && r.link_up && !r.stands_down).await;
        guest.perform_ok("failover", Step::Failover(Failover {})).await;
        cluster.guests[0] = guest;
        cluster.guests[3].engine("a replica", |r| r.role == "slave" && r.link_up && r.stands_down).await;
    });
}

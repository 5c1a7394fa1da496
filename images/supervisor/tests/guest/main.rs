//! The supervisor in real namespaces with the real engine of the built image, against a host that is this test.
//!
//! Needs root, unshare, ip and an image made by `images/build valkey`; without them each test prints why it is skipped.

#![allow(clippy::unwrap_used)]

use std::{path::PathBuf, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_proto::v1::{
    EngineState, GuestStop, ValkeyAddress, ValkeyConfig, ValkeyDirective, to_guest,
    valkey_task::{AssignSlots, Failover, Forget, Meet, Replicate, Step},
};

mod bench;
mod client;
mod cluster;
mod host;
mod limits;
mod load;
mod parameters;
mod slots;
mod suspended;
mod virtual_machine;
use host::{Guest, PASSWORD, client, config_of, ip, other_primary, until};

const INSIDE: &str = "SHARDPLANE_GUEST_TEST";

fn image() -> Option<PathBuf> {
    let out = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../out"));
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "erofs");
    std::fs::read_dir(out).ok()?.filter_map(|entry| Some(entry.ok()?.path())).find(is_image)
}

/// Runs a test in namespaces of its own: whatever it makes is gone when it ends.
fn isolated(name: &str, test: impl AsyncFnOnce(PathBuf)) {
    let Some(image) = image() else { return println!("skipped: there is no image; run images/build valkey") };
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: namespaces with devices need root");
    }
    if std::env::var_os(INSIDE).is_none() {
        let status = Command::new("unshare")
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--include-ignored"])
            .env(INSIDE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{name} failed, see above");
        return;
    }
    ip("link set lo up");
    ip("link add br0 type bridge");
    ip("addr add 10.77.0.1/24 dev br0");
    ip("link set br0 up");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(image));
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

fn directive(name: &str, value: &str) -> ValkeyDirective {
    ValkeyDirective { name: name.into(), value: value.into() }
}

#[test]
fn a_cluster_forms_fails_over_and_forgets() {
    isolated("a_cluster_forms_fails_over_and_forgets", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let mut guests = Vec::new();
        for number in 11..=14 {
            guests.push(Guest::boot(&image, &dir.path().join(number.to_string()), number).await);
        }
        for guest in &guests {
            until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
            println!("hello of guest {} {:?} after its launch", guest.number, guest.booted.elapsed());
            guest.state(EngineState::Waiting).await;
            guest.configure(1, |_| ()).await;
        }
        let mut ids = Vec::new();
        for guest in &guests {
            let report = guest.engine("an answer", |_| true).await;
            assert_eq!((report.role.as_str(), report.cluster_state.as_str()), ("master", "fail"));
            assert_eq!(report.unapplied_directives, [""; 0]);
            assert_eq!(guest.state(EngineState::Running).await.config_generation, 1);
            ids.push(report.node_id);
        }
        let [a, b, c, d] = guests.as_slice() else { panic!() };

        // Three primaries, one replica of the first.
        for (n, guest) in [a, b, c].into_iter().enumerate() {
            let start = n as u32 * 5461;
            let slots = AssignSlots {
                start,
                end: if n == 2 { 16383 } else { start + 5460 },
                config_epoch: n as u64 + 1,
            };
            guest.perform_ok("assign", Step::AssignSlots(slots)).await;
            guest.perform_ok("assign-under-another-id", Step::AssignSlots(slots)).await;
        }
        let other = AssignSlots { start: 0, end: 10, config_epoch: 9 };
        let refused = b.perform("assign-other", Step::AssignSlots(other)).await;
        assert!(!refused.ok && refused.error.contains("owns slots 5461-10921"), "{}", refused.error);
        let peers =
            guests.iter().map(|g| ValkeyAddress { ip: g.address(), port: 6379, bus_port: 16379 }).collect();
        let meet = Step::Meet(Meet { peers });
        a.perform_ok("meet", meet.clone()).await;
        for guest in &guests {
            guest
                .engine("a whole cluster", |r| {
                    r.cluster_state == "ok" && r.known_nodes == 4 && r.peers.iter().all(|p| p.connected)
                })
                .await;
        }
        a.perform_ok("meet-again", meet).await;
        let replicate = Step::Replicate(Replicate { primary_node_id: ids[0].clone() });
        d.perform_ok("replicate", replicate.clone()).await;
        d.perform_ok("replicate-again", replicate).await;
        d.engine("a replica with its link up", |r| {
            r.role == "slave" && r.link_up && r.primary_node_id == ids[0]
        })
        .await;
        a.engine("a good replica", |r| r.good_replicas == 1 && r.known_nodes == 4).await;

        // Slot 0 is A's: "{3560}" hashes there.
        let _: () =
            redis::cmd("SET").arg("{3560}").arg("kept").query_async(&mut client(a).await).await.unwrap();
        let refused = b
            .perform("replicate-owner", Step::Replicate(Replicate { primary_node_id: ids[0].clone() }))
            .await;
        assert!(refused.error.contains("would lose them"), "{}", refused.error);

        // A switchover, and what a repeated task id answers.
        d.perform_ok("failover", Step::Failover(Failover {})).await;
        d.engine("the primary's role", |r| r.role == "master" && r.slots.len() == 1 && r.keys == 1).await;
        a.engine("the replica's role", |r| r.role == "slave" && r.link_up).await;
        let again = d.perform("failover", Step::Failover(Failover {})).await;
        assert!(again.ok);

        // A primary whose engine dies is held back, and its replica wins.
        let pid = until("the engine's pid", || d.engine_pid()).await;
        let seen = d.said.lock().unwrap().reports.len();
        signal(pid, Signal::SIGKILL);
        let died = std::time::Instant::now();
        let failed = until("the report of the engine's end", || {
            d.said.lock().unwrap().reports[seen..].iter().find(|r| r.state() == EngineState::Failed).cloned()
        })
        .await;
        println!("engine's end reported {:?} after it", died.elapsed());
        assert!(failed.message.contains("signal SIGKILL"), "{}", failed.message);
        assert!(failed.engine_report.is_empty());
        d.state(EngineState::Holding).await;
        a.engine("the primary's role", |r| r.role == "master").await;
        println!("replica took over {:?} after the engine's end", died.elapsed());
        let back = d.state(EngineState::Running).await;
        assert!(died.elapsed().as_secs() >= 9, "held for two node timeouts and 5 s");
        assert_eq!(back.engine_starts, 2);
        d.engine("the replica's role", |r| r.role == "slave" && r.link_up && r.keys == 1).await;

        // A replica with keys can be given another primary, and comes back to the first.
        for (id, primary, keys) in [("away", &ids[1], 0), ("back", &ids[0], 1)] {
            d.perform_ok(id, Step::Replicate(Replicate { primary_node_id: primary.clone() })).await;
            d.engine("the other primary's data", |r| {
                r.role == "slave" && r.link_up && r.primary_node_id == *primary && r.keys == keys
            })
            .await;
        }
        let kept: String = redis::cmd("GET").arg("{3560}").query_async(&mut client(a).await).await.unwrap();
        assert_eq!(kept, "kept");

        // A stop in order, then the others forget it.
        let d = guests.pop().unwrap();
        d.stop().await;
        for guest in &guests {
            let forget = Step::Forget(Forget { node_id: ids[3].clone() });
            guest.perform_ok("forget", forget.clone()).await;
            guest.perform_ok("forget-again", forget).await;
            guest.engine("three nodes", |r| r.known_nodes == 3).await;
        }
    });
}

#[test]
fn link_config_and_restart() {
    isolated("link_config_and_restart", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let mut guest = Guest::boot(&image, dir.path(), 11).await;
        until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
        // What the engine cannot read is left out and told.
        guest.configure(5, |config| config.directives.push(directive("no-such-directive", "1"))).await;
        let report = guest.engine("an answer", |r| r.unapplied_directives == ["no-such-directive"]).await;
        let refused: Vec<_> =
            report.refused_directives.iter().map(|r| (r.name.as_str(), r.error.as_str())).collect();
        assert_eq!(refused, [("no-such-directive", "Bad directive or wrong number of arguments")]);
        guest.configure(6, |config| config.directives.push(directive("maxmemory", "32mb"))).await;
        guest.engine("an answer", |r| r.role == "master" && r.unapplied_directives.is_empty()).await;
        guest
            .perform_ok("assign", Step::AssignSlots(AssignSlots { start: 0, end: 16383, config_epoch: 1 }))
            .await;
        let starts = guest.state(EngineState::Running).await.engine_starts;

        // The secret is in the engine's file and nowhere else.
        let pid = until("the engine's pid", || guest.engine_pid()).await;
        for file in ["cmdline", "environ"] {
            assert!(
                !String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{file}")).unwrap())
                    .contains(PASSWORD)
            );
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in [
            "Uid:\t999\t999\t999\t999",
            "Gid:\t999\t999\t999\t999",
            "NoNewPrivs:\t1",
            "CapEff:\t0000000000000000",
            "Groups:\t \n",
        ] {
            assert!(status.contains(line), "{line} is not in {status}");
        }

        // Older is refused; newer is brought into force without a restart, except for what only a restart can do.
        guest.configure(5, |config| config.directives.push(directive("maxmemory", "16mb"))).await;
        guest
            .configure(7, |config| {
                config.directives.extend([
                    directive("maxmemory", "48mb"),
                    directive("databases", "3"),
                    directive("Port", "1"),
                ]);
            })
            .await;
        guest.engine("what stays unapplied", |r| r.unapplied_directives == ["Port", "databases"]).await;
        let report = guest.state(EngineState::Running).await;
        assert_eq!((report.config_generation, report.engine_starts), (7, starts));
        assert_eq!(config_of(&guest, "maxmemory").await["maxmemory"], "50331648");

        // So is another password: what answers from here on was asked with it.
        guest.configure(8, |config| config.password = "another".into()).await;
        until("the other password", || {
            let said = guest.said.lock().unwrap();
            said.reports.last().filter(|r| r.config_generation == 8 && !r.engine_report.is_empty()).cloned()
        })
        .await;

        // A new connection gets hello, the report and the outcomes; the engine has not noticed.
        let outcomes = guest.said.lock().unwrap().outcomes.len();
        guest.restart_host().await;
        until("hello again", || guest.said.lock().unwrap().hellos.get(1).cloned()).await;
        until("the outcome again", || guest.said.lock().unwrap().outcomes.get(outcomes).cloned()).await;
        assert_eq!(guest.state(EngineState::Running).await.engine_starts, starts);

        // A guest that boots again over the data of a primary is held; without replicas it is not.
        guest.stop().await;
        let guest = Guest::boot(&image, dir.path(), 11).await;
        until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
        guest.configure(9, |_| ()).await;
        guest.state(EngineState::Holding).await;
        guest.configure(10, |config| config.has_replicas = false).await;
        guest.engine("its slots", |r| r.slots.len() == 1 && r.cluster_state == "ok").await;

        // SIGTERM to PID 1 is an orderly stop as well.
        let mut guest = guest;
        let pid1 =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.launcher.id())).unwrap();
        signal(pid1.trim().parse().unwrap(), Signal::SIGTERM);
        let status = until("the end of the guest", || guest.launcher.try_wait().unwrap()).await;
        assert!(status.success());
        let log = std::fs::read_to_string(dir.path().join("data/log/valkey.log")).unwrap();
        assert!(log.contains("ready to exit") && !log.contains(PASSWORD));
    });
}

/// Without a file a primary comes back empty, and would wipe its replicas.
#[test]
fn a_primary_that_lost_its_memory_waits_for_another() {
    isolated("a_primary_that_lost_its_memory_waits_for_another", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let in_memory = |config: &mut ValkeyConfig| {
            config.directives.push(directive("appendonly", "no"));
            config.persistent = false;
            config.node_timeout_ms = 100;
        };
        let mut guests = Vec::new();
        for number in [11, 12] {
            let guest = Guest::boot(&image, &dir.path().join(number.to_string()), number).await;
            until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
            guest.configure(1, in_memory).await;
            guests.push(guest);
        }
        let [a, b] = guests.as_slice() else { panic!() };
        let first = a.engine("an answer", |r| r.role == "master").await.node_id;
        b.engine("an answer", |r| r.role == "master").await;
        a.perform_ok("assign", Step::AssignSlots(AssignSlots { start: 0, end: 16383, config_epoch: 1 }))
            .await;
        let peer = ValkeyAddress { ip: b.address(), port: 6379, bus_port: 16379 };
        a.perform_ok("meet", Step::Meet(Meet { peers: vec![peer] })).await;
        b.engine("its peer", |r| r.known_nodes == 2 && r.peers.iter().all(|p| p.connected)).await;
        b.perform_ok("replicate", Step::Replicate(Replicate { primary_node_id: first.clone() })).await;
        b.engine("a replica", |r| r.role == "slave" && r.link_up).await;
        a.engine("a whole cluster", |r| r.cluster_state == "ok" && r.good_replicas == 1).await;
        let _: () = redis::cmd("SET").arg("key").arg("kept").query_async(&mut client(a).await).await.unwrap();
        b.engine("the key", |r| r.keys == 1).await;

        let pid = until("the engine's pid", || a.engine_pid()).await;
        signal(pid, Signal::SIGKILL);
        let held = a.state(EngineState::Holding).await;
        assert!(held.message.contains("in memory only"), "{}", held.message);
        // Longer than the timed hold of 5.2 s; a report comes every second.
        let seen = a.said.lock().unwrap().reports.len();
        until("eight more reports", || a.said.lock().unwrap().reports.get(seen + 7).cloned()).await;
        let held = a.state(EngineState::Holding).await;
        assert_eq!(held.engine_starts, 1);
        b.engine("the key still", |r| r.role == "slave" && r.keys == 1).await;

        let takeover = redis::cmd("CLUSTER").arg("FAILOVER").arg("TAKEOVER").to_owned();
        let _: () = takeover.query_async(&mut client(b).await).await.unwrap();
        let heir = b.engine("the primary's role", |r| r.role == "master" && r.slots.len() == 1).await;
        let office = other_primary(b, &heir);
        let yields = |config: &mut ValkeyConfig| {
            in_memory(config);
            config.other_primary = Some(office);
        };
        a.configure(2, yields).await;
        a.engine("the copy of the key", |r| r.role == "slave" && r.link_up && r.keys == 1).await;
        b.engine("the key still", |r| r.role == "master" && r.keys == 1).await;
    });
}

#[test]
fn an_engine_that_hangs_is_reported_and_neither_restarted_nor_waited_for() {
    isolated("an_engine_that_hangs_is_reported_and_neither_restarted_nor_waited_for", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let guest = Guest::boot(&image, dir.path(), 11).await;
        until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
        guest.configure(1, |_| ()).await;
        guest.engine("an answer", |r| r.role == "master").await;
        let pid = until("the engine's pid", || guest.engine_pid()).await;
        signal(pid, Signal::SIGSTOP);
        let stopped = std::time::Instant::now();
        let hung = guest.state(EngineState::Failed).await;
        assert!(stopped.elapsed().as_secs() >= 8, "not for a short silence");
        assert!(hung.message.contains("does not answer for 10 s"), "{}", hung.message);
        assert!(hung.engine_report.is_empty());
        signal(pid, Signal::SIGCONT);
        guest.engine("an answer again", |r| r.role == "master").await;
        assert_eq!(guest.state(EngineState::Running).await.engine_starts, 1);

        // A stop that takes its time can be seen, and ends with the kill.
        signal(pid, Signal::SIGSTOP);
        guest.send(to_guest::Body::Stop(GuestStop { deadline_ms: 2000 })).await;
        until("the stop", || {
            let said = guest.said.lock().unwrap();
            said.reports.last().filter(|r| r.message.contains("asked to end")).map(|_| ())
        })
        .await;
        guest.stop().await;
    });
}

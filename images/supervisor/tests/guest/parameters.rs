//! Directives of the real engine: every default and class of the platform's list, live changes, ordered restarts, refusals, and a
//! directive that is no longer wanted.

use std::collections::BTreeMap;

use shardplane_model::engine::valkey::{
    directives::{Class, DIRECTIVES},
    parameters::defaults,
};
use shardplane_proto::v1::{
    EngineState, ValkeyAddress, ValkeyConfig, ValkeyReport,
    valkey_task::{AssignSlots, Failover, Meet, Replicate, Step},
};

use super::{directive, isolated};
use crate::host::{Guest, client, config_of, until};

/// Everything as the coordinator sends it, with these values instead.
fn all_with<'a>(values: &'a [(&'a str, &'a str)]) -> impl FnOnce(&mut ValkeyConfig) + 'a {
    move |config| {
        let mut all: BTreeMap<String, String> = defaults("8.1.1").collect();
        all.extend(config.directives.drain(..).map(|d| (d.name, d.value)));
        all.extend(values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        config.directives = all.iter().map(|(name, value)| directive(name, value)).collect();
        config.has_replicas = false;
        config.persistent = all["appendonly"] == "yes";
    }
}

async fn boot(image: &std::path::Path, dir: &std::path::Path, number: u8) -> Guest {
    let guest = Guest::boot(image, dir, number).await;
    until("hello", || guest.said.lock().unwrap().hellos.first().cloned()).await;
    guest
}

/// Waits for a report of this config generation that is so.
async fn under(
    guest: &Guest,
    generation: u64,
    what: &str,
    is_so: impl Fn(&ValkeyReport) -> bool,
) -> ValkeyReport {
    use prost::Message as _;
    until(what, || {
        let said = guest.said.lock().unwrap();
        let report = said.reports.last().filter(|r| r.config_generation == generation)?;
        let engine = ValkeyReport::decode(report.engine_report.as_slice()).unwrap();
        Some(engine).filter(|r| !r.node_id.is_empty()).filter(&is_so)
    })
    .await
}

fn in_force(report: &ValkeyReport) -> bool {
    report.unapplied_directives.is_empty() && report.refused_directives.is_empty()
}

#[test]
fn the_list_of_directives_is_the_engines() {
    isolated("parameters::the_list_of_directives_is_the_engines", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let guest = boot(&image, dir.path(), 11).await;
        guest.configure(1, all_with(&[])).await;
        let report = guest.engine("an answer", |_| true).await;
        assert!(in_force(&report), "{:?} {:?}", report.unapplied_directives, report.refused_directives);
        let mut engine = client(&guest).await;
        for known in DIRECTIVES {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg(known.name).arg(known.default);
            let answer: Result<(), redis::RedisError> = set.query_async(&mut engine).await;
            match known.class {
                Class::Live => assert!(answer.is_ok(), "{} is not live: {answer:?}", known.name),
                Class::Restart => {
                    let text = answer.unwrap_err().to_string();
                    assert!(text.contains("can't set immutable config"), "{}: {text}", known.name);
                }
            }
        }
    });
}

#[test]
fn changes_go_live_restart_are_refused_and_go_back() {
    isolated("parameters::changes_go_live_restart_are_refused_and_go_back", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let guest = boot(&image, dir.path(), 11).await;
        guest.configure(1, all_with(&[])).await;
        guest.engine("an answer", |_| true).await;
        guest
            .perform_ok("assign", Step::AssignSlots(AssignSlots { start: 0, end: 16383, config_epoch: 1 }))
            .await;
        guest.engine("its slots", |r| r.cluster_state == "ok").await;
        let mut engine = client(&guest).await;
        let _: () = redis::cmd("SET").arg("key").arg("kept").query_async(&mut engine).await.unwrap();

        // Live, with what needs a restart left over until one is ordered.
        let both = [("hz", "20"), ("maxmemory-policy", "allkeys-lru"), ("io-threads", "2")];
        guest.configure(2, all_with(&both)).await;
        let report = under(&guest, 2, "the live part", |_| true).await;
        assert_eq!(report.unapplied_directives, ["io-threads"]);
        assert!(report.refused_directives.is_empty(), "a restart cures it");
        assert_eq!(config_of(&guest, "hz").await["hz"], "20");
        assert_eq!(guest.state(EngineState::Running).await.engine_starts, 1);

        // The restart, at once and with the data: a primary without replicas is not held.
        guest.configure_to_restart(3, 3, all_with(&both)).await;
        under(&guest, 3, "everything", in_force).await;
        let restarted = until("the restart", || {
            guest.said.lock().unwrap().reports.last().filter(|r| r.restart_generation == 3).cloned()
        })
        .await;
        assert_eq!(restarted.engine_starts, 2);
        guest.engine("its slots again", |r| r.cluster_state == "ok" && r.keys == 1).await;
        assert_eq!(config_of(&guest, "io-threads").await["io-threads"], "2");
        let held = guest.said.lock().unwrap().reports.iter().any(|r| r.state() == EngineState::Holding);
        assert!(!held, "a restart that was ordered needs no successor");

        // The engine refuses one: it says so in its words, all else goes on, and an ordered restart waits.
        let refused = [("activedefrag", "yes"), ("hz", "30"), ("io-threads", "3")];
        guest.configure_to_restart(4, 4, all_with(&refused)).await;
        let report = under(&guest, 4, "the refusal", |r| !r.refused_directives.is_empty()).await;
        let [refusal] = report.refused_directives.as_slice() else { panic!("{report:?}") };
        assert_eq!(refusal.name, "activedefrag");
        assert!(refusal.error.starts_with("Active defragmentation cannot be enabled"), "{}", refusal.error);
        assert_eq!(config_of(&guest, "hz").await["hz"], "30");

        // Should the guest be born anew under it, the engine starts without it all the same.
        guest.stop().await;
        let guest = boot(&image, dir.path(), 11).await;
        guest.configure_to_restart(4, 4, all_with(&refused)).await;
        let report = under(&guest, 4, "the refusal again", |r| !r.refused_directives.is_empty()).await;
        assert_eq!((report.unapplied_directives, report.keys), (vec!["activedefrag".to_owned()], 1));

        // Put back: what is no longer wanted has its default again.
        guest.configure_to_restart(5, 5, all_with(&[])).await;
        under(&guest, 5, "the defaults", in_force).await;
        for (name, value) in [("hz", "10"), ("maxmemory-policy", "noeviction"), ("io-threads", "1")] {
            assert_eq!(config_of(&guest, name).await[name], value);
        }
        guest.engine("the key", |r| r.keys == 1).await;
    });
}

/// An append-only file is made and unmade on the way to a restart, and the only copy is there after each.
#[test]
fn a_restart_keeps_the_data_whichever_file_they_are_in() {
    isolated("parameters::a_restart_keeps_the_data_whichever_file_they_are_in", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let guest = boot(&image, dir.path(), 11).await;
        guest.configure(1, all_with(&[("appendonly", "no"), ("save", "")])).await;
        guest.engine("an answer", |_| true).await;
        guest
            .perform_ok("assign", Step::AssignSlots(AssignSlots { start: 0, end: 16383, config_epoch: 1 }))
            .await;
        guest.engine("its slots", |r| r.cluster_state == "ok").await;
        let mut engine = client(&guest).await;
        let mset = (0..2000).flat_map(|n| [format!("{{a}}{n}"), "v".repeat(100)]).collect::<Vec<_>>();
        let _: () = redis::cmd("MSET").arg(mset).query_async(&mut engine).await.unwrap();
        for (generation, appendonly) in [(2, "no"), (3, "yes"), (4, "no")] {
            let threads = generation.to_string();
            let values = [("appendonly", appendonly), ("save", ""), ("io-threads", threads.as_str())];
            guest.configure_to_restart(generation, generation, all_with(&values)).await;
            let report = under(&guest, generation, "everything in force", in_force).await;
            assert_eq!(report.keys, 2000, "appendonly {appendonly}");
        }
    });
}

#[test]
fn one_that_leads_others_restarts_when_another_leads() {
    isolated("parameters::one_that_leads_others_restarts_when_another_leads", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let with_replicas = |values: &'static [(&'static str, &'static str)]| {
            move |config: &mut ValkeyConfig| {
                all_with(values)(config);
                config.has_replicas = true;
            }
        };
        let mut guests = Vec::new();
        for number in [11, 12] {
            let guest = boot(&image, &dir.path().join(number.to_string()), number).await;
            guest.configure(1, with_replicas(&[])).await;
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
        b.perform_ok("replicate", Step::Replicate(Replicate { primary_node_id: first })).await;
        b.engine("a replica", |r| r.role == "slave" && r.link_up).await;
        a.engine("a whole cluster", |r| r.cluster_state == "ok" && r.good_replicas == 1).await;

        let new: &'static [(&str, &str)] = &[("tcp-backlog", "128")];
        a.configure_to_restart(2, 2, with_replicas(new)).await;
        let waits = until("the wait", || {
            let said = a.said.lock().unwrap();
            said.reports
                .last()
                .filter(|r| r.message.contains("restarts when a replica has taken over"))
                .cloned()
        })
        .await;
        assert_eq!((waits.engine_starts, waits.restart_generation), (1, 0));
        b.perform_ok("failover", Step::Failover(Failover {})).await;
        under(a, 2, "the restart as a replica", |r| in_force(r) && r.role == "slave" && r.link_up).await;
        let held = a.said.lock().unwrap().reports.iter().any(|r| r.state() == EngineState::Holding);
        assert!(!held, "a replica has nothing newer to wait for");
    });
}

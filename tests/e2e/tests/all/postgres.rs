//! PostgreSQL clusters: made, written to, losing what they can lose, and whole again, with every acknowledged row.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use shardplane_e2e::{PgCluster, Rows, measured, on_stage, process};
use shardplane_harness::{WorldOptions, wait_until};

/// To be made: five machines, initdb, a copy.
const MADE: Duration = Duration::from_secs(120);
/// For a failover by Patroni and everybody to hear of it.
const FAILOVER: Duration = Duration::from_secs(60);
/// To be whole again with a new copy and a new voter, after a host was declared lost.
const REPAIR: Duration = Duration::from_secs(150);

fn world(name: &str, hosts: u32) -> WorldOptions {
    WorldOptions { hosts, ..WorldOptions::named(name) }
}

/// A process, a guest, a host: whoever leads next has every acknowledged row.
#[test]
fn a_postgres_cluster_outlives_its_leaders_process_guest_and_host() {
    on_stage(world("pg-loss", 5), |world| {
        let (cluster, took) = PgCluster::create(world, 1, MADE)?;
        measured("postgres 1+1 and a quorum: create to stable", took);
        ensure!(cluster.status()?["nodes"].as_array().map(Vec::len) == Some(2), "{}", cluster.status()?);
        ensure!(cluster.with_role("voter")?.len() == 3, "{:?}", cluster.instances()?);
        let rows = Rows::start(&cluster, "rows", &[])?;
        rows.progresses(50, FAILOVER)?;

        let (leader, _) = cluster.pair()?;
        process::murder(process::named(&leader.id, "postgres")?)?;
        rows.progresses(50, FAILOVER)?;
        measured("postgres: whole again after its postmaster was killed", cluster.wait_whole(FAILOVER)?);

        let (leader, replica) = cluster.pair()?;
        process::murder(process::init_of(&leader.id)?)?;
        rows.progresses(50, FAILOVER)?;
        cluster.wait_whole(FAILOVER)?;

        let (leader, _) = cluster.pair()?;
        world.kill_host(leader.host)?;
        rows.progresses(50, FAILOVER)?;
        measured("postgres: whole again after a leader's host was lost", cluster.wait_whole(REPAIR)?);
        ensure!(
            !cluster.instances()?.iter().any(|i| i.host == leader.host),
            "something is left on the lost host"
        );
        ensure!(cluster.with_role("voter")?.len() == 3, "{:?}", cluster.instances()?);
        let (count, gap) = rows.verify(&cluster, "rows")?;
        measured(format!("postgres: longest time without a write, of {count} rows, none lost"), gap);
        drop(replica);
        cluster.delete()
    });
}

/// PG-5: switchover first, then the copy is made elsewhere, and the host is empty.
#[test]
fn pg_5_a_drained_host_hands_over_first_and_no_row_is_lost() {
    on_stage(world("pg-drain", 5), |world| {
        let (cluster, _) = PgCluster::create(world, 1, MADE)?;
        let rows = Rows::start(&cluster, "rows", &[])?;
        rows.progresses(50, FAILOVER)?;
        let (leader, _) = cluster.pair()?;
        let hosts = cluster.api.items("hosts", "")?;
        let name = format!("host-{}", leader.host);
        let host =
            hosts.iter().find(|host| host["name"] == name.as_str()).and_then(|host| host["id"].as_str());
        let id = host.unwrap_or_default();
        let reply = cluster.api.post(&format!("/api/v1/hosts/{id}:drain"), &json!({"reason": "test"}))?;
        ensure!(reply.status == 200, "{reply:?}");
        let empty = || match cluster.instances() {
            Ok(all) if all.iter().all(|i| i.host != leader.host) => Ok(()),
            Ok(all) => Err(format!("{all:?}")),
            Err(error) => Err(format!("{error:#}")),
        };
        measured("postgres: a leader's host drained", wait_until("the host being empty", REPAIR, empty)?.1);
        cluster.wait_whole(REPAIR)?;
        rows.progresses(20, FAILOVER)?;
        let (count, gap) = rows.verify(&cluster, "rows")?;
        measured(
            format!("postgres: longest time without a write in a drain, of {count} rows, none lost"),
            gap,
        );
        cluster.delete()
    });
}

/// PG-10: the password reaches whoever leads; the old one is refused after, and the role is never half-changed.
#[test]
fn pg_10_a_password_is_rotated_while_the_leader_fails_over() {
    on_stage(world("pg-roles", 4), |world| {
        let (mut cluster, _) = PgCluster::create(world, 1, MADE)?;
        let (leader, _) = cluster.pair()?;
        cluster.role["spec"]["password"] = json!("the-new-one");
        process::freeze(process::named(&leader.id, "postgres")?, true)?;
        process::murder(process::init_of(&leader.id)?)?;
        let request = cluster.api.submit("postgresql-role", &cluster.role)?;
        measured(
            "postgres: a password rotated in a failover",
            cluster.api.settle("postgresql-role", &request, FAILOVER)?,
        );
        cluster.wait_whole(REPAIR)?;
        cluster.app(&[])?.batch_execute("SELECT 1")?;
        let endpoint = cluster.status()?["coordinatorEndpoint"].as_str().unwrap_or_default().to_owned();
        let refused = cluster.session(&endpoint, "app", "only-for-tests", &[]);
        ensure!(refused.is_err(), "the old password is still accepted");

        // Another role that owns something goes only when it is said who gets it.
        cluster.app(&[])?.batch_execute("CREATE TABLE owned (id int)")?;
        let id = cluster.role["metadata"]["id"].as_str().unwrap_or_default().to_owned();
        let request = cluster.api.submit_delete("postgresql-role", &id)?;
        let failed =
            cluster.api.settle("postgresql-role", &request, FAILOVER).err().map(|error| format!("{error:#}"));
        ensure!(failed.as_ref().is_some_and(|text| text.contains("reassignOwnedTo")), "{failed:?}");
        let heir = json!({
            "apiVersion": "v1", "kind": "PostgreSqlRole",
            "metadata": {"id": shardplane_e2e::id(), "name": "heir"},
            "spec": {"postgreSqlId": cluster.id, "login": false},
        });
        let request = cluster.api.submit("postgresql-role", &heir)?;
        cluster.api.settle("postgresql-role", &request, FAILOVER)?;
        cluster.role["spec"]["reassignOwnedTo"] = json!("heir");
        let request = cluster.api.submit("postgresql-role", &cluster.role)?;
        cluster.api.settle("postgresql-role", &request, FAILOVER)?;
        let request = cluster.api.submit_delete("postgresql-role", &id)?;
        cluster.api.settle("postgresql-role", &request, FAILOVER)?;
        ensure!(cluster.session(&endpoint, "app", "the-new-one", &[]).is_err(), "the role is still there");
        cluster.delete()
    });
}

/// Settings: live ones at once, others with a restart that nobody has to order, a refused one in the engine's words.
#[test]
fn postgres_settings_come_into_force_and_a_refused_one_is_said() {
    on_stage(world("pg-settings", 4), |world| {
        let (mut cluster, _) = PgCluster::create(world, 1, MADE)?;
        let set = shardplane_e2e::id();
        let with = |parameters: serde_json::Value| {
            json!({
                "apiVersion": "v1", "kind": "PostgreSqlParametersSet",
                "metadata": {"id": set, "name": "set"}, "spec": {"parameters": parameters},
            })
        };
        let ten = Duration::from_secs(10);
        cluster.api.apply(
            "postgresql-parameters-set",
            &with(json!({"work_mem": "8MB", "max_connections": "120"})),
            ten,
        )?;
        cluster.manifest["spec"]["postgreSqlParametersSetId"] = json!(set);
        measured("postgres: settings with a restart", cluster.put(REPAIR)?);
        cluster.wait_whole(REPAIR)?;
        for instance in cluster.instances()?.into_iter().filter(|i| i.role != "voter") {
            let mut session = cluster.session(&instance.endpoint, "app", "only-for-tests", &[])?;
            let shown: String = session.query_one("SHOW max_connections", &[])?.get(0);
            let memory: String = session.query_one("SHOW work_mem", &[])?.get(0);
            ensure!((shown.as_str(), memory.as_str()) == ("120", "8MB"), "{instance:?}: {shown} {memory}");
        }
        cluster.api.apply("postgresql-parameters-set", &with(json!({"work_mem": "a lot"})), ten)?;
        let said = || {
            let status = cluster.status().map_err(|error| format!("{error:#}"))?;
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let one = all.into_iter().find(|c| c["type"] == "ParametersInSync").unwrap_or_default();
            let text = one["message"].as_str().unwrap_or_default().to_owned();
            if one["status"] == "False" && text.contains("invalid value for parameter") {
                Ok(())
            } else {
                Err(text)
            }
        };
        wait_until("the refusal", FAILOVER, said)?;
        cluster.app(&[])?.batch_execute("SELECT 1")?;
        cluster.delete()?;
        cluster.api.submit_delete("postgresql-parameters-set", &set)?;
        Ok(())
    });
}

/// CIT-5: two of three voters hang for a minute while PostgreSQL is healthy. The leader goes on, as it reaches its whole group; the status says so;
/// when they are back there is no second leader, and no row is lost.
#[test]
fn cit_5_a_quorum_that_is_away_for_a_minute_makes_no_second_leader() {
    on_stage(world("pg-dcs", 4), |world| {
        let (cluster, _) = PgCluster::create(world, 1, MADE)?;
        let rows = Rows::start(&cluster, "rows", &[])?;
        rows.progresses(50, FAILOVER)?;
        let (leader, _) = cluster.pair()?;
        let voters: Vec<i32> = cluster
            .with_role("voter")?
            .iter()
            .take(2)
            .map(|voter| process::named(&voter.id, "etcd"))
            .collect::<Result<_>>()?;
        for voter in &voters {
            process::freeze(*voter, true)?;
        }
        let said = || {
            let status = cluster.status().map_err(|error| format!("{error:#}"))?;
            let all = status["conditions"].as_array().cloned().unwrap_or_default();
            let dcs = all.into_iter().find(|c| c["type"] == "DcsHealthy").unwrap_or_default();
            let text = dcs["message"].as_str().unwrap_or_default().to_owned();
            if dcs["status"] == "False" && text.contains("goes on because") { Ok(()) } else { Err(text) }
        };
        let result = wait_until("the status telling that the quorum is away", FAILOVER, said);
        // Longer than the leader key lives.
        let away = result.and_then(|_| rows.progresses(3_000, Duration::from_secs(120)));
        for voter in &voters {
            process::freeze(*voter, false)?;
        }
        away?;
        cluster.wait_whole(FAILOVER)?;
        let (now, _) = cluster.pair()?;
        ensure!(now.id == leader.id, "{leader:?} was replaced by {now:?}");
        let (count, gap) = rows.verify(&cluster, "rows")?;
        measured(
            format!("postgres: longest time without a write while the quorum was away, of {count} rows"),
            gap,
        );
        cluster.delete()
    });
}

/// UBI-8, PG-1: the leader's whole guest hangs, with sessions of clients. Another leads when the key has expired; what the old one takes when it
/// wakes up is acknowledged to nobody, and it comes back as a replica.
#[test]
fn ubi_8_pg_1_a_leader_that_hangs_and_wakes_up_acknowledges_nothing_more() {
    on_stage(world("pg-hang", 4), |world| {
        let (cluster, _) = PgCluster::create(world, 1, MADE)?;
        let rows = Rows::start(&cluster, "rows", &[])?;
        rows.progresses(50, FAILOVER)?;
        let (leader, replica) = cluster.pair()?;
        let mut session = cluster.session(&leader.endpoint, "app", "only-for-tests", &[])?;
        session.batch_execute("CREATE TABLE late (id int); SET statement_timeout = 0")?;
        let guest = process::all_of(&leader.id)?;
        for pid in &guest {
            process::freeze(*pid, true)?;
        }
        // Sent to one that hangs, and read by it when it wakes up.
        let late = std::thread::spawn(move || session.execute("INSERT INTO late VALUES (1)", &[]).is_ok());
        let leads = || match cluster.with_role("primary") {
            Ok(all) if all.iter().any(|i| i.id == replica.id) => Ok(()),
            Ok(all) => Err(format!("{all:?}")),
            Err(error) => Err(format!("{error:#}")),
        };
        let result = wait_until("the replica leading", FAILOVER, leads);
        // A new session finds the new leader; those with the one that hangs hang with it.
        let written =
            cluster.app(&[]).and_then(|mut new| Ok(new.batch_execute("CREATE TABLE meanwhile (id int)")?));
        // Those of them that the machine's end has taken meanwhile are gone.
        let woken = guest.iter().filter(|pid| process::freeze(**pid, false).is_ok()).count();
        let (_, took) = result?;
        written?;
        ensure!(woken > 0, "nothing of the guest was left to wake up");
        measured("postgres: another leads after the leader's guest hung", took);
        let acknowledged = late.join().unwrap_or(false);
        cluster.wait_whole(REPAIR)?;
        let count: i64 = cluster.app(&[])?.query_one("SELECT count(*) FROM late", &[])?.get(0);
        ensure!(!acknowledged || count == 1, "a row was acknowledged by a leader of the past and is lost");
        let (now, _) = cluster.pair()?;
        ensure!(now.id == replica.id, "{now:?} leads");
        rows.progresses(50, FAILOVER)?;
        let (count, gap) = rows.verify(&cluster, "rows")?;
        measured(format!("postgres: longest time without a write, of {count} rows, none lost"), gap);
        cluster.delete()
    });
}

/// HOST-16: all hosts and coordinators lose their power and come back: the same instances, every acknowledged row, no hands.
#[test]
fn host_16_a_postgres_cluster_comes_back_after_a_site_lost_its_power() {
    on_stage(WorldOptions { lost_after_s: 60, ..world("pg-power", 3) }, |world| {
        let (cluster, _) = PgCluster::create(world, 1, MADE)?;
        let rows = Rows::start(&cluster, "rows", &[])?;
        rows.progresses(200, FAILOVER)?;
        let ids = |cluster: &PgCluster<'_>| -> Result<std::collections::BTreeSet<String>> {
            Ok(cluster.instances()?.into_iter().map(|instance| instance.id).collect())
        };
        let before = ids(&cluster)?;
        for member in world.coordinators()? {
            world.kill_coordinator(member.index)?;
        }
        for host in world.hosts()? {
            world.kill_host(host.index)?;
        }
        for host in world.hosts()? {
            world.start_host(host.index)?;
        }
        for member in world.coordinators()? {
            world.start_coordinator(member.index)?;
        }
        measured("postgres: power back: whole again", cluster.wait_whole(REPAIR)?);
        rows.progresses(50, FAILOVER)?;
        ensure!(ids(&cluster)? == before, "instances were replaced");
        let (count, _) = rows.verify(&cluster, "rows")?;
        println!("measured: postgres: {count} rows acknowledged around a loss of all power, none lost");
        cluster.delete()
    });
}

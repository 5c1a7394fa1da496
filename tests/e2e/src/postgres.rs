//! A PostgreSQL cluster as its user has it. In: a world and a number of replicas. Out: its status, its instances, sessions with it, and the question
//! that all stories ask: is it whole. Sessions are opened from inside a machine of the cluster's own network.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use postgres::{Client, Config, NoTls};
use serde_json::{Value, json};
use shardplane_harness::{Api, World, inside, wait_until};

use crate::{cluster::Instance, ground::Ground, id};

/// Longest to connect; then the next try may find another leader.
const CONNECT: Duration = Duration::from_secs(2);

/// A cluster of one shard group with a role to log in with.
#[derive(Debug, Clone)]
pub struct PgCluster<'w> {
    world: &'w World,
    /// A client with the admin token.
    pub api: Api,
    /// ULID.
    pub id: String,
    /// The manifest.
    pub manifest: Value,
    /// The manifest of its role.
    pub role: Value,
    ground: Ground,
}

impl<'w> PgCluster<'w> {
    /// Makes a cluster with a role `app` and waits until both are there; answers how long the cluster took.
    ///
    /// # Errors
    /// When it is refused or does not become whole.
    pub fn create(world: &'w World, replicas: u32, deadline: Duration) -> Result<(Self, Duration)> {
        let api = world.api()?;
        let ground = Ground::make(&api, "10.30.0.0/24")?;
        let (cluster, role) = (id(), id());
        let manifest = json!({
            "apiVersion": "v1", "kind": "PostgreSql", "metadata": ground.metadata(&cluster),
            "spec": {
                "shardGroups": [{"name": "main", "vpcSubnetId": ground.subnet}],
                "replicasPerShardGroup": replicas, "backupRetentionDays": 7,
                "vmOfferId": "g3-1c1-100", "volumeOfferId": "gp3-750", "volumeSizeGiB": 2,
            },
        });
        let request = api.submit("postgresql", &manifest)?;
        let spec = json!({"postgreSqlId": cluster, "name": "app", "password": "only-for-tests"});
        let role = json!({"apiVersion": "v1", "kind": "PostgreSqlRole", "metadata": ground.metadata(&role), "spec": spec});
        let made = Self { world, api, id: cluster, manifest, role, ground };
        let role_request = made.api.submit("postgresql-role", &made.role)?;
        let took = made.api.settle("postgresql", &request, deadline)?;
        made.api.settle("postgresql-role", &role_request, Duration::from_secs(30))?;
        made.wait_whole(Duration::from_secs(20))?;
        Ok((made, took))
    }

    /// Deletes the cluster, its role with it, and its ground.
    ///
    /// # Errors
    /// When it is refused or does not end.
    pub fn delete(&self) -> Result<()> {
        let request = self.api.submit_delete("postgresql", &self.id)?;
        self.api.settle("postgresql", &request, Duration::from_secs(60))?;
        self.ground.remove(&self.api)
    }

    /// The `status`.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn status(&self) -> Result<Value> {
        Ok(self.api.resource("postgresql", &self.id)?["status"].take())
    }

    /// The instances that are wanted: those that hold data, then voters.
    ///
    /// # Errors
    /// When no coordinator answers.
    pub fn instances(&self) -> Result<Vec<Instance>> {
        let items = self.api.items("instances", &self.id)?;
        let read = |item: &Value| Instance::read(item).with_context(|| format!("{item} is no instance"));
        let all = items.iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(all.into_iter().filter(|instance| instance.intent == "wanted").collect())
    }

    /// Wanted instances with this role.
    ///
    /// # Errors
    /// When no coordinator answers.
    pub fn with_role(&self, role: &str) -> Result<Vec<Instance>> {
        Ok(self.instances()?.into_iter().filter(|instance| instance.role == role).collect())
    }

    /// The leader and a replica.
    ///
    /// # Errors
    /// When one is not there.
    pub fn pair(&self) -> Result<(Instance, Instance)> {
        let primary = self.with_role("primary")?.into_iter().next().context("there is no leader")?;
        let replica = self.with_role("replica")?.into_iter().next().context("there is no replica")?;
        Ok((primary, replica))
    }

    /// A session with one instance, opened from another machine of the cluster whose host is not in `avoid`.
    ///
    /// # Errors
    /// The engine's own words, or that nobody answers.
    pub fn session(&self, with: &str, user: &str, password: &str, avoid: &[u32]) -> Result<Client> {
        let stands = |i: &Instance| !avoid.contains(&i.host) && i.machine == "running";
        let stand = self.instances()?.into_iter().find(stands).context("no machine to stand in")?;
        let host = with.rsplit_once(':').map_or(with, |(host, _)| host);
        let mut config = Config::new();
        config.host(host).port(5432).user(user).password(password).dbname("postgres");
        config.connect_timeout(CONNECT).tcp_user_timeout(CONNECT).options("-c statement_timeout=15s");
        let netns = self.world.machine_netns(stand.host, &stand.id);
        let session = inside(&netns, || config.connect(NoTls))?;
        session.with_context(|| format!("no session with {host} as {user}"))
    }

    /// A session with the leader, as the role of the cluster.
    ///
    /// # Errors
    /// As [`PgCluster::session`].
    pub fn app(&self, avoid: &[u32]) -> Result<Client> {
        let status = self.status()?;
        let endpoint = status["coordinatorEndpoint"].as_str().context("there is no coordinator endpoint")?;
        let password = self.role["spec"]["password"].as_str().unwrap_or_default();
        self.session(endpoint, "app", password, avoid)
    }

    /// Whether nothing is wrong, as the product sees it.
    ///
    /// # Errors
    /// What is not so.
    pub fn whole(&self) -> Result<(), String> {
        let say = |error: anyhow::Error| format!("{error:#}");
        let status = self.status().map_err(say)?;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let wrong: Vec<&Value> =
            conditions.iter().filter(|c| c["type"] != "LimitsEnforced" && c["status"] != "True").collect();
        if !wrong.is_empty() {
            return Err(format!("{wrong:?}"));
        }
        if status["state"] != "stable" || status["clusterState"] != "ok" {
            return Err(format!("{} and {}", status["state"], status["clusterState"]));
        }
        match self.instances().map_err(say)?.iter().find(|i| i.machine != "running" || i.role.is_empty()) {
            Some(other) => Err(format!("{other:?}")),
            None => Ok(()),
        }
    }

    /// Waits until nothing is wrong.
    ///
    /// # Errors
    /// What still is after `deadline`.
    pub fn wait_whole(&self, deadline: Duration) -> Result<Duration> {
        Ok(wait_until(&format!("cluster {} being whole", self.id), deadline, || self.whole())?.1)
    }

    /// Puts the manifest again and waits until it is carried out.
    ///
    /// # Errors
    /// When it is refused or does not end.
    pub fn put(&self, deadline: Duration) -> Result<Duration> {
        let request = self.api.submit("postgresql", &self.manifest)?;
        self.api.settle("postgresql", &request, deadline)
    }
}

/// What a writer knows.
#[derive(Debug, Default)]
struct Book {
    acknowledged: Vec<i64>,
    longest_gap: Duration,
    last: Option<Instant>,
}

/// Writes rows one after another, through whatever happens, and remembers which were acknowledged.
pub struct Rows {
    book: Arc<Mutex<Book>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn book(book: &Mutex<Book>) -> std::sync::MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rows {
    /// Makes a table and begins.
    ///
    /// # Errors
    /// When the table cannot be made.
    pub fn start(cluster: &PgCluster<'_>, table: &str, avoid: &[u32]) -> Result<Self> {
        cluster.app(avoid)?.batch_execute(&format!("CREATE TABLE {table} (id bigint PRIMARY KEY)"))?;
        let written = Arc::new(Mutex::new(Book::default()));
        let stop = Arc::new(AtomicBool::new(false));
        // A world outlives its stories' threads by their joins; an id and an API are all a session needs.
        let (world_run, api, id) = (cluster.world.run_dir(), cluster.api.clone(), cluster.id.clone());
        let password = cluster.role["spec"]["password"].as_str().unwrap_or_default().to_owned();
        let insert = format!("INSERT INTO {table} VALUES ($1)");
        let avoid = avoid.to_vec();
        let (shared, stopped) = (Arc::clone(&written), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut session: Option<Client> = None;
            let mut row = 0_i64;
            while !stopped.load(Ordering::Relaxed) {
                row += 1;
                let write = |session: &mut Option<Client>| -> Result<()> {
                    if session.is_none() {
                        *session = Some(open(&world_run, &api, &id, &password, &avoid)?);
                    }
                    let client = session.as_mut().ok_or_else(|| anyhow!("no session"))?;
                    client.execute(&insert, &[&row])?;
                    Ok(())
                };
                match write(&mut session) {
                    Ok(()) => {
                        let mut book = book(&shared);
                        let gap = book.last.map_or(Duration::ZERO, |last| last.elapsed());
                        book.longest_gap = book.longest_gap.max(gap);
                        book.last = Some(Instant::now());
                        book.acknowledged.push(row);
                    }
                    // Nobody knows whether it is there: it is neither counted nor written again.
                    Err(_) => {
                        session = None;
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        });
        Ok(Self { book: written, stop, thread })
    }

    /// Waits until `more` rows are acknowledged.
    ///
    /// # Errors
    /// When they are not.
    pub fn progresses(&self, more: usize, deadline: Duration) -> Result<()> {
        let before = book(&self.book).acknowledged.len();
        wait_until(&format!("{more} more rows"), deadline, || {
            let now = book(&self.book).acknowledged.len();
            if now >= before + more { Ok(()) } else { Err(now - before) }
        })?;
        Ok(())
    }

    /// Stops, and looks for every acknowledged row; answers how many there were and the longest time without one.
    ///
    /// # Errors
    /// When one is missing.
    pub fn verify(self, cluster: &PgCluster<'_>, table: &str) -> Result<(usize, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the writer panicked"))?;
        let book = book(&self.book);
        let mut session = cluster.app(&[])?;
        let rows = session.query(&format!("SELECT id FROM {table}"), &[])?;
        let there: std::collections::BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
        let lost: Vec<&i64> = book.acknowledged.iter().filter(|row| !there.contains(row)).collect();
        ensure!(lost.is_empty(), "{} acknowledged rows of {table} are lost: {lost:?}", lost.len());
        Ok((book.acknowledged.len(), book.longest_gap))
    }
}

fn open(run: &std::path::Path, api: &Api, id: &str, password: &str, avoid: &[u32]) -> Result<Client> {
    let items = api.items("instances", id)?;
    let all: Vec<Instance> = items.iter().filter_map(Instance::read).collect();
    let stands = |i: &&Instance| !avoid.contains(&i.host) && i.machine == "running" && i.intent == "wanted";
    let stand = all.iter().find(stands).context("no machine to stand in")?;
    let leader = all.iter().find(|i| i.role == "primary" && i.intent == "wanted").context("no leader")?;
    let host = leader.endpoint.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
    let mut config = Config::new();
    config.host(&host).port(5432).user("app").password(password).dbname("postgres");
    config.connect_timeout(CONNECT).tcp_user_timeout(CONNECT).options("-c statement_timeout=5s");
    let netns = shardplane_harness::machine_netns(run, stand.host, &stand.id);
    Ok(inside(&netns, || config.connect(NoTls))??)
}

//! A measurement, not a test: our move of slots against `valkey-cli --cluster reshard` with the same data and clients.
//!
//!     images/build valkey
//!     cargo test --release -p shardplane-supervisor --test guest -- --ignored --nocapture bench::
//!
//! Machines differ and are busy, so what counts are the ratios at the end, which come from one run.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;

use crate::{
    client::tag,
    cluster::Cluster,
    host::password,
    isolated,
    load::{cmd, seed},
};

const SLOTS: (u32, u32) = (0, 99);
const FILLING: u32 = 300;
const KEYS: f64 = 100.0 * (300.0 + 8.0);
const ROUNDS: usize = 3;

/// Clients that read and write keys of the slots, one command at a time each.
struct Clients {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Duration>>>,
}

impl Clients {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tags: Arc<Vec<String>> = Arc::new((SLOTS.0..=SLOTS.1).map(tag).collect());
        let clients = (0..2_u32)
            .map(|number| {
                let (mut client, stop, tags) = (cluster.client(), stop.clone(), tags.clone());
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    for n in 0_u32.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let step = (n * 2 + number).wrapping_mul(2_654_435_761) >> 8;
                        let key = format!(
                            "filling:{{{}}}:{}",
                            tags[step as usize % tags.len()],
                            step / 101 % FILLING
                        );
                        let value = "x".repeat(100);
                        let command =
                            if n % 2 == 0 { cmd(&["GET", &key]) } else { cmd(&["SET", &key, &value]) };
                        let began = Instant::now();
                        let _: (redis::Value, _) = client.ask(&key, &command, false).await;
                        took.push(began.elapsed());
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    took
                })
            })
            .collect();
        Self { stop, clients }
    }

    async fn stop(self) -> Latency {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for client in self.clients {
            all.extend(client.await.unwrap());
        }
        all.sort();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        Latency { median: at(0.5), p99: at(0.99), p999: at(0.999), count: all.len() }
    }
}

/// Milliseconds.
#[derive(Clone, Copy)]
struct Latency {
    median: f64,
    p99: f64,
    p999: f64,
    count: usize,
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { median, p99, p999, count } = self;
        write!(f, "median {median:.2} ms, p99 {p99:.1} ms, p99.9 {p999:.1} ms of {count} commands")
    }
}

fn record(to: &mut [Vec<f64>; 3], rate: f64, latency: Latency) {
    for (values, value) in to.iter_mut().zip([rate, latency.p99, latency.p999]) {
        values.push(value);
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// valkey-cli of the image, with the image's own libraries.
async fn reshard(root: &Path, cluster: &Cluster, from: usize, to: usize) {
    let inside = |path: &str| root.join(path);
    let slots = (SLOTS.1 - SLOTS.0 + 1).to_string();
    let mut command = tokio::process::Command::new(inside("lib64/ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .arg(inside("usr/lib/x86_64-linux-gnu"))
        .arg(inside("usr/bin/valkey-cli"))
        .env("REDISCLI_AUTH", password())
        .args(["--cluster", "reshard", &format!("{}:6379", cluster.address(to).ip)])
        .args(["--cluster-from", &cluster.ids[from], "--cluster-to", &cluster.ids[to]])
        .args(["--cluster-slots", &slots, "--cluster-yes"]);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a measurement; its command is at the top of the file"]
fn our_move_against_valkey_cli() {
    isolated("bench::our_move_against_valkey_cli", async |image| {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("image");
        std::fs::create_dir(&root).unwrap();
        let mount = ["-t", "erofs", "-o", "loop,ro"];
        assert!(Command::new("mount").args(mount).args([&image, &root]).status().unwrap().success());
        let cluster = Cluster::form(&image, dir.path(), 5, |_| ()).await;
        seed(&cluster, SLOTS, FILLING).await;

        let clients = Clients::start(&cluster);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let idle = clients.stop().await;
        println!("measured: idle: {idle}");
        let (mut ours, mut theirs) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        for round in 0..ROUNDS {
            let (clients, began) = (Clients::start(&cluster), Instant::now());
            cluster.bring(&format!("ours-{round}"), ([0, 0], [1, 1]), SLOTS).await;
            let rate = KEYS / began.elapsed().as_secs_f64();
            let latency = clients.stop().await;
            println!("measured: ours {rate:.0} keys/s: {latency}");
            record(&mut ours, rate, latency);

            let (clients, began) = (Clients::start(&cluster), Instant::now());
            reshard(&root, &cluster, 1, 0).await;
            let rate = KEYS / began.elapsed().as_secs_f64();
            let latency = clients.stop().await;
            println!("measured: valkey-cli {rate:.0} keys/s: {latency}");
            record(&mut theirs, rate, latency);
            cluster.assert_settled([0, 3], SLOTS).await;
        }
        for (what, [ours, theirs]) in ["keys/s", "p99 of GET and SET in ms", "p99.9 in ms"]
            .into_iter()
            .zip(ours.iter().zip(&theirs).map(|(ours, theirs)| [mean(ours), mean(theirs)]))
        {
            println!("measured: {what}: ours {ours:.1}, valkey-cli {theirs:.1}, ratio {:.2}", ours / theirs);
        }
        assert!(Command::new("umount").arg(&root).status().unwrap().success());
    });
}

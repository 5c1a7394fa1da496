//! Clients at work on some slots: what they were told must still be so at the end.
//!
//! In: a cluster of guests. Out: keys of every type, writes and removals that a replica confirmed, and assertions about both.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redis::Cmd;
use tokio::task::JoinHandle;

use crate::{
    client::{Client, tag},
    cluster::Cluster,
};

pub fn cmd(words: &[&str]) -> Cmd {
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
pub struct Load {
    stop: Arc<AtomicBool>,
    writer: JoinHandle<Book>,
}

/// What the clients were told: the value of each key, None when it was removed; and how often they were sent on.
pub struct Book {
    pub values: BTreeMap<String, Option<String>>,
    pub asked: u64,
    pub writes: u64,
    pub slowest: Duration,
}

impl Load {
    pub fn start(cluster: &Cluster, slots: impl IntoIterator<Item = u32>, keys_a_slot: u32) -> Self {
        Self::named("load", cluster, slots, keys_a_slot)
    }

    /// With keys of its own, so that several can be at work.
    pub fn named(
        name: &'static str,
        cluster: &Cluster,
        slots: impl IntoIterator<Item = u32>,
        keys_a_slot: u32,
    ) -> Self {
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
                let key =
                    format!("{name}:{{{}}}:{}", tags[step as usize % tags.len()], step / 7 % keys_a_slot);
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
    pub async fn check(self, cluster: &Cluster) -> Book {
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
pub async fn seed(cluster: &Cluster, slots: (u32, u32), filling: u32) {
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

pub async fn assert_seeded(cluster: &Cluster, slots: (u32, u32), filling: u32) {
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

pub async fn keys_in(cluster: &Cluster, n: usize, slot: u32) -> u64 {
    redis::cmd("CLUSTER")
        .arg("COUNTKEYSINSLOT")
        .arg(slot)
        .query_async(&mut cluster.direct(n).await)
        .await
        .unwrap()
}

pub async fn set_slot(cluster: &Cluster, n: usize, slot: u32, words: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SETSLOT").arg(slot).arg(words);
    let () = command.query_async(&mut cluster.direct(n).await).await.unwrap();
}

//! A cluster of guests: three primaries with all slots, and replicas of the first two.
//!
//! In: the image. Out: guests that serve, and what all nodes say about slots.

use std::path::Path;

use redis::aio::MultiplexedConnection;
use shardplane_proto::v1::{
    EngineState, ValkeyAddress, ValkeyConfig, ValkeyReport,
    valkey_task::{AssignSlots, Meet, MoveSlots, Replicate, Step},
};

use crate::{
    client::Client,
    host::{Guest, client, until},
};

/// Slots of the first three guests.
const RANGES: [(u32, u32); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

pub struct Cluster {
    /// 11, 12, 13: primaries at first; 14 and 15: replicas of 11 and 12.
    pub guests: Vec<Guest>,
    pub ids: Vec<String>,
}

impl Cluster {
    /// Boots and forms it; with five guests two have a replica.
    pub async fn form(image: &Path, dir: &Path, size: usize, change: impl Fn(&mut ValkeyConfig)) -> Self {
        let mut cluster = Self { guests: Vec::new(), ids: Vec::new() };
        for number in (11..).take(size) {
            cluster.guests.push(Guest::boot_up(image, &dir.join(number.to_string()), number).await);
        }
        for guest in &cluster.guests {
            guest.configure(1, &change).await;
        }
        for guest in &cluster.guests {
            cluster.ids.push(guest.engine("an answer", |_| true).await.node_id);
        }
        for (n, (start, end)) in RANGES.into_iter().enumerate() {
            let slots = AssignSlots { start, end, config_epoch: n as u64 + 1 };
            cluster.guests[n].perform_ok("assign", Step::AssignSlots(slots)).await;
        }
        let peers = (0..size).map(|n| cluster.address(n)).collect();
        cluster.guests[0].perform_ok("meet", Step::Meet(Meet { peers })).await;
        for guest in &cluster.guests {
            let whole = |r: &ValkeyReport| {
                r.cluster_state == "ok"
                    && r.known_nodes as usize == size
                    && r.peers.iter().all(|p| p.connected)
            };
            guest.engine("a whole cluster", whole).await;
        }
        for replica in 3..size {
            let primary_node_id = cluster.ids[replica - 3].clone();
            let replicate = Step::Replicate(Replicate { primary_node_id });
            cluster.guests[replica].perform_ok("replicate", replicate).await;
        }
        for replica in 3..size {
            cluster.guests[replica].engine("a replica", |r| r.role == "slave" && r.link_up).await;
            cluster.guests[replica - 3].engine("its replica", |r| r.good_replicas == 1).await;
        }
        cluster
    }

    pub fn address(&self, n: usize) -> ValkeyAddress {
        ValkeyAddress { ip: self.guests[n].address(), port: 6379, bus_port: 16379 }
    }

    pub fn client(&self) -> Client {
        Client::new(self.guests[..3].iter().map(|guest| format!("{}:6379", guest.address())).collect())
    }

    pub async fn direct(&self, n: usize) -> MultiplexedConnection {
        client(&self.guests[n]).await
    }

    /// The task that moves slots to a guest.
    pub fn to(&self, n: usize, start: u32, end: u32, keys_per_second: u32) -> Step {
        Step::MoveSlots(MoveSlots {
            start,
            end,
            target_node_id: self.ids[n].clone(),
            target: Some(self.address(n)),
            keys_per_second,
        })
    }

    /// Which of two guests is the primary of their shard, once one is and answers.
    pub async fn primary(&self, one: usize, other: usize) -> usize {
        until("a primary", || {
            [one, other].into_iter().find(|n| {
                let said = self.guests[*n].said.lock().unwrap();
                said.reports.last().is_some_and(|report| {
                    use prost::Message as _;
                    report.state() == EngineState::Running
                        && !report.engine_report.is_empty()
                        && ValkeyReport::decode(report.engine_report.as_slice())
                            .is_ok_and(|report| report.role == "master" && report.cluster_state == "ok")
                })
            })
        })
        .await
    }

    /// Moves slots as the coordinator does: the same task again, from whoever is the source's primary to whoever is the
    /// target's, until all slots are there.
    pub async fn bring(&self, what: &str, (from, to): ([usize; 2], [usize; 2]), (start, end): (u32, u32)) {
        let mut last = String::new();
        for turn in 0..30 {
            let (source, target) = (self.primary(from[0], from[1]).await, self.primary(to[0], to[1]).await);
            let outcome =
                self.guests[source].perform(&format!("{what}-{turn}"), self.to(target, start, end, 0)).await;
            if outcome.ok {
                // Slots may be left, as a task ends after some seconds.
                if self.owns(target, (start, end)).await {
                    return;
                }
                continue;
            }
            last = outcome.error;
            println!("{what} once more: {last}");
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        panic!("{what}: {last}");
    }

    async fn owns(&self, n: usize, (start, end): (u32, u32)) -> bool {
        let nodes = redis::cmd("CLUSTER").arg("NODES").to_owned();
        let nodes: String = nodes.query_async(&mut self.direct(n).await).await.unwrap();
        let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
        own.split(' ').skip(8).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if first <= start && last >= end)
        })
    }

    /// Asserts on every node: one owner of these slots, no mark on any slot, no key of them but at the owner and its replicas.
    pub async fn assert_settled(&self, owner: [usize; 2], (start, end): (u32, u32)) {
        for (n, guest) in self.guests.iter().enumerate() {
            let mut connection = self.direct(n).await;
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            loop {
                let nodes: String =
                    redis::cmd("CLUSTER").arg("NODES").query_async(&mut connection).await.unwrap();
                let owners: Vec<&str> = nodes
                    .lines()
                    .filter(|line| {
                        line.split(' ').skip(8).any(|range| {
                            let (first, last) = range.split_once('-').unwrap_or((range, range));
                            matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if first <= end && last >= start)
                        })
                    })
                    .map(|line| &line[..40])
                    .collect();
                let right = |id: &str| owner.iter().any(|n| self.ids[*n] == id);
                if owners.len() == 1 && right(owners[0]) && !nodes.contains('[') {
                    break;
                }
                assert!(std::time::Instant::now() < deadline, "guest {}: {owners:?}\n{nodes}", guest.number);
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            if !owner.contains(&n) {
                for slot in start..=end {
                    let keys: u64 = redis::cmd("CLUSTER")
                        .arg("COUNTKEYSINSLOT")
                        .arg(slot)
                        .query_async(&mut connection)
                        .await
                        .unwrap();
                    assert_eq!(keys, 0, "keys of slot {slot} at guest {}", guest.number);
                }
            }
        }
    }
}

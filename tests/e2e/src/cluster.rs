//! A Valkey cluster as its user has it. In: a world and a shape. Out: its status, its instances, clients of it, and the two
//! questions that all tests ask: is it whole, and do its engines agree.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use shardplane_harness::{Api, ValkeyClient, World, wait_until};

use crate::{engine, ground::Ground};

/// A new ULID as the API writes it.
pub fn id() -> String {
    let mut bytes = [0; 16];
    // SystemTime and a counter would do, but several processes make ids for one world.
    if let Ok(mut source) = std::fs::File::open("/dev/urandom") {
        let _ = std::io::Read::read_exact(&mut source, &mut bytes);
    }
    // The first character of a ULID is at most 7.
    ulid::Ulid::from_bytes(bytes).to_string().to_lowercase()
}

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct Shape {
    /// 1 or at least 3.
    pub shards: u32,
    /// Of each shard.
    pub replicas: u32,
    /// Of the engine.
    pub version: String,
    /// Root password.
    pub password: String,
    /// Of the volumes.
    pub volume_offer: String,
}

impl Shape {
    /// The engine version of the image that the tests use.
    pub const VERSION: &str = "8.1.1";

    /// `shards` × (1 + `replicas`).
    pub fn of(shards: u32, replicas: u32) -> Self {
        Self {
            shards,
            replicas,
            version: Self::VERSION.to_owned(),
            password: "only-for-tests".to_owned(),
            volume_offer: "gp3-750".to_owned(),
        }
    }
}

/// An instance as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// ULID.
    pub id: String,
    /// Index of its host in the world.
    pub host: u32,
    /// `host:port`.
    pub endpoint: String,
    /// `primary`, `replica` or empty.
    pub role: String,
    /// Which shard: its place in the spec, -1 when that no longer has it.
    pub shard: i64,
    /// ULID of its shard.
    pub shard_id: String,
    /// `wanted` or `retiring`.
    pub intent: String,
    /// `running`, `silent`, …
    pub machine: String,
}

impl Instance {
    pub(crate) fn read(item: &Value) -> Option<Self> {
        let text = |member: &str| item[member].as_str().map(str::to_owned);
        Some(Self {
            id: text("id")?,
            host: World::host_index(&text("hostName")?)?,
            endpoint: format!("{}:6379", text("address")?),
            role: text("role")?,
            shard: item["shardIndex"].as_i64()?,
            shard_id: text("shardId")?,
            intent: text("intent")?,
            machine: text("machine")?,
        })
    }

    /// Whether it is its shard's primary.
    pub fn primary(&self) -> bool {
        self.role == "primary"
    }
}

/// A cluster with a folder, a VPC and a subnet of its own.
#[derive(Debug, Clone)]
pub struct Cluster<'w> {
    world: &'w World,
    /// A client with the admin token.
    pub api: Api,
    /// ULID.
    pub id: String,
    /// The manifest.
    pub manifest: Value,
    ground: Ground,
}

fn manifest(shape: &Shape, metadata: &Value, subnet: &str) -> Value {
    let shards: Vec<Value> = (0..shape.shards).map(|_| json!({"id": id(), "vpcSubnetId": subnet})).collect();
    json!({
        "apiVersion": "v1", "kind": "Valkey", "metadata": metadata,
        "spec": {
            "shards": shards, "replicasPerShard": shape.replicas, "rootPassword": shape.password,
            "valkeyVersion": shape.version, "vmOfferId": "g3-1c1-100", "volumeOfferId": shape.volume_offer,
            "volumeSizeGiB": 1,
        },
    })
}

impl<'w> Cluster<'w> {
    /// Makes the ground and submits the cluster; answers its change request too.
    ///
    /// # Errors
    /// When something is refused.
    pub fn submit(world: &'w World, shape: &Shape) -> Result<(Self, String)> {
        let api = world.api()?;
        let ground = Ground::make(&api, "10.20.0.0/24")?;
        let cluster = id();
        let manifest = manifest(shape, &ground.metadata(&cluster), &ground.subnet);
        let request = api.submit("valkey", &manifest)?;
        Ok((Self { world, api, id: cluster, manifest, ground }, request))
    }

    /// Makes another cluster in the same subnet and waits until it is whole.
    ///
    /// # Errors
    /// When it does not become whole within a minute.
    pub fn neighbour(&self, shape: &Shape) -> Result<Self> {
        let cluster = id();
        let mut metadata = self.manifest["metadata"].clone();
        metadata["id"] = cluster.as_str().into();
        metadata["name"] = format!("n{}", &cluster[cluster.len() - 8..]).into();
        let manifest = manifest(shape, &metadata, &self.ground.subnet);
        let request = self.api.submit("valkey", &manifest)?;
        let neighbour = Self { id: cluster, manifest, ..self.clone() };
        neighbour.api.settle("valkey", &request, Duration::from_secs(60))?;
        neighbour.wait_whole(Duration::from_secs(10))?;
        Ok(neighbour)
    }

    /// Makes a cluster and waits until it is whole; answers how long its change request took.
    ///
    /// # Errors
    /// When it does not become whole within a minute.
    pub fn create(world: &'w World, shape: &Shape) -> Result<(Self, Duration)> {
        let (cluster, request) = Self::submit(world, shape)?;
        let took = cluster.api.settle("valkey", &request, Duration::from_secs(60))?;
        cluster.wait_whole(Duration::from_secs(10))?;
        Ok((cluster, took))
    }

    /// Deletes the cluster and its ground, and waits.
    ///
    /// # Errors
    /// When it is refused or does not end within 30 s.
    pub fn delete(&self) -> Result<Duration> {
        let request = self.api.submit_delete("valkey", &self.id)?;
        let took = self.api.settle("valkey", &request, Duration::from_secs(30))?;
        self.ground.remove(&self.api)?;
        Ok(took)
    }

    /// The `status`.
    ///
    /// # Errors
    /// When there is no such cluster.
    pub fn status(&self) -> Result<Value> {
        Ok(self.api.resource("valkey", &self.id)?["status"].take())
    }

    /// The instances that are wanted, in the operator's order.
    ///
    /// # Errors
    /// When no coordinator answers.
    pub fn instances(&self) -> Result<Vec<Instance>> {
        Ok(self.all_instances()?.into_iter().filter(|instance| instance.intent == "wanted").collect())
    }

    /// The retiring ones too.
    ///
    /// # Errors
    /// When no coordinator answers.
    pub fn all_instances(&self) -> Result<Vec<Instance>> {
        let items = self.api.items("instances", &self.id)?;
        let read = |item: &Value| Instance::read(item).with_context(|| format!("{item} is no instance"));
        items.iter().map(read).collect()
    }

    /// The primary and the first replica of a shard.
    ///
    /// # Errors
    /// When one is not there.
    pub fn pair(&self, shard: i64) -> Result<(Instance, Instance)> {
        let mut own = self.instances()?;
        own.retain(|instance| instance.shard == shard);
        let (primaries, replicas): (Vec<_>, Vec<_>) = own.into_iter().partition(Instance::primary);
        let primary =
            primaries.into_iter().next().with_context(|| format!("shard {shard} has no primary"))?;
        let replica = replicas.into_iter().next().with_context(|| format!("shard {shard} has no replica"))?;
        Ok((primary, replica))
    }

    /// A client that stands on a host not in `avoid`.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn client(&self, avoid: &[u32]) -> Result<ValkeyClient> {
        let password = self.manifest["spec"]["rootPassword"].as_str().unwrap_or_default();
        self.world.valkey(&self.id, password, avoid)
    }

    /// Whether nothing is wrong, as the product sees it: what is not so is the error.
    ///
    /// # Errors
    /// What is not so.
    pub fn whole(&self) -> Result<(), String> {
        let say = |error: anyhow::Error| format!("{error:#}");
        let status = self.status().map_err(say)?;
        let (shards, replicas) = self.counts();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let wrong: Vec<&Value> =
            conditions.iter().filter(|c| c["type"] != "LimitsEnforced" && c["status"] != "True").collect();
        let lists = |member: &str| status[member].as_array().map_or(0, Vec::len);
        if !wrong.is_empty() {
            return Err(format!("{wrong:?}"));
        }
        if status["state"] != "stable" || status["clusterState"] != "ok" {
            return Err(format!("{} and {}", status["state"], status["clusterState"]));
        }
        let counted = status["shards"].as_array().into_iter().flatten().all(|shard| {
            shard["primaryEndpoint"].is_string()
                && shard["replicaEndpoints"].as_array().map(Vec::len) == Some(replicas)
        });
        if !counted || lists("primaryEndpoints") != shards || lists("nodes") != shards * (1 + replicas) {
            return Err(format!("{} of {}", status["shards"], status["nodes"]));
        }
        // Those that retire on a lost host are kept in mind until it returns; those that still have to go are waited for.
        match self.instances().map_err(say)?.iter().find(|i| i.machine != "running") {
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

    /// Waits until all engines have the same sound picture; answers their node ids by endpoint.
    ///
    /// # Errors
    /// What they do not agree on.
    pub fn wait_agreed(&self, deadline: Duration) -> Result<BTreeMap<String, String>> {
        let mut client = self.client(&[])?;
        let members: Vec<String> = self.instances()?.into_iter().map(|instance| instance.endpoint).collect();
        let (shards, replicas) = self.counts();
        ensure!(members.len() == shards * (1 + replicas), "the cluster has {} members", members.len());
        let agree = || engine::agree(&mut client, &members, shards).map_err(|error| format!("{error:#}"));
        Ok(wait_until(&format!("agreement of {}", self.id), deadline, agree)?.0)
    }

    fn counts(&self) -> (usize, usize) {
        let spec = &self.manifest["spec"];
        let replicas = spec["replicasPerShard"].as_u64().and_then(|n| usize::try_from(n).ok());
        (spec["shards"].as_array().map_or(0, Vec::len), replicas.unwrap_or(0))
    }

    /// Kinds and phases of its operations, oldest first.
    ///
    /// # Errors
    /// When no coordinator answers.
    pub fn operations(&self) -> Result<Vec<(String, String)>> {
        let text = |item: &Value, member: &str| item[member].as_str().unwrap_or_default().to_owned();
        let items = self.api.items("operations", &self.id)?;
        Ok(items.iter().map(|item| (text(item, "kind"), text(item, "phase"))).collect())
    }
}

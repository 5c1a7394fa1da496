//! How a user changes a cluster and follows the change. In: a cluster. Out: manifests with other shards, the operation that carries the
//! change out, what the status complains about.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{Cluster, id};

impl Cluster<'_> {
    /// Its newest operation of a kind.
    ///
    /// # Errors
    /// When there is none.
    pub fn operation(&self, kind: &str) -> Result<Value> {
        let mut items = self.api.items("operations", &self.id)?;
        items.retain(|item| item["kind"] == kind);
        items.pop().with_context(|| format!("cluster {} has no operation of kind {kind}", self.id))
    }

    /// The message of a condition, when it is not `True`.
    ///
    /// # Errors
    /// When there is no such condition.
    pub fn complaint(&self, condition: &str) -> Result<Option<String>> {
        let status = self.status()?;
        let all = status["conditions"].as_array().into_iter().flatten();
        let one = all.into_iter().find(|c| c["type"] == condition);
        let one = one.with_context(|| format!("there is no condition {condition} in {status}"))?;
        Ok((one["status"] != "True").then(|| one["message"].as_str().unwrap_or_default().to_owned()))
    }

    /// One shard more in the manifest; answers its id.
    pub fn add_shard(&mut self) -> String {
        let shard = id();
        let subnet = self.manifest["spec"]["shards"][0]["vpcSubnetId"].clone();
        if let Some(shards) = self.manifest["spec"]["shards"].as_array_mut() {
            shards.push(json!({"id": shard, "vpcSubnetId": subnet}));
        }
        shard
    }

    /// One shard fewer in the manifest; answers its id.
    pub fn remove_shard(&mut self, index: usize) -> String {
        let shards = self.manifest["spec"]["shards"].as_array_mut();
        let shard = shards.filter(|shards| index < shards.len()).map(|shards| shards.remove(index));
        shard.and_then(|shard| shard["id"].as_str().map(str::to_owned)).unwrap_or_default()
    }
}

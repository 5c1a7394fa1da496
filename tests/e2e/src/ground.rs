//! The ground of a cluster: a folder, a VPC, a subnet. In: an API and a range. Out: their ids, and their end.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use shardplane_harness::Api;

use crate::id;

const SOON: Duration = Duration::from_secs(10);

/// A folder, a VPC and a subnet of it.
#[derive(Debug, Clone)]
pub struct Ground {
    folder: String,
    vpc: String,
    /// Of the instances.
    pub subnet: String,
}

impl Ground {
    /// Makes them.
    ///
    /// # Errors
    /// When one is refused.
    pub fn make(api: &Api, cidr: &str) -> Result<Self> {
        let ground = Self { folder: id(), vpc: id(), subnet: id() };
        let folder = json!({"id": ground.folder, "name": format!("n{}", ground.folder)});
        api.apply("folder", &json!({"metadata": folder, "spec": {}}), SOON)?;
        api.apply("vpc", &json!({"metadata": ground.metadata(&ground.vpc), "spec": {}}), SOON)?;
        let spec = json!({"vpcId": ground.vpc, "ipv4Cidr": cidr});
        let metadata = ground.metadata(&ground.subnet);
        api.apply("vpc-subnet", &json!({"metadata": metadata, "spec": spec}), SOON)?;
        Ok(ground)
    }

    /// Metadata of something that lives in this folder.
    pub fn metadata(&self, id: &str) -> Value {
        json!({"id": id, "name": format!("n{}", &id[id.len() - 8..]), "folderId": self.folder})
    }

    /// Deletes them.
    ///
    /// # Errors
    /// When something still needs one.
    pub fn remove(&self, api: &Api) -> Result<()> {
        for (kind, id) in [("vpc-subnet", &self.subnet), ("vpc", &self.vpc), ("folder", &self.folder)] {
            let request = api.submit_delete(kind, id)?;
            api.settle(kind, &request, SOON)?;
        }
        Ok(())
    }
}

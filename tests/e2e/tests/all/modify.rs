//! Changes that a running cluster refuses: each with the path of the field, the rule and what is allowed, and with nothing changed.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use shardplane_e2e::{Cluster, Shape, id, on_stage};
use shardplane_harness::WorldOptions;

use crate::SOON;

/// What is put, and words that the answer must have besides the path.
struct Refused {
    what: &'static str,
    path: &'static str,
    words: &'static [&'static str],
    change: fn(&mut Value),
}

fn more(spec: &mut Value, count: usize) {
    let subnet = spec["shards"][0]["vpcSubnetId"].clone();
    if let Some(shards) = spec["shards"].as_array_mut() {
        shards.extend((0..count).map(|_| json!({"id": id(), "vpcSubnetId": subnet})));
    }
}

fn fewer(spec: &mut Value, count: usize) {
    if let Some(shards) = spec["shards"].as_array_mut() {
        shards.truncate(shards.len() - count);
    }
}

const THREE: [Refused; 15] = [
    Refused {
        what: "+2 shards",
        path: "spec.shards",
        words: &["from 3 to 5", "allowed is 3 or 4"],
        change: |spec| more(spec, 2),
    },
    Refused { what: "3 to 2", path: "spec.shards", words: &["2", "allowed"], change: |spec| fewer(spec, 1) },
    Refused {
        what: "3 to 1",
        path: "spec.shards",
        words: &["from 3 to 1", "create a new cluster"],
        change: |spec| fewer(spec, 2),
    },
    Refused {
        what: "a shard replaced",
        path: "spec.shards",
        words: &["replaces a shard by another"],
        change: |spec| spec["shards"][1]["id"] = id().into(),
    },
    Refused {
        what: "shards in another order",
        path: "spec.shards",
        words: &["another order"],
        change: |spec| {
            if let Some(shards) = spec["shards"].as_array_mut() {
                shards.swap(0, 2);
            }
        },
    },
    Refused {
        what: "another subnet",
        path: "spec.shards[2].vpcSubnetId",
        words: &["cannot change"],
        change: |spec| spec["shards"][2]["vpcSubnetId"] = spec["otherSubnet"].take(),
    },
    Refused {
        what: "shards and replicas together",
        path: "spec.replicasPerShard",
        words: &["together with spec.shards"],
        change: |spec| {
            more(spec, 1);
            spec["replicasPerShard"] = 1.into();
        },
    },
    Refused {
        what: "+2 replicas",
        path: "spec.replicasPerShard",
        words: &["from 0 to 2", "allowed is 0 to 1"],
        change: |spec| spec["replicasPerShard"] = 2.into(),
    },
    Refused {
        what: "another version",
        path: "spec.valkeyVersion",
        words: &["cannot change", "create a new cluster"],
        change: |spec| spec["valkeyVersion"] = "8.1.9".into(),
    },
    Refused {
        what: "another compute offer",
        path: "spec.vmOfferId",
        words: &["cannot change"],
        change: |spec| spec["vmOfferId"] = "g3-2c2-100".into(),
    },
    Refused {
        what: "another disk offer",
        path: "spec.volumeOfferId",
        words: &["cannot change"],
        change: |spec| spec["volumeOfferId"] = "gp3-1500".into(),
    },
    Refused {
        what: "another size",
        path: "spec.volumeSizeGiB",
        words: &["cannot change"],
        change: |spec| spec["volumeSizeGiB"] = 2.into(),
    },
    Refused {
        what: "names instead of addresses",
        path: "spec.useFqdn",
        words: &["cannot change"],
        change: |spec| spec["useFqdn"] = true.into(),
    },
    Refused {
        what: "public addresses",
        path: "spec.createPublicIpv4",
        words: &["cannot change"],
        change: |spec| spec["createPublicIpv4"] = true.into(),
    },
    Refused {
        what: "another password",
        path: "spec.rootPassword",
        words: &["cannot change"],
        change: |spec| spec["rootPassword"] = "another-for-tests".into(),
    },
];

const ONE: [Refused; 2] = [
    Refused { what: "1 to 2", path: "spec.shards", words: &["2", "allowed"], change: |spec| more(spec, 1) },
    Refused {
        what: "1 to 3",
        path: "spec.shards",
        words: &["from 1 to 3", "create a new cluster"],
        change: |spec| more(spec, 2),
    },
];

#[test]
fn a_change_beyond_the_rules_is_refused_and_changes_nothing() {
    let options = WorldOptions { hosts: 3, coordinators: 1, ..WorldOptions::named("modify") };
    on_stage(options, |world| {
        let (three, request) = Cluster::submit(world, &Shape::of(3, 0))?;
        let (one, _) = Cluster::create(world, &Shape::of(1, 0))?;
        three.api.settle("valkey", &request, SOON)?;
        three.wait_whole(SOON)?;
        let other = one.manifest["spec"]["shards"][0]["vpcSubnetId"].clone();
        for (cluster, refusals) in [(&three, THREE.as_slice()), (&one, ONE.as_slice())] {
            let before = picture(cluster)?;
            for refused in refusals {
                let mut changed = cluster.manifest.clone();
                changed["spec"]["otherSubnet"] = other.clone();
                (refused.change)(&mut changed["spec"]);
                if let Some(spec) = changed["spec"].as_object_mut() {
                    spec.remove("otherSubnet");
                }
                let reply = cluster.api.put("/api/v1/valkey", &changed)?;
                let text = reply.body["errorMessage"].as_str().unwrap_or_default();
                println!("{}: {} {text}", refused.what, reply.status);
                ensure!(reply.status == 400 && reply.body["errorCode"] == "BadData", "{reply:?}");
                ensure!(text.contains(&format!("{}: ", refused.path)), "no path in: {text}");
                for word in refused.words {
                    ensure!(text.contains(word), "{}: no {word:?} in: {text}", refused.what);
                }
                ensure!(picture(cluster)? == before, "{} was refused and changed something", refused.what);
            }
            cluster.wait_agreed(SOON)?;
        }
        Ok(())
    });
}

/// What a refused change must leave alone.
fn picture(cluster: &Cluster<'_>) -> Result<(Value, Value, Vec<String>, usize)> {
    let mut resource = cluster.api.resource("valkey", &cluster.id)?;
    let ids = cluster.all_instances()?.into_iter().map(|i| i.id).collect();
    let change = resource["status"]["lastChangeRequest"].take();
    Ok((resource["spec"].take(), change, ids, cluster.operations()?.len()))
}

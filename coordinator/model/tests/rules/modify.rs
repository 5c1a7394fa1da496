//! Rules of a change from one spec to another: one row each, and nothing is changed by a refused one.

use shardplane_model::{
    command::{Command, Decision},
    refusal::RefusalCode,
};
use shardplane_proto::{
    ids::{ClusterId, ResourceId},
    v1,
};

use super::api::{Api, Change, body, change, good, id, made, made_of, password, shards, subnet, with_shards};

#[test]
fn modifies_that_are_refused_name_the_path_and_the_rule() {
    let rows: Vec<(Change, &str)> = vec![
        (
            change(|s| s.valkey_version = Some("8.1.9".to_owned())),
            "spec.valkeyVersion: cannot change after creation",
        ),
        (change(|s| s.volume_size_gib = Some(20)), "spec.volumeSizeGiB: cannot change after creation"),
        (change(|s| s.use_fqdn = Some(true)), "spec.useFqdn: cannot change after creation"),
        (
            change(|s| s.create_public_ipv4 = Some(true)),
            "spec.createPublicIpv4: cannot change after creation",
        ),
        (password("other"), "spec.rootPassword: cannot change after creation"),
        (change(|s| s.shards.swap(0, 1)), "spec.shards: has the same shards in another order"),
        (change(|s| s.shards[0].id = id(500).to_string()), "spec.shards: replaces a shard by another"),
        (
            change(|s| s.shards = shards(5)),
            "spec.shards: goes from 3 to 5 shards; a change adds or removes at most one",
        ),
        (
            change(|s| s.shards = shards(5)),
            "spec.shards: goes from 3 to 5 shards; a change adds or removes at most one: allowed is 3 or 4",
        ),
        (
            change(|s| s.shards = shards(1)),
            "spec.shards: goes from 3 to 1 shards; a change adds or removes at most one: allowed is 3 or 4; the way between 1 and 3 leads over 2, which is never allowed: create a new cluster",
        ),
        (change(|s| s.shards = shards(2)), "spec.shards: goes from 3 to 2 shards"),
        (
            change(|s| {
                s.shards = shards(4);
                s.shards.remove(0);
                s.shards[2].id = id(500).to_string();
            }),
            "spec.shards: replaces a shard by another",
        ),
        (
            change(|s| {
                s.shards = shards(4);
                s.shards.swap(0, 2);
            }),
            "spec.shards: has the same shards in another order; keep the order",
        ),
        (
            change(|s| {
                s.shards = shards(5);
                s.shards.remove(0);
            }),
            "spec.shards: replaces a shard by another",
        ),
        (
            change(|s| {
                s.shards = shards(4);
                s.shards[0].vpc_subnet_id = id(4).to_string();
            }),
            "spec.shards[0].vpcSubnetId: is 00000000000000000000000004; it cannot change: a shard stays in the subnet it was created in, 00000000000000000000000002",
        ),
        (change(|s| s.shards = shards(2)), "spec.shards: has 2 entries"),
        (
            change(|s| s.replicas_per_shard = Some(3)),
            "spec.replicasPerShard: goes from 1 to 3; a change adds or removes at most one",
        ),
        (change(|s| s.replicas_per_shard = Some(-1)), "spec.replicasPerShard: is -1; allowed is 0 to 5"),
        (
            change(|s| {
                s.shards = shards(4);
                s.replicas_per_shard = Some(2);
            }),
            "spec.replicasPerShard: changes together with spec.shards",
        ),
        (
            change(|s| s.shards[1].vpc_subnet_id = id(4).to_string()),
            "it cannot change: a shard stays in the subnet it was created in",
        ),
    ];
    for (apply, text) in rows {
        let mut api = Api::new();
        api.put(subnet(4, 1, "10.21.0.0/24")).unwrap();
        api.put(body(good())).unwrap();
        let cluster = ClusterId::from(id(10));
        let request = api.state.resources[&ResourceId::from(cluster)].change.request;
        api.apply(Command::Decide(Decision::Satisfied { cluster, request })).unwrap();
        let mut spec = good();
        apply(&mut spec);
        let before = api.state.clone();
        let refusal = api.put(body(spec)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::BadData, "{text}");
        assert!(refusal.message.contains(text), "wanted {text:?}, got {:?}", refusal.message);
        let same = api.state.resources == before.resources && api.state.requests == before.requests;
        assert!(same && api.state.clusters == before.clusters, "a refusal changes nothing");
    }
}

#[test]
fn one_shard_more_or_less_is_accepted_wherever_it_stands() {
    for at in 0..=3 {
        let mut more = shards(3);
        let new = v1::ValkeyShardSpec { id: id(500).to_string(), vpc_subnet_id: id(4).to_string() };
        more.insert(at, new);
        made(3).put(with_shards(more)).unwrap();
    }
    for at in 0..4 {
        let mut less = shards(4);
        less.remove(at);
        made(4).put(with_shards(less)).unwrap();
    }
}

#[test]
fn one_shard_stays_one_and_every_violation_is_named() {
    for (count, text) in [
        (2, "spec.shards: goes from 1 to 2 shards; a change adds or removes at most one: allowed is 1"),
        (
            3,
            "spec.shards: goes from 1 to 3 shards; a change adds or removes at most one: allowed is 1; the way between 1 and 3",
        ),
    ] {
        let refusal = made(1).put(with_shards(shards(count))).unwrap_err();
        assert!(refusal.code == RefusalCode::BadData && refusal.message.contains(text), "{refusal:?}");
    }
    let mut all = shards(6);
    all.swap(1, 2);
    all[0].vpc_subnet_id = id(4).to_string();
    let spec =
        v1::ValkeySpec { shards: all, replicas_per_shard: Some(3), volume_size_gib: Some(11), ..good() };
    let refusal = made(3).put(body(spec)).unwrap_err();
    for text in [
        "spec.volumeSizeGiB: cannot change",
        "spec.shards: goes from 3 to 6 shards",
        "spec.shards: has the same shards in another order",
        "spec.shards[0].vpcSubnetId: is",
        "spec.replicasPerShard: goes from 1 to 3; a change adds or removes at most one: allowed is 0 to 2",
        "spec.replicasPerShard: changes together with spec.shards",
    ] {
        assert!(refusal.message.contains(text), "{text}: {}", refusal.message);
    }
}

#[test]
fn two_steps_down_are_refused_with_what_is_allowed_as_two_steps_up_are() {
    let spec = |count, replicas| v1::ValkeySpec {
        shards: shards(count),
        replicas_per_shard: Some(replicas),
        ..good()
    };
    for (from, to, text) in [
        (
            spec(5, 1),
            spec(3, 1),
            "spec.shards: goes from 5 to 3 shards; a change adds or removes at most one: allowed is 4 or 5 or 6",
        ),
        (
            spec(3, 2),
            spec(3, 0),
            "spec.replicasPerShard: goes from 2 to 0; a change adds or removes at most one: allowed is 1 to 3",
        ),
    ] {
        let mut api = made_of(from);
        let before = api.state.clone();
        let refusal = api.put(body(to)).unwrap_err();
        assert!(refusal.code == RefusalCode::BadData && refusal.message.contains(text), "{refusal:?}");
        assert!(!refusal.message.contains("over 2"), "{refusal:?}");
        assert!(api.state.resources == before.resources && api.state.clusters == before.clusters);
    }
}

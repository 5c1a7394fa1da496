//! What a change or a delete has to wait for: another change in flight, a shard that leaves, resources that need this one.

use shardplane_model::{
    command::{Command, Decision},
    engine::EngineKind,
    refusal::RefusalCode,
    resource::{Kind, Outcome},
};
use shardplane_proto::{
    ids::{ClusterId, ResourceId},
    v1::{self, resource::Body},
};

use super::api::{Api, body, good, id, made, metadata, parameters, shards, subnet, with_shards};

#[test]
fn a_shard_that_leaves_keeps_its_subnet_until_it_is_gone() {
    let mut api = made(4);
    let mut less = shards(4);
    less[3].vpc_subnet_id = id(4).to_string();
    api.put(with_shards(less)).unwrap_err();
    let mut api = Api::new();
    api.put(subnet(4, 1, "10.21.0.0/24")).unwrap();
    let mut own = shards(4);
    own[3].vpc_subnet_id = id(4).to_string();
    let back = own.clone();
    api.put(with_shards(own)).unwrap();
    let cluster = ClusterId::from(id(10));
    let request = |api: &Api| api.state.resources[&ResourceId::from(cluster)].change.request;
    let done = Decision::Satisfied { cluster, request: request(&api) };
    api.apply(Command::Decide(done)).unwrap();
    api.put(with_shards(shards(3))).unwrap();
    let leaving = |api: &Api| api.state.clusters[&cluster].leaving.len();
    assert_eq!(leaving(&api), 1);
    let refusal = api.delete(Kind::VpcSubnet, 4).unwrap_err();
    assert!(refusal.message.contains("is still used by Valkey n"), "{refusal:?}");
    let done = Decision::Satisfied { cluster, request: request(&api) };
    assert_eq!(api.apply(Command::Decide(done)).unwrap_err().code, RefusalCode::Outdated);
    // The change is given up: the shard may come back, in its own subnet alone.
    let failed = Decision::Fail { cluster, request: request(&api), message: "x".to_owned() };
    api.apply(Command::Decide(failed)).unwrap();
    let refusal = api.put(with_shards(shards(4))).unwrap_err();
    assert!(refusal.message.contains("spec.shards[3].vpcSubnetId"), "{refusal:?}");
    api.put(with_shards(back)).unwrap();
    assert_eq!(leaving(&api), 0);
}

#[test]
fn a_change_in_flight_and_dependants_are_respected() {
    let mut api = Api::new();
    let with_set = v1::ValkeySpec { parameters_set_id: Some(id(3).to_string()), ..good() };
    api.put(body(with_set.clone())).unwrap();
    let more = v1::ValkeySpec { replicas_per_shard: Some(2), ..with_set };
    assert_eq!(api.put(body(more)).unwrap_err().code, RefusalCode::ResourceIsScheduling);
    for (kind, number) in [(Kind::VpcSubnet, 2), (Kind::Vpc, 1), (Kind::ParametersSet(EngineKind::Valkey), 3)]
    {
        let refusal = api.delete(kind, number).unwrap_err();
        assert!(
            refusal.code == RefusalCode::BadData && refusal.message.contains("is still used by"),
            "{refusal:?}"
        );
    }
    let refusal = api.put(parameters(&[("port", "1"), ("hz", "x")])).unwrap_err();
    assert!(
        refusal.message.contains("spec.parameters.port: cannot be set: the platform gives"),
        "{refusal:?}"
    );
    assert!(
        refusal.message.contains("spec.parameters.hz: is \"x\"; allowed is a whole number"),
        "{refusal:?}"
    );
    assert_eq!(api.delete(Kind::Folder, 99).unwrap_err().code, RefusalCode::NotFound);
    assert_eq!(api.delete(Kind::Folder, 1).unwrap_err().code, RefusalCode::NotFound, "the type counts");
}

#[test]
fn a_change_is_not_answered_with_what_was_true_of_the_one_before() {
    let mut api = Api::new();
    api.put(body(good())).unwrap();
    let cluster = ClusterId::from(id(10));
    let change = |api: &Api| api.state.resources[&ResourceId::from(cluster)].change.clone();
    let first = change(&api).request;
    // Two leaders found the create done, or a planner found it impossible, and a user was faster than the second answer.
    let done = Command::Decide(Decision::Satisfied { cluster, request: first });
    api.apply(done.clone()).unwrap();
    api.put(body(v1::ValkeySpec { replicas_per_shard: Some(2), ..good() })).unwrap();
    let second = change(&api);
    assert!(second.request != first && second.outcome == Outcome::InFlight);
    let failed = Decision::Fail { cluster, request: first, message: "x".to_owned() };
    for late in [done, Command::Decide(failed)] {
        assert_eq!(api.apply(late).unwrap_err().code, RefusalCode::Outdated);
        assert_eq!(change(&api), second, "the change in flight stays in flight");
    }
    api.apply(Command::Decide(Decision::Satisfied { cluster, request: second.request })).unwrap();
    assert_eq!(change(&api).outcome, Outcome::Done);
}

#[test]
fn a_protected_resource_is_not_deleted() {
    let mut api = Api::new();
    let metadata = v1::Metadata { delete_protection: Some(true), ..metadata(id(20)).unwrap() };
    api.put(Body::Folder(v1::Folder { metadata: Some(metadata), ..v1::Folder::default() })).unwrap();
    let refusal = api.delete(Kind::Folder, 20).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::ResourceIsDeleteProtected);
    assert!(refusal.message.contains("has metadata.deleteProtection set; unset it first"), "{refusal:?}");
}

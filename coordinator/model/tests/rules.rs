//! Every rule of the API for create and modify, through `validate::put` and the log, one row each: what is sent, the path and the
//! text of the refusal.
#![allow(clippy::unwrap_used)]

use shardplane_model::{
    command::{Applied, Command, Decision, Delete, Entry},
    engine::EngineKind,
    refusal::{Refusal, RefusalCode},
    resource::{Kind, Outcome, User},
    state::{Sealed, Settings, State, VmOffer, VolumeOffer},
    time::{Millis, Timestamp},
    validate,
};
use shardplane_proto::{
    ids::{ClusterId, RequestId, ResourceId},
    v1::{self, resource::Body},
};

fn id(number: u128) -> ResourceId {
    ResourceId::from_u128(number)
}

fn metadata(of: ResourceId) -> Option<v1::Metadata> {
    Some(v1::Metadata { id: of.to_string(), name: "n".to_owned(), ..v1::Metadata::default() })
}

struct Api {
    state: State,
    index: u64,
}

impl Api {
    /// A VPC (1), a subnet (2) and a parameter set (3).
    fn new() -> Self {
        let mut api = Self { state: State::default(), index: 0 };
        let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.01 };
        let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0 };
        let settings = Settings {
            vm_offers: [("g3-1c1-100".to_owned(), vm)].into(),
            volume_offers: [("gp3-750".to_owned(), volume)].into(),
            lost_after: Millis::seconds(30),
            ..Settings::default()
        };
        api.apply(Command::Configure(settings)).unwrap();
        api.put(Body::Vpc(v1::Vpc { metadata: metadata(id(1)), ..v1::Vpc::default() })).unwrap();
        api.put(subnet(2, 1, "10.20.0.0/24")).unwrap();
        api.put(parameters(&[("hz", "10")])).unwrap();
        api
    }

    fn apply(&mut self, command: Command) -> Result<Applied, Refusal> {
        self.index += 1;
        let entry = Entry { at: Timestamp(self.index * 1000), commands: vec![command] };
        self.state.apply(self.index, &entry).remove(0)
    }

    fn put(&mut self, body: Body) -> Result<Applied, Refusal> {
        let submission = validate::put(&self.state, &v1::Resource { body: Some(body) })?;
        let sealed = submission.secret.clone().map(|secret| Sealed(secret.into_bytes()));
        let user = User { id: "u".to_owned(), name: "u".to_owned() };
        let put = submission.into_put(RequestId::from_u128(u128::from(self.index) + 1), user, sealed);
        self.apply(Command::Put(put))
    }

    fn delete(&mut self, kind: Kind, number: u128) -> Result<Applied, Refusal> {
        let by = User { id: "u".to_owned(), name: "u".to_owned() };
        let request = RequestId::from_u128(u128::from(self.index) + 1);
        self.apply(Command::Delete(Delete { id: id(number), kind, request, by }))
    }
}

fn subnet(number: u128, vpc: u128, cidr: &str) -> Body {
    let spec = v1::VpcSubnetSpec { vpc_id: id(vpc).to_string(), ipv4_cidr: cidr.to_owned() };
    Body::VpcSubnet(v1::VpcSubnet {
        metadata: metadata(id(number)),
        spec: Some(spec),
        ..v1::VpcSubnet::default()
    })
}

fn parameters(pairs: &[(&str, &str)]) -> Body {
    let parameters = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Body::ValkeyParametersSet(v1::ValkeyParametersSet {
        metadata: metadata(id(3)),
        spec: Some(v1::ParametersSpec { parameters }),
        ..v1::ValkeyParametersSet::default()
    })
}

fn shards(count: u128) -> Vec<v1::ValkeyShardSpec> {
    (0..count)
        .map(|n| v1::ValkeyShardSpec { id: id(100 + n).to_string(), vpc_subnet_id: id(2).to_string() })
        .collect()
}

fn good() -> v1::ValkeySpec {
    v1::ValkeySpec {
        shards: shards(3),
        replicas_per_shard: Some(1),
        root_password: Some("secret".to_owned()),
        valkey_version: Some("8.1.1".to_owned()),
        vm_offer_id: Some("g3-1c1-100".to_owned()),
        volume_offer_id: Some("gp3-750".to_owned()),
        volume_size_gib: Some(10),
        ..v1::ValkeySpec::default()
    }
}

fn body(spec: v1::ValkeySpec) -> Body {
    Body::Valkey(v1::Valkey { metadata: metadata(id(10)), spec: Some(spec), ..v1::Valkey::default() })
}

type Change = Box<dyn Fn(&mut v1::ValkeySpec)>;

fn change(f: impl Fn(&mut v1::ValkeySpec) + 'static) -> Change {
    Box::new(f)
}

fn password(text: impl Into<String>) -> Change {
    let text = text.into();
    change(move |s| s.root_password = Some(text.clone()))
}

#[test]
fn creates_that_are_accepted() {
    let rows: Vec<(&str, Change)> = vec![
        ("as it is", change(|_| {})),
        ("1 shard", change(|s| s.shards = shards(1))),
        ("4 shards", change(|s| s.shards = shards(4))),
        ("no replicas", change(|s| s.replicas_per_shard = Some(0))),
        ("5 replicas", change(|s| s.replicas_per_shard = Some(5))),
        ("upper-case ids", change(|s| s.shards.iter_mut().for_each(|x| x.id = x.id.to_uppercase()))),
        ("an unknown version", change(|s| s.valkey_version = Some("9.9.9".to_owned()))),
        ("a parameter set", change(|s| s.parameters_set_id = Some(id(3).to_string()))),
        ("an empty parameter set id", change(|s| s.parameters_set_id = Some(String::new()))),
        ("the largest volume", change(|s| s.volume_size_gib = Some(1000))),
        ("quotes", password("a\"b'c`d")),
        ("spaces", password(" a b ")),
        ("characters of URLs", password("@:/?#%")),
        ("UTF-8", password("\u{e9}\u{4e2d}\u{1f600}")),
        ("512 bytes", password("x".repeat(512))),
        ("512 bytes of UTF-8", password("\u{e9}".repeat(256))),
    ];
    for (what, apply) in rows {
        let mut spec = good();
        apply(&mut spec);
        let answer = Api::new().put(body(spec));
        assert!(matches!(answer, Ok(Applied::Accepted { .. })), "{what}: {answer:?}");
    }
}

#[test]
fn creates_that_are_refused_name_the_path_and_the_rule() {
    let rows: Vec<(Change, &str)> = vec![
        (
            change(|s| s.shards = shards(0)),
            "spec.shards: is required: one entry a shard, 1 shard or 3 and more",
        ),
        (change(|s| s.shards = shards(2)), "spec.shards: has 2 entries; allowed is 1, or 3 and more"),
        (change(|s| s.shards = shards(129)), "spec.shards: has 129 entries; at most 128 are allowed"),
        (change(|s| s.replicas_per_shard = None), "spec.replicasPerShard: is required"),
        (change(|s| s.replicas_per_shard = Some(-1)), "spec.replicasPerShard: is -1; allowed is 0 to 5"),
        (change(|s| s.replicas_per_shard = Some(6)), "spec.replicasPerShard: is 6; allowed is 0 to 5"),
        (change(|s| s.root_password = None), "spec.rootPassword: is required"),
        (password(""), "spec.rootPassword: is empty; it has 1 to 512 bytes"),
        (password("x".repeat(513)), "spec.rootPassword: has 513 bytes; it has 1 to 512 bytes"),
        (password("a\nb"), "spec.rootPassword: holds a line break or another control character"),
        (change(|s| s.valkey_version = None), "spec.valkeyVersion: is required"),
        (change(|s| s.vm_offer_id = None), "spec.vmOfferId: is required"),
        (
            change(|s| s.vm_offer_id = Some("x".repeat(33))),
            "spec.vmOfferId: has 1 to 32 bytes without spaces",
        ),
        (
            change(|s| s.vm_offer_id = Some("g9".to_owned())),
            "spec.vmOfferId: \"g9\" is not in the catalogue, which has g3-1c1-100",
        ),
        (change(|s| s.volume_offer_id = None), "spec.volumeOfferId: is required"),
        (
            change(|s| s.volume_offer_id = Some("gp9".to_owned())),
            "spec.volumeOfferId: \"gp9\" is not in the catalogue, which has gp3-750",
        ),
        (change(|s| s.volume_size_gib = None), "spec.volumeSizeGiB: is required"),
        (change(|s| s.volume_size_gib = Some(0)), "spec.volumeSizeGiB: is 0; allowed is 1 to"),
        (change(|s| s.volume_size_gib = Some(-5)), "spec.volumeSizeGiB: is -5; allowed is 1 to"),
        (
            change(|s| s.volume_size_gib = Some(1_000_000)),
            "spec.volumeSizeGiB: is 1000000; allowed is 1 to 1000 for the offer gp3-750",
        ),
        (change(|s| s.shards[1].id = String::new()), "spec.shards[1].id: is required"),
        (change(|s| s.shards[1].id = "nonsense".to_owned()), "spec.shards[1].id: \"nonsense\" is not a ULID"),
        (
            change(|s| s.shards[2].id = s.shards[0].id.to_uppercase()),
            "is given twice; every shard has an id of its own",
        ),
        (change(|s| s.shards[0].vpc_subnet_id = String::new()), "spec.shards[0].vpcSubnetId: is required"),
        (change(|s| s.shards[0].vpc_subnet_id = "8".repeat(26)), "spec.shards[0].vpcSubnetId: \"888"),
        (
            change(|s| s.shards[0].vpc_subnet_id = id(77).to_string()),
            "spec.shards[0].vpcSubnetId: 0000000000000000000000002d is not the id of an existing VpcSubnet",
        ),
        (
            change(|s| s.shards[0].vpc_subnet_id = id(1).to_string()),
            "spec.shards[0].vpcSubnetId: 00000000000000000000000001 is not the id of an existing VpcSubnet",
        ),
        (
            change(|s| s.parameters_set_id = Some(id(77).to_string())),
            "spec.parametersSetId: 0000000000000000000000002d is not the id of an existing ValkeyParametersSet",
        ),
        (change(|s| s.parameters_set_id = Some("x".to_owned())), "spec.parametersSetId: \"x\" is not a ULID"),
        (change(|s| s.use_fqdn = Some(true)), "spec.useFqdn: is true"),
        (change(|s| s.create_public_ipv4 = Some(true)), "spec.createPublicIpv4: is true"),
    ];
    for (apply, text) in rows {
        let mut api = Api::new();
        let mut spec = good();
        apply(&mut spec);
        let before = api.state.clone();
        let refusal = api.put(body(spec)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::BadData, "{text}");
        assert!(refusal.message.contains(text), "wanted {text:?}, got {:?}", refusal.message);
        let paths: std::collections::BTreeSet<_> = refusal
            .message
            .split("; spec.")
            .filter_map(|v| v.trim_start_matches("spec.").split(": ").next())
            .collect();
        assert_eq!(paths.len(), 1, "one field only: {}", refusal.message);
        assert!(api.state == before, "a refusal changes nothing");
    }
}

#[test]
fn all_violations_are_listed_at_once() {
    let refusal =
        Api::new().put(body(v1::ValkeySpec { shards: shards(2), ..v1::ValkeySpec::default() })).unwrap_err();
    for path in [
        "shards",
        "replicasPerShard",
        "rootPassword",
        "valkeyVersion",
        "vmOfferId",
        "volumeOfferId",
        "volumeSizeGiB",
    ] {
        assert!(refusal.message.contains(&format!("spec.{path}: ")), "{path} is not in {}", refusal.message);
    }
    assert!(!refusal.message.contains("secret"));
}

#[test]
fn ids_and_names_have_codes_of_their_own() {
    let with = |metadata: v1::Metadata| {
        Body::Folder(v1::Folder { metadata: Some(metadata), ..v1::Folder::default() })
    };
    let rows = [
        ("", "n", RefusalCode::MissingIdField, "metadata.id: is required"),
        ("7zzzzzzzzzzzzzzzzzzzzzzzzz", " ", RefusalCode::MissingNameField, "metadata.name: is required"),
        ("8zzzzzzzzzzzzzzzzzzzzzzzzz", "n", RefusalCode::BadData, "metadata.id: \"8zzz"),
    ];
    for (id, name, code, text) in rows {
        let metadata = v1::Metadata { id: id.to_owned(), name: name.to_owned(), ..v1::Metadata::default() };
        let refusal = Api::new().put(with(metadata)).unwrap_err();
        assert!(refusal.code == code && refusal.message.contains(text), "{refusal:?}");
    }
    let other_kind = v1::Metadata { id: id(1).to_string(), name: "n".to_owned(), ..v1::Metadata::default() };
    let refusal = Api::new().put(with(other_kind)).unwrap_err();
    assert!(refusal.message.contains("is the id of a Vpc; make a new ULID"), "{refusal:?}");
}

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

/// A cluster of `count` shards that is made.
fn made(count: u128) -> Api {
    let mut api = Api::new();
    api.put(subnet(4, 1, "10.21.0.0/24")).unwrap();
    api.put(body(v1::ValkeySpec { shards: shards(count), ..good() })).unwrap();
    let cluster = ClusterId::from(id(10));
    let request = api.state.resources[&ResourceId::from(cluster)].change.request;
    api.apply(Command::Decide(Decision::Satisfied { cluster, request })).unwrap();
    api
}

fn with_shards(shards: Vec<v1::ValkeyShardSpec>) -> Body {
    body(v1::ValkeySpec { shards, ..good() })
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

#[test]
fn subnets_have_rules_too() {
    let rows = [
        (subnet(5, 1, ""), "spec.ipv4Cidr: is required, for example 10.20.0.0/24"),
        (subnet(5, 1, "10.20.0.128/25"), "spec.ipv4Cidr: 10.20.0.128/25 overlaps 10.20.0.0/24"),
        (
            subnet(5, 9, "10.30.0.0/24"),
            "spec.vpcId: 00000000000000000000000009 is not the id of an existing Vpc",
        ),
        (subnet(2, 1, "10.30.0.0/24"), "spec.ipv4Cidr: cannot change after creation"),
    ];
    for (body, text) in rows {
        let refusal = Api::new().put(body).unwrap_err();
        assert!(refusal.message.contains(text), "wanted {text:?}, got {:?}", refusal.message);
    }
}

//! Rules of a create, and of what every resource has: one row each.

use shardplane_model::{command::Applied, refusal::RefusalCode};
use shardplane_proto::v1::{self, resource::Body};

use super::api::{Api, Change, body, change, good, id, password, shards, subnet};

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

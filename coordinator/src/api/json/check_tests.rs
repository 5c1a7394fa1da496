//! Families of bad bodies, and what is said about each.

use super::*;

fn valkey() -> Kind {
    Kind::from_path("valkey").unwrap()
}

fn said(kind: Kind, body: &str) -> Vec<String> {
    check(kind, &parse(body.as_bytes()).unwrap()).violations.iter().map(ToString::to_string).collect()
}

fn only(kind: Kind, body: &str, line: &str) {
    assert_eq!(said(kind, body), [line], "{body}");
}

const WHOLE: &str = r#"{"apiVersion":"v1","kind":"Valkey","metadata":{"id":"01K0000000000000000000000A","name":"x","description":null,
    "labels":{"a":"b","gone":null},"deleteProtection":true},"spec":{"shards":[{"id":"s","vpcSubnetId":"n"}],"replicasPerShard":0,
    "rootPassword":"p","volumeSizeGiB":10,"useFqdn":false},"status":{"anything":[1]}}"#;

#[test]
fn a_whole_body_is_read_and_nulls_and_status_are_left_out() {
    let checked = check(valkey(), &parse(WHOLE.as_bytes()).unwrap());
    assert_eq!(checked.violations, []);
    let Some(v1::resource::Body::Valkey(read)) = checked.resource.body else { panic!("not a Valkey") };
    let (metadata, spec) = (read.metadata.unwrap(), read.spec.unwrap());
    assert_eq!(metadata.labels, [("a".to_owned(), "b".to_owned())].into());
    assert_eq!((metadata.description, metadata.delete_protection), (None, Some(true)));
    assert_eq!(
        (spec.replicas_per_shard, spec.volume_size_gib, spec.use_fqdn),
        (Some(0), Some(10), Some(false))
    );
    assert!(read.status.is_none());
}

#[test]
fn unknown_members_are_named_with_their_path() {
    let kind = valkey();
    only(
        kind,
        r#"{"extra":1}"#,
        "extra: is not a member of a resource: apiVersion, kind, metadata, spec are",
    );
    only(
        kind,
        r#"{"spec":{"volumeSizeGib":1}}"#,
        "spec.volumeSizeGib: is not known: did you mean volumeSizeGiB?",
    );
    only(
        kind,
        r#"{"spec":{"replicas_per_shard":1}}"#,
        "spec.replicas_per_shard: is not known: did you mean replicasPerShard?",
    );
    only(
        kind,
        r#"{"spec":{"shards":[{},{"size":1}]}}"#,
        "spec.shards[1].size: is not known: allowed are id, vpcSubnetId",
    );
    only(Kind::Folder, r#"{"spec":{"a":null}}"#, "spec.a: is not known: nothing is allowed here");
    only(Kind::Folder, r#"{"spec":{"a b":1}}"#, r#"spec["a b"]: is not known: nothing is allowed here"#);
    let found = said(Kind::Vpc, r#"{"metadata":{"one":1,"two":{"deep":1}},"spec":{"three":3}}"#);
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn wrong_types_say_what_is_wanted_and_what_was_given() {
    let kind = valkey();
    for (body, line) in [
        (
            r#"{"spec":{"replicasPerShard":"3"}}"#,
            r#"spec.replicasPerShard: must be a whole number, without quotes or fraction, not the text "3""#,
        ),
        (
            r#"{"spec":{"replicasPerShard":1.5}}"#,
            "spec.replicasPerShard: must be a whole number, without quotes or fraction, not the number 1.5",
        ),
        (
            r#"{"spec":{"replicasPerShard":true}}"#,
            "spec.replicasPerShard: must be a whole number, without quotes or fraction, not the boolean true",
        ),
        (
            r#"{"spec":{"useFqdn":"true"}}"#,
            r#"spec.useFqdn: must be true or false, without quotes, not the text "true""#,
        ),
        (
            r#"{"spec":{"useFqdn":0}}"#,
            "spec.useFqdn: must be true or false, without quotes, not the number 0",
        ),
        (
            r#"{"spec":{"valkeyVersion":8.1}}"#,
            "spec.valkeyVersion: must be a text in quotes, not the number 8.1",
        ),
        (r#"{"spec":{"shards":{}}}"#, "spec.shards: must be a list, not an object"),
        (r#"{"spec":{"shards":[null]}}"#, "spec.shards[0]: must be an object, not null"),
        (r#"{"spec":[]}"#, "spec: must be an object, not a list"),
        (r#"{"metadata":"x"}"#, "metadata: must be an object, not a text"),
        (r#"{"metadata":{"labels":["a"]}}"#, "metadata.labels: must be an object of texts, not a list"),
        (
            r#"{"metadata":{"labels":{"a":1}}}"#,
            "metadata.labels.a: must be a text in quotes, not the number 1",
        ),
        (r#"{"id":7}"#, "id: must be a text: the ULID of the resource, not the number 7"),
    ] {
        only(kind, body, line);
    }
}

#[test]
fn whole_numbers_may_be_written_as_such_and_must_fit() {
    let kind = valkey();
    assert!(said(kind, r#"{"spec":{"replicasPerShard":3.0,"volumeSizeGiB":1e1}}"#).is_empty());
    for (number, shown) in [
        ("3000000000", "3000000000"),
        ("-3000000000", "-3000000000"),
        ("1e10", "10000000000"),
        ("18446744073709551615", "18446744073709551615"),
        ("99999999999999999999999", "100000000000000000000000"),
    ] {
        only(
            kind,
            &format!(r#"{{"spec":{{"volumeSizeGiB":{number}}}}}"#),
            &format!(
                "spec.volumeSizeGiB: is out of range: the number {shown} does not fit -2147483648 to 2147483647"
            ),
        );
    }
}

#[test]
fn a_secret_is_never_in_a_text() {
    for given in ["12345678", "true", r#"["hunter2"]"#, r#"{"hunter2":1}"#] {
        let text = said(valkey(), &format!(r#"{{"spec":{{"rootPassword":{given}}}}}"#)).join("; ");
        assert!(text.starts_with("spec.rootPassword: must be a text in quotes, not a"), "{text}");
        assert!(!text.contains("12345678") && !text.contains("true") && !text.contains("hunter2"), "{text}");
        let role = Kind::Role(shardplane_model::engine::EngineKind::Postgres);
        let text = said(role, &format!(r#"{{"spec":{{"password":{given}}}}}"#)).join("; ");
        assert!(text.starts_with("spec.password: must be a text in quotes, not a"), "{text}");
        assert!(!text.contains("12345678") && !text.contains("true") && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn members_given_twice_are_refused_at_every_depth() {
    only(Kind::Vpc, r#"{"metadata":{"name":"a","name":"b"}}"#, "metadata.name: is given more than once");
    only(Kind::Vpc, r#"{"spec":{},"spec":{}}"#, "spec: is given more than once");
    only(
        Kind::Vpc,
        r#"{"metadata":{"labels":{"a":"1","a":"1","a":"2"}}}"#,
        "metadata.labels.a: is given more than once",
    );
}

#[test]
fn kind_and_version_must_be_those_of_the_path() {
    only(Kind::Vpc, r#"{"kind":"Valkey"}"#, r#"kind: must be "Vpc" here, not the text "Valkey""#);
    only(Kind::Vpc, r#"{"kind":1}"#, r#"kind: must be "Vpc" here, not the number 1"#);
    only(Kind::Vpc, r#"{"apiVersion":"v2"}"#, r#"apiVersion: must be "v1" here, not the text "v2""#);
    assert!(said(Kind::Vpc, r#"{"apiVersion":null,"kind":null,"status":7}"#).is_empty());
}

#[test]
fn an_id_beside_metadata_is_taken_when_it_agrees() {
    let id = |body: &str| match check(Kind::Vpc, &parse(body.as_bytes()).unwrap()).resource.body {
        Some(v1::resource::Body::Vpc(vpc)) => vpc.metadata.unwrap().id,
        other => panic!("{other:?}"),
    };
    assert_eq!(id(r#"{"id":"01k0000000000000000000000a"}"#), "01k0000000000000000000000a");
    assert!(
        said(
            Kind::Vpc,
            r#"{"id":"01k0000000000000000000000a","metadata":{"id":"01K0000000000000000000000A"}}"#
        )
        .is_empty()
    );
    only(Kind::Vpc, r#"{"id":"a","metadata":{"id":"b"}}"#, "id: differs from metadata.id: give one of them");
}

#[test]
fn what_is_no_object_is_refused_as_a_whole() {
    for (body, part) in [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "not valid JSON"),
        ("{} x", "not valid JSON"),
        ("{\"a\":1e999}", "not valid JSON"),
        ("{\"a\":\"\u{1}\"}", "not valid JSON"),
        ("[]", "not a list"),
        ("null", "not null"),
        ("\"x\"", "not a text"),
        ("7", "not a number"),
    ] {
        let refused = parse(body.as_bytes()).unwrap_err().to_string();
        assert!(refused.contains(part), "{body}: {refused}");
    }
    assert!(parse(b"{\"a\":\"\xff\"}").is_err());
    let deep = format!("{{\"spec\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(parse(deep.as_bytes()).is_err());
}

#[test]
fn long_texts_are_cut_in_messages() {
    let body = format!(r#"{{"spec":{{"useFqdn":"{}"}}}}"#, "x".repeat(10_000));
    let text = said(valkey(), &body).join("; ");
    assert!(text.ends_with("and so on") && text.len() < 200, "{text}");
}

#[test]
fn of_very_many_violations_some_are_told() {
    let members: Vec<String> = (0..100_000).map(|n| format!("\"u{n}\":1")).collect();
    let lines = said(valkey(), &format!(r#"{{"spec":{{{}}}}}"#, members.join(",")));
    assert_eq!(lines.len(), TOLD + 1);
    assert_eq!(lines[TOLD], "body: breaks rules in 99936 more places; mend these first");
}

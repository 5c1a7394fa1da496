//! Our JSON against what cloud-hypervisor's own API description says: names, types, values. Tests only.
//!
//! In: the descriptions of a machine. Out: every key that the API does not know or knows otherwise. The facts below were
//! taken from the description of API version 0.3.0, as far as we use it; the crate `cloud-hypervisor-client` is generated
//! from the same and has the last word on names.

use cloud_hypervisor_client::models;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    config::{NetConfig, VmConfig, difference},
    fake::spec,
};

/// What may stand at a place.
enum Is {
    Text,
    OneOf(&'static [&'static str]),
    Flag,
    /// At least this.
    Number(u64),
}

const MODES: Is = Is::OneOf(&["Off", "Pty", "Tty", "File", "Socket", "Null"]);
const IMAGE_TYPES: Is = Is::OneOf(&["FixedVhd", "Qcow2", "Raw", "Vhdx", "Unknown"]);

/// Place and what may stand there; `*` is any entry of an array.
const FACTS: [(&str, Is); 33] = [
    ("cpus.boot_vcpus", Is::Number(1)),
    ("cpus.max_vcpus", Is::Number(1)),
    ("memory.size", Is::Number(1)),
    ("memory.hugepages", Is::Flag),
    ("memory.hugepage_size", Is::Number(1)),
    ("memory.reserve", Is::Flag),
    ("payload.kernel", Is::Text),
    ("payload.initramfs", Is::Text),
    ("payload.cmdline", Is::Text),
    ("disks.*.id", Is::Text),
    ("disks.*.path", Is::Text),
    ("disks.*.readonly", Is::Flag),
    ("disks.*.image_type", IMAGE_TYPES),
    ("disks.*.serial", Is::Text),
    ("disks.*.num_queues", Is::Number(1)),
    ("disks.*.queue_size", Is::Number(1)),
    ("disks.*.sparse", Is::Flag),
    ("disks.*.rate_limiter_config.ops.size", Is::Number(0)),
    ("disks.*.rate_limiter_config.ops.refill_time", Is::Number(0)),
    ("rng.src", Is::Text),
    ("serial.mode", MODES),
    ("serial.socket", Is::Text),
    ("console.mode", MODES),
    ("vsock.id", Is::Text),
    ("vsock.cid", Is::Number(3)),
    ("vsock.socket", Is::Text),
    ("platform.system_uuid", Is::Text),
    ("pvpanic", Is::Flag),
    ("landlock_enable", Is::Flag),
    ("net.*.id", Is::Text),
    ("net.*.mac", Is::Text),
    ("net.*.num_queues", Is::Number(1)),
    ("net.*.queue_size", Is::Number(1)),
];

/// Every leaf with its place.
fn leaves(value: &Value, place: &str, found: &mut Vec<(String, Value)>) {
    let below = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, &below(key), found)),
        Value::Array(items) => items.iter().for_each(|value| leaves(value, &below("*"), found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.push((place.to_owned(), value.clone()));
        }
    }
}

fn described() -> Value {
    let mut whole = json!(VmConfig::new(&spec(), true, "").unwrap());
    whole["net"] = json!([NetConfig::new(&spec())]);
    whole
}

fn wrong(whole: &Value) -> Vec<String> {
    let mut found = Vec::new();
    leaves(whole, "", &mut found);
    let is_wrong = |(place, value): &(String, Value)| {
        let fact = FACTS.iter().find(|(known, _)| known == place).map(|(_, fact)| fact);
        let right = fact.is_some_and(|fact| match fact {
            Is::Text => value.is_string(),
            Is::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Is::Flag => value.is_boolean(),
            Is::Number(least) => value.as_u64().is_some_and(|number| number >= *least),
        });
        (!right).then(|| format!("{place}: {value}"))
    };
    found.iter().filter_map(is_wrong).collect()
}

#[test]
fn all_that_is_sent_is_in_the_api_and_of_its_type() {
    assert_eq!(wrong(&described()), Vec::<String>::new());
    // So that what is sent is also looked at.
    for (change, place) in [
        (json!({"cpus": {"boot_vcpus": 0}}), "cpus.boot_vcpus"),
        (json!({"memory": {"size": "512M"}}), "memory.size"),
        (json!({"disks": [{"image_type": "raw"}]}), "disks.*.image_type"),
        (json!({"vsock": {"cid": 2}}), "vsock.cid"),
        (json!({"tap": "tap0"}), "tap"),
    ] {
        let found = wrong(&change);
        assert!(found.len() == 1 && found[0].starts_with(place), "{found:?}");
    }
}

#[test]
fn each_fact_is_about_something_that_is_sent() {
    let mut found = Vec::new();
    leaves(&described(), "", &mut found);
    for (known, _) in &FACTS {
        assert!(found.iter().any(|(place, _)| place == known), "{known} is not sent any more");
    }
}

/// Nothing is lost on the way through the generated models, which forget keys that they do not know.
#[test]
fn the_generated_models_know_all_that_is_sent() {
    let mut sent = described();
    // The models have only the older name of it, which the VMM takes as well.
    sent["platform"] = json!({"uuid": sent["platform"]["system_uuid"]});
    // And none for this one, which the description has.
    assert!(sent["memory"].as_object_mut().unwrap().remove("reserve").is_some());
    through::<models::VmConfig>(&sent);
    through::<models::NetConfig>(&json!(NetConfig::new(&spec())));
}

fn through<M: DeserializeOwned + Serialize>(sent: &Value) {
    let model: M = serde_json::from_value(sent.clone()).unwrap();
    assert_eq!(difference(sent, &json!(model)), None);
}

//! What would become of it: plans of changes and of lost racks, by REST, gRPC and the command line. Nothing is changed by any.

use std::net::Ipv4Addr;

use shardplane_model::{
    command::{Command, Decision, Notice},
    plan,
    state::{Footprint, HostFacts, Image, Instance},
};
use shardplane_proto::{
    ids::{ClusterId, HostId, InstanceId, ResourceId},
    v1::{operator_client::OperatorClient, resources_client::ResourcesClient},
};

use super::{
    command_line::STACK,
    grpc::{connected, signed},
    *,
};

/// Hosts with an image, each in a rack of its own, that are heard.
fn ready(asking: &Asking, racks: &[(&str, &str)]) {
    let host = |number: usize| HostId::from_u128(number as u128 + 1);
    let facts = |number: usize, zone: &str, rack: &str| HostFacts {
        name: format!("h{}", number + 1),
        rack: rack.to_owned(),
        zone: zone.to_owned(),
        underlay: Ipv4Addr::LOCALHOST,
        capacity: Footprint { vcpu_percent: 800, memory_mib: 8192, disk_gib: 100, iops: 9000 },
        images: vec![Image {
            engine: "valkey".to_owned(),
            version: "8.1.9".to_owned(),
            digest: "d".to_owned(),
            size: 1,
        }],
        vmm: "namespace".to_owned(),
        agent_version: "1".to_owned(),
        boot_id: String::new(),
        conditions: Vec::new(),
    };
    let notices = racks.iter().enumerate().map(|(number, (zone, rack))| {
        Command::Notice(Notice::Host { host: host(number), facts: facts(number, zone, rack) })
    });
    for answer in asking.fake.apply(notices.collect()) {
        answer.unwrap();
    }
    asking.fake.hear(&(0..racks.len()).map(host).collect::<Vec<_>>());
}

const ID: &str = "01k0000000000000000000000v";
const SUBNET: &str = "01k0000000000000000000000t";

/// A network; answers a cluster body over it.
async fn network(asking: &Asking) -> String {
    let vpc = r#"{"metadata":{"id":"01k0000000000000000000000n","name":"net"}}"#;
    let subnet = format!(
        r#"{{"metadata":{{"id":"{SUBNET}","name":"sub"}},"spec":{{"vpcId":"01k0000000000000000000000n","ipv4Cidr":"10.0.0.0/24"}}}}"#
    );
    for (path, body) in [("vpc", vpc), ("vpc-subnet", &subnet)] {
        let (status, answer) = asking.as_admin("PUT", &format!("/api/v1/{path}"), body).await;
        assert_eq!(status, StatusCode::OK, "{answer:?}");
    }
    valkey(ID, SUBNET, "hunter2")
}

fn only(plan: &Node) -> &Node {
    let clusters = plan.get("clusters").unwrap().items();
    assert_eq!(clusters.len(), 1, "{plan:?}");
    &clusters[0]
}

fn column(cluster: &Node, member: &str) -> Vec<String> {
    cluster.get("instances").unwrap().items().iter().map(|i| text(i, &[member]).to_owned()).collect()
}

#[tokio::test]
async fn a_create_is_planned_as_it_would_be_placed_and_nothing_happens() {
    let asking = Asking::new();
    let body = network(&asking).await;
    ready(&asking, &[("z", "a"), ("z", "b")]);
    let before = asking.fake.api().store.local();
    let (status, plan) = asking.as_admin("POST", "/api/v1/valkey:plan", &body).await;
    assert_eq!((status, text(&plan, &["what"]), text(&plan, &["name"])), (StatusCode::OK, "create", "cache"));
    let cluster = only(&plan);
    assert_eq!(column(cluster, "role"), ["primary", "replica"]);
    assert_eq!(column(cluster, "change"), ["new", "new"]);
    let mut hosts = column(cluster, "host");
    hosts.sort();
    assert_eq!(hosts, ["h1", "h2"]);
    assert_eq!(cluster.get("antiAffinityOk"), Some(&Node::Bool(true)), "{cluster:?}");
    assert!(
        cluster.get("waits").unwrap().items().is_empty() && cluster.get("pauses").unwrap().items().is_empty()
    );
    assert!(!format!("{plan:?}").contains("hunter2"));
    let after = asking.fake.api().store.local();
    assert!(before == after, "a plan changes nothing");

    // One host is not enough to be apart, none is not enough at all: both are said.
    asking.fake.hear(&[HostId::from_u128(1)]);
    let (_, plan) = asking.as_admin("POST", "/api/v1/valkey:plan", &body).await;
    let cluster = only(&plan);
    assert_eq!(cluster.get("antiAffinityOk"), Some(&Node::Bool(false)), "{cluster:?}");
    assert!(text(cluster, &["antiAffinityMessage"]).contains("share host h1"), "{cluster:?}");
    asking.fake.hear(&[]);
    let (_, plan) = asking.as_admin("POST", "/api/v1/valkey:plan", &body).await;
    let waits = format!("{:?}", only(&plan).get("waits"));
    assert!(waits.contains("no place: needs room for 2 instances"), "{plan:?}");
}

#[tokio::test]
async fn a_plan_is_refused_as_the_put_would_be() {
    let asking = Asking::new();
    let body = network(&asking).await;
    let (reader, writer) = (asking.fake.token(&[Scope::Read]), asking.fake.token(&[Scope::Write]));
    let (status, _) = asking.ask("POST", "/api/v1/valkey:plan", &reader, &body).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let wrong = body.replace("\"replicasPerShard\":1", "\"replicasPerShard\":9").replace(SUBNET, ID);
    let (put, refused) = asking.as_admin("PUT", "/api/v1/valkey", &wrong).await;
    let (planned, answer) = asking.ask("POST", "/api/v1/valkey:plan", &writer, &wrong).await;
    assert_eq!((put.as_u16(), planned), (400, put));
    assert_eq!(text(&answer, &["errorMessage"]), text(&refused, &["errorMessage"]));
    assert!(text(&answer, &["errorMessage"]).contains("spec.replicasPerShard"), "{answer:?}");
    assert_eq!(asking.as_admin("PUT", "/api/v1/valkey", &body).await.0, StatusCode::OK);
    let again = body.replace("\"replicasPerShard\":1", "\"replicasPerShard\":2");
    let (status, answer) = asking.as_admin("POST", "/api/v1/valkey:plan", &again).await;
    assert_eq!((status.as_u16(), text(&answer, &["errorCode"])), (409, "ResourceIsScheduling"), "{answer:?}");
    let (status, plan) = asking.as_admin("POST", "/api/v1/valkey:plan", &body).await;
    assert_eq!((status, text(&plan, &["what"])), (StatusCode::OK, "nothing"));
    for (path, code) in [("/api/v1/valkey", 400), ("/api/v1/nothing:plan", 422), ("/api/v1/valkey:drop", 400)]
    {
        assert_eq!(asking.as_admin("POST", path, &body).await.0.as_u16(), code, "{path}");
    }
    let mut resources = ResourcesClient::new(connected(&asking).await);
    let metadata = Some(v1::Metadata { id: ID.to_owned(), name: "a".to_owned(), ..Default::default() });
    let folder = v1::Folder { metadata, ..Default::default() };
    let put =
        v1::PutRequest { resource: Some(v1::Resource { body: Some(v1::resource::Body::Folder(folder)) }) };
    let refused = resources.plan(signed(&asking.token, put)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
}

#[tokio::test]
async fn kc_plans_a_manifest_document_by_document() {
    let asking = Asking::new();
    ready(&asking, &[("z", "a")]);
    let asked = asking.kc("plan -f stack.yaml", None).await;
    assert_eq!(text(&asked, &["readFile", "path"]), "stack.yaml");
    let answer = asking.kc("plan -f x", Some(STACK)).await;
    let said = text(&answer, &["stdout"]);
    for part in [
        "Folder/app would be created\n",
        "VpcSubnet/sub would be created\n",
        "Valkey/cache would be created\ncluster cache\nINSTANCE",
        "(new)      0       primary   h1     new      -",
        "anti-affinity: true: every primary",
        "pause: none\n",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(asking.fake.api().store.local().resources.is_empty());
    let json = asking.kc("plan -f x -o json", Some(STACK)).await;
    assert!(text(&json, &["stdout"]).contains("\"what\": \"create\""), "{json:?}");
    let wrong = STACK.replace("replicasPerShard: 0", "replicasPerShard: 7");
    let refused = asking.kc("plan -f x", Some(&wrong)).await;
    assert_eq!(refused.get("rc"), Some(&Node::Integer(1)));
    assert!(
        text(&refused, &["stderr"]).contains("Valkey/cache would be refused: spec.replicasPerShard"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn the_loss_of_a_rack_can_be_asked_about() {
    let asking = Asking::new();
    ready(&asking, &[("east", "r1"), ("east", "r2"), ("west", "r1")]);
    for (path, code, part) in [
        ("/api/v1/racks/r9:plan?what=loss", 422, "there is no host in a rack \"r9\""),
        ("/api/v1/racks/r1:plan?what=loss", 400, "write zone/rack with one of east, west"),
        ("/api/v1/racks/r2:plan?what=drain", 400, "only loss can be asked of a rack"),
        ("/api/v1/racks/r2", 422, ":plan?what=loss"),
    ] {
        let (status, answer) = asking.as_admin("GET", path, "").await;
        assert_eq!(status.as_u16(), code, "{path} {answer:?}");
        assert!(text(&answer, &["errorMessage"]).contains(part), "{path} {answer:?}");
    }
    let (status, plan) = asking.as_admin("GET", "/api/v1/racks/east/r1:plan?what=loss", "").await;
    assert_eq!((status, text(&plan, &["rack"]), text(&plan, &["host"])), (StatusCode::OK, "east/r1", ""));
    let answer = asking.kc("plan loss rack r2", None).await;
    assert!(text(&answer, &["stdout"]).contains("ANTI-AFFINITY"), "{answer:?}");
    let answer = asking.kc("plan loss host h1", None).await;
    assert_eq!(answer.get("rc"), Some(&Node::Integer(0)), "{answer:?}");
    let mut operator = OperatorClient::new(connected(&asking).await);
    let asks = v1::PlanHostRequest { what: "loss".to_owned(), rack: "r2".to_owned(), ..Default::default() };
    assert_eq!(operator.plan_host(signed(&asking.token, asks)).await.unwrap().into_inner().rack, "r2");
}

/// The cluster of [`network`] as it serves on hosts 1 and 2, with 5 MiB; answers its primary's host.
fn served(asking: &Asking) -> HostId {
    let api = asking.fake.api();
    let (state, observed) = (api.store.local(), api.reports.observed());
    let mut number = 1000;
    let mut ids = || {
        number += 1;
        number
    };
    for answer in asking.fake.apply(plan::plan(&state, &observed, state.now, &mut ids).commands()) {
        answer.unwrap();
    }
    let state = api.store.local();
    let cluster: ClusterId = *state.clusters.keys().next().unwrap();
    let request = state.resources[&ResourceId::from(cluster)].change.request;
    asking.fake.apply(vec![Command::Decide(Decision::Satisfied { cluster, request })]).remove(0).unwrap();
    let node = |id: InstanceId| format!("{:0>40}", id.as_u128());
    let (primaries, replicas): (Vec<_>, Vec<_>) =
        state.instances_of(cluster).partition(|instance| instance.first_primary);
    let (primary, replica) = (primaries[0], replicas[0]);
    let peer = |instance: &Instance, flag: &str| v1::ValkeyPeer {
        node_id: node(instance.id),
        ip: instance.ipv4.to_string(),
        flags: vec![flag.to_owned()],
        connected: true,
        ..Default::default()
    };
    let said = |id: InstanceId| v1::ValkeyReport {
        node_id: node(id),
        role: "slave".to_owned(),
        primary_node_id: node(primary.id),
        link_up: true,
        offset: 7,
        cluster_state: "ok".to_owned(),
        slots_assigned: 16_384,
        known_nodes: 2,
        peers: vec![peer(primary, "master")],
        used_memory_bytes: (5 << 20) - 1,
        keys: 100,
        ..Default::default()
    };
    let leads = v1::ValkeyReport {
        role: "master".to_owned(),
        primary_node_id: String::new(),
        config_epoch: 1,
        slots: vec![v1::ValkeySlots { start: 0, end: 16_383 }],
        peers: vec![peer(replica, "slave")],
        good_replicas: 1,
        ..said(primary.id)
    };
    asking.fake.hear_engine(primary.host, primary.id, leads);
    asking.fake.hear_engine(replica.host, replica.id, said(replica.id));
    primary.host
}

#[tokio::test]
async fn what_moves_what_is_copied_and_what_pauses_is_told() {
    let asking = Asking::new();
    let body = network(&asking).await;
    ready(&asking, &[("z", "a"), ("z", "b"), ("z", "c")]);
    assert_eq!(asking.as_admin("PUT", "/api/v1/valkey", &body).await.0, StatusCode::OK);
    let host = served(&asking);
    let mut operator = OperatorClient::new(connected(&asking).await);
    let asks = |what: &str| v1::PlanHostRequest {
        id: host.to_string(),
        what: what.to_owned(),
        ..Default::default()
    };
    let plan = operator.plan_host(signed(&asking.token, asks("loss"))).await.unwrap().into_inner();
    let (lost, cluster) = (&plan.moves[0], &plan.clusters[0]);
    assert_eq!((lost.slots, lost.bytes), (16_384, (5 << 20) - 1), "{plan:?}");
    assert_eq!((cluster.slots, cluster.bytes, cluster.pauses.len()), (lost.slots, lost.bytes, 1), "{plan:?}");

    let said = async |words: &str, typed: Option<&str>| {
        let answer = asking.kc(words, typed).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(0)), "{words}: {answer:?}");
        text(&answer, &["stdout"]).to_owned()
    };
    let (leads, follows) = if lost.from_host == "h1" { ("h1", "h2") } else { ("h2", "h1") };
    let told = said(&format!("plan loss {leads}"), None).await;
    for part in ["SLOTS   COPIES   BLOCKER", "16384   5 MiB", "cache: pause: about 80000 ms: shard"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let told = said(&format!("plan loss {follows}"), None).await;
    assert!(told.contains("0       5 MiB") && told.contains("cache: pause: none\n"), "{told}");
    let told = said(&format!("plan drain {leads}"), None).await;
    assert!(
        told.contains("16384   5 MiB") && told.contains("cache: pause: about 1000 ms: writes to shard"),
        "{told}"
    );
    let more = body.replace("\"replicasPerShard\":1", "\"replicasPerShard\":2");
    let more = more.replacen('{', "{\"kind\":\"Valkey\",", 1);
    let told = said("plan -f x", Some(&more)).await;
    assert!(told.contains("new      5 MiB") && told.contains("stays    -"), "{told}");
}

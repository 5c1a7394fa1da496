//! What is being done: operations, ending them, waiting and watching, by REST, gRPC and the command line.

use shardplane_model::{
    command::{Command, Decision, Ended, NewOperation, NewTask, Notice, Reservation},
    state::{Footprint, Goal, Instance, Intent, OperationKind, State},
};
use shardplane_proto::{
    ids::{ClusterId, HostId, InstanceId, OperationId, ResourceId, TaskId},
    v1::operator_client::OperatorClient,
};

use super::{
    command_line::STACK,
    grpc::{connected, signed},
    operator::host,
    *,
};

/// The one instance of a cluster of [`STACK`], on host 1.
fn instance_of(state: &State, cluster: ClusterId) -> Command {
    let shard = state.resources[&ResourceId::from(cluster)].cluster_spec().unwrap().groups().remove(0);
    let (subnet, vni) = state.vnis.iter().next().unwrap();
    assert_eq!(*subnet, shard.subnet);
    let instance = Instance {
        id: InstanceId::from_u128(1),
        cluster,
        group: shard.id,
        host: HostId::from_u128(1),
        subnet: *subnet,
        vpc: ResourceId::from_u128(1),
        ipv4: [10, 0, 0, 2].into(),
        mac: format!("02:00:00:00:00:{:02x}", vni % 256),
        footprint: Footprint { vcpu_percent: 100, memory_mib: 1024, disk_gib: 10, iops: 750 },
        vcpus: 1,
        vcpu_share: 100,
        image_digest: "d".to_owned(),
        first_primary: true,
        intent: Intent::Wanted,
        replaces: None,
        created: state.now,
        fact: None,
        moved: None,
        parameters: Default::default(),
        config_generation: Default::default(),
        restart_generation: Default::default(),
        fence: None,
        succeeded_by: None,
    };
    let operation = NewOperation {
        id: OperationId::from_u128(99),
        kind: OperationKind::Create,
        cause: "the cluster is made".to_owned(),
        goal: None,
    };
    let reservations = vec![Reservation { instance, own_group_on_host: 0 }];
    Command::Decide(Decision::Place { cluster, reservations, retire: Vec::new(), operation })
}

/// A cluster with one instance, and operations of these kinds that run.
async fn running(asking: &Asking, kinds: &[OperationKind]) -> (String, Vec<String>) {
    asking.kc("apply -f x", Some(STACK)).await;
    host(asking, 1, "h1", false);
    let state = asking.fake.api().store.local();
    let cluster: ClusterId = *state.clusters.keys().next().unwrap();
    let begin = |(number, kind): (u128, &OperationKind)| {
        let goal = Some(Goal { what: "slots".to_owned(), amount: 4096 });
        let id = OperationId::from_u128(number);
        let new = NewOperation { id, kind: *kind, cause: "a shard is added".to_owned(), goal };
        let task = NewTask {
            id: TaskId::from_u128(number),
            instance: InstanceId::from_u128(1),
            name: "move slots 0-255".to_owned(),
            payload: vec![u8::try_from(number).unwrap()],
        };
        let decision =
            Decision::StartTasks { cluster, operation: id, new_operation: Some(new), tasks: vec![task] };
        (id, Command::Decide(decision))
    };
    let place = instance_of(&state, cluster);
    let (ids, commands): (Vec<_>, Vec<_>) = (1..).zip(kinds).map(begin).unzip();
    for answer in asking.fake.apply([vec![place], commands].concat()) {
        answer.unwrap();
    }
    (cluster.to_string(), ids.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn an_operation_says_how_far_it_is_and_ends_when_somebody_cancels_it() {
    let asking = Asking::new();
    let (cluster, ids) = running(&asking, &[OperationKind::Reshard, OperationKind::Repair]).await;
    let (reshard, repair) =
        (format!("/api/v1/operations/{}", ids[0]), format!("/api/v1/operations/{}", ids[1]));
    let ended =
        Ended { counts: [("slots".to_owned(), 1024), ("keys".to_owned(), 9)].into(), ..Ended::default() };
    asking.fake.apply(vec![Command::Notice(Notice::TaskEnded { task: TaskId::from_u128(1), ended })]);
    let (_, one) = asking.as_admin("GET", &reshard, "").await;
    assert_eq!((text(&one, &["phase"]), text(&one, &["clusterName"])), ("running", "cache"));
    assert_eq!(one.get("progress"), Some(&Node::Integer(25)), "{one:?}");
    assert_eq!(one.at(&["counts", "keys"]), Some(&Node::Integer(9)));
    assert_eq!(one.at(&["goal", "amount"]), Some(&Node::Integer(4096)));
    assert!(matches!(one.get("estimateSeconds"), Some(Node::Integer(_))), "{one:?}");
    assert_eq!(one.get("cancellable"), Some(&Node::Bool(true)));
    let table = asking.kc("get operation -o wide", None).await;
    for part in ["25%", "1024/4096 slots, 9 keys", "about 0s", "CANCELLABLE"] {
        assert!(text(&table, &["stdout"]).contains(part), "{table:?}");
    }

    // Who may change a cluster may stop a change, who may only read may not.
    let (reader, writer) = (asking.fake.token(&[Scope::Read]), asking.fake.token(&[Scope::Write]));
    let cancel = |path: &str| format!("{path}:cancel");
    let (status, answer) = asking.ask("POST", &cancel(&reshard), &reader, "").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{answer:?}");
    for (path, code, part) in [
        (
            cancel(&repair),
            400,
            "cannot be cancelled: only the adding of shards or replicas, the moving of slots",
        ),
        (format!("{reshard}:stop"), 422, "there is cancel"),
        (reshard.clone(), 400, ":cancel is there"),
        (cancel("/api/v1/operations/x"), 422, "there is no operation \"x\""),
    ] {
        let (status, answer) = asking.ask("POST", &path, &writer, "").await;
        assert_eq!(status.as_u16(), code, "{path} {answer:?}");
        assert!(text(&answer, &["errorMessage"]).contains(part), "{path} {answer:?}");
    }
    for _ in 0..2 {
        let (status, one) = asking.ask("POST", &cancel(&reshard), &writer, "").await;
        assert_eq!((status, text(&one, &["phase"])), (StatusCode::OK, "cancelled"), "{one:?}");
        assert_eq!(text(&one, &["error"]), "cancelled by tester");
    }
    asking.fake.apply(vec![Command::Decide(Decision::EndOperation {
        operation: ids[1].parse().unwrap(),
        error: None,
    })]);
    let (status, answer) = asking.as_admin("POST", &cancel(&repair), "").await;
    assert_eq!(status.as_u16(), 400);
    assert!(text(&answer, &["errorMessage"]).contains("has ended; there is nothing to cancel"), "{answer:?}");
    let events = asking.kc(&format!("events --for cluster/{cluster}"), None).await;
    assert!(text(&events, &["stdout"]).contains("OperationCancelled"), "{events:?}");
}

/// What the log wants shows before its host has said anything, and beside what that says.
#[tokio::test]
async fn a_fenced_instance_shows_that_it_must_not_serve_and_whether_its_host_says_so() {
    let asking = Asking::new();
    let (cluster, ids) = running(&asking, &[OperationKind::Takeover]).await;
    let shown = async |words: &str| text(&asking.kc(words, None).await, &["stdout"]).to_owned();
    let free = shown("get instance").await;
    assert!(free.contains(" wanted") && !free.contains("fenced"), "{free}");
    let instance = InstanceId::from_u128(1);
    let operation = NewOperation {
        id: ids[0].parse().unwrap(),
        kind: OperationKind::Takeover,
        cause: "its shard has no primary".to_owned(),
        goal: None,
    };
    let (cluster, instances) = (cluster.parse().unwrap(), vec![instance]);
    let fence = Decision::Fence { cluster, away: instances.clone(), instances, operation };
    for answer in asking.fake.apply(vec![Command::Decide(fence)]) {
        answer.unwrap();
    }
    let fenced = async || {
        let (_, list) = asking.as_admin("GET", "/api/v1/instances", "").await;
        let Some(Node::List(items)) = list.get("items") else { panic!("{list:?}") };
        items[0].get("fence").unwrap().clone()
    };
    let one = fenced().await;
    assert_eq!(members(&one), ["time", "operationId", "heirId", "confirmed"]);
    assert_eq!(one.get("confirmed"), Some(&Node::Bool(false)));
    assert_eq!((text(&one, &["operationId"]), text(&one, &["heirId"])), (ids[0].as_str(), ""));
    let silent = shown("get instance").await;
    assert!(silent.contains(" wanted,fenced?"), "{silent}");
    asking.fake.hear_fenced(HostId::from_u128(1), instance);
    assert_eq!(fenced().await.get("confirmed"), Some(&Node::Bool(true)));
    for words in ["get instance", "describe valkey cache"] {
        let proved = shown(words).await;
        assert!(proved.contains(" wanted,fenced") && !proved.contains("fenced?"), "{words}: {proved}");
    }
}

#[tokio::test]
async fn metrics_tell_what_goes_no_further_until_somebody_acts() {
    let asking = Asking::new();
    let (cluster, ids) = running(&asking, &[OperationKind::Takeover, OperationKind::Reshard]).await;
    let cluster: ClusterId = cluster.parse().unwrap();
    let ids: Vec<OperationId> = ids.iter().map(|id| id.parse().unwrap()).collect();
    let counts = async || {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let body = asking.router.clone().oneshot(request).await.unwrap().into_body();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        [
            "shardplane_changes_halted{what=\"slots\"} ",
            "shardplane_changes_halted{what=\"parameters\"} ",
            "shardplane_takeovers_without_proof ",
        ]
        .map(|name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned).unwrap())
    };
    let decide = |decision| asking.fake.apply(vec![Command::Decide(decision)]).remove(0).unwrap();
    assert_eq!(counts().await, ["0", "0", "0"]);

    let instances = vec![InstanceId::from_u128(1)];
    let (kind, cause) = (OperationKind::Takeover, "its shard has no primary".to_owned());
    let operation = NewOperation { id: ids[0], kind, cause, goal: None };
    decide(Decision::Fence { cluster, away: instances.clone(), instances: instances.clone(), operation });
    assert_eq!(counts().await, ["0", "0", "0"], "a proof that is not late yet");
    let message = "a takeover waits for proof: bring the host back".to_owned();
    decide(Decision::AwaitProof { cluster, instances, message });
    assert_eq!(counts().await, ["0", "0", "1"]);
    decide(Decision::EndOperation { operation: ids[0], error: None });
    assert_eq!(counts().await, ["0", "0", "0"], "the fence outlives its takeover until the host is back");

    decide(Decision::HaltReshard { cluster, operation: ids[1], error: "the engine refused".to_owned() });
    assert_eq!(counts().await, ["1", "0", "0"]);
    let revision = asking.fake.api().store.local().clusters[&cluster].rollout.parameters.revision;
    decide(Decision::HaltRollout { cluster, revision, why: "a member refused it".to_owned() });
    assert_eq!(counts().await, ["1", "1", "0"]);
    asking.kc(&format!("cancel operation {}", ids[1]), None).await;
    assert_eq!(counts().await, ["0", "1", "0"]);
}

#[tokio::test]
async fn kc_and_grpc_cancel_too() {
    let asking = Asking::new();
    let (_, ids) = running(&asking, &[OperationKind::Rollout, OperationKind::Reshard]).await;
    for (words, part) in [
        ("cancel".to_owned(), "kc cancel operation <id>"),
        (format!("cancel valkey {}", ids[0]), "an operation can"),
        ("cancel operation x".to_owned(), "there is no operation"),
    ] {
        let answer = asking.kc(&words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(text(&answer, &["stderr"]).contains(part), "{words}: {answer:?}");
    }
    let answer = asking.kc(&format!("cancel operation {}", ids[0]), None).await;
    assert!(text(&answer, &["stdout"]).contains("cancelled; what was done stays"), "{answer:?}");
    let waited = asking.kc(&format!("wait operation {}", ids[0]), None).await;
    assert_eq!(waited.get("rc"), Some(&Node::Integer(1)));
    assert!(text(&waited, &["stderr"]).contains("was cancelled by tester"), "{waited:?}");
    let mut operator = OperatorClient::new(connected(&asking).await);
    let ask = v1::CancelOperationRequest { id: ids[1].clone() };
    let view = operator.cancel_operation(signed(&asking.token, ask)).await.unwrap().into_inner();
    assert_eq!(view.phase, "cancelled");
    let none = v1::CancelOperationRequest { id: "x".to_owned() };
    let refused = operator.cancel_operation(signed(&asking.token, none)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

/// A replica more was asked for, and nobody has room: what waits for it.
async fn waits_for_room(asking: &Asking) -> String {
    running(asking, &[]).await;
    let request = |asking: &Asking| {
        let state = asking.fake.api().store.local();
        let (cluster, _) = state.clusters.iter().next().unwrap();
        (*cluster, state.resources[&ResourceId::from(*cluster)].change.request)
    };
    let (cluster, made) = request(asking);
    asking.fake.apply(vec![Command::Decide(Decision::Satisfied { cluster, request: made })]);
    let more = STACK.replace("replicasPerShard: 0", "replicasPerShard: 1");
    let applied = asking.kc("apply -f x", Some(&more)).await;
    assert!(text(&applied, &["stdout"]).contains("Valkey/cache applied"), "{applied:?}");
    let (kind, cause) = (OperationKind::Grow, "replicas are added".to_owned());
    let operation = NewOperation { id: OperationId::from_u128(7), kind, cause, goal: None };
    let (cluster, request) = request(asking);
    let why = "host h1 is short of memory".to_owned();
    let decision = Decision::AwaitPlace { cluster, request, operation, why };
    asking.fake.apply(vec![Command::Decide(decision)]).remove(0).unwrap();
    OperationId::from_u128(7).to_string()
}

#[tokio::test]
async fn a_replica_without_a_place_is_taken_back_by_rest() {
    let asking = Asking::new();
    let path = format!("/api/v1/operations/{}", waits_for_room(&asking).await);
    let (_, one) = asking.as_admin("GET", &path, "").await;
    assert_eq!((text(&one, &["kind"]), text(&one, &["phase"])), ("grow", "running"), "{one:?}");
    assert_eq!(one.get("cancellable"), Some(&Node::Bool(true)));
    let of = format!("/api/v1/valkey/{}", text(&one, &["clusterId"]));
    let asked = async || {
        let (_, answer) = asking.as_admin("GET", &of, "").await;
        answer.get("resource").unwrap().clone()
    };
    assert_eq!(asked().await.at(&["spec", "replicasPerShard"]), Some(&Node::Integer(1)));
    let (status, one) = asking.as_admin("POST", &format!("{path}:cancel"), "").await;
    assert_eq!((status, text(&one, &["phase"])), (StatusCode::OK, "cancelled"), "{one:?}");
    let after = asked().await;
    assert_eq!(after.at(&["spec", "replicasPerShard"]), Some(&Node::Integer(0)), "{after:?}");
    let outcome = text(&after, &["status", "lastChangeRequest", "errorMessage"]);
    assert!(
        outcome.contains("cancelled by tester: the spec is the one before this change again"),
        "{outcome}"
    );
    assert!(outcome.contains("put the change again when there is room for it"), "{outcome}");
}

#[tokio::test]
async fn a_replica_without_a_place_is_taken_back_by_kc() {
    let asking = Asking::new();
    let id = waits_for_room(&asking).await;
    let shown = asking.kc("get operation -o wide", None).await;
    let line = text(&shown, &["stdout"]).lines().find(|line| line.starts_with(&id)).unwrap();
    for part in ["grow", "replicas are added", "yes", "no place: host h1 is short of memory"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let answer = asking.kc(&format!("cancel operation {id}"), None).await;
    let said = "cancelled; the spec is the one before, and what was placed goes: replicas are added";
    assert!(text(&answer, &["stdout"]).contains(said), "{answer:?}");
    let events = asking.kc("events", None).await;
    for reason in ["NoPlace", "OperationCancelled"] {
        assert!(text(&events, &["stdout"]).contains(reason), "{reason}: {events:?}");
    }
    let shown = asking.kc("get vk cache -o yaml", None).await;
    assert!(text(&shown, &["stdout"]).contains("replicasPerShard: 0"), "{shown:?}");
}

/// Posts a command again with what the last answer said to echo.
async fn again(asking: &Asking, words: &str, retry: &Node) -> Node {
    let args: Vec<&str> = words.split_whitespace().collect();
    let retry = serde_json::to_string(retry).unwrap();
    let body = format!(r#"{{"args":{},"retryParams":{retry}}}"#, serde_json::to_string(&args).unwrap());
    asking.post_as_ours(&body).await
}

#[tokio::test]
async fn kc_waits_until_it_is_so_or_cannot_be_or_the_time_is_over() {
    let asking = Asking::new();
    let (cluster, ids) = running(&asking, &[OperationKind::Reshard]).await;
    for (words, part) in [
        ("wait", "kc wait <type> <name>"),
        ("wait vk cache", "for what?"),
        ("wait vk cache --for fine", "there are stable, ok, deleted"),
        ("wait vk nope --for stable", "there is no Valkey named \"nope\""),
        ("wait host h1 --for stable", "cannot be waited for"),
        ("wait vpc net --for ok", "has no state of its own"),
    ] {
        let answer = asking.kc(words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(text(&answer, &["stderr"]).contains(part), "{words}: {answer:?}");
    }
    let done = asking.kc("wait vpc net --for stable", None).await;
    assert_eq!(
        (text(&done, &["stdout"]), done.get("retryParams")),
        ("Vpc/net is stable\n", Some(&Node::Null))
    );
    assert_eq!(
        text(&asking.kc("wait vpc gone --for deleted", None).await, &["stdout"]),
        "Vpc/gone is deleted\n"
    );

    let words = "wait vk cache --for stable --timeout 1s";
    let first = asking.kc(words, None).await;
    let retry = first.get("retryParams").unwrap();
    assert!(text(&first, &["stderr"]).starts_with("Valkey/cache is not stable: reconciling"), "{first:?}");
    // The deadline is the first answer's, whoever answers later.
    let over = Node::object([
        ("type", Node::from("vk")),
        ("changeRequestId", Node::from("1")),
        ("resourceId", Node::from(text(retry, &["resourceId"]))),
        ("operation", Node::from("wait")),
    ]);
    let late = again(&asking, words, &over).await;
    assert_eq!(late.get("rc"), Some(&Node::Integer(1)));
    assert!(text(&late, &["stderr"]).contains("timed out after 1s: Valkey/cache is not stable"), "{late:?}");
    let cluster: ClusterId = cluster.parse().unwrap();
    let request = asking.fake.api().store.local().resources[&ResourceId::from(cluster)].change.request;
    let wrong = asking.kc("wait vk cache --for condition=Nothing", None).await;
    assert!(text(&wrong, &["stderr"]).contains("no condition Nothing; there is MembersAnswer"), "{wrong:?}");
    let fine = asking.kc("wait vk cache --for condition=nothingwaits", None).await;
    assert_eq!(text(&fine, &["stdout"]), "Valkey/cache: NothingWaits is True\n", "{fine:?}");
    let words = format!("wait operation {}", ids[0]);
    let waiting = asking.kc(&words, None).await;
    assert!(text(&waiting, &["stderr"]).contains("is running: 0%, 0/4096 slots"), "{waiting:?}");
    asking.fake.apply(vec![Command::Decide(Decision::Satisfied { cluster, request })]);
    let reached = again(&asking, "wait vk cache --for stable --timeout 1s", retry).await;
    assert_eq!(
        (text(&reached, &["stdout"]), reached.get("rc")),
        ("Valkey/cache is stable\n", Some(&Node::Integer(0)))
    );
    let ended = again(&asking, &words, waiting.get("retryParams").unwrap()).await;
    assert_eq!(text(&ended, &["stdout"]), format!("operation/{} succeeded\n", ids[0]), "{ended:?}");
}

#[tokio::test]
async fn a_watch_shows_the_table_and_then_what_changes() {
    let asking = Asking::new();
    asking.kc("apply -f x", Some("kind: Vpc\nmetadata: {name: net}")).await;
    let ours = async |words: &str| {
        let args: Vec<&str> = words.split_whitespace().collect();
        asking.post_as_ours(&format!(r#"{{"args":{}}}"#, serde_json::to_string(&args).unwrap())).await
    };
    let first = ours("get vpc -w").await;
    assert!(text(&first, &["stdout"]).starts_with("NAME   ID "), "{first:?}");
    let quiet = again(&asking, "get vpc -w", first.get("retryParams").unwrap()).await;
    assert_eq!(text(&quiet, &["stdout"]), "");
    asking.kc("apply -f x", Some("kind: Vpc\nmetadata: {name: second}")).await;
    let news = again(&asking, "get vpc -w", quiet.get("retryParams").unwrap()).await;
    let lines: Vec<&str> = text(&news, &["stdout"]).lines().collect();
    assert!(lines.len() == 1 && lines[0].starts_with("second   "), "{lines:?}");
    asking.kc("delete vpc net", None).await;
    let news = again(&asking, "get vpc -w", news.get("retryParams").unwrap()).await;
    assert!(text(&news, &["stdout"]).ends_with(" is gone\n"), "{news:?}");

    host(&asking, 1, "h1", false);
    let events = ours("events -w").await;
    asking.kc("cordon h1", None).await;
    let news = again(&asking, "events -w", events.get("retryParams").unwrap()).await;
    let lines: Vec<&str> = text(&news, &["stdout"]).lines().collect();
    assert!(lines.len() == 1 && lines[0].contains("HostCordoned"), "{lines:?}");
    let about = asking.kc("events --for host/h1", None).await;
    assert!(text(&about, &["stdout"]).contains("HostCordoned"), "{about:?}");
    for (words, part) in [
        ("events --for h1", "cluster/NAME or host/NAME"),
        ("events --for host/nope", "there is no host \"nope\""),
        ("events --for token/x", "cluster/NAME or host/NAME"),
        ("get host --for host/h1", "--for is for events"),
        ("get vpc,subnet -w", "one type at a time"),
        ("get vpc -w -o json", ":watch tells changes as JSON"),
    ] {
        let answer = asking.kc(words, None).await;
        assert_eq!(answer.get("rc"), Some(&Node::Integer(1)), "{words}");
        assert!(text(&answer, &["stderr"]).contains(part), "{words}: {answer:?}");
    }

    // A client that prints only the last answer gets one when nothing is under way any more.
    asking.kc("apply -f x", Some(STACK)).await;
    let vendor = asking.kc("get vk -w", None).await;
    assert!(
        vendor.get("retryParams") != Some(&Node::Null) && text(&vendor, &["stdout"]).is_empty(),
        "{vendor:?}"
    );
    let settled = asking.kc("get vpc -w", None).await;
    assert_eq!(settled.get("retryParams"), Some(&Node::Null));
    assert!(text(&settled, &["stdout"]).starts_with("NAME"), "{settled:?}");
}

#[tokio::test]
async fn capacity_is_shown_by_host_rack_and_zone() {
    let asking = Asking::new();
    for (number, name) in [(1, "h1"), (2, "h2")] {
        host(&asking, number, name, false);
    }
    let table = asking.kc("get capacity", None).await;
    let lines: Vec<&str> = text(&table, &["stdout"]).lines().collect();
    assert_eq!(lines.len(), 1 + 2 + 1 + 1 + 1, "{lines:?}");
    assert!(
        lines[0].contains("STATE") && lines[5].starts_with("(all)") && lines[5].contains("2 hosts"),
        "{lines:?}"
    );
    let json = asking.kc("get capacity -o json", None).await;
    assert!(text(&json, &["stdout"]).contains("\"free\""), "{json:?}");
}

#[tokio::test]
async fn a_watch_by_rest_tells_what_is_there_and_what_changes_line_by_line() {
    use futures::StreamExt as _;
    let asking = Asking::new();
    let id = "01k0000000000000000000000v";
    let put = async |name: &str| {
        let body = format!(r#"{{"metadata":{{"id":"{id}","name":"{name}"}}}}"#);
        asking.as_admin("PUT", "/api/v1/vpc", &body).await
    };
    put("a").await;
    for (path, code, part) in [
        (format!("/api/v1/vpc/{id}:watch?timeoutSeconds=0"), 400, "allowed is 1 to 3600"),
        (format!("/api/v1/vpc/{id}:watch?timeoutSeconds=x"), 400, "allowed is 1 to 3600"),
        ("/api/v1/vpc/01k0000000000000000000000w:watch".to_owned(), 422, "there is no Vpc"),
        ("/api/v1/nothing:watch".to_owned(), 422, "there is no resource type"),
        ("/api/v1/vpc".to_owned(), 400, "/api/v1/vpc:watch tells changes"),
    ] {
        let (status, answer) = asking.as_admin("GET", &path, "").await;
        assert_eq!(status.as_u16(), code, "{path} {answer:?}");
        assert!(text(&answer, &["errorMessage"]).contains(part), "{path} {answer:?}");
    }
    let request = Request::get(format!("/api/v1/vpc/{id}:watch"))
        .header("authorization", format!("Bearer {}", asking.token))
        .body(Body::empty())
        .unwrap();
    let response = asking.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let mut lines = response.into_body().into_data_stream();
    let mut next = async || {
        let soon = std::time::Duration::from_secs(10);
        let line = tokio::time::timeout(soon, lines.next()).await.unwrap();
        line.map(|line| serde_json::from_slice::<Node>(&line.unwrap()).unwrap())
    };
    assert_eq!(text(&next().await.unwrap(), &["resource", "metadata", "name"]), "a");
    put("b").await;
    assert_eq!(text(&next().await.unwrap(), &["resource", "metadata", "name"]), "b");
    asking.as_admin("DELETE", &format!("/api/v1/vpc/{id}"), "").await;
    let gone = next().await.unwrap();
    assert_eq!((gone.get("deleted"), gone.get("resource")), (Some(&Node::Bool(true)), Some(&Node::Null)));
    assert!(next().await.is_none(), "a watch of one ends with it");
}

//! How this member is: for load balancers and Prometheus. In: what this member knows by itself, so that it answers without a leader
//! too; what hosts report only the leader knows, so the others leave those figures out instead of calling every host silent.
//! Out: `/healthz` as JSON, `/metrics` as text. Called by the door.

use std::{collections::BTreeMap, fmt::Write as _};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use shardplane_model::{
    command::Timestamp,
    observed::Observed,
    resource::Kind,
    state::{OperationState, State as Kept},
    view,
};

use super::{Api, family::json, json::Node, store::Standing};

/// `GET /healthz`: 200 while this member takes part and knows a leader.
pub async fn healthz(State(api): State<Api>) -> Response {
    let standing = api.store.standing().borrow().clone();
    let (ok, role, leader) = match standing {
        Standing::Leads { .. } => (true, "leader", Node::Null),
        Standing::Follows { leader } => (leader.is_some(), "follower", Node::from(leader)),
        Standing::Stopped => (false, "stopped", Node::Null),
    };
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let applied = i128::from(*api.store.applied().borrow());
    let body = [
        ("ok", Node::Bool(ok)),
        ("role", Node::from(role)),
        ("leader", leader),
        ("applied", Node::Integer(applied)),
    ];
    json(status, &Node::object(body))
}

/// `GET /metrics`: counts and states, no secrets and no names of resources.
pub async fn metrics(State(api): State<Api>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (StatusCode::OK, headers, render(&api)).into_response()
}

fn render(api: &Api) -> String {
    let state = api.store.local();
    let standing = api.store.standing().borrow().clone();
    let (leads, term) = match standing {
        Standing::Leads { term } => (1, Some(term)),
        Standing::Follows { .. } | Standing::Stopped => (0, None),
    };
    let mut out = Text::default();
    out.metric(
        "shardplane_members",
        "Members of the coordinator.",
        &[("", api.store.members().len() as u64)],
    );
    out.metric("shardplane_leader", "1 on the member that leads.", &[("", leads)]);
    if let Some(term) = term {
        out.metric("shardplane_raft_term", "Term of this leader.", &[("", term)]);
    }
    out.metric(
        "shardplane_raft_applied_index",
        "Newest applied log entry.",
        &[("", *api.store.applied().borrow())],
    );
    out.metric(
        "shardplane_instances",
        "Instances that are promised a place.",
        &[("", state.instances.len() as u64)],
    );

    let mut words: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for resource in state.resources.values() {
        *words.entry((resource.kind().path(), view::state_word(&state, resource))).or_default() += 1;
    }
    let resources: Vec<(String, u64)> = words
        .into_iter()
        .map(|((kind, word), count)| (format!("type=\"{kind}\",state=\"{word}\""), count))
        .collect();
    out.metric("shardplane_resources", "Public resources by type and state.", &resources);
    standstill(&mut out, &state);
    if term.is_some() {
        observed_metrics(&mut out, &state, &api.reports.observed(), api.now());
    }
    out.0
}

/// What goes no further until somebody does something: it is in the log, so every member knows it.
fn standstill(out: &mut Text, state: &Kept) {
    let running = || state.operations.values().filter(|o| o.state == OperationState::Running);
    let moves = running().filter(|operation| operation.halted.is_some()).count() as u64;
    let rollouts = state.clusters.values().filter(|c| c.rollout.halted().is_some()).count() as u64;
    out.metric(
        "shardplane_changes_halted",
        "Changes of clusters that have halted until somebody acts, by what halted.",
        &[("what=\"slots\"", moves), ("what=\"parameters\"", rollouts)],
    );
    let late = |id| {
        let mut fences = state.instances.values().filter_map(|instance| instance.fence.as_ref());
        fences.any(|fence| fence.operation == id && fence.told.is_some())
    };
    let takeovers = running().filter(|operation| late(operation.id)).count() as u64;
    out.metric(
        "shardplane_takeovers_without_proof",
        "Takeovers that wait for longer than the lease for proof that the old primary serves nobody.",
        &[("", takeovers)],
    );
}

/// What follows from the reports of hosts.
fn observed_metrics(out: &mut Text, state: &Kept, observed: &Observed, now: Timestamp) {
    let mut hosts = BTreeMap::from([("Ready", 0), ("Silent", 0), ("Lost", 0)]);
    let (mut cordoned, mut draining, mut blocked) = (0, 0, 0);
    for host in view::hosts(state, observed, now, "").items {
        if let Some(count) = hosts.get_mut(host.state.as_str()) {
            *count += 1;
        }
        cordoned += u64::from(host.cordon.is_some());
        let left = host.drain.map(|drain| drain.instances).unwrap_or_default();
        draining += u64::from(!left.is_empty());
        blocked += left.iter().filter(|left| left.phase == "blocked").count() as u64;
    }
    let hosts: Vec<(String, u64)> =
        hosts.into_iter().map(|(word, count)| (format!("state=\"{word}\""), count)).collect();
    out.metric("shardplane_hosts", "Hosts by state, on the leader only.", &hosts);
    for (name, help, value) in [
        ("shardplane_hosts_cordoned", "Hosts that get no new instances, on the leader only.", cordoned),
        (
            "shardplane_hosts_draining",
            "Hosts that are drained and not empty yet, on the leader only.",
            draining,
        ),
        (
            "shardplane_drain_blocked_instances",
            "Instances that a drain cannot move until something changes, on the leader only.",
            blocked,
        ),
    ] {
        out.metric(name, help, &[("", value)]);
    }

    let (mut whole, mut broken) = (0, 0);
    for resource in state.resources.values().filter(|resource| matches!(resource.kind(), Kind::Cluster(_))) {
        let message = view::resource(state, observed, resource, now, None);
        if serves(&message) { whole += 1 } else { broken += 1 }
    }
    let clusters = [("ok=\"true\"".to_owned(), whole), ("ok=\"false\"".to_owned(), broken)];
    out.metric(
        "shardplane_clusters",
        "Clusters by whether their engine says that they serve, on the leader only.",
        &clusters,
    );
}

/// Whether a cluster's engine says that it serves.
fn serves(message: &shardplane_proto::v1::Resource) -> bool {
    use shardplane_proto::v1::resource::Body;
    match &message.body {
        Some(Body::Valkey(cluster)) => {
            cluster.status.as_ref().and_then(|status| status.cluster_state.as_deref()) == Some("ok")
        }
        Some(Body::PostgreSql(cluster)) => {
            let state = cluster.status.as_ref().and_then(|status| status.cluster_state.as_deref());
            state == Some("ok") || state == Some("degraded")
        }
        Some(
            Body::ValkeyParametersSet(_)
            | Body::PostgreSqlParametersSet(_)
            | Body::PostgreSqlRole(_)
            | Body::Vpc(_)
            | Body::VpcSubnet(_)
            | Body::Folder(_)
            | Body::HostingProvider(_),
        )
        | None => false,
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn metric<L: AsRef<str>>(&mut self, name: &str, help: &str, values: &[(L, u64)]) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in values {
            let labels = labels.as_ref();
            let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            let _ = writeln!(self.0, "{name}{braces} {value}");
        }
    }
}

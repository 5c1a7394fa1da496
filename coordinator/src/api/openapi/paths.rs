//! Paths. In: the types there are. Out: the routes of the door as OpenAPI path items.

use shardplane_model::resource::Kind;

use super::{
    super::json::Node,
    reference,
    schemas::{OPERATOR, list_of, read_of},
};

/// Statuses at which clients find an envelope.
const REFUSALS: [(&str, &str); 6] = [
    ("400", "A rule is broken; every violation is listed."),
    ("401", "No token, or one that is not known."),
    ("403", "The token lacks a scope."),
    ("409", "A change of the resource is in flight."),
    ("422", "Not found, protected, or a change that cannot be carried out."),
    ("503", "No leader or no quorum; try again after Retry-After."),
];

/// Every path.
pub fn all() -> Node {
    let mut paths = Vec::new();
    for kind in Kind::all() {
        public(kind, &mut paths);
    }
    operator(&mut paths);
    Node::Object(paths)
}

fn public(kind: Kind, paths: &mut Vec<(String, Node)>) {
    let (name, path) = (kind.name(), format!("/api/v1/{}", kind.path()));
    let id = || parameter("path", "id", "string", "ULID of the resource; either case.");
    let put = operation(&format!("put{name}"), &format!("Create or update a {name}"), "ChangeResponse")
        .body(&["application/json", "application/json-patch+json"], name);
    paths.push((path.clone(), Node::object([("put", put.0)])));
    let plan = operation(&format!("plan{name}"), "What a PUT of the same body would lead to", "ChangePlan")
        .body(&["application/json", "application/json-patch+json"], name);
    paths.push((format!("{path}:plan"), Node::object([("post", plan.0)])));
    let list = operation(&format!("list{name}"), &format!("List {name} resources"), &list_of(kind))
        .parameters(vec![
            parameter(
                "query",
                "labels[key]",
                "string",
                "Pattern for the label; * stands for any text. Also label.key.",
            ),
            parameter("query", "maxPageSize", "integer", "1 to 100, default 10."),
            parameter("query", "enumeratorId", "string", "Where the last page ended."),
        ]);
    paths.push((format!("{path}/get-by-labels"), Node::object([("get", list.0)])));
    let poll = operation(&format!("poll{name}"), "How a change request stands", "PollResponse")
        .parameters(vec![parameter("path", "request", "string", "What PUT or DELETE answered.")]);
    paths.push((format!("{path}/request/{{request}}"), Node::object([("get", poll.0)])));
    let read =
        operation(&format!("get{name}"), &format!("Read a {name}"), &read_of(kind)).parameters(vec![id()]);
    let delete = operation(&format!("delete{name}"), &format!("Delete a {name}"), "ChangeResponse")
        .parameters(vec![id()]);
    paths.push((format!("{path}/{{id}}"), Node::object([("get", read.0), ("delete", delete.0)])));
    let watch = |id: &str, what: &str, place: Option<Node>| {
        let span =
            parameter("query", "timeoutSeconds", "integer", "When the watch ends; 1 to 3600, default 600.");
        let text = format!("{what} at once, then each change, as lines of JSON");
        let operation = operation(id, &text, "ResourceEvent");
        Node::object([("get", operation.parameters(place.into_iter().chain([span]).collect()).0)])
    };
    paths.push((format!("{path}:watch"), watch(&format!("watchAll{name}"), "All", None)));
    paths.push((format!("{path}/{{id}}:watch"), watch(&format!("watch{name}"), "The resource", Some(id()))));
    if matches!(kind, Kind::Cluster(_)) {
        let explain =
            operation(&format!("explain{name}Placement"), "Why each instance is where it is", "Explanation")
                .parameters(vec![id()]);
        paths.push((format!("{path}/{{id}}/placement"), Node::object([("get", explain.0)])));
    }
}

fn operator(paths: &mut Vec<(String, Node)>) {
    let filter = || parameter("query", "filter", "string", "Id of a cluster or host, or part of a subject.");
    for (path, id, summary, schema) in [
        ("hosts", "listHosts", "The hosts", "HostList"),
        ("instances", "listInstances", "The instances of all clusters", "InstanceList"),
        ("operations", "listOperations", "What is being done and was done", "OperationList"),
        ("events", "listEvents", "What happened", "EventList"),
        ("catalogue", "getCatalogue", "What can be ordered", "Catalogue"),
    ] {
        let get = operation(id, summary, schema).parameters(vec![filter()]);
        paths.push((format!("/api/v1/{path}"), Node::object([("get", get.0)])));
    }
    let one = operation("getHost", "One host", "HostView").parameters(vec![parameter(
        "path",
        "id",
        "string",
        "ULID of the host.",
    )]);
    let forget = operation("forgetHost", "Say that a lost host never returns", "ForgetHostResponse")
        .parameters(vec![parameter("path", "id", "string", "ULID of the host; it must be lost.")]);
    paths.push(("/api/v1/hosts/{id}".to_owned(), Node::object([("get", one.0), ("delete", forget.0)])));
    hosts(paths);
    let one = operation("getOperation", "One operation with its steps", "OperationView")
        .parameters(vec![parameter("path", "id", "string", "ULID of the operation.")]);
    paths.push(("/api/v1/operations/{id}".to_owned(), Node::object([("get", one.0)])));
    let cancel = operation(
        "cancelOperation",
        "End an operation: members that are added and own nothing go, what else was done stays",
        "OperationView",
    )
    .parameters(vec![parameter("path", "id", "string", "ULID of the operation.")]);
    paths.push(("/api/v1/operations/{id}:cancel".to_owned(), Node::object([("post", cancel.0)])));
    let token = operation("createToken", "Make a token; it is shown this once", "CreateTokenResponse")
        .body(&["application/json"], "CreateTokenRequest");
    let tokens = operation("listTokens", "The tokens, without their secrets", "TokenList")
        .parameters(vec![parameter("query", "filter", "string", "Id or name of a token.")]);
    paths.push(("/api/v1/tokens".to_owned(), Node::object([("get", tokens.0), ("post", token.0)])));
    let revoke =
        operation("revokeToken", "Take a token back; what uses it is refused at once", "RevokeTokenResponse")
            .parameters(vec![parameter("path", "id", "string", "ULID of the token, as the list shows it.")]);
    paths.push(("/api/v1/tokens/{id}".to_owned(), Node::object([("delete", revoke.0)])));
    let cli = operation("commandLine", "What the kc client posts", "CommandLineResponse")
        .body(&["application/json"], "CommandLineRequest");
    paths.push(("/api/v1/cli".to_owned(), Node::object([("post", cli.0)])));
    for (path, id, summary, kind) in [
        ("/healthz", "health", "Whether this member takes part and knows a leader", "application/json"),
        ("/metrics", "metrics", "Counts and states for Prometheus", "text/plain"),
        ("/openapi.json", "openapi", "This document", "application/json"),
    ] {
        let content = Node::object([(kind, Node::object([("schema", Node::Object(Vec::new()))]))]);
        let ok = Node::object([
            ("description", Node::from("The answer of this member itself.")),
            ("content", content),
        ]);
        let get = Node::object([
            ("operationId", Node::from(id)),
            ("summary", Node::from(summary)),
            // Asked by load balancers and scrapers, which have no token.
            ("security", Node::List(Vec::new())),
            ("responses", Node::object([("200", ok)])),
        ]);
        paths.push((path.to_owned(), Node::object([("get", get)])));
    }
}

fn hosts(paths: &mut Vec<(String, Node)>) {
    let id = || parameter("path", "id", "string", "ULID of the host.");
    let json = &["application/json"];
    for (verb, operation) in [
        (
            "cordon",
            operation("cordonHost", "Close a host for new instances", "HostView")
                .body(json, "CordonHostRequest"),
        ),
        ("uncordon", operation("uncordonHost", "Open a host again; ends a drain", "HostView")),
        (
            "drain",
            operation("drainHost", "Close a host and move everything away", "HostView")
                .body(json, "DrainHostRequest"),
        ),
    ] {
        let post = operation.parameters(vec![id()]);
        paths.push((format!("/api/v1/hosts/{{id}}:{verb}"), Node::object([("post", post.0)])));
    }
    let plan = operation("planHost", "What a drain or the loss of a host would lead to", "HostPlan")
        .parameters(vec![
            id(),
            parameter("query", "what", "string", "drain or loss."),
            parameter("query", "force", "string", "true: as a drain with force."),
        ]);
    paths.push(("/api/v1/hosts/{id}:plan".to_owned(), Node::object([("get", plan.0)])));
    let rack = operation("planRack", "What the loss of a rack would lead to", "HostPlan").parameters(vec![
        parameter("path", "rack", "string", "Its name, or zone/rack."),
        parameter("query", "what", "string", "loss."),
    ]);
    paths.push(("/api/v1/racks/{rack}:plan".to_owned(), Node::object([("get", rack.0)])));
    let drain =
        operation("getDrain", "How far a drain is, and what cannot move", "DrainView").parameters(vec![id()]);
    paths.push(("/api/v1/hosts/{id}/drain".to_owned(), Node::object([("get", drain.0)])));
}

struct Operation(Node);

fn operation(id: &str, summary: &str, answer: &str) -> Operation {
    let ok = [("200", response("The answer.", answer))];
    let refusals = REFUSALS.map(|(status, text)| {
        let schema =
            if answer.ends_with("Response") && !OPERATOR.contains(&answer) { answer } else { "Problem" };
        (status, response(text, schema))
    });
    let responses =
        ok.into_iter().chain(refusals).map(|(status, response)| (status.to_owned(), response)).collect();
    Operation(Node::object([
        ("operationId", Node::from(id)),
        ("summary", Node::from(summary)),
        ("responses", Node::Object(responses)),
    ]))
}

impl Operation {
    fn parameters(mut self, parameters: Vec<Node>) -> Self {
        self.0.set("parameters", Node::List(parameters));
        self
    }

    fn body(mut self, types: &[&str], schema: &str) -> Self {
        let content =
            types.iter().map(|kind| ((*kind).to_owned(), Node::object([("schema", reference(schema))])));
        let body =
            Node::object([("required", Node::Bool(true)), ("content", Node::Object(content.collect()))]);
        self.0.set("requestBody", body);
        self
    }
}

fn response(text: &str, schema: &str) -> Node {
    let content = Node::object([("application/json", Node::object([("schema", reference(schema))]))]);
    Node::object([("description", Node::from(text)), ("content", content)])
}

fn parameter(place: &str, name: &str, kind: &str, text: &str) -> Node {
    Node::object([
        ("name", Node::from(name)),
        ("in", Node::from(place)),
        ("required", Node::Bool(place == "path")),
        ("description", Node::from(text)),
        ("schema", Node::object([("type", Node::from(kind))])),
    ])
}

//! GET of what changes, as lines of JSON. In: a type, maybe an id, and for how long. Out: `{"resource": …, "deleted": false, "id": …}` for
//! everything that matches, then for each change; the last line is a problem when the watch cannot go on.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
};
use futures::StreamExt as _;
use http::header;
use shardplane_model::state::Scope;
use shardplane_proto::v1;
use tokio::time::sleep;

use super::{
    super::{
        Api, auth,
        errors::Problem,
        family::Family,
        json::{self, Node},
        verbs,
        watching::{self, Filter},
    },
    kind,
};

/// How long a watch goes on when nobody says, and at most, in seconds.
const SPAN: (u64, u64) = (600, 3_600);

/// `GET /api/v1/<type>:watch`
pub async fn all(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    match path.rsplit_once(':') {
        Some((path, "watch")) => one(&api, path, None, request).await,
        Some(_) | None => Family::Read.refuse(&Problem::bad_data(format!(
            "GET is not possible at /api/v1/{path}: /api/v1/{path}/get-by-labels lists, /api/v1/{path}:watch tells changes"
        ))),
    }
}

/// `GET /api/v1/<type>/<id>:watch`, and all of the type without an id.
pub async fn one(api: &Api, path: &str, id: Option<&str>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let span = span(request.uri().query().unwrap_or_default());
    match start(api, path, id, token.as_deref(), span).await {
        Ok(response) => response,
        Err(problem) => Family::Operator.refuse(&problem),
    }
}

async fn start(
    api: &Api,
    path: &str,
    id: Option<&str>,
    token: Option<&str>,
    span: Result<Duration, Problem>,
) -> Result<Response, Problem> {
    let session = api.enter(token, &[Scope::Read]).await?;
    let kind = kind(path)?;
    let id = id.map(|id| verbs::resource_id(kind, id)).transpose()?;
    id.map(|id| session.find(kind, id).map(|_| ())).transpose()?;
    let span = span?;
    let events = watching::start(session, kind, Filter { labels: Vec::new(), id });
    let lines = events.take_until(sleep(span)).map(|event| {
        let node = match event {
            Ok(event) => told(&event),
            Err(problem) => Node::object([
                ("errorMessage", Node::from(problem.message.as_str())),
                ("errorCode", Node::from(problem.code_in(Family::Operator))),
            ]),
        };
        // A tree of ours always serialises.
        let text = serde_json::to_string(&node).unwrap_or_default();
        Ok::<_, std::convert::Infallible>(format!("{text}\n"))
    });
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

fn told(event: &v1::WatchEvent) -> Node {
    Node::object([
        ("resource", event.resource.as_ref().map_or(Node::Null, json::resource)),
        ("deleted", Node::Bool(event.deleted)),
        ("id", Node::from(event.id.as_str())),
    ])
}

fn span(query: &str) -> Result<Duration, Problem> {
    let given = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "timeoutSeconds");
    let (default, most) = SPAN;
    let seconds =
        given.map_or(Ok(default), |(_, value)| value.parse::<u64>().map_err(|_| value.into_owned()));
    match seconds {
        Ok(seconds) if (1..=most).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        Ok(seconds) => {
            Err(Problem::bad_data(format!("timeoutSeconds: is {seconds}; allowed is 1 to {most}")))
        }
        Err(text) => Err(Problem::bad_data(format!("timeoutSeconds: is {text:?}; allowed is 1 to {most}"))),
    }
}

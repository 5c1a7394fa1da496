//! PUT and DELETE of a resource, and what a PUT would lead to. In: a whole resource, or an id. Out: the id of the change request; the plan.

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use bytes::Bytes;
use shardplane_model::state::Scope;
use shardplane_proto::v1;

use super::{
    super::{
        Api, auth, door,
        errors::Problem,
        family::{Family, success},
        json::{self, Node},
        verbs::{self, Accepted},
    },
    kind,
    operator::answered,
};

/// `PUT /api/v1/<type>`
pub async fn put(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let body = door::body(&api, token.as_deref(), request).await;
    answer(run_put(&api, &path, token.as_deref(), body).await)
}

async fn run_put(
    api: &Api,
    path: &str,
    token: Option<&str>,
    body: Result<Bytes, Problem>,
) -> Result<Accepted, Problem> {
    let session = api.enter(token, &[Scope::Write]).await?;
    let kind = kind(path)?;
    let checked = json::check(kind, &json::parse(&body?)?);
    session.put(&checked.resource, &checked.violations).await
}

/// `POST /api/v1/<type>:plan`: what a PUT of the same body would lead to.
pub async fn plan(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let body = door::body(&api, token.as_deref(), request).await;
    match path.rsplit_once(':') {
        Some((path, "plan")) => answered("ChangePlan", run_plan(&api, path, token.as_deref(), body).await),
        Some(_) | None => Family::Read.refuse(&Problem::bad_data(format!(
            "POST is not possible at /api/v1/{path}: PUT creates and updates, POST /api/v1/<type>:plan asks what that would lead to"
        ))),
    }
}

async fn run_plan(
    api: &Api,
    path: &str,
    token: Option<&str>,
    body: Result<Bytes, Problem>,
) -> Result<v1::ChangePlan, Problem> {
    let session = api.enter(token, &[Scope::Write]).await?;
    let kind = kind(path)?;
    let checked = json::check(kind, &json::parse(&body?)?);
    session.plan(&checked.resource, &checked.violations).map(|(plan, _)| plan)
}

/// `DELETE /api/v1/<type>/<id>`
pub async fn delete(
    State(api): State<Api>,
    Path((path, id)): Path<(String, String)>,
    request: Request,
) -> Response {
    let token = auth::bearer(request.headers());
    answer(run_delete(&api, &path, &id, token).await)
}

async fn run_delete(api: &Api, path: &str, id: &str, token: Option<&str>) -> Result<Accepted, Problem> {
    let session = api.enter(token, &[Scope::Write]).await?;
    let kind = kind(path)?;
    session.delete(kind, verbs::resource_id(kind, id)?).await
}

fn answer(outcome: Result<Accepted, Problem>) -> Response {
    match outcome {
        Ok(Accepted { request, resource }) => success([
            ("requestId", Node::from(request.to_string())),
            ("resourceId", Node::from(resource.to_string())),
        ]),
        Err(problem) => Family::Change.refuse(&problem),
    }
}

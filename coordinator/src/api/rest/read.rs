//! GET of one resource. In: its type and id. Out: the resource, with its password for tokens with `secrets:read`.

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use shardplane_model::state::Scope;

use super::{
    super::{
        Api, auth,
        errors::Problem,
        family::{Family, success},
        json::{self, Node},
        verbs,
    },
    kind, watch,
};

/// `GET /api/v1/<type>/<id>`, and with `:watch` what changes of it
pub async fn read(
    State(api): State<Api>,
    Path((path, id)): Path<(String, String)>,
    request: Request,
) -> Response {
    if let Some(id) = id.strip_suffix(":watch") {
        return watch::one(&api, &path, Some(id), request).await;
    }
    match run(&api, &path, &id, auth::bearer(request.headers())).await {
        Ok(resource) => success([("resource", resource)]),
        Err(problem) => Family::Read.refuse(&problem),
    }
}

async fn run(api: &Api, path: &str, id: &str, token: Option<&str>) -> Result<Node, Problem> {
    let session = api.enter(token, &[Scope::Read]).await?;
    let kind = kind(path)?;
    Ok(json::resource(&session.get(kind, verbs::resource_id(kind, id)?)?))
}

//! GET of a change request. In: the id that PUT or DELETE answered. Out: whether it has succeeded or failed.

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use http::StatusCode;
use shardplane_model::{resource::Outcome, state::Scope};

use super::{
    super::{
        Api, auth,
        errors::Problem,
        family::{Family, envelope},
        json::Node,
        verbs::Progress,
    },
    kind,
};

/// `GET /api/v1/<type>/request/<id>`
pub async fn poll(
    State(api): State<Api>,
    Path((path, id)): Path<(String, String)>,
    request: Request,
) -> Response {
    match run(&api, &path, &id, auth::bearer(request.headers())).await {
        Ok(progress) => answer(&progress),
        Err(problem) => Family::Poll.refuse(&problem),
    }
}

async fn run(api: &Api, path: &str, id: &str, token: Option<&str>) -> Result<Progress, Problem> {
    // Who may change may also see how the change goes.
    let session = api.enter(token, &[Scope::Read, Scope::Write]).await?;
    session.poll(kind(path)?, id)
}

fn answer(progress: &Progress) -> Response {
    let (succeeded, message, code) = match &progress.outcome {
        Outcome::InFlight => (false, Node::Null, Node::Null),
        Outcome::Done => (true, Node::Null, Node::Null),
        Outcome::Failed { message } => (false, Node::from(message.as_str()), Node::from("UnableToReconcile")),
    };
    // A failed change is a good answer to the question how it stands; clients read the outcome from the body.
    envelope(
        StatusCode::OK,
        [
            ("succeeded", Node::Bool(succeeded)),
            ("scheduledResourceId", Node::from(progress.resource.to_string())),
        ],
        [("errorMessage", message), ("errorCode", code)],
    )
}

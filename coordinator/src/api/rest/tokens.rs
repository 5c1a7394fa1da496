//! POST of a token. In: a name and scopes. Out: the token itself, shown this once; the log keeps its hash.

use axum::{
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use http::StatusCode;
use shardplane_model::{
    command::Command,
    state::{Scope, Token},
};
use shardplane_proto::v1;

use super::super::{
    Api, auth, door,
    errors::Problem,
    family::{self, Family},
    json,
    verbs::Session,
};
use crate::secrets;

/// `POST /api/v1/tokens`
pub async fn create(State(api): State<Api>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let body = door::body(request).await;
    match run(&api, token.as_deref(), body).await {
        Ok(made) => family::json(StatusCode::OK, &json::message("CreateTokenResponse", &made)),
        Err(problem) => Family::Operator.refuse(&problem),
    }
}

async fn run(
    api: &Api,
    token: Option<&str>,
    body: Result<Bytes, Problem>,
) -> Result<v1::CreateTokenResponse, Problem> {
    let session = api.enter(token, &[Scope::Operator]).await?;
    let asked = serde_json::from_slice(&body?).map_err(|cause| {
        Problem::bad_data(format!("the body must be {{\"name\": \"…\", \"scopes\": [\"read\", …]}}: {cause}"))
    })?;
    session.create_token(&asked).await
}

impl Session {
    /// Makes a token.
    ///
    /// # Errors
    /// `BadData` for a missing name, no scope or an unknown one; `Unavailable`.
    pub async fn create_token(
        &self,
        asked: &v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenResponse, Problem> {
        let scopes = scopes(&asked.scopes)?;
        let name = asked.name.trim();
        if name.is_empty() || name.chars().count() > 255 || name.chars().any(char::is_control) {
            return Err(Problem::bad_data("name: has 1 to 255 characters and no control characters"));
        }
        let created = self.now();
        let made = secrets::new_token(created);
        let token = Token { id: made.id, name: name.to_owned(), scopes, hash: made.hash.clone(), created };
        if let Some(Err(refusal)) = self.api.propose(Command::AddToken(token)).await? {
            return Err(refusal.into());
        }
        Ok(v1::CreateTokenResponse { id: made.id.to_string(), token: made.secret.clone() })
    }
}

fn scopes(given: &[String]) -> Result<Vec<Scope>, Problem> {
    let known = Scope::ALL.map(Scope::name).join(", ");
    if given.is_empty() {
        return Err(Problem::bad_data(format!("scopes: at least one of {known}")));
    }
    let mut scopes = given
        .iter()
        .map(|name| {
            let scope = Scope::ALL.into_iter().find(|scope| scope.name() == name);
            scope.ok_or_else(|| Problem::bad_data(format!("scopes: {name:?} is not one of {known}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    scopes.sort();
    scopes.dedup();
    Ok(scopes)
}

//! Tokens: made, listed, taken back. In: a name and scopes, or an id. Out: a token itself, shown this once; lists without anything one
//! could sign in with. The log keeps hashes.

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use bytes::Bytes;
use shardplane_model::{
    command::Command,
    state::{Scope, State as Replicated, Token},
};
use shardplane_proto::{ids::TokenId, v1};

use super::{
    super::{Api, auth, door, errors::Problem, verbs::Session},
    operator::{Asked, answer, answered},
};
use crate::secrets;

/// `POST /api/v1/tokens`
pub async fn create(State(api): State<Api>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let body = door::body(&api, token.as_deref(), request).await;
    answered("CreateTokenResponse", run(&api, token.as_deref(), body).await)
}

/// `GET /api/v1/tokens`
pub async fn list(State(api): State<Api>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "TokenList", |s, filter| Ok(tokens(&s.state, filter))).await
}

/// `DELETE /api/v1/tokens/<id>`
pub async fn revoke(State(api): State<Api>, Path(id): Path<String>, request: Request) -> Response {
    let revoked = match api.enter(auth::bearer(request.headers()), &[Scope::Operator]).await {
        Ok(session) => session.revoke_token(&id).await,
        Err(problem) => Err(problem),
    };
    answered("RevokeTokenResponse", revoked)
}

/// All tokens, or the one whose id or name is `filter`; oldest first.
pub fn tokens(state: &Replicated, filter: &str) -> v1::TokenList {
    let asked = |token: &&Token| {
        filter.is_empty() || token.name == filter || token.id.to_string().eq_ignore_ascii_case(filter)
    };
    let items = state.tokens.values().filter(asked).map(|token| v1::TokenView {
        id: token.id.to_string(),
        name: token.name.clone(),
        scopes: token.scopes.iter().map(|scope| scope.name().to_owned()).collect(),
        create_time: token.created.to_string(),
    });
    v1::TokenList { items: items.collect() }
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
        self.api.propose(Command::AddToken(token)).await?;
        Ok(v1::CreateTokenResponse { id: made.id.to_string(), token: made.secret.clone() })
    }

    /// Takes a token back.
    ///
    /// # Errors
    /// `NotFound`; `BadData` for the last one with the scope operator; `Unavailable`.
    pub async fn revoke_token(&self, id: &str) -> Result<v1::RevokeTokenResponse, Problem> {
        let missing = || Problem::not_found(format!("there is no token with the id {id:?}"));
        let id: TokenId = id.parse().map_err(|_| missing())?;
        let name = self.state.tokens.get(&id).ok_or_else(missing)?.name.clone();
        self.api.propose(Command::RemoveToken(id)).await?;
        Ok(v1::RevokeTokenResponse { id: id.to_string(), name })
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

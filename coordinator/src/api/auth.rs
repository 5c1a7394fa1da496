//! Who asks, and what they may do. In: the bearer token of a request and the state. Out: a caller with scopes. Called at the door of
//! every verb.

use http::{HeaderMap, header};
use shardplane_model::{
    resource::User,
    state::{Scope, State},
};

use super::errors::{Problem, Trouble};
use crate::secrets;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// As it is written into resources.
    pub user: User,
    /// What they may do.
    pub scopes: Vec<Scope>,
}

impl Caller {
    /// Whether the token carries the scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Refuses a caller without any of these scopes.
    ///
    /// # Errors
    /// `Forbidden`, naming the scope.
    pub fn needs(&self, any_of: &[Scope]) -> Result<(), Problem> {
        if any_of.iter().any(|scope| self.may(*scope)) {
            return Ok(());
        }
        let wanted: Vec<&str> = any_of.iter().map(|scope| scope.name()).collect();
        let held: Vec<&str> = self.scopes.iter().map(|scope| scope.name()).collect();
        Err(Problem::new(
            Trouble::Forbidden,
            format!(
                "the token \"{}\" may not do this: it needs the scope {}, and has {}",
                self.user.name,
                wanted.join(" or "),
                if held.is_empty() { "none".to_owned() } else { held.join(", ") }
            ),
        ))
    }
}

/// The token of a request's headers.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim())
}

/// Finds the caller of this token.
///
/// # Errors
/// `Unauthenticated`.
pub fn caller(state: &State, token: Option<&str>) -> Result<Caller, Problem> {
    let token = token.ok_or_else(|| {
        Problem::new(
            Trouble::Unauthenticated,
            "no token was sent: add the header \"Authorization: Bearer <token>\"",
        )
    })?;
    let unknown = || {
        Problem::new(
            Trouble::Unauthenticated,
            "the token is not known here: check that it is whole and of this installation",
        )
    };
    let token = secrets::token_id_of(token)
        .and_then(|id| state.tokens.get(&id))
        .filter(|known| secrets::token_matches(token, &known.hash))
        .ok_or_else(unknown)?;
    Ok(Caller {
        user: User { id: token.id.to_string(), name: token.name.clone() },
        scopes: token.scopes.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_bearer_header_is_a_token() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(of("bearer  abc "), Some("abc".to_owned()));
        for value in ["abc", "Basic abc", "Bearer ", "Bearer"] {
            assert_eq!(of(value), None, "{value}");
        }
    }
}

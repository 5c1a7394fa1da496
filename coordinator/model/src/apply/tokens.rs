//! Taking API tokens back. In: a token's id. Out: the state without it, and an event. Called by [`super::Step::command`].

use shardplane_proto::ids::TokenId;

use super::Step;
use crate::{
    command::Applied,
    refusal::{Refusal, RefusalCode},
    state::{Scope, Severity, Token},
};

impl Step<'_> {
    /// A token that no longer opens anything. Somebody must stay who can make tokens.
    pub(super) fn remove_token(&mut self, id: TokenId) -> Result<Applied, Refusal> {
        let operates = |token: &Token| token.scopes.contains(&Scope::Operator);
        let Some(token) = self.state.tokens.get(&id).cloned() else {
            return Err(Refusal::new(RefusalCode::NotFound, format!("there is no token with the id {id}")));
        };
        if operates(&token) && !self.state.tokens.values().any(|other| other.id != id && operates(other)) {
            let text = format!(
                "the token {:?} ({id}) is the last one with the scope operator, and without such a one no token can be made; make another one first",
                token.name
            );
            return Err(Refusal::new(RefusalCode::BadData, text));
        }
        self.state.tokens.remove(&id);
        let message = format!("the token {:?} was taken back by an operator", token.name);
        self.event(Severity::Normal, "TokenRevoked", format!("token/{id}"), message);
        Ok(Applied::Changed)
    }
}

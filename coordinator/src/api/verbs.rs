//! What one can do with resources, once for REST, gRPC and the command line. In: a caller and what they ask for. Out: proposals, and
//! messages of the state. Called by the handlers of all three.

use std::sync::Arc;

use shardplane_model::{
    command::{Applied, Command, Delete, Put, Timestamp},
    observed::Observed,
    plan,
    refusal::{Refusal, RefusalCode, Violation},
    resource::{Kind, Outcome, Resource, Spec},
    state::{Scope, Sealed, State},
    validate, view,
};
use shardplane_proto::{
    ids::{RequestId, ResourceId},
    v1,
};

use super::{
    Api,
    auth::{self, Caller},
    errors::{Problem, Trouble},
};

/// A caller who was let in, with the state as it is now.
pub struct Session {
    /// The API that let them in.
    pub api: Api,
    /// Who.
    pub caller: Caller,
    /// The state at the moment of entry, with everything accepted before.
    pub state: State,
    /// What hosts report.
    pub observed: Arc<Observed>,
}

/// An accepted change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The id to poll.
    pub request: RequestId,
    /// The resource.
    pub resource: ResourceId,
}

/// How a change request stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The resource it changes.
    pub resource: ResourceId,
    /// How it stands.
    pub outcome: Outcome,
}

impl Api {
    /// Lets a caller in.
    ///
    /// # Errors
    /// `Unavailable` without a leader or quorum; `Unauthenticated`; `Forbidden` when the token has none of the scopes.
    pub async fn enter(&self, token: Option<&str>, any_of: &[Scope]) -> Result<Session, Problem> {
        let state = self.store.read().await?;
        let caller = auth::caller(&state, token)?;
        if !any_of.is_empty() {
            caller.needs(any_of)?;
        }
        Ok(Session { api: self.clone(), caller, state, observed: self.reports.observed() })
    }

    /// Records one command and answers what applying it did.
    ///
    /// # Errors
    /// The refusals of the model; `Unavailable`.
    pub async fn propose(&self, command: Command) -> Result<Applied, Problem> {
        match self.store.propose(vec![command]).await?.into_iter().next() {
            Some(answer) => Ok(answer?),
            None => Err(Problem::new(Trouble::Internal, "the log gave no answer to a command")),
        }
    }
}

/// An id of a path or a message.
///
/// # Errors
/// `NotFound`: what is not a ULID names nothing.
pub fn resource_id(kind: Kind, text: &str) -> Result<ResourceId, Problem> {
    text.parse().map_err(|cause| Problem::not_found(format!("there is no {kind} with this id: {cause}")))
}

/// A PUT that was not accepted.
enum Refused {
    /// Before the log saw it, or for a reason that is not the resource's.
    Before(Problem),
    /// When it was applied: the state was not any more what it was checked against.
    ByTheLog(ResourceId, Problem),
}

impl Refused {
    fn into_problem(self) -> Problem {
        match self {
            Refused::Before(problem) | Refused::ByTheLog(_, problem) => problem,
        }
    }
}

impl Session {
    /// The time to judge ages by.
    pub fn now(&self) -> Timestamp {
        self.api.now()
    }

    /// Reads the state again, with everything that was accepted meanwhile.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn refresh(&mut self) -> Result<(), Problem> {
        self.state = self.api.store.read().await?;
        self.observed = self.api.reports.observed();
        Ok(())
    }

    /// Creates or updates a resource. `earlier` are violations found before the message was whole.
    ///
    /// # Errors
    /// The refusals of the model, with `earlier` among them; `Unavailable`.
    pub async fn put(&self, resource: &v1::Resource, earlier: &[Violation]) -> Result<Accepted, Problem> {
        match self.put_onto(&self.state, resource, earlier).await {
            Err(Refused::ByTheLog(id, problem)) => {
                // Another change of this resource was faster. It may be this very one, sent twice at once: then both are told the same.
                let newer = self.api.store.read().await?;
                if newer.resources.get(&id) == self.state.resources.get(&id) {
                    return Err(problem);
                }
                self.put_onto(&newer, resource, earlier).await.map_err(Refused::into_problem)
            }
            first => first.map_err(Refused::into_problem),
        }
    }

    async fn put_onto(
        &self,
        state: &State,
        resource: &v1::Resource,
        earlier: &[Violation],
    ) -> Result<Accepted, Refused> {
        let put = self.read(state, resource, earlier).map_err(|refusal| Refused::Before(refusal.into()))?;
        let id = put.id;
        if let Some(existing) = state.resources.get(&id).filter(|_| validate::unchanged(state, &put)) {
            return Ok(Accepted { request: existing.change.request, resource: id });
        }
        self.propose(Command::Put(put), id).await.map_err(|problem| match problem.trouble {
            Trouble::Refused(_) => Refused::ByTheLog(id, problem),
            Trouble::Unauthenticated
            | Trouble::Forbidden
            | Trouble::PageSizeTooBig
            | Trouble::EnumeratorNotFound
            | Trouble::UnableToReconcile
            | Trouble::Unavailable
            | Trouble::Uncertain
            | Trouble::Internal => Refused::Before(problem),
        })
    }

    /// The command that a message means.
    fn read(&self, state: &State, resource: &v1::Resource, earlier: &[Violation]) -> Result<Put, Refusal> {
        let mut ids = || self.api.fresh_id().0;
        let submission = match (validate::put(state, resource, &mut ids), earlier) {
            (Ok(submission), []) => submission,
            (Ok(_), earlier) => return Err(Refusal::bad_data(earlier.to_vec())),
            (Err(refusal), earlier) => return Err(together(earlier, refusal)),
        };
        let sealed = match (&submission.secret, &submission.spec) {
            (Some(secret), _) => Some(self.seal(state, submission.id, secret)),
            (None, Spec::Cluster(spec)) if !spec.secret_is_users() => {
                Some(self.own_secret(state, submission.id))
            }
            // One that is not given again is kept.
            (None, Spec::Role { .. }) => {
                state.resources.get(&submission.id).and_then(|known| known.spec.secret()).cloned()
            }
            (None, _) => None,
        };
        Ok(submission.into_put(RequestId::from(self.api.fresh_id()), self.caller.user.clone(), sealed))
    }

    /// What a [`Session::put`] of this would lead to, and the state as it would be then. Changes nothing.
    ///
    /// # Errors
    /// As [`Session::put`] would be refused.
    pub fn plan(
        &self,
        resource: &v1::Resource,
        earlier: &[Violation],
    ) -> Result<(v1::ChangePlan, State), Problem> {
        let put = self.read(&self.state, resource, earlier)?;
        let rehearsal = plan::rehearse(&self.state, &self.observed, self.now(), &put)?;
        Ok((view::change_plan(&self.state, put.id, &rehearsal), rehearsal.state))
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// The refusals of the model; `Unavailable`.
    pub async fn delete(&self, kind: Kind, id: ResourceId) -> Result<Accepted, Problem> {
        let existing = self.find(kind, id)?;
        // A client that did not get the first answer asks again: it is told the same.
        if existing.deleting() && existing.change.outcome == Outcome::InFlight {
            return Ok(Accepted { request: existing.change.request, resource: id });
        }
        let delete =
            Delete { id, kind, request: RequestId::from(self.api.fresh_id()), by: self.caller.user.clone() };
        validate::check_delete(&self.state, &delete)?;
        self.propose(Command::Delete(delete), id).await
    }

    async fn propose(&self, command: Command, resource: ResourceId) -> Result<Accepted, Problem> {
        match self.api.propose(command).await? {
            Applied::Accepted { request } => Ok(Accepted { request, resource }),
            Applied::Changed | Applied::Unchanged => Err(Problem::new(
                Trouble::Internal,
                "the log answered a user's change with something else than a request id",
            )),
        }
    }

    /// The stored resource of this type and id.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find(&self, kind: Kind, id: ResourceId) -> Result<&Resource, Problem> {
        self.state
            .resource(kind, id)
            .ok_or_else(|| Problem::not_found(format!("there is no {kind} with the id {id}")))
    }

    /// One resource, with its secrets when the token may see them.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn get(&self, kind: Kind, id: ResourceId) -> Result<v1::Resource, Problem> {
        let resource = self.find(kind, id)?;
        let secret = if self.caller.may(Scope::SecretsRead) { self.secret(resource) } else { None };
        Ok(self.view(resource, secret.as_deref()))
    }

    /// A resource as lists show it: without secrets, whoever asks.
    pub fn without_secrets(&self, resource: &Resource) -> v1::Resource {
        self.view(resource, None)
    }

    fn view(&self, resource: &Resource, secret: Option<&str>) -> v1::Resource {
        view::resource(&self.state, &self.observed, resource, self.api.now(), secret)
    }

    /// The password of a cluster in clear.
    pub fn secret(&self, resource: &Resource) -> Option<String> {
        let sealed = resource.spec.secret()?;
        match self.api.sealer.unseal(resource.id, &sealed.0) {
            Ok(secret) => Some(secret),
            Err(cause) => {
                tracing::error!(resource = %resource.id, %cause, "a stored secret cannot be opened");
                None
            }
        }
    }

    /// Seals a password; one that is stored already keeps its sealed form, so that an equal PUT compares equal.
    fn seal(&self, state: &State, id: ResourceId, secret: &str) -> Sealed {
        let stored = state.resources.get(&id).filter(|stored| self.secret(stored).as_deref() == Some(secret));
        match stored.and_then(|stored| stored.spec.secret()) {
            Some(sealed) => sealed.clone(),
            None => Sealed(self.api.sealer.seal(id, secret)),
        }
    }

    /// The secret that the platform made for a cluster, or makes now.
    fn own_secret(&self, state: &State, id: ResourceId) -> Sealed {
        match state.resources.get(&id).and_then(Resource::cluster_spec) {
            Some(spec) => spec.secret().clone(),
            None => Sealed(self.api.sealer.seal(id, &hex::encode(rand::random::<[u8; 32]>()))),
        }
    }

    /// How a change request of this type stands.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn poll(&self, kind: Kind, id: &str) -> Result<Progress, Problem> {
        let missing = || {
            Problem::not_found(format!(
                "there is no change request {id:?} of a {kind}; old ones are forgotten"
            ))
        };
        let id: RequestId = id.parse().map_err(|_| missing())?;
        let request =
            self.state.requests.get(&id).filter(|request| request.kind == kind).ok_or_else(missing)?;
        Ok(Progress { resource: request.resource, outcome: request.outcome.clone() })
    }
}

/// What the message parser found and what the model found, without saying the same about a field twice.
fn together(earlier: &[Violation], refusal: Refusal) -> Refusal {
    if earlier.is_empty() || refusal.violations.is_empty() {
        return refusal;
    }
    let told = |path: &str| {
        earlier.iter().any(|violation| {
            path.strip_prefix(violation.path.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    };
    let more: Vec<Violation> =
        refusal.violations.into_iter().filter(|violation| !told(&violation.path)).collect();
    let code = if more.is_empty() { RefusalCode::BadData } else { refusal.code };
    Refusal::of(code, earlier.iter().cloned().chain(more).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_of_both_checks_are_listed_once() {
        let earlier = [Violation::new("spec.replicasPerShard", "must be a whole number, not \"1; 2\"")];
        let required = || Violation::new("spec.replicasPerShard", "is required");
        let model = Refusal::bad_data(vec![required(), Violation::new("spec.shards", "has 2 shards")]);
        let both = together(&earlier, model);
        assert_eq!(
            both.message,
            "spec.replicasPerShard: must be a whole number, not \"1; 2\"; spec.shards: has 2 shards"
        );
        assert_eq!(both.violations.len(), 2);
        let only = together(&earlier, Refusal::bad_data(vec![required()]));
        assert_eq!(only.violations, earlier);
        let missing =
            Refusal::of(RefusalCode::MissingIdField, vec![Violation::new("metadata.id", "is required")]);
        let both = together(&earlier, missing);
        assert_eq!((both.code, both.violations.len()), (RefusalCode::MissingIdField, 2));
    }
}

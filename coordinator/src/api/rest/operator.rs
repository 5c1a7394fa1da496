//! The operator's routes: hosts, instances, operations, events, the catalogue, why instances are where they are, and forgetting a host.
//! In: an optional `filter` (a cluster, host, or subject), or an id. Out: the messages of the Operator service as JSON.

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use http::StatusCode;
use serde::Serialize;
use shardplane_model::{
    command::Command,
    plan,
    resource::Kind,
    state::{Scope, State as Replicated},
    view,
};
use shardplane_proto::{
    ids::{ClusterId, HostId, OperationId},
    v1,
};

use super::{
    super::{
        Api, auth,
        errors::Problem,
        family::{self, Family},
        json,
        verbs::{self, Session},
    },
    kind,
};

/// `GET /api/v1/hosts`
pub async fn hosts(State(api): State<Api>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "HostList", |s, filter| {
        Ok(view::hosts(&s.state, &s.observed, s.now(), filter))
    })
    .await
}

/// `DELETE /api/v1/hosts/<id>`
pub async fn forget_host(State(api): State<Api>, Path(id): Path<String>, request: Request) -> Response {
    let forgotten = match api.enter(auth::bearer(request.headers()), &[Scope::Operator]).await {
        Ok(session) => session.forget_host(&id).await,
        Err(problem) => Err(problem),
    };
    answered("ForgetHostResponse", forgotten)
}

impl Session {
    /// Says that a lost host never returns: what it held counts as gone.
    ///
    /// # Errors
    /// `NotFound`; `BadData` while it is not lost, or may hold the only copy of something; `Unavailable`.
    pub async fn forget_host(&self, id: &str) -> Result<v1::ForgetHostResponse, Problem> {
        let missing = || Problem::not_found(format!("there is no host with the id {id:?}"));
        let id: HostId = id.parse().map_err(|_| missing())?;
        let name = self.state.hosts.get(&id).ok_or_else(missing)?.facts.name.clone();
        self.api.propose(Command::ForgetHost(id)).await?;
        Ok(v1::ForgetHostResponse { id: id.to_string(), name })
    }
}

/// `GET /api/v1/instances`
pub async fn instances(State(api): State<Api>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "InstanceList", |s, filter| {
        Ok(view::instances(&s.state, &s.observed, s.now(), filter))
    })
    .await
}

/// `GET /api/v1/operations`
pub async fn operations(State(api): State<Api>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "OperationList", |s, filter| {
        Ok(view::operations(&s.state, &s.observed, s.now(), filter))
    })
    .await
}

/// `GET /api/v1/operations/<id>`
pub async fn operation(State(api): State<Api>, Path(id): Path<String>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "OperationView", |s, _| s.operation(&id)).await
}

/// `POST /api/v1/operations/<id>:cancel`
pub async fn cancel(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let cancelled =
        match (path.rsplit_once(':'), api.enter(auth::bearer(request.headers()), MAY_CANCEL).await) {
            (_, Err(problem)) => Err(problem),
            (Some((id, "cancel")), Ok(session)) => session.cancel_operation(id).await,
            (Some((_, other)), Ok(_)) => {
                Err(Problem::not_found(format!("an operation has no verb {other:?}: there is cancel")))
            }
            (None, Ok(_)) => Err(Problem::bad_data(format!(
                "POST is not possible at an operation: /api/v1/operations/{path}:cancel is there"
            ))),
        };
    answered("OperationView", cancelled)
}

/// What can be cancelled carries out what somebody with the scope write has asked for.
pub const MAY_CANCEL: &[Scope] = &[Scope::Operator, Scope::Write];

impl Session {
    /// One operation.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn operation(&self, id: &str) -> Result<v1::OperationView, Problem> {
        let parsed: OperationId = id.parse().map_err(|_| no_operation(id))?;
        view::operation(&self.state, &self.observed, self.now(), parsed).ok_or_else(|| no_operation(id))
    }

    /// Ends an operation before it has reached what it is for. Cancelling a cancelled one changes nothing.
    ///
    /// # Errors
    /// `NotFound`; `BadData` when it has ended, or is of a kind that is never cancelled; `Unavailable`.
    pub async fn cancel_operation(mut self, id: &str) -> Result<v1::OperationView, Problem> {
        let operation: OperationId = id.parse().map_err(|_| no_operation(id))?;
        let by = self.caller.user.clone();
        self.api.propose(Command::CancelOperation { operation, by }).await?;
        self.refresh().await?;
        self.operation(id)
    }
}

fn no_operation(id: &str) -> Problem {
    Problem::not_found(format!("there is no operation {id:?}; ended ones are forgotten after a while"))
}

/// `GET /api/v1/events`
pub async fn events(State(api): State<Api>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "EventList", |s, filter| Ok(view::events(&s.state, filter))).await
}

/// `GET /api/v1/catalogue`
pub async fn catalogue(State(api): State<Api>, request: Request) -> Response {
    // What can be ordered is for everybody who may order.
    let scopes = [Scope::Read, Scope::Operator];
    answer_to(&api, Asked::of(&request), &scopes, "Catalogue", |s, _| Ok(catalogue_of(&s.state))).await
}

/// `GET /api/v1/<type>/<id>/placement`
pub async fn placement(
    State(api): State<Api>,
    Path((path, id)): Path<(String, String)>,
    request: Request,
) -> Response {
    answer(&api, Asked::of(&request), "Explanation", |s, _| {
        let kind = kind(&path)?;
        explain(s, kind, &id)
    })
    .await
}

/// Why each instance of a cluster is where it is.
///
/// # Errors
/// `NotFound`; `BadData` for a type without instances.
pub fn explain(session: &Session, kind: Kind, id: &str) -> Result<v1::Explanation, Problem> {
    let id = verbs::resource_id(kind, id)?;
    if session.find(kind, id)?.cluster_spec().is_none() {
        return Err(Problem::bad_data(format!("a {kind} has no instances that are placed on hosts")));
    }
    Ok(plan::explain(&session.state, ClusterId::from(id)))
}

/// The offers there are.
pub fn catalogue_of(state: &Replicated) -> v1::Catalogue {
    let vm_offers = state.settings.vm_offers.iter().map(|(id, offer)| v1::VmOffer {
        id: id.clone(),
        generation: offer.generation,
        vcpus: offer.vcpus,
        memory_mib: u32::try_from(offer.memory_mib).unwrap_or(u32::MAX),
        vcpu_share: offer.vcpu_share,
        price_hour: offer.price_hour,
    });
    let volume_offers = state.settings.volume_offers.iter().map(|(id, offer)| v1::VolumeOffer {
        id: id.clone(),
        iops: offer.iops,
        max_size_gib: offer.max_size_gib,
        price_gib_hour: offer.price_gib_hour,
    });
    v1::Catalogue { vm_offers: vm_offers.collect(), volume_offers: volume_offers.collect() }
}

/// What a request says besides its path.
pub(super) struct Asked {
    token: Option<String>,
    filter: String,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let filter = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "filter");
        Self {
            token: auth::bearer(request.headers()).map(str::to_owned),
            filter: filter.map(|(_, value)| value.into_owned()).unwrap_or_default(),
        }
    }
}

/// Answers a read for operators.
pub(super) async fn answer<M: Serialize>(
    api: &Api,
    asked: Asked,
    message: &str,
    make: impl FnOnce(&Session, &str) -> Result<M, Problem>,
) -> Response {
    answer_to(api, asked, &[Scope::Operator], message, make).await
}

async fn answer_to<M: Serialize>(
    api: &Api,
    asked: Asked,
    scopes: &[Scope],
    message: &str,
    make: impl FnOnce(&Session, &str) -> Result<M, Problem>,
) -> Response {
    let made = match api.enter(asked.token.as_deref(), scopes).await {
        Ok(session) => make(&session, &asked.filter),
        Err(problem) => Err(problem),
    };
    answered(message, made)
}

/// A message of ours, or why there is none.
pub(super) fn answered<M: Serialize>(message: &str, outcome: Result<M, Problem>) -> Response {
    match outcome {
        Ok(body) => family::json(StatusCode::OK, &json::message(message, &body)),
        Err(problem) => Family::Operator.refuse(&problem),
    }
}

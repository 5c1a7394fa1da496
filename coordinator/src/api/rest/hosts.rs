//! What operators do with a host: close and open it, empty it. In: `POST /api/v1/hosts/<id>:<verb>` with an optional body. Out: the
//! host as it is then. Called by the router, by gRPC and by the command line.

use std::collections::BTreeSet;

use axum::{
    extract::{Path, Request, State},
    response::Response,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use shardplane_model::{
    command::{Command, CordonHost, DrainMode},
    plan::Question,
    state::{Host, Scope},
    time::Millis,
    view,
};
use shardplane_proto::{ids::HostId, v1};

use super::{
    super::{Api, auth, door, errors::Problem, verbs::Session},
    operator::{Asked, answer, answered},
};

/// Longest time a cordon may be made for: 366 days, in seconds.
pub const LONGEST_CORDON: u32 = 366 * 24 * 3600;

/// `POST /api/v1/hosts/<id>:cordon`, `:uncordon` and `:drain`
pub async fn act(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let body = door::body(&api, token.as_deref(), request).await;
    answered("HostView", run(&api, token.as_deref(), &path, body).await)
}

/// `GET /api/v1/hosts/<id>/drain`
pub async fn drain(State(api): State<Api>, Path(id): Path<String>, request: Request) -> Response {
    answer(&api, Asked::of(&request), "DrainView", |session, _| {
        let host = session.host_view(&id)?;
        host.drain.ok_or_else(|| {
            Problem::not_found(format!(
                "host {} is not drained; POST /api/v1/hosts/{id}:drain begins it",
                host.name
            ))
        })
    })
    .await
}

/// `GET /api/v1/hosts/<id>` and `GET /api/v1/hosts/<id>:plan?what=drain|loss`
pub async fn read_or_plan(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let value = |wanted: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    let (what, force) = (value("what"), value("force") == "true");
    let asked = Asked::of(&request);
    match path.rsplit_once(':') {
        Some((id, "plan")) => {
            let asks = v1::PlanHostRequest { id: id.to_owned(), what, force, ..Default::default() };
            answer(&api, asked, "HostPlan", |session, _| session.plan_host(&asks)).await
        }
        Some(_) | None => answer(&api, asked, "HostView", |session, _| session.host_view(&path)).await,
    }
}

/// `GET /api/v1/racks/<name>:plan?what=loss`
pub async fn plan_rack(State(api): State<Api>, Path(path): Path<String>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let what = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "what");
    let what = what.map(|(_, what)| what.into_owned()).unwrap_or_default();
    let asked = Asked::of(&request);
    answer(&api, asked, "HostPlan", |session, _| match path.rsplit_once(':') {
        Some((rack, "plan")) => {
            session.plan_host(&v1::PlanHostRequest { rack: rack.to_owned(), what, ..Default::default() })
        }
        Some(_) | None => Err(Problem::not_found(format!(
            "there is nothing at a rack but its plan: /api/v1/racks/{path}:plan?what=loss"
        ))),
    })
    .await
}

async fn run(
    api: &Api,
    token: Option<&str>,
    path: &str,
    body: Result<Bytes, Problem>,
) -> Result<v1::HostView, Problem> {
    let session = api.enter(token, &[Scope::Operator]).await?;
    let id = |id: &str| id.to_owned();
    match path.rsplit_once(':') {
        Some((host, "cordon")) => {
            session.cordon(v1::CordonHostRequest { id: id(host), ..read(&body?)? }).await
        }
        Some((host, "uncordon")) => session.uncordon(host).await,
        Some((host, "drain")) => session.drain(v1::DrainHostRequest { id: id(host), ..read(&body?)? }).await,
        Some((_, other)) => Err(Problem::not_found(format!(
            "a host has no verb {other:?}: there are cordon, uncordon and drain"
        ))),
        None => Err(Problem::bad_data(format!(
            "POST is not possible at a host: /api/v1/hosts/{path}:cordon, :uncordon and :drain are there"
        ))),
    }
}

/// The body, which may be absent.
fn read<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, Problem> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|cause| {
        Problem::bad_data(format!(
            "the body is {{\"reason\": \"…\", \"forSeconds\": …}} for cordon, {{\"reason\": \"…\", \"force\": …}} for drain: {cause}"
        ))
    })
}

impl Session {
    /// Closes a host for new instances.
    ///
    /// # Errors
    /// `NotFound`; `BadData` for a reason or a time that is too long; `Unavailable`.
    pub async fn cordon(mut self, asked: v1::CordonHostRequest) -> Result<v1::HostView, Problem> {
        let host = self.host(&asked.id)?;
        if asked.for_seconds > LONGEST_CORDON {
            return Err(Problem::bad_data(format!(
                "forSeconds: is {}; allowed is up to {LONGEST_CORDON}, or 0 until it is lifted",
                asked.for_seconds
            )));
        }
        let span = Some(Millis::seconds(asked.for_seconds.into())).filter(|span| *span > Millis(0));
        let until = span.map(|span| self.now().plus(span));
        let by = self.caller.user.clone();
        let command = CordonHost { host, by, reason: asked.reason, until, drain: None };
        self.api.propose(Command::Cordon(command)).await?;
        self.refresh().await?;
        self.host_view(&asked.id)
    }

    /// Opens a host again.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable`.
    pub async fn uncordon(mut self, id: &str) -> Result<v1::HostView, Problem> {
        let host = self.host(id)?;
        self.api.propose(Command::Uncordon { host, by: self.caller.user.clone() }).await?;
        self.refresh().await?;
        self.host_view(id)
    }

    /// Closes a host and moves everything away that can be moved.
    ///
    /// # Errors
    /// `NotFound`; `BadData` for a reason that is too long; `Unavailable`.
    pub async fn drain(mut self, asked: v1::DrainHostRequest) -> Result<v1::HostView, Problem> {
        let host = self.host(&asked.id)?;
        let drain = Some(if asked.force { DrainMode::Force } else { DrainMode::KeepSpread });
        let by = self.caller.user.clone();
        let command = CordonHost { host, by, reason: asked.reason, until: None, drain };
        self.api.propose(Command::Cordon(command)).await?;
        self.refresh().await?;
        self.host_view(&asked.id)
    }

    /// What a drain or the loss of a host would lead to.
    ///
    /// # Errors
    /// `NotFound`; `BadData` for another question.
    pub fn plan_host(&self, asked: &v1::PlanHostRequest) -> Result<v1::HostPlan, Problem> {
        let hosts = self.asked_about(asked)?;
        let question = match asked.what.as_str() {
            "drain" => Question::Drain { force: asked.force },
            "loss" => Question::Loss,
            other => {
                return Err(Problem::bad_data(format!("what: is {other:?}; allowed is drain or loss")));
            }
        };
        if !asked.rack.is_empty() && question != Question::Loss {
            return Err(Problem::bad_data(
                "what: only loss can be asked of a rack; drain its hosts one by one",
            ));
        }
        let plan = view::host_plan(&self.state, &self.observed, self.now(), &hosts, question);
        let host = hosts.iter().next().and_then(|host| self.state.hosts.get(host));
        let host = host.filter(|_| asked.rack.is_empty()).map(|host| host.facts.name.clone());
        Ok(v1::HostPlan { host: host.unwrap_or_default(), rack: asked.rack.clone(), ..plan })
    }

    /// The host, or those of the rack.
    fn asked_about(&self, asked: &v1::PlanHostRequest) -> Result<BTreeSet<HostId>, Problem> {
        match (asked.id.is_empty(), asked.rack.as_str()) {
            (_, "") => Ok([self.host(&asked.id)?].into()),
            (false, _) => Err(Problem::bad_data("id and rack: name one of them")),
            (true, rack) => {
                let (zone, name) =
                    rack.split_once('/').map_or((None, rack), |(zone, rack)| (Some(zone), rack));
                let inside =
                    |host: &&Host| host.facts.rack == name && zone.is_none_or(|zone| host.facts.zone == zone);
                let found: Vec<&Host> = self.state.hosts.values().filter(inside).collect();
                let zones: BTreeSet<&str> = found.iter().map(|host| host.facts.zone.as_str()).collect();
                match zones.len() {
                    0 => Err(Problem::not_found(format!("there is no host in a rack {rack:?}"))),
                    1 => Ok(found.iter().map(|host| host.id).collect()),
                    _ => {
                        let zones: Vec<&str> = zones.into_iter().collect();
                        let text = format!(
                            "rack: several zones have a rack {rack:?}: write zone/rack with one of {}",
                            zones.join(", ")
                        );
                        Err(Problem::bad_data(text))
                    }
                }
            }
        }
    }

    fn host(&self, id: &str) -> Result<HostId, Problem> {
        let missing = || Problem::not_found(format!("there is no host with the id {id:?}"));
        let parsed: HostId = id.parse().map_err(|_| missing())?;
        self.state.hosts.get(&parsed).map(|host| host.id).ok_or_else(missing)
    }

    /// One host.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn host_view(&self, id: &str) -> Result<v1::HostView, Problem> {
        let host = self.host(id)?;
        let mut found = view::hosts(&self.state, &self.observed, self.now(), &host.to_string()).items;
        found.pop().ok_or_else(|| Problem::not_found(format!("there is no host with the id {id:?}")))
    }
}

//! The Resources service. In: the messages of the public resources. Out: as the REST verbs of the same names.

use futures::{StreamExt as _, stream::BoxStream};
use shardplane_model::{refusal::Violation, resource::Outcome, state::Scope, view::API_VERSION};
use shardplane_proto::v1;
use tonic::{Request, Response, Status};

use super::{
    super::{
        Api, rest, verbs,
        watching::{self, Filter},
    },
    enter,
};

/// The service over an API.
pub struct Resources(pub Api);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::resources_server::Resources for Resources {
    async fn put(&self, request: Request<v1::PutRequest>) -> Answer<v1::ChangeResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Write]).await?;
        let resource = request.into_inner().resource.unwrap_or_default();
        Ok(Response::new(changed(session.put(&resource, &misnamed(&resource)).await?)))
    }

    async fn plan(&self, request: Request<v1::PutRequest>) -> Answer<v1::ChangePlan> {
        let session = enter(&self.0, request.metadata(), &[Scope::Write]).await?;
        let resource = request.into_inner().resource.unwrap_or_default();
        let (plan, _) = session.plan(&resource, &misnamed(&resource))?;
        Ok(Response::new(plan))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Answer<v1::Resource> {
        let session = enter(&self.0, request.metadata(), &[Scope::Read]).await?;
        let asked = request.into_inner();
        let kind = rest::kind(&asked.r#type)?;
        Ok(Response::new(session.get(kind, verbs::resource_id(kind, &asked.id)?)?))
    }

    async fn delete(&self, request: Request<v1::GetRequest>) -> Answer<v1::ChangeResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Write]).await?;
        let asked = request.into_inner();
        let kind = rest::kind(&asked.r#type)?;
        let id = verbs::resource_id(kind, &asked.id)?;
        Ok(Response::new(changed(session.delete(kind, id).await?)))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Answer<v1::ListResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Read]).await?;
        let asked = request.into_inner();
        let page = rest::Page {
            labels: asked.labels.into_iter().collect(),
            // Protobuf's zero is "not given".
            size: (asked.max_page_size > 0)
                .then(|| usize::try_from(asked.max_page_size).unwrap_or(usize::MAX)),
            enumerator: (!asked.enumerator_id.is_empty()).then_some(asked.enumerator_id),
        };
        let (found, next) = rest::page(&session.state, rest::kind(&asked.r#type)?, &page)?;
        let resources = found.into_iter().map(|resource| session.without_secrets(resource)).collect();
        Ok(Response::new(v1::ListResponse { resources, enumerator_id: next.unwrap_or_default() }))
    }

    async fn poll(&self, request: Request<v1::PollRequest>) -> Answer<v1::PollResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Read, Scope::Write]).await?;
        let asked = request.into_inner();
        let progress = session.poll(rest::kind(&asked.r#type)?, &asked.request_id)?;
        let (succeeded, error_message, error_code) = match progress.outcome {
            Outcome::InFlight => (false, String::new(), ""),
            Outcome::Done => (true, String::new(), ""),
            Outcome::Failed { message } => (false, message, "UnableToReconcile"),
        };
        Ok(Response::new(v1::PollResponse {
            succeeded,
            scheduled_resource_id: progress.resource.to_string(),
            error_message,
            error_code: error_code.to_owned(),
        }))
    }

    type WatchStream = BoxStream<'static, Result<v1::WatchEvent, Status>>;

    async fn watch(&self, request: Request<v1::ListRequest>) -> Answer<Self::WatchStream> {
        let session = enter(&self.0, request.metadata(), &[Scope::Read]).await?;
        let asked = request.into_inner();
        let kind = rest::kind(&asked.r#type)?;
        let filter = Filter { labels: asked.labels.into_iter().collect(), id: None };
        let events = watching::start(session, kind, filter);
        Ok(Response::new(events.map(|event| event.map_err(Status::from)).boxed()))
    }
}

/// What a message says about its own type, when it is not the type that it is.
fn misnamed(resource: &v1::Resource) -> Vec<Violation> {
    use v1::resource::Body;
    let (version, given, kind) = match &resource.body {
        Some(Body::Valkey(r)) => (&r.api_version, &r.kind, "Valkey"),
        Some(Body::ValkeyParametersSet(r)) => (&r.api_version, &r.kind, "ValkeyParametersSet"),
        Some(Body::PostgreSql(r)) => (&r.api_version, &r.kind, "PostgreSql"),
        Some(Body::PostgreSqlParametersSet(r)) => (&r.api_version, &r.kind, "PostgreSqlParametersSet"),
        Some(Body::PostgreSqlRole(r)) => (&r.api_version, &r.kind, "PostgreSqlRole"),
        Some(Body::Vpc(r)) => (&r.api_version, &r.kind, "Vpc"),
        Some(Body::VpcSubnet(r)) => (&r.api_version, &r.kind, "VpcSubnet"),
        Some(Body::Folder(r)) => (&r.api_version, &r.kind, "Folder"),
        Some(Body::HostingProvider(r)) => (&r.api_version, &r.kind, "HostingProvider"),
        None => return Vec::new(),
    };
    let wrong = |path: &str, given: &str, wanted: &str| {
        let shown: String = given.chars().take(64).collect();
        let text = format!("must be {wanted:?} here or be left out, not {shown:?}");
        (!given.is_empty() && given != wanted).then(|| Violation::new(path, text))
    };
    wrong("apiVersion", version, API_VERSION).into_iter().chain(wrong("kind", given, kind)).collect()
}

fn changed(accepted: verbs::Accepted) -> v1::ChangeResponse {
    v1::ChangeResponse {
        request_id: accepted.request.to_string(),
        resource_id: accepted.resource.to_string(),
    }
}

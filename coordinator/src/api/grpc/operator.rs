//! The Operator service. In: an optional filter, or an id. Out: as the operator's REST routes.

use shardplane_model::{state::Scope, view};
use shardplane_proto::{ids::ResourceId, v1};
use tonic::{Request, Response, Status};

use super::{
    super::{Api, errors::Problem, rest, verbs::Session},
    enter,
};

/// The service over an API.
pub struct Operator(pub Api);

type Answer<T> = Result<Response<T>, Status>;

impl Operator {
    async fn list<M>(
        &self,
        request: Request<v1::OperatorListRequest>,
        scopes: &[Scope],
        make: impl FnOnce(&Session, &str) -> M,
    ) -> Answer<M> {
        let session = enter(&self.0, request.metadata(), scopes).await?;
        Ok(Response::new(make(&session, &request.get_ref().filter)))
    }
}

#[tonic::async_trait]
impl v1::operator_server::Operator for Operator {
    async fn list_hosts(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::HostList> {
        let make = |s: &Session, filter: &str| view::hosts(&s.state, &s.observed, s.now(), filter);
        self.list(request, &[Scope::Operator], make).await
    }

    async fn list_instances(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::InstanceList> {
        let make = |s: &Session, filter: &str| view::instances(&s.state, &s.observed, s.now(), filter);
        self.list(request, &[Scope::Operator], make).await
    }

    async fn list_operations(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::OperationList> {
        self.list(request, &[Scope::Operator], |s, filter| {
            view::operations(&s.state, &s.observed, s.now(), filter)
        })
        .await
    }

    async fn cancel_operation(
        &self,
        request: Request<v1::CancelOperationRequest>,
    ) -> Answer<v1::OperationView> {
        let session = enter(&self.0, request.metadata(), rest::MAY_CANCEL).await?;
        Ok(Response::new(session.cancel_operation(&request.get_ref().id).await?))
    }

    async fn list_events(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::EventList> {
        self.list(request, &[Scope::Operator], |s, filter| view::events(&s.state, filter)).await
    }

    async fn explain_placement(&self, request: Request<v1::ExplainRequest>) -> Answer<v1::Explanation> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        let id = request.into_inner().id;
        let missing = || Problem::not_found(format!("there is no cluster with the id {id:?}"));
        let parsed: ResourceId = id.parse().map_err(|_| missing())?;
        let kind = session.state.resources.get(&parsed).ok_or_else(missing)?.kind();
        Ok(Response::new(rest::explain(&session, kind, &id)?))
    }

    async fn forget_host(&self, request: Request<v1::ForgetHostRequest>) -> Answer<v1::ForgetHostResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.forget_host(&request.get_ref().id).await?))
    }

    async fn cordon_host(&self, request: Request<v1::CordonHostRequest>) -> Answer<v1::HostView> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.cordon(request.into_inner()).await?))
    }

    async fn uncordon_host(&self, request: Request<v1::UncordonHostRequest>) -> Answer<v1::HostView> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.uncordon(&request.get_ref().id).await?))
    }

    async fn drain_host(&self, request: Request<v1::DrainHostRequest>) -> Answer<v1::HostView> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.drain(request.into_inner()).await?))
    }

    async fn plan_host(&self, request: Request<v1::PlanHostRequest>) -> Answer<v1::HostPlan> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.plan_host(request.get_ref())?))
    }

    async fn list_tokens(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::TokenList> {
        self.list(request, &[Scope::Operator], |s, filter| rest::tokens_of(&s.state, filter)).await
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Answer<v1::RevokeTokenResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.revoke_token(&request.get_ref().id).await?))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Answer<v1::CreateTokenResponse> {
        let session = enter(&self.0, request.metadata(), &[Scope::Operator]).await?;
        Ok(Response::new(session.create_token(request.get_ref()).await?))
    }

    async fn get_catalogue(&self, request: Request<v1::OperatorListRequest>) -> Answer<v1::Catalogue> {
        self.list(request, &[Scope::Read, Scope::Operator], |s, _| rest::catalogue_of(&s.state)).await
    }
}

//! The operator's service by gRPC, as a program of an operator calls it. In: a world and calls. Out: what the server answers.

use anyhow::{Context as _, Result};
use shardplane_harness::World;
use shardplane_proto::v1::operator_client::OperatorClient;
use tokio::runtime::{Builder, Runtime};
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

/// Puts the token on every call.
#[derive(Debug, Clone)]
pub struct Signed(MetadataValue<Ascii>);

impl Interceptor for Signed {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// The client that is generated from the service's description.
pub type Operator = OperatorClient<InterceptedService<Channel, Signed>>;

/// A connection with the admin token.
#[derive(Debug)]
pub struct Grpc {
    runtime: Runtime,
    operator: Operator,
}

impl Grpc {
    /// Connects to the first coordinator.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn of(world: &World) -> Result<Self> {
        let member = world.coordinators()?.into_iter().next().context("a world without coordinators")?;
        let token =
            Signed(format!("Bearer {}", world.api()?.token()).parse().context("the token is no text")?);
        let runtime = Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
        let channel = Channel::from_shared(format!("http://{}", member.address))?;
        let channel = runtime.block_on(channel.connect()).context("cannot connect")?;
        Ok(Self { runtime, operator: OperatorClient::with_interceptor(channel, token) })
    }

    /// Calls; a refusal is an answer too.
    ///
    /// # Errors
    /// What it is refused with.
    pub fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Operator) -> Result<Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(call(&mut self.operator)).map(Response::into_inner)
    }
}

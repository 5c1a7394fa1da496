//! gRPC over a real connection: verbs, refusals, watching, health.

use std::time::Duration;

use shardplane_proto::v1::{operator_client::OperatorClient, resources_client::ResourcesClient};
use tokio::time::timeout;
use tonic::{Code, Request, transport::Channel};

use super::*;
use crate::api::store::Standing;

const SOON: Duration = Duration::from_secs(10);

pub async fn connected(asking: &Asking) -> Channel {
    let address = serve(asking.router.clone()).await;
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

pub fn signed<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

fn folder(id: &str, name: &str) -> v1::PutRequest {
    let metadata = Some(v1::Metadata { id: id.to_owned(), name: name.to_owned(), ..Default::default() });
    let folder = v1::Folder { metadata, ..Default::default() };
    v1::PutRequest { resource: Some(v1::Resource { body: Some(v1::resource::Body::Folder(folder)) }) }
}

const ID: &str = "01k0000000000000000000000f";

#[tokio::test]
async fn the_verbs_of_rest_are_there() {
    let asking = Asking::new();
    let channel = connected(&asking).await;
    let mut resources = ResourcesClient::new(channel.clone());
    let put = resources.put(signed(&asking.token, folder(ID, "a"))).await.unwrap().into_inner();
    assert_eq!(put.resource_id, ID);
    let poll = v1::PollRequest { r#type: "folder".to_owned(), request_id: put.request_id };
    assert!(resources.poll(signed(&asking.token, poll)).await.unwrap().into_inner().succeeded);
    let get = v1::GetRequest { r#type: "folder".to_owned(), id: ID.to_owned() };
    let read = resources.get(signed(&asking.token, get.clone())).await.unwrap().into_inner();
    assert!(matches!(read.body, Some(v1::resource::Body::Folder(_))));
    let list = v1::ListRequest { r#type: "folder".to_owned(), ..Default::default() };
    assert_eq!(resources.list(signed(&asking.token, list)).await.unwrap().into_inner().resources.len(), 1);
    resources.delete(signed(&asking.token, get.clone())).await.unwrap();
    let gone = resources.get(signed(&asking.token, get.clone())).await.unwrap_err();
    assert_eq!(
        (gone.code(), gone.metadata().get("error-code").unwrap().to_str().unwrap()),
        (Code::NotFound, "NotFound")
    );
    let bad = resources.put(signed(&asking.token, folder("x", "a"))).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert_eq!(resources.get(get).await.unwrap_err().code(), Code::Unauthenticated);
    let reader = asking.fake.token(&[Scope::Read]);
    let mut operator = OperatorClient::new(channel);
    let hosts = operator.list_hosts(signed(&reader, v1::OperatorListRequest::default())).await.unwrap_err();
    assert_eq!(hosts.code(), Code::PermissionDenied);
    // A method of another version is told from a resource that is not there.
    let request = http::Request::post("/shardplane.v1.Operator/Nothing")
        .header("content-type", "application/grpc")
        .body(Body::empty())
        .unwrap();
    let nothing = asking.router.clone().oneshot(request).await.unwrap();
    assert_eq!(nothing.headers()["grpc-status"], (Code::Unimplemented as i32).to_string());
    let offers = operator
        .get_catalogue(signed(&reader, v1::OperatorListRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(offers.vm_offers.len(), 1);
}

#[tokio::test]
async fn a_watch_tells_what_is_there_what_changes_and_when_it_cannot_go_on() {
    let asking = Asking::new();
    let mut resources = ResourcesClient::new(connected(&asking).await);
    resources.put(signed(&asking.token, folder(ID, "a"))).await.unwrap();
    let list = v1::ListRequest { r#type: "folder".to_owned(), ..Default::default() };
    let mut watch = resources.watch(signed(&asking.token, list)).await.unwrap().into_inner();
    let name = |event: &v1::WatchEvent| match event.resource.as_ref().and_then(|r| r.body.clone()) {
        Some(v1::resource::Body::Folder(folder)) => folder.metadata.unwrap().name,
        _ => String::new(),
    };
    let event = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((name(&event).as_str(), event.deleted), ("a", false));
    resources.put(signed(&asking.token, folder(ID, "b"))).await.unwrap();
    let event = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(name(&event), "b");
    resources
        .delete(signed(&asking.token, v1::GetRequest { r#type: "folder".to_owned(), id: ID.to_owned() }))
        .await
        .unwrap();
    let event = timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((event.id.as_str(), event.deleted), (ID, true));
    asking.fake.standing.send_replace(Standing::Follows { leader: None });
    let ended = timeout(SOON, watch.message()).await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
    let refused = resources.get(signed(&asking.token, v1::GetRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_message_may_say_its_own_type_and_no_other() {
    let asking = Asking::new();
    let mut resources = ResourcesClient::new(connected(&asking).await);
    let mut put = async |version: &str, kind: &str, name: &str| {
        let mut request = folder(ID, name);
        if let Some(v1::resource::Body::Folder(folder)) =
            request.resource.as_mut().and_then(|resource| resource.body.as_mut())
        {
            (folder.api_version, folder.kind) = (version.to_owned(), kind.to_owned());
        }
        resources.put(signed(&asking.token, request)).await
    };
    put("v1", "Folder", "a").await.unwrap();
    put("", "", "b").await.unwrap();
    let refused = put("v2", "Vpc", "c").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(
        refused.message(),
        "apiVersion: must be \"v1\" here or be left out, not \"v2\"; kind: must be \"Folder\" here or be left out, not \"Vpc\""
    );
    // What the message says wrongly does not hide what it lacks.
    let refused = put("v1", "vpc", "").await.unwrap_err();
    assert_eq!(refused.metadata().get("error-code").unwrap(), "MissingNameField");
}

#[tokio::test]
async fn a_watch_ends_when_its_token_is_taken_back() {
    let asking = Asking::new();
    let mut resources = ResourcesClient::new(connected(&asking).await);
    let reader = asking.fake.token(&[Scope::Read]);
    let list = v1::ListRequest { r#type: "folder".to_owned(), ..Default::default() };
    let mut watch = resources.watch(signed(&reader, list)).await.unwrap().into_inner();
    let id = crate::secrets::token_id_of(&reader).unwrap();
    asking.fake.apply(vec![shardplane_model::command::Command::RemoveToken(id)]);
    let ended = timeout(SOON, watch.message()).await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn health_follows_the_standing_and_reflection_lists_the_services() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let asking = Asking::new();
    let channel = connected(&asking).await;
    let mut health = HealthClient::new(channel.clone());
    let service = HealthCheckRequest { service: "shardplane.v1.Resources".to_owned() };
    let mut watch = health.watch(service).await.unwrap().into_inner();
    let mut until = async |wanted: ServingStatus| {
        while timeout(SOON, watch.message()).await.unwrap().unwrap().unwrap().status != wanted as i32 {}
    };
    until(ServingStatus::Serving).await;
    asking.fake.standing.send_replace(Standing::Follows { leader: None });
    until(ServingStatus::NotServing).await;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(ask))
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("not a list of services");
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.iter().any(|name| name == "shardplane.v1.Resources"), "{names:?}");
}

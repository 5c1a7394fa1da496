//! Sessions of hosts with a real member: what a copied state directory, a revoked token and a cut lease do.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use shardplane_model::{
    command::Command,
    state::{Scope, Settings, Token},
    time::Millis,
};
use shardplane_proto::v1::{self, from_host, host_session_client::HostSessionClient, to_host};
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::{
    clock::Clock,
    dial::Dialer,
    member,
    raft::{Raft, RaftConfig, Role, Storage, Timing, disk::Directory},
    secrets::{ClusterKey, NewToken, Sealer, new_token},
    serve,
};

const SOON: Duration = Duration::from_secs(20);

/// The only member of a cluster.
pub(super) struct Lone {
    pub(super) raft: Raft,
    pub(super) clock: Clock,
    _dir: tempfile::TempDir,
}

pub(super) async fn lone() -> Lone {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::start());
    let opened = Raft::open(RaftConfig {
        node_id: 1,
        data_dir: dir.path().to_owned(),
        disk: Arc::new(Directory::new(dir.path().to_owned())),
        storage: Storage::New,
        dialer: Dialer::tcp(),
        advertise_address: "127.0.0.1:1".to_owned(),
        cluster_key: ClusterKey::for_tests(1),
        serving: true,
        clock: clock.clone(),
        timing: Timing::default(),
    });
    let raft = opened.await.unwrap();
    raft.initialize().await.unwrap();
    let mut role = raft.role();
    let leads = role.wait_for(|role| matches!(role, Role::Leader { .. }));
    timeout(SOON, leads).await.unwrap().unwrap();
    Lone { raft, clock, _dir: dir }
}

/// A member that serves hosts with this `lost_after`.
struct Serving {
    lone: Lone,
    address: SocketAddr,
    token: NewToken,
    tasks: [JoinHandle<()>; 2],
}

impl Serving {
    async fn start(lost_after: Millis) -> Self {
        let lone = lone().await;
        let token = new_token(lone.clock.now());
        let hosts = Token {
            id: token.id,
            name: "hosts".to_owned(),
            scopes: vec![Scope::Host],
            hash: token.hash.clone(),
            created: lone.clock.now(),
        };
        let settings = Settings { lost_after, ..Settings::default() };
        let commands = vec![Command::Configure(settings.clone()), Command::AddToken(hosts)];
        lone.raft.propose(commands).await.unwrap();
        let sealer = Sealer::new(&ClusterKey::for_tests(1));
        let (routes, planning) =
            member::start(lone.raft.clone(), settings, sealer, lone.clock.clone(), Dialer::tcp());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            serve::serve(listener, routes, std::future::pending()).await.unwrap();
        });
        Self { lone, address, token, tasks: [planning, serving] }
    }

    async fn stop(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.lone.raft.stop().await;
    }

    /// Opens a session and says hello; the host goes on to send a heartbeat a second.
    async fn hello(&self, boot: &str, underlay: &str) -> Result<Streaming<v1::ToHost>, Status> {
        let (say, said) = mpsc::channel(4);
        let hello = v1::HostHello {
            host_id: "01k0000000000000000000000h".to_owned(),
            name: "h1".to_owned(),
            underlay_ipv4: underlay.to_owned(),
            boot_id: boot.to_owned(),
            agent_version: "1".to_owned(),
            vmm: "namespace".to_owned(),
            ..Default::default()
        };
        say.send(v1::FromHost { body: Some(from_host::Body::Hello(hello)) }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(said));
        let bearer = format!("Bearer {}", self.token.secret).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let mut client = HostSessionClient::connect(format!("http://{}", self.address)).await.unwrap();
        let stream = client.open(request).await?.into_inner();
        tokio::spawn(async move {
            let mut beat = interval(Duration::from_secs(1));
            let body = Some(from_host::Body::Report(v1::HostReport::default()));
            while say.send(v1::FromHost { body: body.clone() }).await.is_ok() {
                beat.tick().await;
            }
        });
        Ok(stream)
    }
}

async fn next(stream: &mut Streaming<v1::ToHost>) -> Result<to_host::Body, Status> {
    let message = timeout(SOON, stream.message()).await.expect("the leader is silent")?;
    message.and_then(|message| message.body).ok_or_else(|| Status::cancelled("ended"))
}

async fn welcome(stream: &mut Streaming<v1::ToHost>) -> v1::Welcome {
    match next(stream).await.unwrap() {
        to_host::Body::Welcome(welcome) => welcome,
        other @ (to_host::Body::Spec(_) | to_host::Body::Heartbeat(_)) => panic!("{other:?} before welcome"),
    }
}

/// Reads until the session ends.
async fn ended(stream: &mut Streaming<v1::ToHost>) -> Status {
    loop {
        if let Err(status) = next(stream).await {
            return status;
        }
    }
}

async fn beats(stream: &mut Streaming<v1::ToHost>) {
    while !matches!(next(stream).await.unwrap(), to_host::Body::Heartbeat(_)) {}
}

#[tokio::test]
async fn a_host_may_start_machines_for_less_time_than_the_leader_waits_for_it() {
    for (lost_after, lease) in [(30_000, 24_000), (10_000, 4_000), (6_000, 1_500)] {
        let serving = Serving::start(Millis(lost_after)).await;
        let welcome = welcome(&mut serving.hello("one", "10.0.0.1").await.unwrap()).await;
        assert_eq!(welcome.lost_after_ms, lease, "of {lost_after}");
        serving.stop().await;
    }
}

#[tokio::test]
async fn a_second_machine_with_a_copied_host_id_is_refused_and_the_first_goes_on() {
    let serving = Serving::start(Millis::seconds(30)).await;
    let mut first = serving.hello("one", "10.0.0.1").await.unwrap();
    welcome(&mut first).await;
    beats(&mut first).await;
    let mut copied = serving.hello("another", "10.0.0.2").await.unwrap();
    let refused = next(&mut copied).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("was a state directory copied?"), "{refused}");
    beats(&mut first).await;

    // The same machine after a reboot has its address still: its new session takes over, and the old one ends.
    let mut rebooted = serving.hello("two", "10.0.0.1").await.unwrap();
    welcome(&mut rebooted).await;
    assert_eq!(ended(&mut first).await.code(), Code::Aborted);
    beats(&mut rebooted).await;
    serving.stop().await;
}

#[tokio::test]
async fn a_session_ends_when_its_token_is_revoked_and_none_opens_with_it() {
    let serving = Serving::start(Millis::seconds(30)).await;
    let mut session = serving.hello("one", "10.0.0.1").await.unwrap();
    welcome(&mut session).await;
    beats(&mut session).await;
    serving.lone.raft.propose(vec![Command::RemoveToken(serving.token.id)]).await.unwrap();
    let status = ended(&mut session).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("taken back"), "{status}");
    assert_eq!(serving.hello("one", "10.0.0.1").await.unwrap_err().code(), Code::Unauthenticated);
    serving.stop().await;
}

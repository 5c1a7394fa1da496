//! Calls to other members. In: requests of the consensus core and of the membership. Out: checked answers, each within its
//! deadline. Connections are made when first needed, kept alive and shared; snapshots have one of their own, so that
//! they never delay a heartbeat.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    io::{self, Read as _},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{
    AnyError, BasicNode, OptionalSend, RPCTypes, RaftNetwork, RaftNetworkFactory, StorageIOError,
    error::{
        Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed, StreamingError, Timeout,
        Unreachable,
    },
    network::{Backoff, RPCOption},
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
};
use serde::{Serialize, de::DeserializeOwned};
use shardplane_proto::v1::{RaftMessage, SnapshotChunk, raft_client::RaftClient};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

use super::{
    disk::{self, AnyFile, Disk},
    proof::{Distrust, Prover},
    types::{Snapshot, TypeConfig, Vote},
    wire::{Method, SnapshotHeader},
};
use crate::dial::Dialer;

/// Bytes of one message: the largest entry with room to spare.
pub(crate) const MAX_MESSAGE: usize = 32 << 20;
const CONNECT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Connections kept; more means that somebody asks for many addresses.
const MAX_CHANNELS: usize = 64;
const CHUNK: usize = 512 << 10;
/// Chunks read ahead of the network.
const CHUNKS_AHEAD: usize = 4;
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Well below the time in which a follower that came back would campaign.
const BACKOFF_MOST: Duration = Duration::from_secs(1);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{0:?} is not host:port")]
    Address(String),
    #[error("no connection to {address}: {}", .status.message())]
    Unreachable { address: String, status: Box<Status> },
    #[error("{address} did not answer within {deadline:?}")]
    Deadline { address: String, deadline: Duration },
    #[error("{address} refused: {}", .status.message())]
    Refused { address: String, status: Box<Status> },
    #[error("the answer of {address} is not to be trusted")]
    Distrust { address: String, source: Distrust },
    #[error("a message to or from {address} is not what this program expects")]
    Malformed { address: String, source: serde_json::Error },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    Calls,
    Snapshots,
}

/// The connections of one member.
pub(crate) struct Peers {
    pub(crate) prover: Prover,
    dialer: Dialer,
    channels: Mutex<HashMap<(String, Line), Channel>>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

impl Peers {
    pub(crate) fn new(prover: Prover, dialer: Dialer) -> Self {
        Self { prover, dialer, channels: Mutex::default() }
    }

    fn client(&self, address: &str, line: Line) -> Result<RaftClient<Channel>, CallError> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.to_owned(), line);
        let channel = match channels.get(&key) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))
                    .map_err(|_| CallError::Address(address.to_owned()))?
                    .connect_timeout(CONNECT)
                    .http2_keep_alive_interval(KEEP_ALIVE)
                    .keep_alive_timeout(KEEP_ALIVE)
                    .keep_alive_while_idle(true);
                if channels.len() >= MAX_CHANNELS {
                    channels.clear();
                }
                let channel = endpoint.connect_with_connector_lazy(self.dialer.clone());
                channels.insert(key, channel.clone());
                channel
            }
        };
        Ok(RaftClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    /// One call: signs the question, checks the answer.
    pub(crate) async fn call<Q: Serialize, A: DeserializeOwned>(
        &self,
        address: &str,
        to: u64,
        method: Method,
        question: &Q,
        deadline: Duration,
    ) -> Result<A, CallError> {
        let malformed = |source| CallError::Malformed { address: address.to_owned(), source };
        let question = self.prover.ask(method, to, serde_json::to_vec(question).map_err(malformed)?);
        let proof = question.proof.clone();
        let mut client = self.client(address, Line::Calls)?;
        let request = Request::new(question);
        let call = async {
            match method {
                Method::AppendEntries => client.append_entries(request).await,
                Method::Vote => client.vote(request).await,
                Method::Probe => client.probe(request).await,
                Method::Elect => client.elect(request).await,
                Method::Join => client.join(request).await,
                Method::Leave => client.leave(request).await,
                Method::Dismiss => client.dismiss(request).await,
                Method::InstallSnapshot => Err(Status::internal("a snapshot is a stream, not a call")),
            }
        };
        let answer = match timeout(deadline, call).await {
            Ok(answer) => answer.map_err(|status| failed(address, status))?.into_inner(),
            Err(_) => return Err(CallError::Deadline { address: address.to_owned(), deadline }),
        };
        self.open(address, method, &proof, &answer)
    }

    fn open<A: DeserializeOwned>(
        &self,
        address: &str,
        method: Method,
        proof: &[u8],
        answer: &RaftMessage,
    ) -> Result<A, CallError> {
        self.prover
            .check_answer(method, proof, answer)
            .map_err(|source| CallError::Distrust { address: address.to_owned(), source })?;
        serde_json::from_slice(&answer.payload)
            .map_err(|source| CallError::Malformed { address: address.to_owned(), source })
    }
}

fn failed(address: &str, status: Status) -> CallError {
    let (address, status) = (address.to_owned(), Box::new(status));
    match status.code() {
        // A member that is not up yet answers like one that is not there: with an HTTP error or none.
        Code::Unavailable | Code::Unimplemented | Code::Unknown | Code::Cancelled => {
            CallError::Unreachable { address, status }
        }
        Code::Ok
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => CallError::Refused { address, status },
    }
}

/// Makes a [`Peer`] for each member that the core speaks with.
pub(crate) struct Network {
    pub(crate) me: u64,
    pub(crate) peers: Arc<Peers>,
    pub(crate) disk: Arc<dyn Disk>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        let (peers, disk) = (self.peers.clone(), self.disk.clone());
        Peer { me: self.me, target, address: node.addr.clone(), peers, disk }
    }
}

/// One member as the core sees it.
pub(crate) struct Peer {
    me: u64,
    target: u64,
    address: String,
    peers: Arc<Peers>,
    disk: Arc<dyn Disk>,
}

type RpcResult<A> = Result<A, RPCError<u64, BasicNode, RaftError<u64>>>;

impl Peer {
    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        method: Method,
        action: RPCTypes,
        question: &Q,
        option: &RPCOption,
    ) -> RpcResult<A> {
        let deadline = option.hard_ttl();
        let answer = self.peers.call(&self.address, self.target, method, question, deadline).await;
        let answer: Result<A, RaftError<u64>> = answer.map_err(|error| match &error {
            CallError::Deadline { .. } => RPCError::Timeout(self.timed_out(action, deadline)),
            CallError::Unreachable { .. } | CallError::Refused { .. } | CallError::Address(_) => {
                RPCError::Unreachable(Unreachable::new(&error))
            }
            CallError::Distrust { .. } | CallError::Malformed { .. } => {
                RPCError::Network(NetworkError::new(&error))
            }
        })?;
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }

    fn timed_out(&self, action: RPCTypes, timeout: Duration) -> Timeout<u64> {
        Timeout { action, id: self.me, target: self.target, timeout }
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: Snapshot,
        deadline: Duration,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let network = |error: CallError| StreamingError::Network(NetworkError::new(&error));
        let malformed = |source| network(CallError::Malformed { address: self.address.clone(), source });
        let header = SnapshotHeader { vote, meta: snapshot.meta.clone() };
        let header = serde_json::to_vec(&header).map_err(malformed)?;
        let header = self.peers.prover.ask(Method::InstallSnapshot, self.target, header);
        let proof = header.proof.clone();
        let mut client = self.peers.client(&self.address, Line::Snapshots).map_err(network)?;

        let (chunks, sending) = mpsc::channel(CHUNKS_AHEAD);
        let reading = send_chunks(&self.disk, *snapshot.snapshot, header, &self.peers.prover, chunks);
        let calling = timeout(deadline, client.install_snapshot(ReceiverStream::new(sending)));
        // When the call is over, nobody takes chunks any more and the reading ends.
        let (read, called) = tokio::join!(reading, calling);
        if let Err(error) = read {
            let signature = Some(snapshot.meta.signature());
            let error = StorageIOError::read_snapshot(signature, AnyError::new(&error));
            return Err(StreamingError::StorageError(error.into()));
        }
        let answer = match called {
            Err(_) => {
                return Err(StreamingError::Timeout(self.timed_out(RPCTypes::InstallSnapshot, deadline)));
            }
            Ok(Err(status)) => {
                return Err(StreamingError::Unreachable(Unreachable::new(&failed(&self.address, status))));
            }
            Ok(Ok(answer)) => answer.into_inner(),
        };
        let answer: Result<SnapshotResponse<u64>, Fatal<u64>> =
            self.peers.open(&self.address, Method::InstallSnapshot, &proof, &answer).map_err(network)?;
        answer.map_err(|error| StreamingError::RemoteError(RemoteError::new(self.target, error)))
    }
}

/// Reads the snapshot into chunks: the header alone, the data, the proof. Ends early without an error when the receiver is
/// gone: then the call has failed and says why.
async fn send_chunks(
    disk: &Arc<dyn Disk>,
    mut file: AnyFile,
    header: RaftMessage,
    prover: &Prover,
    chunks: mpsc::Sender<SnapshotChunk>,
) -> io::Result<()> {
    let mut proof = prover.stream(&header);
    let first = SnapshotChunk { header: Some(header), data: Vec::new(), proof: Vec::new() };
    let mut open = chunks.send(first).await.is_ok();
    while open {
        let read = move || {
            let mut data = Vec::with_capacity(CHUNK);
            (&mut file).take(CHUNK as u64).read_to_end(&mut data).map(|_| (file, data))
        };
        let (rest, data) = disk::run(disk, read).await.map_err(io::Error::other)??;
        file = rest;
        if data.is_empty() {
            break;
        }
        proof.add(&data);
        open = chunks.send(SnapshotChunk { header: None, data, proof: Vec::new() }).await.is_ok();
    }
    if open {
        let last = SnapshotChunk { header: None, data: Vec::new(), proof: proof.finish() };
        let _ = chunks.send(last).await;
    }
    Ok(())
}

impl RaftNetwork<TypeConfig> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>> {
        self.ask(Method::AppendEntries, RPCTypes::AppendEntries, &request, &option).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, option: RPCOption) -> RpcResult<VoteResponse<u64>> {
        self.ask(Method::Vote, RPCTypes::Vote, &request, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let cancel = pin!(cancel);
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot, option.hard_ttl()) => sent,
        }
    }

    /// Doubling up to a second, with jitter, so that members that lost the same peer do not call in step.
    fn backoff(&self) -> Backoff {
        let doubling = std::iter::successors(Some(BACKOFF_FIRST), |last| Some((*last * 2).min(BACKOFF_MOST)));
        Backoff::new(doubling.map(|wait| wait.mul_f64(rand::random_range(0.75..1.0))))
    }
}

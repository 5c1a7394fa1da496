//! What other members may call. In: `shardplane.v1.Raft` calls that prove the cluster key. Out: answers of the consensus core
//! and of the membership. Mounted on the member's one port by `serve`.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use openraft::raft::{AppendEntriesRequest, SnapshotResponse, VoteRequest};
use serde::{Serialize, de::DeserializeOwned};
use shardplane_proto::v1::{RaftMessage, SnapshotChunk, raft_server};
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    disk::{self, AnyFile, Disk},
    members::Keeper,
    proof::{Distrust, Prover},
    types::{Core, Snapshot, TypeConfig},
    wire::{JoinRequest, LeaveRequest, Method, ProbeAnswer, SnapshotHeader},
};

/// How long the next piece of a snapshot may take.
const CHUNK: Duration = Duration::from_secs(10);
/// The most that a joining member may ask for.
const LONGEST_JOIN: Duration = Duration::from_secs(3600);

/// The service of one member.
#[derive(Clone)]
pub struct RaftService {
    pub(crate) me: u64,
    pub(crate) core: Core,
    pub(crate) prover: Prover,
    pub(crate) keeper: Keeper,
    pub(crate) disk: Arc<dyn Disk>,
    /// False while the member only joins.
    pub(crate) serving: bool,
    /// One snapshot is received at a time.
    pub(crate) receiving: Arc<Semaphore>,
    pub(crate) dismissed: Arc<Dismissed>,
}

/// That this member was taken out.
#[derive(Debug, Default)]
pub(crate) struct Dismissed {
    pub(crate) happened: AtomicBool,
    pub(crate) told: Notify,
}

type Answer = Result<Response<RaftMessage>, Status>;

impl RaftService {
    fn open<Q: DeserializeOwned>(&self, method: Method, question: &RaftMessage) -> Result<Q, Status> {
        self.prover.check(method, self.me, question).map_err(|distrust| match distrust {
            Distrust::Proof => Status::unauthenticated(distrust.to_string()),
            Distrust::OtherMember | Distrust::Format(_) => Status::failed_precondition(distrust.to_string()),
        })?;
        serde_json::from_slice(&question.payload).map_err(|e| Status::invalid_argument(e.to_string()))
    }

    fn answer<A: Serialize>(&self, method: Method, question: &RaftMessage, answer: &A) -> Answer {
        let payload = serde_json::to_vec(answer).map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(self.prover.answer(method, &question.proof, payload)))
    }

    async fn receive(
        &self,
        header: &RaftMessage,
        mut chunks: Streaming<SnapshotChunk>,
    ) -> Result<AnyFile, Status> {
        let mut file =
            *self.core.begin_receiving_snapshot().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let mut proof = self.prover.stream(header);
        loop {
            let chunk = next(&mut chunks).await?;
            if !chunk.proof.is_empty() {
                proof.check(&chunk.proof).map_err(|e| Status::unauthenticated(e.to_string()))?;
                return Ok(file);
            }
            proof.add(&chunk.data);
            let written = disk::run(&self.disk, move || file.write_all(&chunk.data).map(|()| file)).await;
            file = written.map_err(|e| Status::internal(e.to_string()))??;
        }
    }
}

async fn next(chunks: &mut Streaming<SnapshotChunk>) -> Result<SnapshotChunk, Status> {
    match timeout(CHUNK, chunks.message()).await {
        Ok(Ok(Some(chunk))) => Ok(chunk),
        Ok(Ok(None)) => Err(Status::aborted("the snapshot ended before its proof")),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::deadline_exceeded(format!("no piece of the snapshot came within {CHUNK:?}"))),
    }
}

#[tonic::async_trait]
impl raft_server::Raft for RaftService {
    async fn append_entries(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let rpc: AppendEntriesRequest<TypeConfig> = self.open(Method::AppendEntries, &question)?;
        let answer = self.core.append_entries(rpc).await;
        self.answer(Method::AppendEntries, &question, &answer)
    }

    async fn vote(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let rpc: VoteRequest<u64> = self.open(Method::Vote, &question)?;
        let answer = self.core.vote(rpc).await;
        self.answer(Method::Vote, &question, &answer)
    }

    async fn install_snapshot(&self, request: Request<Streaming<SnapshotChunk>>) -> Answer {
        let busy = || Status::resource_exhausted("another snapshot is being received");
        let _receiving = self.receiving.try_acquire().map_err(|_| busy())?;
        let mut chunks = request.into_inner();
        let first = next(&mut chunks).await?;
        let header = first.header.ok_or_else(|| Status::invalid_argument("the snapshot has no header"))?;
        let SnapshotHeader { vote, meta } = self.open(Method::InstallSnapshot, &header)?;

        let mine = self.core.with_raft_state(|state| *state.vote_ref()).await;
        let mine = mine.map_err(|e| Status::unavailable(e.to_string()))?;
        let answer = if vote >= mine {
            if !first.data.is_empty() {
                return Err(Status::invalid_argument("the first piece of a snapshot is its header alone"));
            }
            let file = self.receive(&header, chunks).await?;
            self.core.install_full_snapshot(vote, Snapshot { meta, snapshot: Box::new(file) }).await
        } else {
            // A leader of the past need not send all of it to learn that.
            Ok(SnapshotResponse::new(mine))
        };
        self.answer(Method::InstallSnapshot, &header, &answer)
    }

    async fn probe(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let () = self.open(Method::Probe, &question)?;
        self.answer(Method::Probe, &question, &ProbeAnswer { id: self.me, serving: self.serving })
    }

    async fn elect(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let () = self.open(Method::Elect, &question)?;
        self.core.trigger().elect().await.map_err(|e| Status::unavailable(e.to_string()))?;
        self.answer(Method::Elect, &question, &())
    }

    async fn join(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let JoinRequest { id, address, deadline_ms } = self.open(Method::Join, &question)?;
        let deadline = Duration::from_millis(deadline_ms).min(LONGEST_JOIN);
        let answer = self.keeper.add(id, &address, deadline).await;
        self.answer(Method::Join, &question, &answer)
    }

    async fn leave(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let LeaveRequest { id, allow_even } = self.open(Method::Leave, &question)?;
        let answer = self.keeper.remove(id, allow_even).await;
        self.answer(Method::Leave, &question, &answer)
    }

    async fn dismiss(&self, request: Request<RaftMessage>) -> Answer {
        let question = request.into_inner();
        let () = self.open(Method::Dismiss, &question)?;
        self.dismissed.happened.store(true, Ordering::Release);
        self.dismissed.told.notify_one();
        self.answer(Method::Dismiss, &question, &())
    }
}

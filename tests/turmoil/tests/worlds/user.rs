//! A user who writes and reads by REST. In: the members' addresses. Out: in the book: what was acknowledged, which may never be lost,
//! and every answer that broke a promise.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use shardplane_coordinator::dial::Dialer;
use tokio::time::{sleep, timeout};
use ulid::Ulid;

use crate::net;

/// How long a user waits for an answer.
const ANSWER: Duration = Duration::from_secs(12);

/// What users know.
#[derive(Default)]
pub struct Book {
    /// By resource: the newest acknowledged number, and the newest one that was asked for.
    pub folders: BTreeMap<Ulid, Numbers>,
    /// Requests that were acknowledged.
    pub requests: Vec<(String, Ulid)>,
    /// Broken promises.
    pub broken: Vec<String>,
    pub writes: u64,
    pub reads: u64,
    /// Answers that were none.
    pub failures: u64,
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Numbers {
    pub acknowledged: u64,
    pub asked: u64,
}

pub type Ledger = Arc<Mutex<Book>>;

pub fn open(ledger: &Ledger) -> MutexGuard<'_, Book> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client of the REST API.
pub struct Rest {
    client: Client<Dialer, Full<Bytes>>,
    token: String,
}

impl Rest {
    pub fn new(token: &str) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.timer(TokioTimer::new()).pool_max_idle_per_host(0);
        Self { client: builder.build(net::dialer()), token: token.to_owned() }
    }

    /// One request; none when there is no whole answer in time.
    pub async fn ask(&self, method: &str, at: &str, path: &str, body: Value) -> Option<(StatusCode, Value)> {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{at}{path}"))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(Full::new(body))
            .unwrap();
        let asked = async {
            let answer = self.client.request(request).await.ok()?;
            let status = answer.status();
            let bytes = answer.into_body().collect().await.ok()?.to_bytes();
            Some((status, serde_json::from_slice(&bytes).ok()?))
        };
        timeout(ANSWER, asked).await.ok()?
    }
}

/// One user, who writes folders whose names count up, and reads them.
pub struct User {
    pub seed: u64,
    pub token: String,
    pub members: Vec<String>,
    pub ledger: Ledger,
}

/// The number in a folder's name.
pub fn number(name: &str) -> Option<u64> {
    name.strip_prefix("n")?.parse().ok()
}

impl User {
    pub async fn run(self) -> turmoil::Result {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let rest = Rest::new(&self.token);
        let mut folders: Vec<Ulid> = Vec::new();
        loop {
            sleep(Duration::from_millis(dice.random_range(20..300))).await;
            let at = &self.members[dice.random_range(0..self.members.len())];
            if folders.len() < 3 || dice.random_bool(0.02) {
                folders.push(Ulid::from_parts(dice.random_range(1..1 << 40), dice.random()));
            }
            let folder = folders[dice.random_range(0..folders.len())];
            if dice.random_bool(0.3) {
                self.read(&rest, at, folder).await;
            } else {
                self.write(&rest, at, folder).await;
            }
        }
    }

    async fn write(&self, rest: &Rest, at: &str, folder: Ulid) {
        let asked = {
            let mut book = open(&self.ledger);
            let numbers = book.folders.entry(folder).or_default();
            numbers.asked += 1;
            numbers.asked
        };
        let id = folder.to_string().to_lowercase();
        let body = json!({"metadata": {"id": id, "name": format!("n{asked}")}, "spec": {}});
        let answer = rest.ask("PUT", at, "/api/v1/folder", body).await;
        let mut book = open(&self.ledger);
        match answer {
            Some((StatusCode::OK, answer)) => {
                let request = answer["requestId"].as_str().unwrap_or_default().to_owned();
                if request.is_empty() {
                    book.broken.push(format!("an accepted change without a request id: {answer}"));
                }
                book.writes += 1;
                book.requests.push((request, folder));
                if let Some(numbers) = book.folders.get_mut(&folder) {
                    numbers.acknowledged = asked;
                }
            }
            Some((StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT, _)) | None => {
                book.failures += 1
            }
            Some((status, answer)) => book.broken.push(format!("PUT was answered {status} {answer}")),
        }
    }

    /// What is read holds all that was acknowledged before, and nothing that nobody asked for.
    async fn read(&self, rest: &Rest, at: &str, folder: Ulid) {
        let before = open(&self.ledger).folders.get(&folder).copied().unwrap_or_default();
        let path = format!("/api/v1/folder/{}", folder.to_string().to_lowercase());
        let answer = rest.ask("GET", at, &path, Value::Null).await;
        let mut book = open(&self.ledger);
        let found = match &answer {
            Some((StatusCode::OK, answer)) => {
                answer["resource"]["metadata"]["name"].as_str().and_then(number).unwrap_or(u64::MAX)
            }
            Some((StatusCode::UNPROCESSABLE_ENTITY, _)) => 0,
            Some((StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT, _)) | None => {
                book.failures += 1;
                return;
            }
            Some((status, answer)) => {
                book.broken.push(format!("GET was answered {status} {answer}"));
                return;
            }
        };
        book.reads += 1;
        if !(before.acknowledged..=before.asked).contains(&found) {
            book.broken.push(format!("folder {folder} reads as {found}, after {before:?}"));
        }
    }
}

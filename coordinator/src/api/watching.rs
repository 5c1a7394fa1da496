//! Watching resources, for gRPC and REST. In: a type, what to look at, and a caller who was let in. Out: every matching resource once, then each that looks
//! different, status included, and those that went. Changes that come faster than the watcher reads are drawn together; the
//! stream ends with `Unavailable` when this member no longer leads, and the watcher begins anew elsewhere.

use std::{collections::BTreeMap, time::Duration};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use shardplane_model::{resource::Kind, state::Scope};
use shardplane_proto::{ids::ResourceId, v1};
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    errors::{Problem, Trouble},
    rest,
    store::Standing,
    verbs::Session,
};

/// The stream of a watcher.
pub type Events = ReceiverStream<Result<v1::WatchEvent, Problem>>;

/// What to look at.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Label patterns that all match.
    pub labels: Vec<(String, String)>,
    /// One resource alone; the watch ends when it is gone.
    pub id: Option<ResourceId>,
}

/// Events that may wait for a slow watcher; then the watch itself waits.
const QUEUE: usize = 64;

/// Changes within this time are one event.
const TOGETHER: Duration = Duration::from_millis(100);

/// What the watcher was last told about a resource: a digest of the message.
type Told = BTreeMap<ResourceId, [u8; 32]>;

/// Starts a watch; it ends when the watcher goes or this member stops leading.
pub fn start(session: Session, kind: Kind, filter: Filter) -> Events {
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        let why = run(session, kind, &filter, &sender).await;
        if let Some(problem) = why {
            // Nobody is left to tell when this fails.
            let _ = sender.send(Err(problem)).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// Runs until the watcher is gone (none) or the watch cannot go on (why).
async fn run(
    mut session: Session,
    kind: Kind,
    filter: &Filter,
    sender: &mpsc::Sender<Result<v1::WatchEvent, Problem>>,
) -> Option<Problem> {
    let mut standing = session.api.store.standing();
    let mut applied = session.api.store.applied();
    let mut heard = session.api.reports.changed();
    let mut told = Told::new();
    loop {
        // Marked before the state is read: what changes in between is seen in the next round, never lost.
        applied.mark_unchanged();
        heard.mark_unchanged();
        if !matches!(*standing.borrow_and_update(), Standing::Leads { .. }) {
            return Some(Problem::new(Trouble::Unavailable, "this member no longer leads: watch again"));
        }
        session.state = session.api.store.local();
        session.observed = session.api.reports.observed();
        let token =
            session.state.tokens.values().find(|token| token.id.to_string() == session.caller.user.id);
        if token.is_none_or(|token| !token.scopes.contains(&Scope::Read)) {
            return Some(Problem::new(Trouble::Unauthenticated, "the token of this watch was taken back"));
        }
        for event in changes(&session, kind, filter, &mut told) {
            let over = event.deleted && filter.id.is_some();
            if sender.send(Ok(event)).await.is_err() || over {
                return None;
            }
        }
        let stopped = tokio::select! {
            () = sender.closed() => return None,
            changed = standing.changed() => changed.is_err(),
            changed = applied.changed() => changed.is_err(),
            changed = heard.changed() => changed.is_err(),
        };
        if stopped {
            return Some(Problem::new(Trouble::Unavailable, "this member is stopping: watch again"));
        }
        sleep(TOGETHER).await;
    }
}

/// A message without the ages in its texts: that time passes is no change.
fn lasting(message: &v1::Resource) -> v1::Resource {
    let mut message = message.clone();
    if let Some(v1::resource::Body::Valkey(cluster)) = &mut message.body
        && let Some(status) = &mut cluster.status
    {
        for text in [&mut status.anti_affinity_message, &mut status.primary_spread_message] {
            *text = ageless(text);
        }
    }
    if let Some(v1::resource::Body::PostgreSql(cluster)) = &mut message.body
        && let Some(status) = &mut cluster.status
    {
        status.anti_affinity_message = ageless(&status.anti_affinity_message);
    }
    message
}

/// The text without `oldest report … ago`.
fn ageless(text: &str) -> String {
    let age = text.split_once("oldest report ").and_then(|(before, rest)| {
        let (_, after) = rest.split_once(" ago")?;
        Some(format!("{before}{after}"))
    });
    age.unwrap_or_else(|| text.to_owned())
}

/// What looks different from what the watcher was told.
fn changes(session: &Session, kind: Kind, filter: &Filter, told: &mut Told) -> Vec<v1::WatchEvent> {
    let mut events = Vec::new();
    let mut now = Told::new();
    for (id, resource) in &session.state.resources {
        let asked = filter.id.is_none_or(|wanted| wanted == *id);
        if !asked || resource.kind() != kind || !rest::labels_match(&resource.metadata.labels, &filter.labels)
        {
            continue;
        }
        let message = session.without_secrets(resource);
        let digest = Sha256::digest(lasting(&message).encode_to_vec()).into();
        if told.get(id) != Some(&digest) {
            events.push(v1::WatchEvent { resource: Some(message), deleted: false, id: id.to_string() });
        }
        now.insert(*id, digest);
    }
    let gone = told.keys().filter(|id| !now.contains_key(id));
    events.extend(gone.map(|id| v1::WatchEvent { resource: None, deleted: true, id: id.to_string() }));
    *told = now;
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_age_is_taken_out_of_a_text() {
        let text = "every primary is apart; oldest report 2 s ago; not confirmed now: a on h1";
        assert_eq!(ageless(text), "every primary is apart; ; not confirmed now: a on h1");
        assert_eq!(ageless("nothing reported yet"), "nothing reported yet");
    }
}
